"""A client's requests, one at a time and in order, and their answers.

A request that is refused ends its connection: what follows it could be read in two ways.

One client's connection as bytes: what of it is read and held, how it is paused, and how it ends.

Bytes that cannot be used yet are held, and nothing more is read meanwhile. What is held for those who have not signed
in is counted by their address, which may not have more than its share.

Waiting for a gate that answers later, without a task of our own, and no longer than the client does.
"""

import asyncio
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from itertools import count
from typing import Final, cast

import structlog

from codehub.proxy.access.verdicts import Cap, Forward, Pending, Respond, UpstreamFailure, Verdict
from codehub.proxy.http.chunked import Chunks, sent_on
from codehub.proxy.http.headers import Forwarded, request_for_upstream, response_for_client
from codehub.proxy.http.limits import ConnectionCounter, Counted, ProxyLimits, Share, Turn
from codehub.proxy.http.parser import REPEATABLE, BadMessage, RequestHead, ResponseHead, parse_request
from codehub.proxy.http.pool import Pool
from codehub.proxy.http.responses import CONTINUE, problem, serialised
from codehub.proxy.http.sockets import has_unread, reset_on_close
from codehub.proxy.http.trusted_proxies import Network, TrustedProxies, household, peer_address
from codehub.proxy.http.upstream import Upstream

log = structlog.get_logger()
UNDECIDED = problem(500, "The front door could not decide on this request. Try again shortly.")


class PendingDecision:
    __slots__ = ("_future", "_request_id", "_then", "_wait")

    def __init__(self, wait: Pending, then: Callable[[Forward | Respond], None], request_id: bytes) -> None:
        self._then: Callable[[Forward | Respond], None] | None = then
        self._request_id = request_id
        self._wait = wait
        self._future: asyncio.Future[Forward | Respond] | None = None

    def begin(self) -> None:
        self._future = asyncio.ensure_future(self._wait.answer)
        self._future.add_done_callback(self._done)

    def cancel(self) -> None:
        self._then = None
        (self._future or asyncio.ensure_future(self._wait.answer)).cancel()

    def give_up(self, answer: Respond) -> None:
        """Nobody has decided yet, and nobody shall any more."""
        then = self._then
        self.cancel()
        if then is not None:
            then(answer)

    def _done(self, future: "asyncio.Future[Forward | Respond]") -> None:
        then, self._then = self._then, None
        if then is None:
            return
        answer: Forward | Respond = UNDECIDED
        if not future.cancelled():
            error = future.exception()
            if error is None:
                answer = future.result()
            else:
                log.error("gate failed", request_id=self._request_id.decode(), exc_info=error)
        then(answer)


HOLDS_TOO_MUCH: Final = BadMessage(429, "Too much of unfinished requests is held for your address. Try again shortly.")


def too_large(most: int) -> BadMessage:
    return BadMessage(413, f"Who has not signed in may send a body of {most} bytes at most.")


class DownstreamServer(ABC):
    """What a client's connection asks of the server that accepted it, and what all of them share."""

    def __init__(self, limits: ProxyLimits, scheme: bytes, forwarders: Iterable[Network]) -> None:
        self.limits = limits
        self.scheme = scheme
        self.forwarders = TrustedProxies(forwarders, scheme)
        self.draining = False
        self.now = 0.0
        self.date = b""
        """The Date line of answers."""
        self.held = ConnectionCounter(limits.held_per_address)
        """Bytes held for each address that has not signed in."""
        self.undecided = Share(limits.undecided_per_address, limits.connections)
        """Of the gate's attention: for each address whose callers it does not know yet."""
        target = limits.per_target
        self.strangers, self.members = Share(target // 8, target // 2), Share(target // 4, target - target // 8)
        """Of the platform's connections: for each address and all that have not signed in, for each person and all."""
        self.turned_away = dict.fromkeys(Cap, 0)
        """How many came beyond a cap."""
        self.new_ids: Iterator[bytes] = map((os.urandom(6).hex().encode() + b"%08x").__mod__, count(1))

    @abstractmethod
    def admit(self, client: "Downstream", address: bytes | None) -> None:
        """Every client is counted, for its address too if it has one of its own; beyond a cap it is turned away."""

    @abstractmethod
    def leave(self, client: "Downstream") -> None: ...

    @abstractmethod
    def hold(self, client: "Downstream", holder: object) -> bool:
        """From now on its connection is that person's. False: they have as many as they may."""

    @abstractmethod
    def decide(self, head: RequestHead) -> Verdict: ...

    @abstractmethod
    def explain(self, head: RequestHead, forward: Forward, failure: UpstreamFailure) -> Respond: ...

    @abstractmethod
    def crowded(self, head: RequestHead, cap: Cap) -> Respond: ...

    @abstractmethod
    def note(self, head: RequestHead, forward: Forward | None, status: int) -> None:
        """An answer begins."""

    @abstractmethod
    def pool(self, forward: Forward) -> Pool: ...

    @abstractmethod
    def upgrade(
        self, client: "Downstream", upstream: Upstream, forward: Forward, from_client: bytes, from_upstream: bytes
    ) -> None: ...


class DownstreamConnection(asyncio.Protocol):
    __slots__ = (
        "_believed", "_buffer", "_close_after", "_closing", "_ended", "_forwarded", "_gathered", "_head_begun", "_held",
        "_peer", "body_left", "busy", "counted_as", "deadline", "forward", "head", "holder", "server", "transport",
        "write_paused",
    )  # fmt: skip

    transport: asyncio.Transport
    head: RequestHead
    """Of the request being served, or of the last."""
    forward: Forward | None

    def __init__(self, server: DownstreamServer) -> None:
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
        """Say that we are done, and read over what still comes: a reset would take our answer with it."""
        self._closing = True
        self._forget_held()
        if self._ended or not self.transport.can_write_eof():
            self.transport.close()
            return
        self.deadline = self.server.now + self.server.limits.linger_seconds
        self.transport.write_eof()
        self.transport.resume_reading()


class Downstream(DownstreamConnection):
    __slots__ = (
        "_chunks", "_forget_body", "_gathering", "_repeated", "_turn", "_waiting", "awaits_connection", "upstream",
    )  # fmt: skip

    def __init__(self, server: DownstreamServer) -> None:
        super().__init__(server)
        self.upstream: Upstream | None = None
        self.awaits_connection = False
        self._chunks: Chunks | None = None
        self._waiting: PendingDecision | None = None
        self._gathering = False
        """A body for the platform is read whole before a connection is taken."""
        self._turn: Turn | None = None
        """Its part of something scarce, which it uses or stands in line for."""
        self._forget_body = self._repeated = False

    # ── the transport's calls ────────────────────────────────────────────────────────────────────────────────────────

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.server.admit(self, None if self._believed else household(self._peer))

    def data_received(self, data: bytes) -> None:
        if self._buffer:
            data = self._buffer + data
            self._buffer = b""
            self._count_held()
        while data and not self._closing:
            if not self.busy:
                if self.write_paused:
                    self._hold(data)
                    return
                data = self._request(data)
            elif self.body_left and self.upstream is not None:
                data = self._body(data, self.upstream)
            elif self.body_left and self._gathering:
                data = self._gather(data)
            else:
                self._hold(data)
                return

    def eof_received(self) -> bool:
        self._ended = True
        if self._closing or self.body_left or not (self.busy or (self.write_paused and self._buffer)):
            return False
        self.deadline = min(self.deadline, self.server.now + self.server.limits.half_closed_seconds)
        return True

    def pause_writing(self) -> None:
        self.write_paused = True
        self.deadline = self.server.now + self.server.limits.body_idle_seconds
        if self.upstream is not None:
            self.upstream.transport.pause_reading()

    def resume_writing(self) -> None:
        self.write_paused = False
        if self._closing:
            return
        self.progress()
        if self.upstream is not None:
            self.upstream.transport.resume_reading()
        elif not self.busy:
            self._next()

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        self._closing = True
        self.awaits_connection = False
        self.server.leave(self)
        if self._waiting is not None:
            self._waiting.cancel()
        self._leave_upstream()
        self._give_back()
        self._forget_held()

    def _leave_upstream(self) -> Upstream | None:
        upstream, self.upstream = self.upstream, None
        if upstream is not None:
            upstream.leave()
        return upstream

    # ── a request ────────────────────────────────────────────────────────────────────────────────────────────────────

    def _request(self, data: bytes) -> bytes:
        """Begin the request whose head stands first in `data`; returns what stands behind the head."""
        server = self.server
        end = data.find(b"\r\n\r\n")
        if end < 0 or end > server.limits.head_bytes:
            return self._part_of_head(data)
        try:
            head = parse_request(data[:end], server.limits.header_lines)
        except BadMessage as refused:
            self._refuse(refused)
            return b""
        if self._believed:
            self._forwarded = server.forwarders.word(self._peer, head.fields)
        head.peer = self._forwarded.peer
        head.request_id = head.request_id or next(server.new_ids)
        self.head = head
        self.busy = True
        self._head_begun = False
        self.body_left = head.fields.body_length
        if self.body_left < 0:
            self._chunks = Chunks()
        verdict = server.decide(head)
        if verdict.__class__ is Forward:
            self._pass_on(verdict)
        elif isinstance(verdict, Pending):
            self._wait(verdict)
        elif isinstance(verdict, Respond):
            rest = self._read_over(data[end + 4 :])
            self._answer(verdict)
            return rest
        return data[end + 4 :]

    def _read_over(self, rest: bytes) -> bytes:
        """A body that has come whole does not cost the connection, even if nobody wants it."""
        if 0 < self.body_left <= len(rest):
            rest, self.body_left = rest[self.body_left :], 0
        return rest

    def _wait(self, verdict: Pending) -> None:
        self.deadline = self.server.now + self.server.limits.wait_seconds
        self._waiting = PendingDecision(verdict, self._decided, self.head.request_id)
        if verdict.proven:
            self._waiting.begin()
        else:
            self._turn = Turn(self.server.undecided, household(self.head.peer), self._waiting.begin)
            self._turn.ask()

    def _decided(self, answer: Forward | Respond) -> None:
        self._waiting = None
        self._give_back()
        if isinstance(answer, Forward):
            self._pass_on(answer)
            if self.body_left and (self.upstream is not None or self._gathering):
                self._next()  # the body was held while nobody knew where it goes
        else:
            self._buffer = self._read_over(self._buffer)
            self._answer(answer)

    def _pass_on(self, forward: Forward) -> None:
        if forward.holder is not self.holder and forward.holder and not self.server.hold(self, forward.holder):
            self._answer(self.server.crowded(self.head, Cap.PERSON), last=True)
            return
        self.forward = forward
        if forward.ours:
            self._pass_to_platform(forward)
        else:
            self._take_connection(forward)

    def _take_connection(self, forward: Forward) -> None:
        upstream = self.server.pool(forward).take(may_repeat=self.may_repeat)
        if upstream is not None:
            self._send(upstream, forward)
        else:
            self._ask_connection(forward)

    def _ask_connection(self, forward: Forward) -> None:
        # An attempt that takes too long fails by itself; whoever waits in line for longer finds the target busy.
        self.deadline = self.server.now + self.server.limits.connect_seconds + 2 * self.server.limits.tick
        self.awaits_connection = True
        self.server.pool(forward).request(self)

    # ── to the platform: nothing of it is taken before a stranger's request is there ─────────────────────────────────

    def _pass_to_platform(self, forward: Forward) -> None:
        limits = self.server.limits
        if not self.body_left or (self.body_left > limits.small_body_bytes and forward.person is not None):
            self._ask_share(forward)
        elif self.body_left > limits.small_body_bytes:
            self._refuse(too_large(limits.small_body_bytes))
        else:
            self._gathering = True
            self.deadline = self.server.now + limits.small_body_seconds
            self.go_on()

    def _gather(self, data: bytes) -> bytes:
        """Take the body's bytes in; returns what stands behind it."""
        try:
            pieces, rest, self.body_left = sent_on(data, self.body_left, self._chunks)
        except BadMessage as refused:
            self._refuse(refused)
            return b""
        self._gathered += b"".join(pieces)
        forward, most = cast("Forward", self.forward), self.server.limits.small_body_bytes
        self._gathering = bool(self.body_left) and len(self._gathered) < most
        if self.body_left and not self._gathering and forward.person is None:
            self._refuse(too_large(most))
        elif not self._count_held():
            self._refuse(HOLDS_TOO_MUCH)
        elif not self._gathering:
            self._ask_share(forward)
        return rest

    def _ask_share(self, forward: Forward) -> None:
        server = self.server
        share = server.strangers if forward.person is None else server.members
        self.deadline = server.now + server.limits.connect_seconds
        self._turn = Turn(share, forward.person or household(self.head.peer), self._has_share)
        self._turn.ask()

    def _has_share(self) -> None:
        if self.forward is not None:
            self._take_connection(self.forward)
            if self.body_left and self.upstream is not None and self._buffer:
                self._next()

    def _give_back(self) -> None:
        if self._turn is not None:
            turn, self._turn = self._turn, None
            turn.give_back()

    # ── its connection ───────────────────────────────────────────────────────────────────────────────────────────────

    def connected(self, upstream: Upstream) -> None:
        self.awaits_connection = False
        if self.forward is not None:
            self._send(upstream, self.forward)
        if self.body_left:
            self._next()

    def _send(self, upstream: Upstream, forward: Forward) -> None:
        server, self.upstream = self.server, upstream
        limits = server.limits
        self.deadline = server.now + (limits.body_idle_seconds if self.body_left else limits.response_seconds)
        head = request_for_upstream(self.head, forward, self._forwarded)
        if self._gathered:
            head += self._gathered
            self._gathered = b""
            self._count_held()
        upstream.begin(self, head)

    def _body(self, data: bytes, upstream: Upstream) -> bytes:
        """Pass the body's bytes on; returns what stands behind it."""
        self.deadline = self.server.now + self.server.limits.body_idle_seconds
        try:
            pieces, rest, self.body_left = sent_on(data, self.body_left, self._chunks)
        except BadMessage as refused:
            self._leave_upstream()
            if upstream.answered:
                self._close()
            else:
                self._refuse(refused)
            return b""
        if pieces and not self._forget_body:
            upstream.transport.writelines(pieces)
        if not self.body_left:
            self.progress()
        return rest

    # ── its answer ───────────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def may_repeat(self) -> bool:
        """Sending it again, if a kept connection turns out to be closed, changes nothing."""
        return not (self._repeated or self.head.fields.body_length) and self.head.method in REPEATABLE

    def repeat(self) -> None:
        self._repeated = True
        self.upstream = None
        if self.forward is not None:
            self._ask_connection(self.forward)

    def go_on(self) -> None:
        if self.head.fields.expects and self.body_left:
            self.transport.write(CONTINUE)

    def progress(self) -> None:
        """Something of the answer has come, and more may take its time."""
        self.deadline = self.server.now + self.server.limits.response_seconds

    def begin_answer(self, head: ResponseHead, framing: bytes) -> bytes:
        """The workspace answers. Returns the head of the answer for the client; `framing`: the line that says where its
        body ends."""
        server = self.server
        self.deadline = server.now + server.limits.response_seconds
        server.note(self.head, self.forward, head.status)
        if self.body_left:
            self._forget_body = head.status >= 400
        if self.body_left or not self.head.keep_alive or server.draining or (self._ended and not self._buffer):
            self._close_after = True
            framing += b"Connection: close\r\n"
        return response_for_client(head, framing, self.head.request_id, server.date)

    def _answer(self, answer: Respond, *, last: bool = False) -> None:
        head = self.head
        last = last or not head.keep_alive or bool(self.body_left)
        self._close_after = last or self.server.draining
        body = head.method != b"HEAD"
        self.server.note(head, self.forward, answer.status)
        self.transport.write(serialised(answer, self.server.date, head.request_id, body=body, close=self._close_after))
        self.finished()

    def fail(self, failure: UpstreamFailure) -> None:
        """Nothing of an answer has been sent, and none will come."""
        self.upstream = None
        self.awaits_connection = False
        if self.forward is not None and not self._closing:
            self._answer(self.server.explain(self.head, self.forward, failure))

    def cut_off(self) -> None:
        """The answer broke off. The client must be able to tell, so it gets no regular end."""
        self.upstream = None
        if not self.head.version_1_1:
            reset_on_close(self.transport)  # a regular end of the connection would pass for that of the body
        self._closing = True
        self.transport.close()

    def end(self) -> None:
        """Its request may go on no longer. It is told so, unless its answer has begun."""
        upstream = self._leave_upstream()
        if self._waiting is not None:
            self._waiting.give_up(problem(503, "The front door restarts. Try again shortly."))
        elif self.forward is None or self._closing or (upstream is not None and upstream.answered):
            self.abort()
        else:
            self.fail(UpstreamFailure.CLOSED_EARLY)

    def finished(self) -> None:
        """The answer is out: on to the next request, or the end."""
        self.busy = False
        self.forward = None
        self.upstream = None
        self._repeated = False
        if self._turn is not None:
            self._give_back()
        if self._close_after or (self._ended and not self._buffer):
            self._close()
            return
        self.deadline = self.server.now + self.server.limits.keep_alive_seconds
        if self._buffer:
            self._next()

    def _next(self) -> None:
        self.data_received(b"")
        if self._closing:
            return
        if self._ended:
            if not self.busy and not self.write_paused:
                self._close()
        elif not self._buffer or self._head_begun:
            self.transport.resume_reading()

    def switch(self, upstream: Upstream, head: ResponseHead, rest: bytes) -> None:
        """From here on both sides' bytes pass as they are."""
        framing = b"Connection: Upgrade\r\nUpgrade: websocket\r\n"
        self.server.note(self.head, self.forward, 101)
        self.transport.write(response_for_client(head, framing, self.head.request_id, self.server.date))
        self.upstream = None
        self._give_back()
        self.server.upgrade(self, upstream, cast("Forward", self.forward), self._buffer, rest)

    # ── the end ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def expire(self) -> None:
        """Its deadline has passed."""
        upstream = self._leave_upstream()
        if self._closing or (upstream is not None and upstream.answered) or self.write_paused:
            self.abort()
        elif self._waiting is not None:
            self._waiting.give_up(problem(504, "It took too long to decide on this request. Try again shortly."))
        elif self._turn is not None and self._turn.in_line:
            cap = Cap.ADDRESS if self.forward is None or self.forward.person is None else Cap.PERSON
            self.server.turned_away[cap] += 1
            self._answer(self.server.crowded(self.head, cap), last=True)
        elif self._head_begun or self._gathering or (upstream is not None and self.body_left):
            self._refuse(BadMessage(408, "The request took too long to arrive."))
        elif self.busy:
            self.fail(UpstreamFailure.BUSY if upstream is None else UpstreamFailure.TOO_SLOW)
        elif not has_unread(self.transport):  # else a request has come in time: it is read and answered first
            self._close()
