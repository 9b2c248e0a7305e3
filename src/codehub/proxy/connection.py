"""One client's connection as bytes: what of it is read and held, how it is paused, and how it ends.

Bytes that cannot be used yet are held, and nothing more is read meanwhile. What is held for those who have not signed
in is counted by their address, which may not have more than its share.
"""

import asyncio
from typing import TYPE_CHECKING, Final, cast

from codehub.proxy.forwarders import household, peer_address
from codehub.proxy.gate import Cap, Forward
from codehub.proxy.head import Refused
from codehub.proxy.headers import Forwarded
from codehub.proxy.request import RequestHead
from codehub.proxy.responses import problem, serialised
from codehub.proxy.sockets import reset_on_close
from codehub.proxy.tally import Counted

if TYPE_CHECKING:
    from codehub.proxy.server import ProxyServer

HOLDS_TOO_MUCH: Final = Refused(429, "Too much of unfinished requests is held for your address. Try again shortly.")


def too_large(most: int) -> Refused:
    return Refused(413, f"Who has not signed in may send a body of {most} bytes at most.")


class ClientConnection(asyncio.Protocol):
    __slots__ = (
        "_believed", "_buffer", "_close_after", "_closing", "_ended", "_forwarded", "_gathered", "_head_begun", "_held",
        "_peer", "body_left", "busy", "counted_as", "deadline", "forward", "head", "holder", "server", "transport",
        "write_paused",
    )  # fmt: skip

    transport: asyncio.Transport
    head: RequestHead
    """Of the request being served, or of the last."""
    forward: Forward | None

    def __init__(self, server: "ProxyServer") -> None:
        self.server = server
        self.busy = False
        """A request is being served."""
        self.forward = None
        self.holder: object = None  # whose request it carried last
        self.counted_as: bytes | None = None
        self.body_left = 0
        """Of the request's body: a count, or CHUNKED; 0 when all of it has come."""
        self.write_paused = False
        self.deadline = server.now + server.limits.keep_alive_seconds
        self._buffer = b""
        self._gathered = b""
        """Of a body for the platform, which is read before a connection is taken."""
        self._held = Counted(server.held)
        self._head_begun = False
        self._close_after = False
        self._closing = self._ended = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        self.transport.set_write_buffer_limits(self.server.limits.write_buffer)
        self._peer = peer_address(transport.get_extra_info("peername"))
        self._believed = self.server.forwarders.include(self._peer)
        self._forwarded = Forwarded(self._peer, self.server.scheme)

    # ── what is held ─────────────────────────────────────────────────────────────────────────────────────────────────

    def _hold(self, data: bytes) -> None:
        self._buffer = data
        self.transport.pause_reading()
        if not self._count_held():
            self.abort()

    def _part_of_head(self, data: bytes) -> bytes:
        if len(data) > self.server.limits.head_bytes:
            self._refuse(Refused(431, "The head of the request is too large."))
        elif data.count(b"\n") != data.count(b"\r\n") or not (data[:1].isalpha() or data[:1] == b"\r"):
            self._refuse(Refused(400, "This is not HTTP."))
        else:
            if not self._head_begun:
                self._head_begun = True
                self.deadline = self.server.now + self.server.limits.head_seconds
            self._buffer = data
            if not self._count_held():
                self._refuse(HOLDS_TOO_MUCH)
        return b""

    def _count_held(self) -> bool:
        """False: its address, over which nobody has signed in, holds more than it may."""
        size = len(self._buffer) + len(self._gathered)
        whose = self._stranger() if size else None
        if self._held.becomes(whose, 0 if whose is None else size):
            return True
        self.server.turned_away[Cap.ADDRESS] += 1
        return False

    def _stranger(self) -> bytes | None:
        """The address that asks, unless somebody has signed in; None too while a proxy that is believed has not said
        whose it is."""
        if self.holder is not None or (self.forward is not None and self.forward.person is not None):
            return None
        if not self._believed:
            return self.counted_as
        return household(self.head.peer) if self.busy else None

    def _forget_held(self) -> None:
        self._buffer = self._gathered = b""
        self._held.becomes(None, 0)

    def read_on(self) -> None:
        if not self._ended and not self._buffer:
            self.transport.resume_reading()

    # ── the end ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def drain(self) -> None:
        """An idle one may be asking already, unread as yet or still on its way: it has a moment, and is then told that
        this answer is the last. One that has just come has a little more."""
        if not self.busy and not self._buffer:
            limits = self.server.limits
            moment = limits.last_request_seconds if hasattr(self, "head") else limits.linger_seconds
            self.deadline = min(self.deadline, self.server.now + moment)

    def abort(self) -> None:
        if self.busy and not self.head.version_1_1:
            reset_on_close(self.transport)
        self.transport.abort()

    def _refuse(self, refused: Refused) -> None:
        answer = problem(refused.status, refused.why)
        self.transport.write(serialised(answer, self.server.date, b"", body=True, close=True))
        self.busy = False
        self._linger()

    def _close(self) -> None:
        if self.body_left or self._buffer:
            self._linger()
        else:
            self._closing = True
            self.transport.close()

    def _linger(self) -> None:
        """Say that we are done, and read over what still comes: a reset would take our answer with it."""
        self._closing = True
        self._forget_held()
        if self._ended or not self.transport.can_write_eof():
            self.transport.close()
            return
        self.deadline = self.server.now + self.server.limits.linger_seconds
        self.transport.write_eof()
        self.transport.resume_reading()
