"""Who asks, behind a proxy: believed of those that were named, and of nobody else."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from fastapi import Request
from hypothesis import given
from hypothesis import strategies as st

from codehub.api.dependencies import address_of
from codehub.api.server import listen_on, listen_on_unix_socket, serve
from codehub.ports.runtime import Endpoint
from codehub.proxy.access.verdicts import Forward
from codehub.proxy.http.downstream import Downstream
from codehub.proxy.http.headers import TrustedProxies, networks, peer_address
from codehub.proxy.http.limits import client_network
from codehub.proxy.http.parser import RequestFields, parse_request
from codehub.proxy.server import ProxyServer
from tests.api.memory_api import memory_api
from tests.proxy.fake_workspace import FakeWorkspace, Seen
from tests.proxy.harness import ProxyHarness, RawConnection, get, in_time

BEFORE_US = networks("10.0.0.0/8, 127.0.0.1, fd00::/8")


def fields(*lines: str) -> RequestFields:
    return parse_request(get("/", *lines)[:-4], 200).fields


def caller(said: str, peer: str = "10.0.0.1") -> str:
    return TrustedProxies(BEFORE_US).forwarded_by(peer.encode(), fields(f"X-Forwarded-For: {said}")).peer.decode()


@pytest.mark.parametrize(
    ("said", "who"),
    [
        ("203.0.113.9", "203.0.113.9"),
        ("6.6.6.6, 203.0.113.9", "203.0.113.9"),
        ("6.6.6.6, 203.0.113.9, 10.0.0.2", "203.0.113.9"),
        ("203.0.113.9,10.0.0.3 ,\t10.0.0.2", "203.0.113.9"),
        ("10.0.0.3, 10.0.0.2", "10.0.0.3"),
        ("203.0.113.9:51234", "203.0.113.9"),
        ("2001:db8::7", "2001:db8::7"),
        ("2001:DB8:0:0::7", "2001:db8::7"),
        ("[2001:db8::7]", "2001:db8::7"),
        ("[2001:db8::7]:443", "2001:db8::7"),
        ("2001:db8::7, fd00::1", "2001:db8::7"),
        ("::ffff:203.0.113.9", "203.0.113.9"),
        ("203.0.113.9, ::ffff:10.0.0.2", "203.0.113.9"),
    ],
)
def test_the_caller_is_the_last_hop_that_was_not_named(said: str, who: str) -> None:
    assert caller(said) == who


@pytest.mark.parametrize(
    "garbage",
    [
        "",
        ",",
        "unknown",
        "_hidden",
        "203.0.113",
        "203.0.113.9.1",
        "0203.0.113.9",
        "203.0.113.9:x",
        "203.0.113.9:",
        "[2001:db8::7",
        "[2001:db8::7]x",
        "[203.0.113.9",
        "2001:db8::7]",
        "fe80::1%<b>",
        "203.0.113.9 6.6.6.6",
        "for=203.0.113.9",
        "\xb2\xb3.1.1.1",
        "http://203.0.113.9",
    ],
)
def test_garbage_makes_nobody_of_the_caller(garbage: str) -> None:
    """The last one who said something readable is the one who asks."""
    assert caller(garbage) == "10.0.0.1"
    assert caller(f"6.6.6.6, {garbage}") == "10.0.0.1"
    assert caller(f"6.6.6.6, {garbage}, 10.0.0.2") == "10.0.0.2"
    assert caller(f"{garbage}, 203.0.113.9") == "203.0.113.9"


@given(st.text(st.characters(min_codepoint=0x20, max_codepoint=0xFF, exclude_characters="\x7f")))
def test_whatever_stands_left_of_the_caller_changes_nothing(claimed: str) -> None:
    assert caller(f"{claimed}, 203.0.113.9, 10.0.0.2") == "203.0.113.9"


def test_an_endless_chain_is_not_followed() -> None:
    assert caller("6.6.6.6" + ", 10.0.0.2" * 500) == "10.0.0.2"


def test_the_lines_of_a_chain_are_one() -> None:
    said = fields("X-Forwarded-For: 6.6.6.6", "x-forwarded-FOR: 203.0.113.9", "X-Forwarded-For: 10.0.0.2")
    assert TrustedProxies(BEFORE_US).forwarded_by(b"10.0.0.1", said).peer == b"203.0.113.9"


@pytest.mark.parametrize(
    ("said", "scheme"),
    [
        (["https"], "https"),
        (["HTTP"], "http"),
        (["wss"], "https"),
        (["ws"], "http"),
        ([], "https"),
        (["ftp"], "https"),
        (["http, https"], "https"),
        (["http", "http"], "https"),
        (["http\xff"], "https"),
    ],
)
def test_the_scheme_is_one_or_it_is_ours(said: list[str], scheme: str) -> None:
    forwarded = TrustedProxies(BEFORE_US, b"https").forwarded_by(
        b"10.0.0.1", fields(*(f"X-Forwarded-Proto: {one}" for one in said))
    )
    assert f"X-Forwarded-Proto: {scheme}\r\n".encode() in forwarded.lines(b"w.localhost")


def test_what_is_heard_once_is_not_another_s_word() -> None:
    """Two proxies, or two clients of one, are told apart however often they speak."""
    trusted_proxies = TrustedProxies(BEFORE_US)
    for _ in range(2):
        assert trusted_proxies.forwarded_by(b"10.0.0.1", fields()).peer == b"10.0.0.1"
        assert trusted_proxies.forwarded_by(b"10.0.0.2", fields()).peer == b"10.0.0.2"
        for last in range(5000):
            who = f"203.0.{last // 256}.{last % 256}"
            assert trusted_proxies.forwarded_by(b"10.0.0.1", fields(f"X-Forwarded-For: {who}")).peer.decode() == who


def test_who_is_named() -> None:
    trusted_proxies = TrustedProxies(BEFORE_US)
    assert [trusted_proxies.include(peer) for peer in (b"10.9.9.9", b"127.0.0.1", b"fd00::1", b"::ffff:10.0.0.1")] == [
        True
    ] * 4
    assert [trusted_proxies.include(peer) for peer in (b"11.0.0.1", b"127.0.0.2", b"::1", b"unknown", b"")] == [
        False
    ] * 5
    assert not TrustedProxies().include(b"127.0.0.1")


def test_a_peer_has_one_spelling() -> None:
    assert peer_address(("::ffff:10.0.0.1", 1, 0, 0)) == b"10.0.0.1"
    assert peer_address(("fe80::1%eth0", 1, 0, 2)) == b"fe80::1"
    assert peer_address("") == peer_address(None) == b"unknown"


def test_an_ipv6_network_is_counted_as_one_client() -> None:
    assert (
        client_network(b"2001:db8:0:1::1")
        == client_network(b"2001:db8:0:1:ffff::2")
        != client_network(b"2001:db8:0:2::1")
    )
    assert client_network(b"203.0.113.9") == b"203.0.113.9"
    assert client_network(b"unknown") is None


# ── at the proxy ──────────────────────────────────────────────────────────────────────────────────────────────────────

SAID = (
    "X-Forwarded-For: 6.6.6.6, 203.0.113.9",
    "X-Forwarded-Proto: https",
    "X-Forwarded-Host: evil",
    "X-Real-IP: 6.6.6.6",
)


@asynccontextmanager
async def behind(workspace: FakeWorkspace, named: str | None) -> AsyncIterator[ProxyHarness]:
    proxy = ProxyHarness(workspace.endpoint)
    proxy.trusted_proxies = networks(named)
    async with proxy:
        yield proxy


def heard(seen: Seen) -> tuple[str, str, str, str]:
    for name in ("forwarded", "x-real-ip"):
        assert seen.all(name) == []
    for_, proto, host, port = (seen.one(f"x-forwarded-{name}") for name in ("for", "proto", "host", "port"))
    return for_, proto, host, port


@pytest.mark.parametrize("named", [None, "10.0.0.0/8, ::1"])
async def test_forwarded_headers_of_an_untrusted_client_are_dropped(
    workspace: FakeWorkspace, named: str | None
) -> None:
    async with behind(workspace, named) as proxy:
        await proxy.ask(get("/", *SAID))
        assert heard(workspace.seen[0]) == ("127.0.0.1", "http", "w.localhost", "80")
        assert proxy.authorizer.asked[0].peer == b"127.0.0.1"


async def test_a_named_proxy_s_word_is_taken(workspace: FakeWorkspace) -> None:
    async with behind(workspace, "127.0.0.1") as proxy:
        await proxy.ask(get("/", *SAID))
        assert heard(workspace.seen[0]) == ("203.0.113.9", "https", "w.localhost", "443")
        assert proxy.authorizer.asked[0].peer == b"203.0.113.9"


async def test_the_clients_of_one_connection_are_told_apart(workspace: FakeWorkspace) -> None:
    async with behind(workspace, "127.0.0.1") as proxy:
        raw = await proxy.connect()
        for who in ("203.0.113.9", "203.0.113.7", "", "203.0.113.9"):
            raw.write(get("/", *([f"X-Forwarded-For: {who}"] if who else [])))
            await raw.answer()
        raw.close()
    assert [seen.one("x-forwarded-for") for seen in workspace.seen] == [
        "203.0.113.9",
        "203.0.113.7",
        "127.0.0.1",
        "203.0.113.9",
    ]


@pytest.mark.parametrize(
    "lines",
    [
        ("Connection: X-Forwarded-For", "X-Forwarded-For: 203.0.113.9"),
        ("X-Forwarded-For: 203.0.113.9", "X_Forwarded_For: 6.6.6.6"),
        ("X_Forwarded-For: 6.6.6.6", "x-forwarded-for: 203.0.113.9", "X-Forwarded_For: 6.6.6.6"),
    ],
)
async def test_a_client_cannot_take_the_proxy_s_word_back(workspace: FakeWorkspace, lines: tuple[str, ...]) -> None:
    async with behind(workspace, "127.0.0.1") as proxy:
        await proxy.ask(get("/", *lines))
        assert workspace.seen[0].one("x-forwarded-for") == "203.0.113.9"


async def test_nobody_named_comes_over_a_unix_socket(workspace: FakeWorkspace) -> None:
    async with behind(workspace, "0.0.0.0/0, ::/0") as proxy:
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        await asyncio.get_running_loop().connect_accepted_socket(lambda: Downstream(proxy.server), ours)
        raw = RawConnection(*await asyncio.open_unix_connection(sock=theirs))
        raw.write(get("/", *SAID))
        await raw.answer()
        raw.close()
        assert heard(workspace.seen[0]) == ("unknown", "http", "w.localhost", "80")


async def test_a_peer_of_either_family_is_itself(workspace: FakeWorkspace) -> None:
    async with behind(workspace, "127.0.0.1") as proxy:
        server: ProxyServer = proxy.server
        try:
            ports = {"127.0.0.1": await server.listen("127.0.0.1", 0), "::1": await server.listen("::", 0)}
        except OSError as error:
            pytest.skip(f"no IPv6 here: {error}")
        raws = [RawConnection(*await asyncio.open_connection(host, port)) for host, port in ports.items()]
        for raw in raws:
            raw.write(get("/", *SAID))
            await raw.answer()
            raw.close()
    assert [seen.one("x-forwarded-for") for seen in workspace.seen] == ["203.0.113.9", "::1"]


@pytest.mark.parametrize("is_private", [False, True], ids=["over TCP", "over a unix socket"])
@pytest.mark.parametrize(("named", "who"), [("127.0.0.1", "203.0.113.9"), (None, "127.0.0.1")])
async def test_the_api_learns_who_asks(is_private: bool, named: str | None, who: str, tmp_path: Path) -> None:
    """Through a whole proxy: the proxy decides on the address, and the API believes the proxy."""
    path = str(tmp_path / "api")
    listening = listen_on_unix_socket(path) if is_private else listen_on("127.0.0.1", 0)
    endpoint = Endpoint(socket=path) if is_private else Endpoint(host="127.0.0.1", port=listening.getsockname()[1])
    up = asyncio.Event()
    async with memory_api() as site:

        @site.app.get("/asking")
        async def asking(request: Request) -> list[str]:
            return [address_of(request), request.url.scheme]

        serving = asyncio.ensure_future(
            serve(site.app, listening, up.set, trusted_proxies="*" if is_private else "127.0.0.1")
        )
        await in_time(up.wait())
        proxy = ProxyHarness(endpoint, forward=Forward(endpoint, to_platform=True))
        proxy.trusted_proxies = networks(named)
        async with proxy:
            answer = await proxy.ask(get("/asking", *SAID, "X-Forwarded-For: 203.0.113.9"))
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)
    assert json.loads(answer.partition(b"\r\n\r\n")[2]) == [who, "https" if named else "http"]
