"""What passes the proxy reaches the charts: counted once, whatever fails on the way."""

import time
from collections.abc import AsyncIterator

import pytest

from tests.eventually import eventually
from tests.proxy.deployment import Deployment, deployed, handshake_and_echo


@pytest.fixture
async def deployment() -> AsyncIterator[Deployment]:
    async with deployed() as opened:
        yield opened


def written(deployment: Deployment) -> tuple[int, float]:
    minutes = deployment.database.state.traffic.values()
    return sum(one.requests for one in minutes), sum(one.socket_seconds for one in minutes)


async def test_requests_are_written_once(deployment: Deployment) -> None:
    ann = await deployment.person()
    desk = await deployment.workspace(ann)
    for _ in range(3):
        assert (await deployment.get(desk, "/", ann)).status_code == 200
    for _ in range(2):
        await deployment.proxy.traffic.flush()
        assert written(deployment) == (3, 0.0)


async def test_sockets_count_for_as_long_as_they_are_open(deployment: Deployment) -> None:
    deployment.ide.handler = handshake_and_echo
    ann = await deployment.person()
    desk = await deployment.workspace(ann)
    deployment.proxy.traffic.tick()
    before = time.monotonic()
    sockets = [await deployment.open_socket(desk, ann) for _ in range(2)]
    await deployment.proxy.traffic.flush()
    requests, seconds = written(deployment)
    assert requests == 2
    assert 0 < seconds <= 2 * (time.monotonic() - before)
    for socket in sockets:
        socket.raw.close()
    await eventually(lambda: deployment.proxy.server.upgraded == 0)
    await deployment.proxy.traffic.flush()
    closed = written(deployment)
    await deployment.proxy.traffic.flush()
    assert written(deployment) == closed


async def test_what_could_not_be_written_is_written_later(deployment: Deployment) -> None:
    ann = await deployment.person()
    desk = await deployment.workspace(ann)
    await deployment.get(desk, "/", ann)
    deployment.outages.away = ("traffic.",)
    await deployment.proxy.traffic.flush()
    assert written(deployment) == (0, 0.0)
    await deployment.get(desk, "/", ann)
    deployment.outages.away = ()
    await deployment.proxy.traffic.flush()
    assert written(deployment) == (2, 0.0)
