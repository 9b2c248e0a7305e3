"""Upgraded sockets: bytes as they are, both ways, watched or not, half-closed, ended when someone says so."""

import asyncio
import socket
from dataclasses import replace

import pytest

from codehub.proxy.access.verdicts import Forward, UpstreamFailure
from tests.eventually import eventually
from tests.proxy.fake_workspace import FakeWorkspace
from tests.proxy.harness import LIMITS, ProxyHarness, RawConnection, get, in_time, status

SWITCH = (
    b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Accept: x\r\n\r\n"
)
OFFER = ("Connection: keep-alive, Upgrade", "Upgrade: websocket", "Sec-WebSocket-Key: k", "Origin: http://w.localhost")


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readuntil(b"\r\n\r\n")
    writer.write(SWITCH)
    while data := await reader.read(65536):
        writer.write(data)
        await writer.drain()


async def upgraded(proxy: ProxyHarness, path: str = "/ws") -> RawConnection:
    raw = await proxy.connect()
    raw.write(get(path, *OFFER))
    head = await raw.head()
    assert status(head) == 101, head
    return raw


async def test_64_sockets_echo_at_once(proxy: ProxyHarness, workspace: FakeWorkspace) -> None:
    workspace.handler = echo

    async def chat(number: int) -> None:
        raw = await upgraded(proxy)
        for turn in range(50):
            message = b"%d:%d:" % (number, turn) + b"x" * (turn * 37)
            raw.write(message)
            assert await in_time(raw.reader.readexactly(len(message))) == message
        raw.close()

    await asyncio.gather(*(chat(number) for number in range(64)))
    assert workspace.connections == 64
    await eventually(lambda: workspace.open == 0 and proxy.server.connections == 0)


async def test_the_handshake_passes_without_extensions(proxy: ProxyHarness, workspace: FakeWorkspace) -> None:
    heads: list[bytes] = []

    async def note(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(SWITCH)
        await reader.read()

    workspace.handler = note
    raw = await proxy.connect()
    raw.write(get("/ws", *OFFER, "Sec-WebSocket-Extensions: permessage-deflate", "Sec-WebSocket-Protocol: a, b"))
    answer = await raw.head()
    raw.close()
    assert b"Connection: Upgrade\r\nUpgrade: websocket\r\n" in answer
    assert b"Sec-WebSocket-Accept: x\r\n" in answer
    assert b"Extensions" not in heads[0]
    for kept in (b"Sec-WebSocket-Key: k", b"Sec-WebSocket-Protocol: a, b", b"Origin: http://w.localhost"):
        assert kept in heads[0]
    assert b"Connection: Upgrade\r\nUpgrade: websocket\r\n" in heads[0]


async def test_bytes_that_come_with_the_handshake_are_not_lost(proxy: ProxyHarness, workspace: FakeWorkspace) -> None:
    async def eager(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(SWITCH + b"hello")
        writer.write(await reader.readexactly(5))

    workspace.handler = eager
    raw = await proxy.connect()
    raw.write(get("/ws", *OFFER) + b"early")
    await raw.head()
    assert await raw.rest() == b"helloearly"
    raw.close()


async def test_a_refused_upgrade_is_an_answer_and_what_follows_a_request(
    proxy: ProxyHarness, workspace: FakeWorkspace
) -> None:
    workspace.answer = lambda seen: b"HTTP/1.1 403 No\r\nContent-Length: 1\r\n\r\n" + seen.target[-1:].encode()
    raw = await proxy.connect()
    raw.write(get("/1", *OFFER) + get("/2"))
    assert [(await raw.answer())[1], (await raw.answer())[1]] == [b"1", b"2"]
    raw.close()
    assert [seen.target for seen in workspace.seen] == ["/1", "/2"]


@pytest.mark.parametrize("offer", [(), OFFER])
async def test_a_switch_nobody_asked_for_is_garbage(
    proxy: ProxyHarness, workspace: FakeWorkspace, offer: tuple[str, ...]
) -> None:
    wrong = SWITCH.replace(b"websocket", b"telnet") if offer else SWITCH
    workspace.answer = lambda _: wrong
    raw = await proxy.connect()
    raw.write(get("/", *offer))
    assert status((await raw.answer())[0]) == 502
    raw.close()
    assert proxy.authorizer.failures == [UpstreamFailure.GARBAGE]


class Watching:
    at_boundary = False

    def __init__(self) -> None:
        self.client, self.upstream = bytearray(), bytearray()
        self.closed = 0

    def from_client(self, data: bytes) -> None:
        self.client += data

    def from_upstream(self, data: bytes) -> None:
        self.upstream += data
        if data == b"break":
            raise RuntimeError("this tap is broken")

    def close(self) -> None:
        self.closed += 1


async def test_a_tap_sees_both_ways_and_cannot_break_the_relay(workspace: FakeWorkspace) -> None:
    workspace.handler = echo
    taps: list[Watching] = []

    def tap() -> Watching:
        taps.append(Watching())
        return taps[-1]

    async with ProxyHarness(workspace.endpoint, forward=Forward(workspace.endpoint, tap=tap)) as proxy:
        raw = await upgraded(proxy)
        for message in (b"one", b"break", b"two"):
            raw.write(message)
            assert await in_time(raw.reader.readexactly(len(message))) == message
        raw.close()
    assert len(taps) == 1
    assert bytes(taps[0].client) == b"onebreaktwo"
    assert bytes(taps[0].upstream) == b"onebreak"
    assert taps[0].closed == 1


async def test_a_tap_that_cannot_be_made_costs_only_the_tap(workspace: FakeWorkspace) -> None:
    workspace.handler = echo

    def broken() -> Watching:
        raise RuntimeError("no tap")

    async with ProxyHarness(workspace.endpoint, forward=Forward(workspace.endpoint, tap=broken)) as proxy:
        raw = await upgraded(proxy)
        raw.write(b"still here")
        assert await in_time(raw.reader.readexactly(10)) == b"still here"
        raw.close()


async def test_either_side_may_end_first_and_still_listen(proxy: ProxyHarness, workspace: FakeWorkspace) -> None:
    async def last_word(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        target = (await reader.readuntil(b"\r\n\r\n")).split()[1]
        writer.write(SWITCH)
        if target == b"/client-first":
            said = await reader.read()
            await asyncio.sleep(0.05)
            writer.write(b"heard " + said)
        else:
            writer.write(b"bye")
            writer.write_eof()
            heard.append(await reader.read())

    heard: list[bytes] = []
    workspace.handler = last_word
    raw = await upgraded(proxy, "/client-first")
    raw.write(b"all")
    raw.writer.write_eof()
    assert await raw.rest() == b"heard all"
    raw.close()
    raw = await upgraded(proxy, "/workspace-first")
    assert await raw.rest() == b"bye"
    raw.write(b"and you")
    raw.close()
    await eventually(lambda: heard == [b"and you"])
    await eventually(lambda: proxy.server.connections == 0 and workspace.open == 0)


async def test_a_half_closed_socket_does_not_stay_for_ever(workspace: FakeWorkspace) -> None:
    async def deaf(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(SWITCH)
        await asyncio.Event().wait()

    workspace.handler = deaf
    async with ProxyHarness(workspace.endpoint, replace(LIMITS, half_closed_seconds=0.1)) as proxy:
        raw = await upgraded(proxy)
        raw.writer.write_eof()
        assert await raw.rest() == b""
        raw.close()
        await eventually(lambda: proxy.server.connections == 0)


@pytest.mark.parametrize("leaves", [False, True])
async def test_a_client_that_does_not_read_cannot_hold_on_for_ever(workspace: FakeWorkspace, leaves: bool) -> None:
    """A stalled socket does not stay either when its workspace has gone, which is not seen while nothing is read from
    it."""

    async def flood(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(SWITCH)
        for _ in range(40):
            writer.write(b"x" * 1_000_000)
        if leaves:
            await asyncio.sleep(0.3)
            writer.transport.abort()
        await writer.drain()

    workspace.handler = flood
    async with ProxyHarness(workspace.endpoint, replace(LIMITS, body_idle_seconds=1.0)) as proxy:
        raw = await upgraded(proxy)
        raw.reader._transport.pause_reading()  # type: ignore[attr-defined]
        assert proxy.server.connections == 1
        await eventually(lambda: proxy.server.connections == 0)
        raw.close()


async def test_a_lost_workspace_s_last_bytes_have_a_bounded_time(workspace: FakeWorkspace) -> None:
    async def last_bytes(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(SWITCH)
        await go_on.wait()
        writer.write(b"x" * 200_000)

    go_on = asyncio.Event()
    workspace.handler = last_bytes
    async with ProxyHarness(workspace.endpoint, replace(LIMITS, half_closed_seconds=0.3)) as proxy:
        raw = await upgraded(proxy)
        raw.writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        raw.reader._transport.pause_reading()  # type: ignore[attr-defined]
        go_on.set()
        await eventually(lambda: proxy.server.connections == 0)
        raw.close()


async def test_sockets_of_a_label_are_ended_and_no_others(proxy: ProxyHarness, workspace: FakeWorkspace) -> None:
    workspace.handler = echo
    for label in ("ada", "eve"):
        proxy.authorizer.verdicts[f"/{label}".encode()] = lambda label=label: Forward(workspace.endpoint, grant=label)  # type: ignore[misc]
    ada, eve = await upgraded(proxy, "/ada"), await upgraded(proxy, "/eve")
    assert proxy.server.abort_sockets(lambda forward: forward.grant == "eve") == 1
    assert await raw_end(eve) == b""
    ada.write(b"still")
    assert await in_time(ada.reader.readexactly(5)) == b"still"
    ada.close()
    eve.close()
    await eventually(lambda: workspace.open == 0)


async def test_requests_under_way_are_ended_too(proxy: ProxyHarness, workspace: FakeWorkspace) -> None:
    async def endless(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nsome")
        await reader.read()

    workspace.handler = endless
    raw = await proxy.connect()
    raw.write(get())
    await raw.head()
    assert proxy.server.abort_sockets(lambda _: True) == 1
    assert await raw_end(raw) in (b"", b"some")
    raw.close()
    await eventually(lambda: workspace.open == 0)


async def test_an_old_client_can_tell_that_its_answer_was_ended(proxy: ProxyHarness, workspace: FakeWorkspace) -> None:
    """Over HTTP/1.0 the regular end of the connection would pass for the end of the body."""

    async def endless(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nsome\r\n")
        await reader.read()

    workspace.handler = endless
    raw = await proxy.connect()
    raw.write(b"GET / HTTP/1.0\r\nHost: w.localhost\r\n\r\n")
    await raw.head()
    assert await in_time(raw.reader.readexactly(4)) == b"some"
    assert proxy.server.abort_sockets(lambda _: True) == 1
    with pytest.raises(ConnectionResetError):
        await raw.rest()
    raw.close()


async def raw_end(raw: RawConnection) -> bytes:
    try:
        return await raw.rest()
    except ConnectionError:
        return b""
