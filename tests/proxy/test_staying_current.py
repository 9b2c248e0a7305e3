"""What keeps the proxy current: who left while nobody could say so is found, counts follow the workers, and nobody
is served by what nothing keeps current."""

import asyncio
import json

import pytest

from bench._proxy_server import BenchDeployment
from codehub.adapters.memory import Fault, FaultyNetwork
from codehub.adapters.memory.fault_injection import FaultKind
from codehub.adapters.system import SystemClock
from codehub.proxy import app
from codehub.proxy.workers import WorkerMetrics
from codehub.telemetry import Metrics
from codehub.usecases.identity import digest
from tests.eventually import eventually
from tests.proxy.fake_workspace import OK, FakeWorkspace
from tests.proxy.harness import RawConnection, get, in_time, status
from tests.proxy.test_websocket import OFFER, SWITCH


async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readuntil(b"\r\n\r\n")
    writer.write(SWITCH)
    await reader.read()


@pytest.mark.parametrize("comes_back", [False, True], ids=["the bus stays away", "the bus is back"])
async def test_a_lost_revocation_still_ends_sockets(
    comes_back: bool, workspace: FakeWorkspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(app, "UNSUBSCRIBED_RECHECK_SECONDS", 0.05)
    workspace.handler = talk
    deployment = BenchDeployment()
    sites = [await deployment.add_user(f"town-{number}") for number in range(2)]
    proxy = deployment.proxy(workspace.endpoint.port or 0)
    running = asyncio.ensure_future(proxy.run())
    await proxy.wait_until_current(5.0)
    port = await proxy.server.listen("127.0.0.1", 0)
    raws = []
    for host, cookie in sites:
        raw = RawConnection(*await asyncio.open_connection("127.0.0.1", port))
        raw.write(get("/ws", *OFFER[:-1], f"Origin: http://{host}", f"Cookie: {cookie}", host=host))
        assert status(await raw.head()) == 101
        raws.append(raw)

    whole = deployment.bus._network
    deployment.bus._network = FaultyNetwork(SystemClock(), lambda _name: Fault(FaultKind.FAIL))
    deployment.bus.state.sever()
    secret = sites[0][1].partition("=")[2]
    del deployment.people.state.visits[digest(secret)]
    if comes_back:
        deployment.bus._network = whole
    assert (await raws[0].rest())[2:4] == (1008).to_bytes(2, "big")
    assert proxy.server.upgraded == 1
    for raw in raws:
        raw.close()
    await proxy.server.drain(0.0, 0.0)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_nothing_is_served_when_what_keeps_it_current_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    deployment = BenchDeployment()
    proxy = deployment.proxy(1)

    async def breaks() -> None:
        raise RuntimeError("a part of ours is broken")

    monkeypatch.setattr(proxy.activities, "run", breaks)
    cancelled = asyncio.Event()

    async def serve() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    with pytest.raises(ExceptionGroup):
        await in_time(proxy.run_beside(serve()))
    assert cancelled.is_set()


async def test_what_is_under_way_when_something_fails_is_answered(workspace: FakeWorkspace) -> None:
    asked, go_on = asyncio.Event(), asyncio.Event()

    async def slow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        asked.set()
        await go_on.wait()
        writer.write(OK)

    async def breaks() -> None:
        await asked.wait()
        raise RuntimeError("a part of ours is broken")

    workspace.handler = slow
    deployment = BenchDeployment()
    host, cookie = await deployment.add_user("town")
    proxy = deployment.proxy(workspace.endpoint.port or 0)
    proxy.activities.run = breaks  # type: ignore[method-assign]
    port: list[int] = []

    async def serve() -> None:
        port.append(await proxy.server.listen("127.0.0.1", 0))
        await asyncio.Event().wait()

    ending = asyncio.ensure_future(proxy.run_beside(serve()))
    await eventually(lambda: bool(port))
    raw = RawConnection(*await asyncio.open_connection("127.0.0.1", port[0]))
    raw.write(get("/", f"Cookie: {cookie}", host=host))
    await eventually(lambda: proxy.server.draining)
    go_on.set()
    head, body = await raw.answer()
    assert (status(head), body) == (200, b"ok")
    assert b"Connection: close" in head
    with pytest.raises(ExceptionGroup):
        await in_time(ending)
    raw.close()


async def test_it_ends_when_serving_does() -> None:
    proxy = BenchDeployment().proxy(1)
    await in_time(proxy.run_beside(asyncio.sleep(0)))


def told(connections: int, sockets: int, served: int) -> bytes:
    answers = {"ide": [0, 0, served, 0, 0, 0]}
    counts = {"connections": connections, "sockets": sockets, "answers": answers, "turned_away": {"address": served}}
    return json.dumps(counts).encode()


def test_a_worker_that_is_gone_has_nothing_open() -> None:
    metrics = Metrics()
    census = WorkerMetrics(metrics, lambda: None)

    def value(name: str, **labels: str) -> float | None:
        return metrics.registry.get_sample_value(name, labels)

    census.worker_reported(1, told(5, 3, 10))
    census.worker_reported(2, told(7, 4, 10))
    assert (value("codehub_proxy_connections"), value("codehub_proxy_sockets")) == (12, 7)
    census.worker_exited(1)
    assert (value("codehub_proxy_connections"), value("codehub_proxy_sockets")) == (7, 4)
    census.worker_reported(1, told(1, 1, 2))  # another of the same number
    assert value("codehub_proxy_requests_total", route="ide", status="2xx") == 22
    assert value("codehub_proxy_turned_away_total", cap="address") == 22
