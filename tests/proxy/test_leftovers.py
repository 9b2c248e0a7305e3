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
from tests.proxy.deployment import Deployment, SignedInUser, deployed
from tests.proxy.fake_workspace import OK
from tests.proxy.harness import LIMITS, RawConnection, get, in_time
from tests.proxy.test_connection_limits import reset
from tests.proxy.test_live_sockets import masked
from tests.proxy.test_websocket import SWITCH

Visit = Callable[[Deployment, "Scene"], Awaitable[None]]


class Scene:
    def __init__(self, ann: SignedInUser, slug: str, host: str, secret: str) -> None:
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


async def at(deployment: Deployment) -> RawConnection:
    return RawConnection(*await asyncio.open_connection("127.0.0.1", deployment.port))


async def _asks(deployment: Deployment, request: bytes) -> None:
    raw = await at(deployment)
    raw.write(request)
    await raw.head()
    raw.close()


def asks(*args: str, **more: str) -> Visit:
    return lambda deployment, scene: _asks(deployment, scene.request(*args, **more))


async def goes_at_once(deployment: Deployment, scene: Scene) -> None:
    raw = await at(deployment)
    raw.write(scene.request("/never"))
    await eventually(lambda: len(deployment.proxy.server.forwards()) == 1)
    reset(raw)


async def talks(deployment: Deployment, scene: Scene) -> None:
    raw = await at(deployment)
    raw.write(scene.offer())
    await raw.head()
    raw.write(masked(b"hello"))
    await in_time(raw.reader.readexactly(11))
    raw.close()


async def just_connects(deployment: Deployment, scene: Scene) -> None:
    raw = await at(deployment)
    raw.write(scene.offer())
    await raw.head()
    reset(raw)


async def is_shown_out(deployment: Deployment, scene: Scene) -> None:
    raw, asking = await at(deployment), await at(deployment)
    raw.write(scene.offer())
    asking.write(scene.request("/never"))
    await raw.head()
    await eventually(lambda: len(deployment.proxy.server.forwards()) == 2)
    deployment.proxy.server.abort_sockets(lambda _: True)
    await asking.head()
    await raw.rest()
    for each in (raw, asking):
        each.close()


async def is_turned_away(deployment: Deployment, scene: Scene) -> None:
    raws = [await at(deployment) for _ in range(4)]
    await eventually(lambda: deployment.proxy.server.connections == 4)
    await _asks(deployment, scene.request())
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
async def deployment() -> AsyncIterator[Deployment]:
    async with deployed(proxy_limits=replace(LIMITS, per_address=4, linger_seconds=0.1)) as opened:
        opened.ide.handler = ide
        yield opened


@pytest.mark.parametrize("visit", VISITS.values(), ids=VISITS)
async def test_a_visit_leaves_no_circles(deployment: Deployment, visit: Visit) -> None:
    ann = await deployment.person()
    demo = await deployment.workspace(ann)
    scene = Scene(ann, demo.slug, deployment.host(demo), await deployment.visit(ann, demo))
    server = deployment.proxy.server

    async def several() -> None:
        for _ in range(5):
            await visit(deployment, scene)
            await eventually(lambda: server.connections == 0 and not server._overloaded)
        await eventually(lambda: deployment.ide.open <= server.kept_connections)
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
