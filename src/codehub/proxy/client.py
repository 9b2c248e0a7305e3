"""A client's requests, one at a time and in order, and their answers.

A request that is refused ends its connection: what follows it could be read in two ways.
"""

import asyncio
from typing import TYPE_CHECKING, cast

from codehub.proxy.chunks import Chunks, sent_on
from codehub.proxy.connection import HOLDS_TOO_MUCH, ClientConnection, too_large
from codehub.proxy.forwarders import household
from codehub.proxy.gate import Cap, Failure, Forward, Respond, Wait
from codehub.proxy.head import Refused
from codehub.proxy.headers import request_for_upstream, response_for_client
from codehub.proxy.request import REPEATABLE, parse_request
from codehub.proxy.response import ResponseHead
from codehub.proxy.responses import CONTINUE, problem, serialised
from codehub.proxy.shares import Turn
from codehub.proxy.sockets import has_unread, reset_on_close
from codehub.proxy.upstream import Upstream
from codehub.proxy.waiting import Waiting

if TYPE_CHECKING:
    from codehub.proxy.server import ProxyServer


class Client(ClientConnection):
    __slots__ = (
        "_chunks", "_forget_body", "_gathering", "_repeated", "_turn", "_waiting", "awaits_connection", "upstream",
    )  # fmt: skip

    def __init__(self, server: "ProxyServer") -> None:
        super().__init__(server)
        self.upstream: Upstream | None = None
        self.awaits_connection = False
        self._chunks: Chunks | None = None
        self._waiting: Waiting | None = None
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
        except Refused as refused:
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
        elif isinstance(verdict, Wait):
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

    def _wait(self, verdict: Wait) -> None:
        self.deadline = self.server.now + self.server.limits.wait_seconds
        self._waiting = Waiting(verdict, self._decided, self.head.request_id)
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
        except Refused as refused:
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
        except Refused as refused:
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

    def begin_answer(self, status: int) -> bytes:
        """The workspace answers. Returns the Connection line, if there must be one."""
        self.progress()
        self.server.note(self.head, self.forward, status)
        if self.body_left:
            self._forget_body = status >= 400
        elif self.head.keep_alive and not self.server.draining and (not self._ended or self._buffer):
            return b""
        self._close_after = True
        return b"Connection: close\r\n"

    def _answer(self, answer: Respond, *, last: bool = False) -> None:
        head = self.head
        last = last or not head.keep_alive or bool(self.body_left)
        self._close_after = last or self.server.draining
        body = head.method != b"HEAD"
        self.server.note(head, self.forward, answer.status)
        self.transport.write(serialised(answer, self.server.date, head.request_id, body=body, close=self._close_after))
        self.finished()

    def fail(self, failure: Failure) -> None:
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
            self.fail(Failure.CLOSED_EARLY)

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
            self._refuse(Refused(408, "The request took too long to arrive."))
        elif self.busy:
            self.fail(Failure.BUSY if upstream is None else Failure.TOO_SLOW)
        elif not has_unread(self.transport):  # else a request has come in time: it is read and answered first
            self._close()
