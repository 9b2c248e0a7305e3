"""The HTTP that real applications speak at a workspace's ports: their methods, their heads, what they say before the
answer, and where they send the browser."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from codehub.proxy.access.addresses import Addresses
from tests.eventually import eventually
from tests.proxy.deployment import BASE, PLATFORM, Deployment, deployed
from tests.proxy.fake_workspace import OK, FakeWorkspace, Seen
from tests.proxy.harness import LIMITS, ProxyHarness, get, in_time, status

METHODS = (
    "PROPFIND",
    "PROPPATCH",
    "MKCOL",
    "COPY",
    "MOVE",
    "LOCK",
    "UNLOCK",
    "REPORT",
    "SEARCH",
    "QUERY",
    "PURGE",
    "M-SEARCH",
)


@pytest.mark.parametrize("method", METHODS)
async def test_a_method_is_any_token(proxy: ProxyHarness, workspace: FakeWorkspace, method: str) -> None:
    raw = await proxy.connect()
    raw.write(get("/dav", "Content-Length: 4", "Depth: 1", method=method) + b"<a/>" + get("/next"))
    assert status((await raw.answer())[0]) == 200
    assert status((await raw.answer())[0]) == 200
    raw.close()
    assert [(seen.method, seen.body) for seen in workspace.seen] == [(method, b"<a/>"), ("GET", b"")]


@pytest.mark.parametrize("code", [102, 103])
async def test_interim_answers_pass(proxy: ProxyHarness, workspace: FakeWorkspace, code: int) -> None:
    interim = b"HTTP/1.1 %d Soon\r\nLink: </style.css>; rel=preload\r\nConnection: X\r\nX: y\r\n\r\n" % code
    workspace.answer = lambda _: interim * 2 + OK
    raw = await proxy.connect()
    for _ in range(2):
        raw.write(get())
        for _ in range(2):
            head = await raw.head()
            assert head == b"HTTP/1.1 %d Soon\r\nLink: </style.css>; rel=preload\r\n\r\n" % code
        assert (await raw.answer())[1] == b"ok"
    raw.close()
    assert workspace.connections == 1


async def test_interim_answers_are_not_for_http_1_0(proxy: ProxyHarness, workspace: FakeWorkspace) -> None:
    workspace.answer = lambda _: b"HTTP/1.1 103 Soon\r\n\r\n" + OK
    assert (await proxy.ask(b"GET / HTTP/1.0\r\nHost: w.localhost\r\n\r\n")).startswith(b"HTTP/1.1 200 OK")


async def test_who_says_that_it_still_works_is_waited_for(workspace: FakeWorkspace) -> None:
    async def slow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        for _ in range(8):
            await asyncio.sleep(0.2)
            writer.write(b"HTTP/1.1 102 Processing\r\n\r\n")
        writer.write(OK)

    workspace.handler = slow
    async with ProxyHarness(workspace.endpoint, replace(LIMITS, response_seconds=1.0)) as proxy:
        raw = await proxy.connect()
        raw.write(get())
        for _ in range(8):
            assert status(await raw.head()) == 102
        assert (await raw.answer())[1] == b"ok"
        raw.close()


async def test_a_large_head_of_many_lines_passes_from_a_workspace(
    proxy: ProxyHarness, workspace: FakeWorkspace
) -> None:
    lines = b"".join(b"X-%d: %b\r\n" % (number, b"v" * 330) for number in range(200))
    assert 1 << 16 < len(lines) < 1 << 17
    workspace.answer = lambda _: b"HTTP/1.1 200 OK\r\n" + lines + b"Content-Length: 2\r\n\r\nok"
    raw = await proxy.connect()
    raw.write(get())
    head, body = await raw.answer()
    assert lines in head
    assert body == b"ok"
    raw.close()


async def test_a_silent_answer_is_waited_for_as_long_as_is_set(workspace: FakeWorkspace) -> None:
    """An answer may be quiet before its head and within its body, as an event stream is; a body that stops coming is
    another matter."""
    go_on = asyncio.Event()

    async def quiet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n")
        await go_on.wait()
        writer.write(b"data: 1\n\n")

    workspace.handler = quiet
    async with ProxyHarness(workspace.endpoint, replace(LIMITS, body_idle_seconds=0.1)) as proxy:
        raw = await proxy.connect()
        raw.write(get())
        await raw.head()
        since = proxy.server.now
        await eventually(lambda: proxy.server.now > since + 0.5)
        go_on.set()
        assert await in_time(raw.chunks()) == b"data: 1\n\n"
        raw.close()


async def test_a_silent_answer_has_an_end(workspace: FakeWorkspace) -> None:
    async def quiet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        await reader.read()

    workspace.handler = quiet
    async with ProxyHarness(workspace.endpoint, replace(LIMITS, response_seconds=0.2)) as proxy:
        raw = await proxy.connect()
        raw.write(get())
        await raw.head()
        assert await raw.rest() == b""
        raw.close()
        await eventually(lambda: workspace.open == 0)


# ── redirects to the machine itself ──────────────────────────────────────────────────────────────────────────────────

LOCATIONS = {
    b"http://localhost:3000/login?next=/a": b"http://3000--demo.ws.test:8000/login?next=/a",
    b"http://127.0.0.1:3000": b"http://3000--demo.ws.test:8000",
    b"http://127.1.2.3:3000/": b"http://3000--demo.ws.test:8000/",
    b"http://0.0.0.0:3000/": b"http://3000--demo.ws.test:8000/",
    b"http://[::1]:4000/x#y": b"http://4000--demo.ws.test:8000/x#y",
    b"HTTP://LocalHost:5173?a=b": b"http://5173--demo.ws.test:8000?a=b",
    b"/login": b"/login",
    b"http://localhost/": b"http://localhost/",
    b"http://localhost:0/": b"http://localhost:0/",
    b"http://localhost:70000/": b"http://localhost:70000/",
    b"https://localhost:3000/": b"https://localhost:3000/",
    b"http://localhost:3000.evil.test/": b"http://localhost:3000.evil.test/",
    b"http://localhost:3000@evil.test/": b"http://localhost:3000@evil.test/",
    b"http://localhost.evil.test:3000/": b"http://localhost.evil.test:3000/",
    b"http://example.com/?to=http://localhost:3000/": b"http://example.com/?to=http://localhost:3000/",
}


@pytest.mark.parametrize("location", LOCATIONS)
def test_a_port_of_the_workspace_s_machine_is_its_public_host(location: bytes) -> None:
    addresses = Addresses("http://{slug}.ws.test:8000/", "http://hub.test:8000")
    assert addresses.public_location(location, "demo", 3000) == LOCATIONS[location]


def test_the_platform_s_own_address_is_the_platform_s_unless_the_port_that_answers_is_meant() -> None:
    addresses = Addresses("http://{slug}.localhost:8000/", None)
    assert addresses.public_location(b"http://localhost:8000/signin", "demo", 3000) == b"http://localhost:8000/signin"
    assert addresses.public_location(b"http://localhost:8000/a", "demo", None) == b"http://localhost:8000/a"
    assert addresses.public_location(b"http://localhost:8000/a", "demo", 8000) == b"http://8000--demo.localhost:8000/a"


def test_without_hosts_of_their_own_nothing_is_changed() -> None:
    addresses = Addresses("http://hub.test/w/{id}/", "http://hub.test")
    assert addresses.public_location(b"http://localhost:3000/", "demo", None) == b"http://localhost:3000/"


@pytest.fixture
async def deployment() -> AsyncIterator[Deployment]:
    async with deployed() as opened:
        yield opened


def redirecting(seen: Seen) -> bytes:
    return b"HTTP/1.1 302 Found\r\nLocation: http://localhost:3000/next\r\nContent-Length: 0\r\n\r\n"


@pytest.mark.parametrize("port", [None, 3000])
async def test_a_redirect_from_a_workspace_stays_within_it(deployment: Deployment, port: int | None) -> None:
    ann = await deployment.person()
    demo = await deployment.workspace(ann)
    deployment.runtime.state.listen(demo.id, 3000, deployment.ide.endpoint)
    deployment.ide.answer = redirecting
    for _ in range(2):
        answer = await deployment.get(demo, "/", ann, port=port)
        assert answer.headers["location"] == f"http://3000--{demo.slug}.{BASE}/next"


async def test_a_redirect_of_the_platform_s_own_is_left_alone(deployment: Deployment) -> None:
    deployment.api.answer = redirecting
    answer = await deployment.http.get("/", headers={"host": PLATFORM})
    assert answer.headers["location"] == "http://localhost:3000/next"
