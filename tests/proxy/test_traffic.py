"""What passes the door reaches the charts: counted once, whatever fails on the way."""

import time
from collections.abc import AsyncIterator

import pytest

from tests.eventually import eventually
from tests.proxy.hub import Hub, handshake_and_echo, hub_on


@pytest.fixture
async def hub() -> AsyncIterator[Hub]:
    async with hub_on() as opened:
        yield opened


def written(hub: Hub) -> tuple[int, float]:
    minutes = hub.database.world.traffic.values()
    return sum(one.requests for one in minutes), sum(one.socket_seconds for one in minutes)


async def test_requests_are_written_once(hub: Hub) -> None:
    ann = await hub.person()
    desk = await hub.workspace(ann)
    for _ in range(3):
        assert (await hub.get(desk, "/", ann)).status_code == 200
    for _ in range(2):
        await hub.door.traffic.flush()
        assert written(hub) == (3, 0.0)


async def test_sockets_count_for_as_long_as_they_are_open(hub: Hub) -> None:
    hub.ide.handler = handshake_and_echo
    ann = await hub.person()
    desk = await hub.workspace(ann)
    hub.door.traffic.tick()
    before = time.monotonic()
    sockets = [await hub.open_socket(desk, ann) for _ in range(2)]
    await hub.door.traffic.flush()
    requests, seconds = written(hub)
    assert requests == 2
    assert 0 < seconds <= 2 * (time.monotonic() - before)
    for socket in sockets:
        socket.raw.close()
    await eventually(lambda: hub.door.server.upgraded == 0)
    await hub.door.traffic.flush()
    closed = written(hub)
    await hub.door.traffic.flush()
    assert written(hub) == closed


async def test_what_could_not_be_written_is_written_later(hub: Hub) -> None:
    ann = await hub.person()
    desk = await hub.workspace(ann)
    await hub.get(desk, "/", ann)
    hub.outages.away = ("traffic.",)
    await hub.door.traffic.flush()
    assert written(hub) == (0, 0.0)
    await hub.get(desk, "/", ann)
    hub.outages.away = ()
    await hub.door.traffic.flush()
    assert written(hub) == (2, 0.0)
