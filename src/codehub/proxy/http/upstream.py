"""A connection to a workspace: how it is opened, how it sends a request's head, reads the answer and hands it to the
client.

It is reused only when the answer's end is certain: both sides kept to the letter of HTTP and nothing followed the body.
An address may be another person's a moment later, so the agent behind it proves that it belongs to this start before a
byte of a request is sent. A workspace may write the directory its socket is in, so the socket is looked up without
following a link and connected to through what was found. The ports of a workspace with a network of its own are not
this machine's: a socket of that network is handed out, and connected.
"""

import asyncio
import os
import socket
import stat
from collections.abc import Awaitable, Callable
from typing import Protocol, TypeVar, cast

from codehub.agent.handshake import dial
from codehub.domain.errors import CodeHubError
from codehub.ports.runtime import Endpoint
from codehub.proxy.access.verdicts import Confirm, Forward, UpstreamFailure
from codehub.proxy.http.chunked import LAST_CHUNK, Chunks, chunk
from codehub.proxy.http.limits import ProxyLimits
from codehub.proxy.http.parser import (
    CHUNKED,
    PLATFORM_READERS,
    SHARED_ORIGIN_READERS,
    UNTIL_CLOSE,
    BadMessage,
    Readers,
    RequestHead,
    ResponseHead,
    parse_response,
)

_STATUS_LINE = b"HTTP/1."
MOST_INTERIM = 64
"""How many interim answers (100, 102, 103) may come in one read: a workspace that sends more floods us."""


class ConnectionOwner(Protocol):
    """Keeps upstream connections for later requests."""

    def release(self, upstream: "Upstream") -> None:
        """Take the connection back, which is free for the next request."""
        ...

    def gone(self, upstream: "Upstream | None") -> None: ...


class ResponseReceiver(Protocol):
    """The client's side of a forwarded request, as the connection that brings the response sees it."""

    transport: asyncio.Transport
    head: RequestHead
    forward: Forward | None
    body_left: int
    write_paused: bool

    @property
    def may_repeat(self) -> bool: ...

    def progress(self) -> None: ...

    def send_continue(self) -> None: ...

    def resume_reading(self) -> None: ...

    def begin_answer(self, head: ResponseHead, framing: bytes) -> bytes: ...

    def finished(self) -> None: ...

    def repeat(self) -> None: ...

    def fail(self, failure: UpstreamFailure) -> None: ...

    def cut_off(self) -> None: ...

    def switch(self, upstream: "Upstream", head: ResponseHead, rest: bytes) -> None: ...


class Upstream(asyncio.Protocol):
    __slots__ = (
        "_chunks",
        "_held",
        "_keep",
        "_left",
        "_limits",
        "answered",
        "client",
        "heard",
        "idle_since",
        "pool",
        "reused",
        "transport",
    )

    transport: asyncio.Transport

    def __init__(self, pool: ConnectionOwner, limits: ProxyLimits) -> None:
        self.pool = pool
        self._limits = limits
        self.client: ResponseReceiver | None = None
        self.idle_since = 0.0
        self.reused = False
        self.heard = False
        """Whether a byte of the answer has come."""
        self.answered = False
        """Whether the head of the final answer has gone to the client."""
        self._keep = False
        self._left = 0
        """How much of the answer's body is to come: a count, CHUNKED or UNTIL_CLOSE; 0 while the head is awaited."""
        self._held = b""
        self._chunks: Chunks | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        self.transport.set_write_buffer_limits(self._limits.write_buffer)

    def begin(self, client: ResponseReceiver, head: bytes) -> None:
        self.client = client
        self.heard = self.answered = False
        self.transport.write(head)

    def leave(self) -> None:
        """Abort what is under way here: its client has gone."""
        self.client = None
        self.transport.abort()

    def data_received(self, data: bytes) -> None:
        client, left = self.client, self._left
        if client is None:
            self.transport.abort()  # nobody asked
        elif left > 0:
            client.progress()
            if len(data) < left:
                self._left = left - len(data)
                client.transport.write(data)
            else:
                self._keep = self._keep and len(data) == left
                client.transport.write(data[:left])
                self._complete(client)
        elif left == 0:
            self.heard = True
            self._read_head(client, data)
        else:
            client.progress()
            self._unsized(client, b"", data)

    def _read_head(self, client: ResponseReceiver, data: bytes) -> None:
        if self._held:
            data = self._held + data
            self._held = b""
        interim = 0
        while True:
            end = data.find(b"\r\n\r\n")
            if end < 0 or end > self._limits.response_head_bytes:
                self._held = data
                if len(data) > self._limits.response_head_bytes or not data.startswith(_STATUS_LINE[: len(data)]):
                    self._fail(client, UpstreamFailure.GARBAGE)
                return
            try:
                forward, host = client.forward, client.head.fields.host
                head = parse_response(data[:end], self._limits.response_header_lines, _readers(forward), host, forward)
            except BadMessage:
                self._fail(client, UpstreamFailure.GARBAGE)
                return
            data = data[end + 4 :]
            if head.status >= 200:
                self._answer(client, head, data)
                return
            interim += 1
            if interim > MOST_INTERIM:
                self._fail(client, UpstreamFailure.GARBAGE)
                return
            if not self._interim(client, head, data):
                return

    def _interim(self, client: ResponseReceiver, head: ResponseHead, rest: bytes) -> bool:
        """Handle an interim answer. False: nothing follows it now."""
        if head.status == 101:
            if client.head.fields.upgrade and head.upgrade:
                self.client = None
                client.switch(self, head, rest)
            else:
                self._fail(client, UpstreamFailure.GARBAGE)
            return False
        if not client.body_left:
            client.progress()
        if head.status == 100:
            client.send_continue()
        elif client.head.version_1_1:
            client.transport.write(b"\r\n".join((*head.lines, b"", b"")))
        return bool(rest)

    def _answer(self, client: ResponseReceiver, head: ResponseHead, rest: bytes) -> None:
        self.answered = True
        self._keep = head.keep_alive
        length, framing = _framing(head, client.head)
        out = client.begin_answer(head, framing)
        if length < 0:
            self._left = length
            self._chunks = Chunks() if length == CHUNKED else None
            self._unsized(client, out, rest)
        elif len(rest) < length:
            self._left = length - len(rest)
            client.transport.write(out + rest)
        else:
            if len(rest) > length:
                self._keep = False
                rest = rest[:length]
            client.transport.write(out + rest)
            self._complete(client)

    def _unsized(self, client: ResponseReceiver, head: bytes, data: bytes) -> None:
        """Pass on a body whose end is marked and not counted: its chunks are written anew, or taken off for HTTP/1.0
        clients."""
        payload, done = [data], False
        if self._chunks is not None:
            try:
                payload = self._chunks.feed(data)
            except BadMessage:
                self.leave()
                client.cut_off()
                return
            done = self._chunks.done
            self._keep = self._keep and not self._chunks.rest
        pieces = chunk(payload) if client.head.version_1_1 else payload
        if done and client.head.version_1_1:
            pieces.append(LAST_CHUNK)
        client.transport.writelines([head, *pieces] if head else pieces)
        if done:
            self._complete(client)

    def _complete(self, client: ResponseReceiver) -> None:
        self.client = None
        self._left = 0
        self._chunks = None
        if client.write_paused:
            self.transport.resume_reading()
        if self._keep and not client.body_left:
            self.reused = True
            self.pool.release(self)
        else:
            self.transport.close()
        client.finished()

    def _fail(self, client: ResponseReceiver, failure: UpstreamFailure) -> None:
        self.leave()
        client.fail(failure)

    def pause_writing(self) -> None:
        if self.client is not None:
            self.client.transport.pause_reading()

    def resume_writing(self) -> None:
        if self.client is not None:
            self.client.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        self.pool.gone(self)
        client, self.client = self.client, None
        if client is None:
            return
        if self.answered:
            if self._left == UNTIL_CLOSE and exc is None:
                if client.head.version_1_1:
                    client.transport.write(LAST_CHUNK)
                client.finished()
            else:
                client.cut_off()
        elif self.reused and not self.heard and client.may_repeat:
            client.repeat()
        else:
            client.fail(UpstreamFailure.GARBAGE if self._held else UpstreamFailure.CLOSED_EARLY)


def _readers(forward: Forward | None) -> Readers | None:
    if forward is None or not (forward.to_platform or forward.shares_origin):
        return None
    return PLATFORM_READERS if forward.to_platform else SHARED_ORIGIN_READERS


def _framing(head: ResponseHead, request: RequestHead) -> tuple[int, bytes]:
    """The body's length, and the header line that tells the client."""
    length = head.body_length
    if request.method == b"HEAD" or head.status in (204, 304):
        said = length >= 0 and head.status != 204
        return 0, b"Content-Length: %d\r\n" % length if said else b""
    if length >= 0:
        return length, b"Content-Length: %d\r\n" % length
    return length, b"Transfer-Encoding: chunked\r\n" if request.version_1_1 else b""


Connection = TypeVar("Connection", bound=asyncio.Protocol)

_HANDED_OUT = 2
_HANDING_OUT_SECONDS = 5.0


async def connect(endpoint: Endpoint, make: Callable[[], Connection], confirm: Confirm | None = None) -> Connection:
    """A connection to where a workspace answers. Raises OSError when nobody answers there, or it is not `confirm`ed
    that the workspace still has that address."""
    loop = asyncio.get_running_loop()
    if endpoint.socket is not None:
        return await _connect_socket(loop, endpoint.socket, make)
    if endpoint.host is None or endpoint.port is None:
        raise OSError("this endpoint names neither a socket nor a host and port")
    if endpoint.network is not None:
        return await _connect_inside(loop, endpoint.network, (endpoint.host, endpoint.port), make)
    address = endpoint.host, endpoint.port
    if endpoint.inside is not None:
        proven = await dial(address, endpoint.inside.key, endpoint.inside.port)
    elif confirm is not None:
        proven = await _confirmed(loop, address, confirm)
    else:
        _, connection = await loop.create_connection(make, *address)
        return connection
    _, connection = await loop.create_connection(make, sock=proven)
    return connection


def confirmation(endpoint: Endpoint, look: Callable[[], Awaitable[Endpoint | None]]) -> Confirm | None:
    """A check, for a connection that was made, that the workspace still has that address. None: its agent proves
    itself, or its place never passes to another. A runtime that does not answer confirms nothing."""
    if endpoint.instance is None:
        return None

    async def confirm() -> bool:
        try:
            return await look() == endpoint
        except CodeHubError:
            return False

    return confirm


async def _confirmed(loop: asyncio.AbstractEventLoop, address: tuple[str, int], confirm: Confirm) -> socket.socket:
    """A connected socket. If the workspace has the address after we have connected, it had it when we did: nobody else
    is at the other end."""
    sock = socket.socket(socket.AF_INET6 if ":" in address[0] else socket.AF_INET, socket.SOCK_STREAM)
    try:
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        await loop.sock_connect(sock, address)
        if not await confirm():
            raise ConnectionError(f"{address[0]} is no longer this workspace's address")
    except BaseException:
        sock.close()
        raise
    return sock


async def _connect_socket(loop: asyncio.AbstractEventLoop, path: str, make: Callable[[], Connection]) -> Connection:
    found = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        if not stat.S_ISSOCK(os.fstat(found).st_mode):
            raise OSError(f"{path} is not a socket")
        _, connection = await loop.create_unix_connection(make, f"/proc/self/fd/{found}")
    finally:
        os.close(found)
    return connection


async def _connect_inside(
    loop: asyncio.AbstractEventLoop, network: str, address: tuple[str, int], make: Callable[[], Connection]
) -> Connection:
    sock = await asyncio.to_thread(_socket_of, network, socket.AF_INET6 if ":" in address[0] else socket.AF_INET)
    try:
        await loop.sock_connect(sock, address)
        _, connection = await loop.create_connection(make, sock=sock)
    except BaseException:
        sock.close()
        raise
    return connection


def _socket_of(network: str, family: socket.AddressFamily) -> socket.socket:
    found = os.open(network, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        with socket.socket(socket.AF_UNIX) as asking:
            asking.settimeout(_HANDING_OUT_SECONDS)
            asking.connect(f"/proc/self/fd/{found}")
            _, descriptors, _, _ = socket.recv_fds(asking, 1, _HANDED_OUT)
    finally:
        os.close(found)
    handed = [socket.socket(fileno=descriptor) for descriptor in descriptors]
    chosen = next((sock for sock in handed if sock.family == family), None)
    for sock in handed:
        if sock is not chosen:
            sock.close()
    if chosen is None:
        raise OSError(f"no socket of the workspace's network was handed out at {network}")
    chosen.setblocking(False)
    return chosen
