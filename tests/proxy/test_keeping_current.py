"""What keeps the front door current: who left while nobody could say so is found, counts follow the workers, and nobody
is served by what nothing keeps current."""

import asyncio
import json

import pytest

from bench._proxy_server import Town
from codehub.adapters.memory import Fault, FaultyNetwork
from codehub.adapters.memory.fault_injection import Mishap
from codehub.adapters.system import SystemClock
from codehub.proxy import app
from codehub.proxy.workers import WorkerMetrics
from codehub.telemetry import Metrics
from codehub.usecases.identity import digest
from tests.eventually import eventually
from tests.proxy.doors import Raw, get, patient, status
from tests.proxy.test_websocket import OFFER, SWITCH
from tests.proxy.workspaces import OK, Workspace


async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readuntil(b"\r\n\r\n")
    writer.write(SWITCH)
    await reader.read()


@pytest.mark.parametrize("comes_back", [False, True], ids=["the bus stays away", "the bus is back"])
async def test_who_left_unheard_is_shown_out(
    comes_back: bool, workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(app, "DEAF_RECHECK_SECONDS", 0.05)
    workspace.handler = talk
    town = Town()
    sites = [await town.settle(f"town-{number}") for number in range(2)]
    door = town.door(workspace.endpoint.port or 0)
    running = asyncio.ensure_future(door.run())
    await door.hears(5.0)
    port = await door.server.listen("127.0.0.1", 0)
    raws = []
    for host, cookie in sites:
        raw = Raw(*await asyncio.open_connection("127.0.0.1", port))
        raw.write(get("/ws", *OFFER[:-1], f"Origin: http://{host}", f"Cookie: {cookie}", host=host))
        assert status(await raw.head()) == 101
        raws.append(raw)

    whole = town.bus._wire
    town.bus._wire = FaultyNetwork(SystemClock(), lambda _name: Fault(Mishap.FAIL))
    town.bus.world.sever()
    secret = sites[0][1].partition("=")[2]
    del town.people.world.visits[digest(secret)]
    if comes_back:
        town.bus._wire = whole
    assert (await raws[0].rest())[2:4] == (1008).to_bytes(2, "big")
    assert door.server.upgraded == 1
    for raw in raws:
        raw.close()
    await door.server.drain(0.0, 0.0)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_nothing_is_served_when_what_keeps_it_current_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    town = Town()
    door = town.door(1)

    async def breaks() -> None:
        raise RuntimeError("a part of ours is broken")

    monkeypatch.setattr(door.activities, "run", breaks)
    cancelled = asyncio.Event()

    async def serve() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    with pytest.raises(ExceptionGroup):
        await patient(door.beside(serve()))
    assert cancelled.is_set()


async def test_what_is_under_way_when_something_fails_is_answered(workspace: Workspace) -> None:
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
    town = Town()
    host, cookie = await town.settle("town")
    door = town.door(workspace.endpoint.port or 0)
    door.activities.run = breaks  # type: ignore[method-assign]
    port: list[int] = []

    async def serve() -> None:
        port.append(await door.server.listen("127.0.0.1", 0))
        await asyncio.Event().wait()

    ending = asyncio.ensure_future(door.beside(serve()))
    await eventually(lambda: bool(port))
    raw = Raw(*await asyncio.open_connection("127.0.0.1", port[0]))
    raw.write(get("/", f"Cookie: {cookie}", host=host))
    await eventually(lambda: door.server.draining)
    go_on.set()
    head, body = await raw.answer()
    assert (status(head), body) == (200, b"ok")
    assert b"Connection: close" in head
    with pytest.raises(ExceptionGroup):
        await patient(ending)
    raw.close()


async def test_it_ends_when_serving_does() -> None:
    door = Town().door(1)
    await patient(door.beside(asyncio.sleep(0)))


def told(connections: int, sockets: int, served: int) -> bytes:
    answers = {"ide": [0, 0, served, 0, 0, 0]}
    counts = {"connections": connections, "sockets": sockets, "answers": answers, "turned_away": {"address": served}}
    return json.dumps(counts).encode()


def test_a_worker_that_is_gone_has_nothing_open() -> None:
    metrics = Metrics()
    census = WorkerMetrics(metrics, lambda: None)

    def value(name: str, **labels: str) -> float | None:
        return metrics.registry.get_sample_value(name, labels)

    census.said(1, told(5, 3, 10))
    census.said(2, told(7, 4, 10))
    assert (value("codehub_proxy_connections"), value("codehub_proxy_sockets")) == (12, 7)
    census.gone(1)
    assert (value("codehub_proxy_connections"), value("codehub_proxy_sockets")) == (7, 4)
    census.said(1, told(1, 1, 2))  # another of the same number
    assert value("codehub_proxy_requests_total", route="ide", status="2xx") == 22
    assert value("codehub_proxy_turned_away_total", cap="address") == 22
