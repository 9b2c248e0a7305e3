"""The agent's side of a connection: it proves itself, asks for the caller's proof, connects to the port and passes
bytes on.

One thread and one epoll serve all connections. What one side does not take is kept and nothing more is read from the
other; an end is passed on as an end and a reset as a reset, so that a broken answer never looks like a whole one.
"""

import os
import select
import socket
import struct
import time
from abc import ABC, abstractmethod
from collections.abc import Callable

from codehub.agent.handshake import (
    HELLO_BYTES,
    MOST_SECRETS_BYTES,
    NONCE_BYTES,
    PORT_BYTES,
    PROOF_BYTES,
    PROTOCOL,
    REQUEST_BYTES,
    SECRETS,
    SIZE_BYTES,
    Status,
    Transcript,
    proofs_agree,
)

_BUFFER_BYTES = 256 * 1024
_HANDSHAKE_SECONDS = 10.0
_MOST_CONNECTIONS = 4096
_BACKLOG = 512
_TICK_SECONDS = 1.0
_RESET = struct.pack("ii", 1, 0)
_UNWATCHED = -1
_BROKEN = select.EPOLLERR | select.EPOLLHUP


class Connection(ABC):
    """One socket. `events`: what epoll is asked to tell of it."""

    __slots__ = ("events", "sock")

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.events = 0

    @abstractmethod
    def ready(self, relay: "Relay", events: int) -> None: ...


class Handshake(Connection):
    """A connection whose handshake is not over."""

    __slots__ = ("_held", "_key", "_port", "_transcript", "until")

    def __init__(self, sock: socket.socket, key: bytes, until: float) -> None:
        super().__init__(sock)
        self._key = key
        self._held = b""
        self._transcript: Transcript | None = None
        self.until = until

    def ready(self, relay: "Relay", events: int) -> None:
        del events
        wanted = HELLO_BYTES if self._transcript is None else REQUEST_BYTES
        data = self.sock.recv(wanted - len(self._held))
        self._held += data
        if not data:
            relay.close(self)
        elif len(self._held) == wanted:
            held, self._held = self._held, b""
            if self._transcript is None:
                self._prove(relay, held)
            else:
                self._open_port(relay, self._transcript, held)

    def _prove(self, relay: "Relay", hello: bytes) -> None:
        if not hello.startswith(PROTOCOL):
            relay.close(self)
            return
        nonce = os.urandom(NONCE_BYTES)
        self._transcript = Transcript(self._key, self.sock.getsockname()[:2], hello[len(PROTOCOL) :], nonce)
        self.sock.send(nonce + self._transcript.agents_proof())

    def _open_port(self, relay: "Relay", transcript: Transcript, request: bytes) -> None:
        port = int.from_bytes(request[:PORT_BYTES], "big")
        if not proofs_agree(request[PORT_BYTES:], transcript.callers_proof(port)):
            relay.close(self)
            return
        host, own_port = self.sock.getsockname()[:2]
        if port == SECRETS:
            relay.wait_for_secrets(self, transcript)
            return
        if port == own_port:
            relay.begin_exec(self)
            return
        relay.connect(self, [("127.0.0.1", port), ("::1", port), (host, port)])


class SecretsOffered(Connection):
    """A caller that hands over the secrets of this start: their size, then sealed, then a proof that they are whole."""

    __slots__ = ("_held", "_transcript", "until")

    def __init__(self, sock: socket.socket, transcript: Transcript, until: float) -> None:
        super().__init__(sock)
        self._transcript = transcript
        self._held = b""
        self.until = until

    def ready(self, relay: "Relay", events: int) -> None:
        del events
        data = self.sock.recv(_BUFFER_BYTES)
        self._held += data
        size = int.from_bytes(self._held[:SIZE_BYTES], "big")
        if not data or size > MOST_SECRETS_BYTES:
            relay.close(self)
        elif len(self._held) >= SIZE_BYTES + size + PROOF_BYTES:
            end = SIZE_BYTES + size
            secrets = self._transcript.unseal(self._held[SIZE_BYTES:end], self._held[end:])
            if secrets is not None:
                self.sock.send(bytes([Status.OPEN if relay.take_secrets(secrets) else Status.NOT_WANTED]))
            relay.close(self)


class Connecting(Connection):
    """A connection to one of the addresses at which a port inside may answer."""

    __slots__ = ("_others", "caller", "until")

    def __init__(self, sock: socket.socket, caller: Handshake, others: list[tuple[str, int]]) -> None:
        super().__init__(sock)
        self.caller = caller
        self.until = caller.until
        self._others = others

    def ready(self, relay: "Relay", events: int) -> None:
        del events
        if self.sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            relay.close(self)
            relay.connect(self.caller, self._others)
        else:
            relay.join(self.caller, self)


class Stream(Connection):
    """One side of a connection that passes bytes. `unsent`: what this side has not taken yet."""

    __slots__ = ("ended", "peer", "unsent")

    peer: "Stream"

    def __init__(self, sock: socket.socket) -> None:
        super().__init__(sock)
        self.unsent = b""
        self.ended = False

    def ready(self, relay: "Relay", events: int) -> None:
        if events & select.EPOLLOUT:
            self._flush(relay)
        if self.ended and events & _BROKEN:
            relay.reset(self)
        elif events & (select.EPOLLIN | _BROKEN) and not self.ended and not self.peer.unsent:
            self._pass_on(relay)

    def _pass_on(self, relay: "Relay") -> None:
        size = self.sock.recv_into(relay.buffer)
        if size == 0:
            self.ended = True
            self.end_peer(relay)
            return
        data = relay.view[:size]
        try:
            sent = self.peer.sock.send(data)
        except BlockingIOError:
            sent = 0
        if sent < size:
            self.peer.unsent = bytes(data[sent:])
            relay.watch(self)
            relay.watch(self.peer)

    def _flush(self, relay: "Relay") -> None:
        sent = self.sock.send(self.unsent)
        self.unsent = self.unsent[sent:]
        if not self.unsent:
            if self.peer.ended:
                self.peer.end_peer(relay)
            else:
                relay.watch(self.peer)
                relay.watch(self)

    def end_peer(self, relay: "Relay") -> None:
        """Pass the end of this side on to the other, once that has taken what is left."""
        if not self.peer.unsent:
            if self.peer.ended and not self.unsent:
                relay.close(self)
                relay.close(self.peer)
                return
            self.peer.sock.shutdown(socket.SHUT_WR)
        relay.watch(self)
        relay.watch(self.peer)

    @property
    def wanted(self) -> int:
        reading = 0 if self.ended or self.peer.unsent else select.EPOLLIN
        wanted = reading | (select.EPOLLOUT if self.unsent else 0)
        return wanted if wanted or self.ended else _UNWATCHED


class Relay:
    """Serves one listening socket for ever. `key`: the key of this start. `receive`: gets the secrets of this start,
    once; None if there are none. `fork_exec`: forks a process that runs a command for the caller of a connection; None
    until the workspace's own command has begun."""

    def __init__(self, listener: socket.socket, key: bytes, receive: Callable[[bytes], None] | None = None) -> None:
        self.fork_exec: Callable[[socket.socket], None] | None = None
        self._listener = listener
        self._key = key
        self._receive = receive
        self._epoll = select.epoll()
        self._ends: dict[int, Connection] = {}
        self._gone: set[int] = set()
        """Descriptors that have ended since epoll was asked: what it told of them is not about whoever has them now."""
        self._accepting = False
        self._expire_at = 0.0
        """When handshakes that take too long are looked for again."""
        self.buffer = bytearray(_BUFFER_BYTES)
        self.view = memoryview(self.buffer)
        listener.setblocking(False)

    def serve(self) -> None:
        while True:
            self._accept_or_not()
            self.poll(_TICK_SECONDS)

    def is_used(self) -> bool:
        """Whether anybody is connected to a port inside."""
        return any(isinstance(end, Stream) for end in self._ends.values())

    def poll(self, seconds: float) -> None:
        """Serve whatever is ready now, or within that time."""
        listener = self._listener.fileno()
        told = self._epoll.poll(seconds)
        self._gone.clear()
        for fd, events in told:
            if fd == listener:
                self._accept()
            elif fd not in self._gone:
                self._dispatch(self._ends[fd], events)
        self._expire_handshakes()

    def _dispatch(self, end: Connection, events: int) -> None:
        try:
            end.ready(self, events)
        except BlockingIOError:
            return
        except OSError:
            self.reset(end)

    # ── arrivals ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def _accept_or_not(self) -> None:
        """Accept connections only up to a bound: whoever comes then waits in the listener's queue."""
        accepting = len(self._ends) < _MOST_CONNECTIONS
        if accepting and not self._accepting:
            self._epoll.register(self._listener, select.EPOLLIN)
        elif self._accepting and not accepting:
            self._epoll.unregister(self._listener)
        self._accepting = accepting

    def _accept(self) -> None:
        try:
            sock, _ = self._listener.accept()
        except BlockingIOError:
            return
        except OSError:  # as many files as we may have are open: one may close within a tick
            self._epoll.unregister(self._listener)
            self._accepting = False
            time.sleep(0.01)
            return
        prepare(sock)
        self._add(Handshake(sock, self._key, time.monotonic() + _HANDSHAKE_SECONDS), select.EPOLLIN)

    def _expire_handshakes(self) -> None:
        now = time.monotonic()
        if now < self._expire_at:
            return
        self._expire_at = now + _TICK_SECONDS
        for end in [end for end in self._ends.values() if isinstance(end, Handshake | SecretsOffered | Connecting)]:
            if end.until < now:
                self.reset(end)

    # ── secrets ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def wait_for_secrets(self, caller: Handshake, transcript: Transcript) -> None:
        """Answer a caller that offers the secrets of this start."""
        self._forget(caller)
        if self._receive is None:
            with caller.sock:
                caller.sock.send(bytes([Status.NOT_WANTED]))
            return
        caller.sock.send(bytes([Status.WANTED]))
        self._add(SecretsOffered(caller.sock, transcript, caller.until), select.EPOLLIN)

    def take_secrets(self, secrets: bytes) -> bool:
        """Pass the secrets on to who waits for them. False: another caller was faster."""
        receive, self._receive = self._receive, None
        if receive is None:
            return False
        receive(secrets)
        return True

    # ── commands ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def begin_exec(self, caller: Handshake) -> None:
        """Give the connection of a caller that wants to run a command to a process of its own."""
        self._forget(caller)
        with caller.sock:
            if self.fork_exec is not None:
                self.fork_exec(caller.sock)
            caller.sock.send(bytes([Status.NOTHING_LISTENS if self.fork_exec is None else Status.OPEN]))

    # ── to a port inside ─────────────────────────────────────────────────────────────────────────────────────────────

    def connect(self, caller: Handshake, addresses: list[tuple[str, int]]) -> None:
        """Connect a caller to the first of these addresses where something listens."""
        self._forget(caller)
        while addresses:
            address, *addresses = addresses
            sock = _start_connect(address)
            if sock is not None:
                self._add(Connecting(sock, caller, addresses), select.EPOLLOUT)
                return
        with caller.sock:
            caller.sock.send(bytes([Status.NOTHING_LISTENS]))

    def join(self, caller: Handshake, target: Connecting) -> None:
        caller.sock.send(bytes([Status.OPEN]))
        self._forget(target)
        one, other = Stream(caller.sock), Stream(target.sock)
        one.peer, other.peer = other, one
        for stream in (one, other):
            prepare(stream.sock)
            self._add(stream, select.EPOLLIN)

    # ── what ends ask of it ──────────────────────────────────────────────────────────────────────────────────────────

    def watch(self, stream: Stream) -> None:
        """Tell epoll what is wanted of a stream. One that is not to be read now is not watched at all: else its being
        closed would be told without end."""
        before, stream.events = stream.events, stream.wanted
        if stream.events == before:
            return
        if before == _UNWATCHED:
            self._epoll.register(stream.sock, stream.events)
        elif stream.events == _UNWATCHED:
            self._epoll.unregister(stream.sock)
        else:
            self._epoll.modify(stream.sock, stream.events)

    def close(self, end: Connection) -> None:
        self._forget(end)
        end.sock.close()

    def reset(self, end: Connection) -> None:
        """Tell everybody on this connection that it is broken."""
        ends: list[Connection] = [end]
        if isinstance(end, Stream):
            ends.append(end.peer)
        elif isinstance(end, Connecting):
            ends.append(end.caller)
        for one in ends:
            if one.sock.fileno() >= 0:
                one.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
                self.close(one)

    def _add(self, end: Connection, events: int) -> None:
        end.events = events
        self._ends[end.sock.fileno()] = end
        self._epoll.register(end.sock, events)

    def _forget(self, end: Connection) -> None:
        self._gone.add(end.sock.fileno())
        if self._ends.pop(end.sock.fileno(), None) is not None and end.events != _UNWATCHED:
            self._epoll.unregister(end.sock)


def listen(host: str, port: int) -> socket.socket:
    return socket.create_server((host, port), backlog=_BACKLOG)


def prepare(sock: socket.socket) -> None:
    sock.setblocking(False)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)


def _start_connect(address: tuple[str, int]) -> socket.socket | None:
    """A connection that is made or on its way; None if nothing listens there."""
    try:
        sock = socket.socket(socket.AF_INET6 if ":" in address[0] else socket.AF_INET)
    except OSError:  # a machine without IPv6
        return None
    sock.setblocking(False)
    try:
        sock.connect(address)
    except BlockingIOError:
        pass
    except OSError:
        sock.close()
        return None
    return sock
