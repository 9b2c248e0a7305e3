"""One attacker, many sockets: whatever is scarce behind the proxy stays there for everybody else.

Each attack is run over real sockets against a whole proxy, from one address: the same from which the others come.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
import uvloop

from codehub.domain.credentials import SESSION_COOKIE
from codehub.proxy.access.verdicts import Forward, Pending
from codehub.proxy.http.headers import networks
from codehub.proxy.http.limits import ProxyLimits
from tests.eventually import eventually
from tests.proxy.deployment import PLATFORM, Deployment, deployed
from tests.proxy.fake_workspace import OK, FakeWorkspace
from tests.proxy.harness import LIMITS, ProxyHarness, RawConnection, get, status

SOCKETS = 514
"""Two more sockets than a worker keeps connections to the API."""
SIGN_IN = ("Content-Type: application/json", f"Origin: http://{PLATFORM}")
PASSWORD = b'{"username": "ann", "password": "correct horse"}'


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    return {"uvloop": uvloop.new_event_loop}


@pytest.fixture
async def workspace() -> AsyncIterator[FakeWorkspace]:
    async with FakeWorkspace() as opened:
        yield opened


@pytest.fixture
async def deployment() -> AsyncIterator[Deployment]:
    async with deployed(proxy_limits=replace(ProxyLimits(), tick=0.05)) as opened:
        yield opened


@asynccontextmanager
async def sockets(deployment: Deployment, count: int, request: bytes) -> AsyncIterator[list[RawConnection]]:
    raws = await asyncio.gather(*(deployment.connect() for _ in range(count)))
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


async def ask(deployment: Deployment, request: bytes) -> int:
    raw = await deployment.connect()
    try:
        raw.write(request)
        return status((await raw.answer())[0])
    finally:
        raw.close()


async def everybody_is_served(deployment: Deployment) -> None:
    assert await ask(deployment, get("/healthz", host=PLATFORM)) == 200
    assert await ask(deployment, get("/", host=PLATFORM)) == 200
    assert await ask(deployment, post("/api/v1/session", PASSWORD, *SIGN_IN)) == 200
    assert deployment.api.seen[-1].body == PASSWORD


@pytest.mark.parametrize("lines", [SIGN_IN, (*SIGN_IN, f"Cookie: {SESSION_COOKIE}={'x' * 43}")], ids=["bare", "cookie"])
@pytest.mark.parametrize("coding", ["sized", "chunked", "expecting"])
async def test_bodies_that_do_not_come_silence_nobody(
    deployment: Deployment, coding: str, lines: tuple[str, ...]
) -> None:
    attack = {
        "sized": post("/api/v1/session", b"{", *lines, length=100),
        "chunked": get("/api/v1/session", "Transfer-Encoding: chunked", *lines, method="POST", host=PLATFORM)
        + b"1\r\n{\r\n",
        "expecting": post("/api/v1/session", b"", "Expect: 100-continue", *lines, length=100),
    }[coding]
    async with sockets(deployment, SOCKETS, attack):
        await eventually(lambda: deployment.proxy.server.connections == SOCKETS)
        await everybody_is_served(deployment)
    assert all(seen.body in (b"", PASSWORD) for seen in deployment.api.seen)


async def test_a_body_that_drips_has_an_end(deployment: Deployment) -> None:
    """However steadily the body comes, the time is counted from its head, not from its last byte."""
    deployment.proxy.server.limits = replace(deployment.proxy.server.limits, small_body_seconds=0.5)
    async with sockets(deployment, 1, post("/api/v1/session", b"", *SIGN_IN, length=30_000)) as (raw,):

        async def drip() -> None:
            while True:
                raw.write(b"x")
                await asyncio.sleep(0.02)

        dripping = asyncio.ensure_future(drip())
        assert status(await raw.head()) == 408
        dripping.cancel()
    assert deployment.api.seen == []


@pytest.mark.parametrize("coding", ["sized", "chunked"])
async def test_an_anonymous_client_s_body_has_a_size(deployment: Deployment, coding: str) -> None:
    most = deployment.proxy.server.limits.small_body_bytes
    if coding == "sized":
        request = post("/api/v1/session", b"", *SIGN_IN, length=most + 1)
    else:
        request = get("/api/v1/session", "Transfer-Encoding: chunked", method="POST", host=PLATFORM)
        request += b"%x\r\n%b\r\n" % (most + 1, b"x" * (most + 1))
    assert await ask(deployment, request) == 413
    assert deployment.api.seen == []
    assert await ask(deployment, post("/api/v1/session", b"x" * most)) == 200


async def test_who_has_signed_in_may_send_a_larger_body(deployment: Deployment) -> None:
    ann = await deployment.person()
    cookie = f"Cookie: {SESSION_COOKIE}={ann.session}"
    body = b"x" * 300_000
    assert await ask(deployment, post("/api/v1/workspaces", body, cookie)) == 200
    assert deployment.api.seen[-1].body == body
    chunked = get("/api/v1/workspaces", cookie, "Transfer-Encoding: chunked", method="POST", host=PLATFORM)
    assert await ask(deployment, chunked + b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)) == 200
    assert deployment.api.seen[-1].body == body


@asynccontextmanager
async def slow_api(deployment: Deployment, path: bytes) -> AsyncIterator[asyncio.Event]:
    """An API that answers requests for `path` when the event is set, and all others at once."""
    go_on = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while head := await reader.readuntil(b"\r\n\r\n"):
            if head.split(b" ", 2)[1] == path:
                await go_on.wait()
            writer.write(OK)

    deployment.api.handler = serve
    try:
        yield go_on
    finally:
        go_on.set()


async def test_an_anonymous_client_s_slow_requests_take_a_share_and_no_more(deployment: Deployment) -> None:
    """The answers are slow, so the connections are really used: whoever has signed in is served all the same, and the
    others are served when it is their turn."""
    ann = await deployment.person()
    server = deployment.proxy.server
    async with (
        slow_api(deployment, b"/slow") as go_on,
        sockets(deployment, SOCKETS, get("/slow", host=PLATFORM)) as raws,
    ):
        await eventually(lambda: server.anonymous_share.waiting == SOCKETS - 64)
        await eventually(lambda: deployment.api.open == server.limits.per_target // 8)
        assert await ask(deployment, get("/", f"Cookie: {SESSION_COOKIE}={ann.session}", host=PLATFORM)) == 200
        assert await ask(deployment, get("/", f"Authorization: Bearer {ann.token}", host=PLATFORM)) == 200
        server.limits = replace(server.limits, connect_seconds=0.2)
        assert await ask(deployment, get("/healthz", host=PLATFORM)) == 429
        go_on.set()
        assert {status((await raw.answer())[0]) for raw in raws} <= {200, 429}
    await eventually(lambda: not server.anonymous_share.taken and not server.anonymous_share.waiting)
    assert server.signed_in_share.taken == 0
    await everybody_is_served_again(deployment)


async def everybody_is_served_again(deployment: Deployment) -> None:
    assert await ask(deployment, get("/healthz", host=PLATFORM)) == 200


async def test_another_address_has_a_share_of_its_own() -> None:
    """Behind a proxy that is believed, each caller is the address that the proxy names."""
    limits = replace(ProxyLimits(), tick=0.05)
    async with deployed(proxy_limits=limits, trusted_proxies=networks("127.0.0.1")) as deployment:
        slow = get("/slow", "X-Forwarded-For: 198.51.100.7", host=PLATFORM)
        async with slow_api(deployment, b"/slow"), sockets(deployment, SOCKETS, slow):
            await eventually(lambda: deployment.api.open == limits.per_target // 8)
            other = "X-Forwarded-For: 203.0.113.9"
            assert await ask(deployment, get("/healthz", other, host=PLATFORM)) == 200
            assert await ask(deployment, post("/api/v1/session", b"", *SIGN_IN, other)) == 200


async def test_a_person_s_streams_leave_room_for_others(deployment: Deployment) -> None:
    ann, bob = await deployment.person(), await deployment.person("bob")
    stream = get("/slow", f"Cookie: {SESSION_COOKIE}={ann.session}", host=PLATFORM)
    async with slow_api(deployment, b"/slow"), sockets(deployment, SOCKETS, stream):
        await eventually(lambda: deployment.api.open == deployment.proxy.server.limits.per_target // 4)
        assert await ask(deployment, get("/", f"Cookie: {SESSION_COOKIE}={bob.session}", host=PLATFORM)) == 200
        await everybody_is_served_again(deployment)


async def test_callers_whom_nobody_knows_are_looked_up_few_at_a_time(workspace: FakeWorkspace) -> None:
    """Made-up cookies cost a look into the database each: one address waits behind itself, others do not."""
    began, go_on = [0], asyncio.Event()

    async def look(proxy: ProxyHarness) -> Forward:
        began[0] += 1
        await go_on.wait()
        return proxy.authorizer.forward

    proxy = ProxyHarness(workspace.endpoint, replace(LIMITS, undecided_per_address=8, half_closed_seconds=0.1))
    proxy.trusted_proxies = networks("127.0.0.1")
    async with proxy:
        proxy.authorizer.verdicts[b"/"] = lambda: Pending(look(proxy))
        proxy.authorizer.verdicts[b"/known"] = lambda: Pending(look(proxy), proven=True)
        raws = [await proxy.connect() for _ in range(40)]
        for raw in raws:
            raw.write(get("/", "X-Forwarded-For: 198.51.100.7"))
        await eventually(lambda: len(proxy.authorizer.asked) == 40)
        assert began == [8]
        for path, caller in (("/", "203.0.113.9"), ("/known", "198.51.100.7")):
            raws.append(raw := await proxy.connect())
            raw.write(get(path, f"X-Forwarded-For: {caller}"))
        await eventually(lambda: began == [10])
        raws.pop(20).close()
        await eventually(lambda: proxy.server.connections == 41)
        go_on.set()
        for raw in raws:
            assert status((await raw.answer())[0]) == 200
            raw.close()
        assert began == [41]
        assert proxy.server.undecided_share.taken == 0


async def test_who_waits_too_long_for_a_decision_is_told(workspace: FakeWorkspace) -> None:
    async with ProxyHarness(workspace.endpoint, replace(LIMITS, undecided_per_address=1, wait_seconds=0.2)) as proxy:
        proxy.authorizer.verdicts[b"/"] = lambda: Pending(asyncio.Event().wait())  # type: ignore[arg-type]
        raws = [await proxy.connect() for _ in range(2)]
        for raw in raws:
            raw.write(get())
        assert {status((await raw.answer())[0]) for raw in raws} == {504}
        for raw in raws:
            raw.close()
        await eventually(lambda: proxy.server.undecided_share.taken == 0)


async def test_without_a_database_the_platform_is_still_asked(deployment: Deployment) -> None:
    """Who somebody is only decides on the share: nobody is refused because it cannot be found out."""
    ann = await deployment.person()
    deployment.outages.away = ("accounts",)
    assert await ask(deployment, get("/", f"Cookie: {SESSION_COOKIE}={ann.session}", host=PLATFORM)) == 200


@pytest.mark.parametrize(
    "request_", [get("/" + "a" * 30_000)[:-2], post("/api/v1/session", b"x" * 30_000, length=31_000)]
)
async def test_what_is_held_for_an_address_has_a_bound(request_: bytes) -> None:
    """Half heads and half bodies are memory: beyond its share an address is turned away, and what it held is free when
    it leaves."""
    async with deployed(proxy_limits=replace(LIMITS, held_per_address=300_000)) as deployment:
        async with sockets(deployment, 20, request_) as raws:
            refused = await asyncio.wait_for(_first(raws), 30)
            assert status(refused) == 429
            assert deployment.proxy.server.held._counts
        await eventually(lambda: len(deployment.proxy.server.held) == 0)
        await everybody_is_served(deployment)


async def _first(raws: list[RawConnection]) -> bytes:
    asked = [asyncio.ensure_future(raw.head()) for raw in raws]
    done, others = await asyncio.wait(asked, return_when=asyncio.FIRST_COMPLETED)
    for other in others:
        other.cancel()
    await asyncio.gather(*others, return_exceptions=True)
    return next(iter(done)).result()
