"""One stranger, many sockets: whatever is scarce behind the front door stays there for everybody else.

Each attack is run over real sockets against a whole front door, from one address: the same from which the others come.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
import uvloop

from codehub.domain.credentials import SESSION_COOKIE
from codehub.proxy.access.verdicts import Forward, Pending
from codehub.proxy.http.limits import ProxyLimits
from codehub.proxy.http.trusted_proxies import networks
from tests.eventually import eventually
from tests.proxy.doors import LIMITS, Door, Raw, get, status
from tests.proxy.hub import PLATFORM, Hub, hub_on
from tests.proxy.workspaces import OK, Workspace

SOCKETS = 514
"""Two more than a worker keeps connections to the API."""
SIGN_IN = ("Content-Type: application/json", f"Origin: http://{PLATFORM}")
PASSWORD = b'{"username": "ann", "password": "correct horse"}'


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    return {"uvloop": uvloop.new_event_loop}


@pytest.fixture
async def workspace() -> AsyncIterator[Workspace]:
    async with Workspace() as opened:
        yield opened


@pytest.fixture
async def hub() -> AsyncIterator[Hub]:
    async with hub_on(door_limits=replace(ProxyLimits(), tick=0.05)) as opened:
        yield opened


@asynccontextmanager
async def sockets(hub: Hub, count: int, request: bytes) -> AsyncIterator[list[Raw]]:
    raws = await asyncio.gather(*(hub.connect() for _ in range(count)))
    try:
        for raw in raws:
            raw.write(request)
        yield raws
    finally:
        for raw in raws:
            raw.close()


def post(path: str, body: bytes, *lines: str, length: int | None = None) -> bytes:
    announced = f"Content-Length: {len(body) if length is None else length}"
    return get(path, announced, *lines, method="POST", host=PLATFORM) + body


async def ask(hub: Hub, request: bytes) -> int:
    raw = await hub.connect()
    try:
        raw.write(request)
        return status((await raw.answer())[0])
    finally:
        raw.close()


async def everybody_is_served(hub: Hub) -> None:
    assert await ask(hub, get("/healthz", host=PLATFORM)) == 200
    assert await ask(hub, get("/", host=PLATFORM)) == 200
    assert await ask(hub, post("/api/v1/session", PASSWORD, *SIGN_IN)) == 200
    assert hub.api.seen[-1].body == PASSWORD


@pytest.mark.parametrize("lines", [SIGN_IN, (*SIGN_IN, f"Cookie: {SESSION_COOKIE}={'x' * 43}")], ids=["bare", "cookie"])
@pytest.mark.parametrize("coding", ["sized", "chunked", "expecting"])
async def test_bodies_that_do_not_come_silence_nobody(hub: Hub, coding: str, lines: tuple[str, ...]) -> None:
    attack = {
        "sized": post("/api/v1/session", b"{", *lines, length=100),
        "chunked": get("/api/v1/session", "Transfer-Encoding: chunked", *lines, method="POST", host=PLATFORM)
        + b"1\r\n{\r\n",
        "expecting": post("/api/v1/session", b"", "Expect: 100-continue", *lines, length=100),
    }[coding]
    async with sockets(hub, SOCKETS, attack):
        await eventually(lambda: hub.door.server.connections == SOCKETS)
        await everybody_is_served(hub)
    assert all(seen.body in (b"", PASSWORD) for seen in hub.api.seen)


async def test_a_body_that_drips_has_an_end(hub: Hub) -> None:
    """However steadily it comes: the time is counted from its head, not from its last byte."""
    hub.door.server.limits = replace(hub.door.server.limits, small_body_seconds=0.5)
    async with sockets(hub, 1, post("/api/v1/session", b"", *SIGN_IN, length=30_000)) as (raw,):

        async def drip() -> None:
            while True:
                raw.write(b"x")
                await asyncio.sleep(0.02)

        dripping = asyncio.ensure_future(drip())
        assert status(await raw.head()) == 408
        dripping.cancel()
    assert hub.api.seen == []


@pytest.mark.parametrize("coding", ["sized", "chunked"])
async def test_a_stranger_s_body_has_a_size(hub: Hub, coding: str) -> None:
    most = hub.door.server.limits.small_body_bytes
    if coding == "sized":
        request = post("/api/v1/session", b"", *SIGN_IN, length=most + 1)
    else:
        request = get("/api/v1/session", "Transfer-Encoding: chunked", method="POST", host=PLATFORM)
        request += b"%x\r\n%b\r\n" % (most + 1, b"x" * (most + 1))
    assert await ask(hub, request) == 413
    assert hub.api.seen == []
    assert await ask(hub, post("/api/v1/session", b"x" * most)) == 200


async def test_who_has_signed_in_may_send_a_larger_body(hub: Hub) -> None:
    ann = await hub.person()
    cookie = f"Cookie: {SESSION_COOKIE}={ann.session}"
    body = b"x" * 300_000
    assert await ask(hub, post("/api/v1/workspaces", body, cookie)) == 200
    assert hub.api.seen[-1].body == body
    chunked = get("/api/v1/workspaces", cookie, "Transfer-Encoding: chunked", method="POST", host=PLATFORM)
    assert await ask(hub, chunked + b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)) == 200
    assert hub.api.seen[-1].body == body


@asynccontextmanager
async def slow_api(hub: Hub, path: bytes) -> AsyncIterator[asyncio.Event]:
    """Requests for `path` are answered when the event is set; all others at once."""
    go_on = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while head := await reader.readuntil(b"\r\n\r\n"):
            if head.split(b" ", 2)[1] == path:
                await go_on.wait()
            writer.write(OK)

    hub.api.handler = serve
    try:
        yield go_on
    finally:
        go_on.set()


async def test_a_stranger_s_slow_requests_take_a_share_and_no_more(hub: Hub) -> None:
    """The answers are slow, so the connections are really used: whoever has signed in is served all the same, and the
    rest of the strangers' lines are served when it is their turn."""
    ann = await hub.person()
    server = hub.door.server
    async with slow_api(hub, b"/slow") as go_on, sockets(hub, SOCKETS, get("/slow", host=PLATFORM)) as raws:
        await eventually(lambda: server.strangers.waiting == SOCKETS - 64)
        await eventually(lambda: hub.api.open == server.limits.per_target // 8)
        assert await ask(hub, get("/", f"Cookie: {SESSION_COOKIE}={ann.session}", host=PLATFORM)) == 200
        assert await ask(hub, get("/", f"Authorization: Bearer {ann.token}", host=PLATFORM)) == 200
        server.limits = replace(server.limits, connect_seconds=0.2)
        assert await ask(hub, get("/healthz", host=PLATFORM)) == 429
        go_on.set()
        assert {status((await raw.answer())[0]) for raw in raws} <= {200, 429}
    await eventually(lambda: not server.strangers.taken and not server.strangers.waiting)
    assert server.members.taken == 0
    await everybody_is_served_again(hub)


async def everybody_is_served_again(hub: Hub) -> None:
    assert await ask(hub, get("/healthz", host=PLATFORM)) == 200


async def test_another_address_has_a_share_of_its_own() -> None:
    """Behind a proxy that is believed, each caller is the address that the proxy names."""
    limits = replace(ProxyLimits(), tick=0.05)
    async with hub_on(door_limits=limits, forwarders=networks("127.0.0.1")) as hub:
        slow = get("/slow", "X-Forwarded-For: 198.51.100.7", host=PLATFORM)
        async with slow_api(hub, b"/slow"), sockets(hub, SOCKETS, slow):
            await eventually(lambda: hub.api.open == limits.per_target // 8)
            other = "X-Forwarded-For: 203.0.113.9"
            assert await ask(hub, get("/healthz", other, host=PLATFORM)) == 200
            assert await ask(hub, post("/api/v1/session", b"", *SIGN_IN, other)) == 200


async def test_a_person_s_streams_leave_room_for_others(hub: Hub) -> None:
    ann, bob = await hub.person(), await hub.person("bob")
    stream = get("/slow", f"Cookie: {SESSION_COOKIE}={ann.session}", host=PLATFORM)
    async with slow_api(hub, b"/slow"), sockets(hub, SOCKETS, stream):
        await eventually(lambda: hub.api.open == hub.door.server.limits.per_target // 4)
        assert await ask(hub, get("/", f"Cookie: {SESSION_COOKIE}={bob.session}", host=PLATFORM)) == 200
        await everybody_is_served_again(hub)


async def test_callers_whom_nobody_knows_are_looked_up_few_at_a_time(workspace: Workspace) -> None:
    """Made-up cookies cost a look into the database each: one address waits behind itself, others do not."""
    began, go_on = [0], asyncio.Event()

    async def look(door: Door) -> Forward:
        began[0] += 1
        await go_on.wait()
        return door.gate.forward

    door = Door(workspace.endpoint, replace(LIMITS, undecided_per_address=8, half_closed_seconds=0.1))
    door.forwarders = networks("127.0.0.1")
    async with door:
        door.gate.verdicts[b"/"] = lambda: Pending(look(door))
        door.gate.verdicts[b"/known"] = lambda: Pending(look(door), proven=True)
        raws = [await door.connect() for _ in range(40)]
        for raw in raws:
            raw.write(get("/", "X-Forwarded-For: 198.51.100.7"))
        await eventually(lambda: len(door.gate.asked) == 40)
        assert began == [8]
        for path, caller in (("/", "203.0.113.9"), ("/known", "198.51.100.7")):
            raws.append(raw := await door.connect())
            raw.write(get(path, f"X-Forwarded-For: {caller}"))
        await eventually(lambda: began == [10])
        raws.pop(20).close()
        await eventually(lambda: door.server.connections == 41)
        go_on.set()
        for raw in raws:
            assert status((await raw.answer())[0]) == 200
            raw.close()
        assert began == [41]
        assert door.server.undecided.taken == 0


async def test_who_waits_too_long_for_a_decision_is_told(workspace: Workspace) -> None:
    async with Door(workspace.endpoint, replace(LIMITS, undecided_per_address=1, wait_seconds=0.2)) as door:
        door.gate.verdicts[b"/"] = lambda: Pending(asyncio.Event().wait())  # type: ignore[arg-type]
        raws = [await door.connect() for _ in range(2)]
        for raw in raws:
            raw.write(get())
        assert {status((await raw.answer())[0]) for raw in raws} == {504}
        for raw in raws:
            raw.close()
        await eventually(lambda: door.server.undecided.taken == 0)


async def test_without_a_database_the_platform_is_still_asked(hub: Hub) -> None:
    """Who somebody is only decides on the share: nobody is refused because it cannot be found out."""
    ann = await hub.person()
    hub.outages.away = ("accounts",)
    assert await ask(hub, get("/", f"Cookie: {SESSION_COOKIE}={ann.session}", host=PLATFORM)) == 200


@pytest.mark.parametrize(
    "request_", [get("/" + "a" * 30_000)[:-2], post("/api/v1/session", b"x" * 30_000, length=31_000)]
)
async def test_what_is_held_for_an_address_has_a_bound(request_: bytes) -> None:
    """Half heads and half bodies are memory: beyond its share an address is turned away, and what it held is free when
    it leaves."""
    async with hub_on(door_limits=replace(LIMITS, held_per_address=300_000)) as hub:
        async with sockets(hub, 20, request_) as raws:
            refused = await asyncio.wait_for(_first(raws), 30)
            assert status(refused) == 429
            assert hub.door.server.held._counts
        await eventually(lambda: len(hub.door.server.held) == 0)
        await everybody_is_served(hub)


async def _first(raws: list[Raw]) -> bytes:
    asked = [asyncio.ensure_future(raw.head()) for raw in raws]
    done, others = await asyncio.wait(asked, return_when=asyncio.FIRST_COMPLETED)
    for other in others:
        other.cancel()
    await asyncio.gather(*others, return_exceptions=True)
    return next(iter(done)).result()
