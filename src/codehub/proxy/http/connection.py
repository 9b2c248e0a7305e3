"""A client's connection as bytes: its socket, what of it is read and held, how it is paused, and how it ends.

Bytes that cannot be used yet are held, and nothing more is read meanwhile. What is held for those who have not signed
in is counted by their address, which may not have more than its share. Socket options see to it that a peer which
vanished is noticed, and that one which was cut off can tell.
"""

import asyncio
import errno
import os
import select
import socket
import struct
from collections.abc import Iterable, Iterator
from itertools import count
from typing import Final, cast

from codehub.proxy.access.verdicts import Cap, Forward
from codehub.proxy.http.headers import Forwarded, Network, TrustedProxies, peer_address
from codehub.proxy.http.limits import CountedUsage, FairShare, ProxyLimits, UsageCounter, client_network
from codehub.proxy.http.parser import BadMessage, RequestHead
from codehub.proxy.http.responses import problem, serialised

BACKLOG = 1024
HOLDS_TOO_MUCH: Final = BadMessage(429, "Too much of unfinished requests is held for your address. Try again shortly.")
_COUNTERPARTS = {"127.0.0.1": "::1", "::1": "127.0.0.1", "0.0.0.0": "::", "::": "0.0.0.0"}  # noqa: S104 - named, not bound
_RESET = struct.pack("ii", 1, 0)


def listeners(host: str, port: int) -> list[socket.socket]:
    """The sockets to listen on for one address. If that is the loopback address or every address of one family, the
    same in the other family too: `localhost` is both, and whoever held the other would get our visitors. Raises OSError
    if somebody else holds one of them; a machine without IPv6 has no other."""
    first = listener(host, port)
    other = _COUNTERPARTS.get(first.getsockname()[0])
    if other is None:
        return [first]
    try:
        return [first, listener(other, first.getsockname()[1])]
    except OSError as error:
        if error.errno in {errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT}:
            return [first]
        first.close()
        raise OSError(error.errno, f"{error.strerror}: {other}") from error


def listener(host: str, port: int) -> socket.socket:
    """A TCP socket to listen on. It shares its address with no other socket. Accepted connections inherit what is set
    here: a peer that vanished without a word is noticed within two minutes."""
    family, kind, protocol, _, address = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM)[0]
    sock = socket.socket(family, kind, protocol)
    try:
        sock.setblocking(False)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in ((socket.TCP_KEEPIDLE, 60), (socket.TCP_KEEPINTVL, 15), (socket.TCP_KEEPCNT, 4)):
            sock.setsockopt(socket.IPPROTO_TCP, option, value)
        sock.bind(address)
        sock.listen(BACKLOG)
    except OSError:
        sock.close()
        raise
    return sock


def reset_on_close(transport: asyncio.Transport) -> None:
    """Make the close of this connection a reset, so that the peer sees an error instead of a regular end."""
    sock = transport.get_extra_info("socket")
    if sock is not None and sock.family != socket.AF_UNIX:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)


def has_unread(transport: asyncio.Transport) -> bool:
    """Whether something has come, or the peer's end, that nobody has read yet."""
    sock = transport.get_extra_info("socket")
    if sock is None or sock.fileno() < 0:
        return False
    poll = select.poll()
    poll.register(sock.fileno(), select.POLLIN)
    return bool(poll.poll(0))


class ServerState:
    """What all connections of one server share: its limits and clock, and the counts of what each client has."""

    def __init__(self, limits: ProxyLimits, scheme: bytes, trusted_proxies: Iterable[Network]) -> None:
        self.limits = limits
        self.scheme = scheme
        self.trusted_proxies = TrustedProxies(trusted_proxies, scheme)
        self.draining = False
        self.now = 0.0
        self.date = b""
        """The Date line of answers."""
        self.held = UsageCounter(limits.held_per_address)
        """Bytes held for each address that has not signed in."""
        self.undecided_share = FairShare(limits.undecided_per_address, limits.connections)
        """How many requests the authorizer looks into at once, for each address whose callers it does not know yet."""
        target = limits.per_target
        self.anonymous_share, self.signed_in_share = (
            FairShare(target // 8, target // 2),
            FairShare(target // 4, target - target // 8),
        )
        """How the connections to the platform's API are shared: among the addresses that have not signed in, and among
        the people who have."""
        self.rejected = dict.fromkeys(Cap, 0)
        """How many connections or requests each cap has rejected."""
        self.new_ids: Iterator[bytes] = map((os.urandom(6).hex().encode() + b"%08x").__mod__, count(1))


class DownstreamConnection(asyncio.Protocol):
    __slots__ = (
        "_buffer", "_close_after", "_closing", "_ended", "_forwarded", "_gathered", "_head_begun", "_held",
        "_is_trusted", "_peer", "body_left", "busy", "counted_address", "counted_user", "deadline", "forward", "head",
        "server", "transport", "write_paused",
    )  # fmt: skip

    transport: asyncio.Transport
    head: RequestHead
    """The head of the request being served, or of the last one."""
    forward: Forward | None

    def __init__(self, server: ServerState) -> None:
        self.server = server
        self.busy = False
        """Whether a request is being served."""
        self.forward = None
        self.counted_user: object = None  # whose request it carried last
        self.counted_address: bytes | None = None
        self.body_left = 0
        """How much of the request's body is still to come: a count, or CHUNKED; 0 when all of it has come."""
        self.write_paused = False
        self.deadline = server.now + server.limits.keep_alive_seconds
        self._buffer = b""
        self._gathered = b""
        """The beginning of a body for the platform, which is read before a connection is taken."""
        self._held = CountedUsage(server.held)
        self._head_begun = False
        self._close_after = False
        self._closing = self._ended = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        self.transport.set_write_buffer_limits(self.server.limits.write_buffer)
        self._peer = peer_address(transport.get_extra_info("peername"))
        self._is_trusted = self.server.trusted_proxies.include(self._peer)
        self._forwarded = Forwarded(self._peer, self.server.scheme)

    # ── what is held ─────────────────────────────────────────────────────────────────────────────────────────────────

    def _hold(self, data: bytes) -> None:
        self._buffer = data
        self.transport.pause_reading()
        if not self._count_held():
            self.abort()

    def _part_of_head(self, data: bytes) -> bytes:
        if len(data) > self.server.limits.head_bytes:
            self._refuse(BadMessage(431, "The head of the request is too large."))
        elif data.count(b"\n") != data.count(b"\r\n") or not (data[:1].isalpha() or data[:1] == b"\r"):
            self._refuse(BadMessage(400, "This is not HTTP."))
        else:
            if not self._head_begun:
                self._head_begun = True
                self.deadline = self.server.now + self.server.limits.head_seconds
            self._buffer = data
            if not self._count_held():
                self._refuse(HOLDS_TOO_MUCH)
        return b""

    def _count_held(self) -> bool:
        """Count the bytes that are held. False: the address, over which nobody has signed in, holds more than it may
        have."""
        size = len(self._buffer) + len(self._gathered)
        whose = self._anonymous_client() if size else None
        if self._held.update(whose, 0 if whose is None else size):
            return True
        self.server.rejected[Cap.ADDRESS] += 1
        return False

    def _anonymous_client(self) -> bytes | None:
        """The address whose request this is, unless somebody has signed in; None also while a trusted proxy has not
        said whose it is."""
        if self.counted_user is not None or (self.forward is not None and self.forward.platform_user is not None):
            return None
        if not self._is_trusted:
            return self.counted_address
        return client_network(self.head.peer) if self.busy else None

    def _forget_held(self) -> None:
        self._buffer = self._gathered = b""
        self._held.update(None, 0)

    def resume_reading(self) -> None:
        if not self._ended and not self._buffer:
            self.transport.resume_reading()

    # ── the end ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def drain(self) -> None:
        """Prepare the end of an idle connection. Its next request may be on its way, so it has a moment, and is then
        told that this answer is the last. A connection that has just been made has a little more."""
        if not self.busy and not self._buffer:
            limits = self.server.limits
            moment = limits.last_request_seconds if hasattr(self, "head") else limits.linger_seconds
            self.deadline = min(self.deadline, self.server.now + moment)

    def abort(self) -> None:
        if self.busy and not self.head.version_1_1:
            reset_on_close(self.transport)
        self.transport.abort()

    def _refuse(self, refused: BadMessage) -> None:
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
        """End our side of the connection and discard what still comes: a reset would take our answer with it."""
        self._closing = True
        self._forget_held()
        if self._ended or not self.transport.can_write_eof():
            self.transport.close()
            return
        self.deadline = self.server.now + self.server.limits.linger_seconds
        self.transport.write_eof()
        self.transport.resume_reading()
