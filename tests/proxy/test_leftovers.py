"""Who leaves, leaves nothing behind: what a connection was made of goes with it, without a collector that looks for
circles. Memory then returns at once, and no pause to look for it comes at a bad moment."""

import asyncio
import gc
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace

import pytest

from codehub.proxy.presence.tap import AppPresence, IdePresence
from tests.eventually import eventually
from tests.proxy.doors import LIMITS, Raw, get, patient
from tests.proxy.hub import Hub, Somebody, hub_on
from tests.proxy.test_caps import reset
from tests.proxy.test_live_sockets import masked
from tests.proxy.test_websocket import SWITCH
from tests.proxy.workspaces import OK

Visit = Callable[[Hub, "Scene"], Awaitable[None]]


class Scene:
    def __init__(self, ann: Somebody, slug: str, host: str, secret: str) -> None:
        self.ann, self.slug, self.host, self.secret = ann, slug, host, secret

    def request(self, path: str = "/", *lines: str, method: str = "GET", host: str | None = None) -> bytes:
        cookie = f"Cookie: __Host-codehub-visit={self.secret}"
        return get(path, cookie, *lines, method=method, host=host or self.host)

    def offer(self, path: str = "/ws") -> bytes:
        handshake = (
            "Connection: Upgrade",
            "Upgrade: websocket",
            "Sec-WebSocket-Version: 13",
            "Sec-WebSocket-Key: AAAA",
        )
        return self.request(path, *handshake, f"Origin: http://{self.host}")


async def ide(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while head := await reader.readuntil(b"\r\n\r\n"):
        path = head.split(b" ")[1]
        if path == b"/ws":
            writer.write(SWITCH)
            while data := await reader.read(65536):
                writer.write(data)
            return
        if path == b"/hangs-up":
            return
        if path == b"/half":
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf")
            return
        if path == b"/garbage":
            writer.write(b"what?\r\n\r\n")
            return
        if path == b"/never":
            await reader.read()
            return
        writer.write(OK)


async def at(hub: Hub) -> Raw:
    return Raw(*await asyncio.open_connection("127.0.0.1", hub.port))


async def _asks(hub: Hub, request: bytes) -> None:
    raw = await at(hub)
    raw.write(request)
    await raw.head()
    raw.close()


def asks(*args: str, **more: str) -> Visit:
    return lambda hub, scene: _asks(hub, scene.request(*args, **more))


async def goes_at_once(hub: Hub, scene: Scene) -> None:
    raw = await at(hub)
    raw.write(scene.request("/never"))
    await eventually(lambda: len(hub.door.server.forwards()) == 1)
    reset(raw)


async def talks(hub: Hub, scene: Scene) -> None:
    raw = await at(hub)
    raw.write(scene.offer())
    await raw.head()
    raw.write(masked(b"hello"))
    await patient(raw.reader.readexactly(11))
    raw.close()


async def just_connects(hub: Hub, scene: Scene) -> None:
    raw = await at(hub)
    raw.write(scene.offer())
    await raw.head()
    reset(raw)


async def is_shown_out(hub: Hub, scene: Scene) -> None:
    raw, asking = await at(hub), await at(hub)
    raw.write(scene.offer())
    asking.write(scene.request("/never"))
    await raw.head()
    await eventually(lambda: len(hub.door.server.forwards()) == 2)
    hub.door.server.abort_sockets(lambda _: True)
    await asking.head()
    await raw.rest()
    for each in (raw, asking):
        each.close()


async def is_turned_away(hub: Hub, scene: Scene) -> None:
    raws = [await at(hub) for _ in range(4)]
    await eventually(lambda: hub.door.server.connections == 4)
    await _asks(hub, scene.request())
    for raw in raws:
        raw.close()


VISITS: dict[str, Visit] = {
    "a request": asks(),
    "with a body": asks("/", "Content-Length: 0", method="POST"),
    "asks the API": asks("/api/v1/me", host="hub.test"),
    "waits for a decision": asks("/_codehub/state"),
    "a stranger's host": asks(host="nobody.test"),
    "refused": asks("/", "Bad Header: 1"),
    "nobody answers": asks("/hangs-up"),
    "an answer breaks off": asks("/half"),
    "garbage": asks("/garbage"),
    "goes at once": goes_at_once,
    "a socket": just_connects,
    "a socket that talks": talks,
    "shown out": is_shown_out,
    "turned away": is_turned_away,
}


@pytest.fixture
async def hub() -> AsyncIterator[Hub]:
    async with hub_on(door_limits=replace(LIMITS, per_address=4, linger_seconds=0.1)) as opened:
        opened.ide.handler = ide
        yield opened


@pytest.mark.parametrize("visit", VISITS.values(), ids=VISITS)
async def test_a_visit_leaves_no_circles(hub: Hub, visit: Visit) -> None:
    ann = await hub.person()
    demo = await hub.workspace(ann)
    scene = Scene(ann, demo.slug, hub.host(demo), await hub.visit(ann, demo))
    server = hub.door.server

    async def several() -> None:
        for _ in range(5):
            await visit(hub, scene)
            await eventually(lambda: server.connections == 0 and not server._leaving)
        await eventually(lambda: hub.ide.open <= server.kept_connections)
        for _ in range(5):
            await asyncio.sleep(0.01)

    await several()
    gc.collect()
    gc.disable()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        await several()
        gc.collect()
        left = Counter(type(each).__qualname__ for each in gc.garbage if type(each).__module__.startswith("codehub."))
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()
    assert left == {}


@pytest.mark.parametrize("tap", [IdePresence, AppPresence])
def test_a_closed_tap_counts_no_more(tap: type[IdePresence | AppPresence]) -> None:
    seen: list[None] = []
    watched = tap(lambda: seen.append(None))
    watched.from_client(masked(b"x"))
    assert len(seen) == 1
    watched.close()
    watched.from_client(masked(b"x" * 40))
    watched.from_client(b"no frame")
    assert len(seen) == 1
