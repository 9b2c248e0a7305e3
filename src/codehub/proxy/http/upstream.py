"""A connection to a workspace: how it sends a request's head, reads the answer and hands it to the client.

It is reused only when the answer's end is certain: both sides kept to the letter of HTTP and nothing followed the body.
"""

import asyncio
from typing import Protocol, cast

from codehub.proxy.access.verdicts import Forward, UpstreamFailure
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
