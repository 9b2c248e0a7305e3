"""Hygiene in both directions: what is ours stays here, what is the hop's ends here, the rest passes in its order."""

import re

import pytest

from codehub.proxy.access.addresses import Addresses
from codehub.proxy.http.headers import Forwarded, port_of
from codehub.proxy.http.parser import is_platform_cookie, is_platform_token, without_platform_cookies
from tests.proxy.fake_workspace import FakeWorkspace
from tests.proxy.harness import ProxyHarness, get


async def test_hop_by_hop_headers_end_here(proxy: ProxyHarness, workspace: FakeWorkspace) -> None:
    await proxy.ask(
        get(
            "/",
            "Connection: keep-alive, X-Secret",
            "Connection: x-other",
            "X-Secret: 1",
            "x-OTHER: 2",
            "Keep-Alive: timeout=5",
            "TE: trailers",
            "Proxy-Connection: keep-alive",
            "Proxy-Authorization: Basic eA==",
            "Proxy: http://evil",
            "Upgrade: h2c",
            "X-Kept: 3",
        )
    )
    names = [name.lower() for name, _ in workspace.seen[0].headers]
    ours = ["x-request-id", "x-forwarded-for", "x-forwarded-host", "x-forwarded-proto", "x-forwarded-port"]
    assert names == ["host", "x-kept", *ours]


async def test_connection_cannot_name_away_what_we_set(proxy: ProxyHarness, workspace: FakeWorkspace) -> None:
    await proxy.ask(get("/", "Connection: X-Forwarded-For, Host, Cookie, Content-Length", "Cookie: a=b"))
    assert workspace.seen[0].one("x-forwarded-for") == "127.0.0.1"
    assert workspace.seen[0].one("host") == "w.localhost"


async def test_forwarded_headers_are_ours_alone(proxy: ProxyHarness, workspace: FakeWorkspace) -> None:
    forged = [f"X-Forwarded-{name}: evil" for name in ("For", "Host", "Proto", "Port", "Prefix", "Server")]
    await proxy.ask(get("/", *forged, "Forwarded: for=evil", "X-Real-IP: evil", host="w.localhost:8000"))
    seen = workspace.seen[0]
    assert "evil" not in str(seen.headers)
    assert seen.one("x-forwarded-for") == "127.0.0.1"
    assert seen.one("x-forwarded-host") == seen.one("host") == "w.localhost:8000"
    assert seen.one("x-forwarded-proto") == "http"
    assert seen.one("x-forwarded-port") == "8000"


async def test_repeated_headers_keep_their_order_both_ways(proxy: ProxyHarness, workspace: FakeWorkspace) -> None:
    workspace.answer = lambda _: (
        b"HTTP/1.1 200 OK\r\nSet-Cookie: a=1\r\nX-B: 1\r\nSet-Cookie: b=2; Path=/\r\nX-B: 2\r\n"
        b"Content-Length: 0\r\n\r\n"
    )
    answer = await proxy.ask(get("/", "X-A: 1", "Accept: x/y", "X-A: 2"))
    assert workspace.seen[0].all("x-a") == ["1", "2"]
    assert re.findall(rb"(?:Set-Cookie|X-B): \S+", answer) == [
        b"Set-Cookie: a=1",
        b"X-B: 1",
        b"Set-Cookie: b=2;",
        b"X-B: 2",
    ]


async def test_our_cookies_never_reach_a_workspace(proxy: ProxyHarness, workspace: FakeWorkspace) -> None:
    await proxy.ask(get("/", "Cookie: a=1; __Host-codehub_session=secret; b=2", "Cookie: __HOST-CODEHUB-x=secret;c=3"))
    assert workspace.seen[0].one("cookie") == "a=1; b=2; c=3"
    await proxy.ask(get("/", "Cookie: __Host-codehub=secret"))
    assert workspace.seen[1].all("cookie") == []
    assert b"secret" not in workspace.raw


@pytest.mark.parametrize(
    "cookie",
    [
        "__Host-codehub=x",
        "__Host-codehub_session=x; Path=/",
        "  __host-CODEHUB=x",
        "=__Host-codehub=x",
        "\t__Host-codehub",
    ],
)
async def test_a_workspace_cannot_set_our_cookies(proxy: ProxyHarness, workspace: FakeWorkspace, cookie: str) -> None:
    lines = f"Set-Cookie: {cookie}\r\nSet-Cookie: fine=1\r\nSet-Cookie2: {cookie}\r\n"
    workspace.answer = lambda _: f"HTTP/1.1 200 OK\r\n{lines}Content-Length: 0\r\n\r\n".encode()
    answer = await proxy.ask(get())
    assert b"codehub" not in answer.lower()
    assert answer.count(b"Set-Cookie: fine=1") == 1


@pytest.mark.parametrize(
    ("value", "passes"),
    [
        ("Bearer chub_abc", False),
        ("bearer   chub_abc", False),
        ("Bearer other", True),
        ("Basic Y2h1Yl9hYmM=", True),
        ("token chub_abc", True),
    ],
)
async def test_only_our_bearer_tokens_are_taken_out(
    proxy: ProxyHarness, workspace: FakeWorkspace, value: str, passes: bool
) -> None:
    await proxy.ask(get("/", f"Authorization: {value}"))
    assert workspace.seen[0].all("authorization") == ([value] if passes else [])
    assert is_platform_token(value.encode()) is not passes


async def test_a_remembered_head_still_goes_to_each_request(proxy: ProxyHarness, workspace: FakeWorkspace) -> None:
    same = ("Cookie: __Host-codehub=1; a=b", "Accept: x/y")
    await proxy.ask(get("/1", *same) + get("/2", *same) + get("/3", *same, method="HEAD"))
    assert [(seen.method, seen.target) for seen in workspace.seen] == [("GET", "/1"), ("GET", "/2"), ("HEAD", "/3")]
    ids = [seen.one("x-request-id") for seen in workspace.seen]
    assert len(set(ids)) == 3
    assert [seen.one("cookie") for seen in workspace.seen] == ["a=b"] * 3


async def test_a_request_id_passes_through_or_is_made(proxy: ProxyHarness, workspace: FakeWorkspace) -> None:
    answer = await proxy.ask(get("/", "X-Request-Id: abc-123"))
    assert workspace.seen[0].one("x-request-id") == "abc-123"
    assert answer.count(b"X-Request-Id: abc-123\r\n") == 1
    for unfit in ("", "x" * 200, "a b", "<script>"):
        await proxy.ask(get("/", f"X-Request-Id: {unfit}"))
        made = workspace.seen[-1].one("x-request-id")
        assert re.fullmatch(r"[0-9a-f]{20}", made), made


DATED = b"Date: Sun, 06 Nov 1994 08:49:37 GMT\r\n"


@pytest.mark.parametrize(("lines", "date"), [(DATED + b"Date: x\r\n", DATED), (b"", rb"Date: \w{3}, .{24}\r\n")])
async def test_the_answer_is_dated_once_and_its_server_s_own(
    proxy: ProxyHarness, workspace: FakeWorkspace, lines: bytes, date: bytes
) -> None:
    workspace.answer = lambda _: b"HTTP/1.1 200 OK\r\n" + lines + b"Server: node\r\nContent-Length: 0\r\n\r\n"
    found = await proxy.ask(get())
    assert len(re.findall(date, found)) == found.count(b"Date: ") == 1
    assert found.count(b"Server: node\r\n") == found.count(b"Server: ") == 1


async def test_encodings_pass_and_hop_by_hop_answers_do_not(proxy: ProxyHarness, workspace: FakeWorkspace) -> None:
    workspace.answer = lambda _: (
        b"HTTP/1.1 200 Fine\r\nContent-Encoding: br\r\nConnection: keep-alive, x-hop\r\nX-Hop: 1\r\n"
        b"Keep-Alive: timeout=5\r\n"
        b"Proxy-Authenticate: Basic\r\nTrailer: a\r\nUpgrade: h2c\r\nX-Request-Id: theirs\r\nContent-Length: 0\r\n\r\n"
    )
    answer = await proxy.ask(get("/", "Accept-Encoding: gzip, br"))
    assert workspace.seen[0].one("accept-encoding") == "gzip, br"
    assert answer.startswith(b"HTTP/1.1 200 Fine\r\nContent-Encoding: br\r\nDate: ")
    for gone in (b"X-Hop", b"Keep-Alive", b"Proxy-", b"Trailer", b"Upgrade", b"theirs"):
        assert gone not in answer


@pytest.mark.parametrize(
    ("origin", "same"),
    [
        (b"http://w.localhost:8000", True),
        (b"http://w.localhost", False),
        (b"http://w.localhost:8000.evil.com", False),
        (b"https://w.localhost:8000", False),
        (b"http://W.localhost:8000", False),
        (b"null", False),
        (b"http://w.localhost:8000, http://w.localhost:8000", False),
        (b"", False),
        (None, False),
    ],
)
def test_an_origin_is_exactly_ours_or_not(origin: bytes | None, same: bool) -> None:
    addresses = Addresses("http://{slug}.localhost:8000/")
    assert addresses.is_same_origin(origin, b"w.localhost:8000") is same
    assert addresses.is_same_origin(origin, b"W.Localhost:8000") is same


def test_ports_are_those_of_the_host_or_the_scheme() -> None:
    assert port_of(b"w.localhost:8000", b"http") == b"8000"
    assert port_of(b"w.localhost", b"http") == b"80"
    assert port_of(b"w.example", b"https") == b"443"
    assert port_of(b"[::1]", b"https") == b"443"
    assert port_of(b"[::1]:7", b"https") == b"7"


def test_forwarded_lines_follow_the_host() -> None:
    forwarded = Forwarded(b"10.0.0.1", b"https")
    assert b"Host: a\r\n" in forwarded.lines(b"a")
    assert b"Host: b\r\n" in forwarded.lines(b"b")


def test_cookies_that_only_mention_us_stay() -> None:
    assert without_platform_cookies([b"a=__Host-codehub; b=1"]) == b"a=__Host-codehub; b=1"
    assert without_platform_cookies([b" a=1;;__Host-codehub=x;"]) == b"a=1"
    assert not is_platform_cookie(b"x__Host-codehub=1")
