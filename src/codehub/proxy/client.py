"""One client's connection: requests in, one at a time and in order, answers out.

Bytes that cannot be used yet (the next request, a body whose workspace is not connected) are held, and nothing more is
read meanwhile. A request that is refused ends its connection: what follows it could be read in two ways.
"""

import asyncio
from typing import TYPE_CHECKING, Final, cast

import structlog

from codehub.proxy.chunks import Chunks, sent_on
from codehub.proxy.forwarders import household, peer_address
from codehub.proxy.gate import Cap, Failure, Forward, Respond, Wait
from codehub.proxy.head import Refused
from codehub.proxy.headers import Forwarded, request_for_upstream, response_for_client
from codehub.proxy.request import REPEATABLE, RequestHead, parse_request
from codehub.proxy.response import ResponseHead
from codehub.proxy.responses import CONTINUE, problem, serialised
from codehub.proxy.shares import Share
from codehub.proxy.sockets import has_unread, reset_on_close
from codehub.proxy.upstream import Upstream
from codehub.proxy.waiting import Waiting

if TYPE_CHECKING:
    from codehub.proxy.server import ProxyServer

log = structlog.get_logger()

_HOLDS_TOO_MUCH: Final = Refused(429, "Too much of unfinished requests is held for your address. Try again shortly.")


def _too_large(most: int) -> Refused:
    return Refused(413, f"Who has not signed in may send a body of {most} bytes at most.")


class Client(asyncio.Protocol):
    __slots__ = (
        "_believed", "_buffer", "_chunks", "_close_after", "_closing", "_ended", "_forget_body", "_forwarded",
        "_gathered", "_head_begun", "_held", "_in_line", "_peer", "_repeated", "_room", "_share", "_undecided",
        "_waiting",
        "awaits_connection", "body_left", "busy", "counted_as", "deadline", "forward", "head", "holder", "server",
        "transport", "upstream", "write_paused",
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
        self.upstream: Upstream | None = None
        self.body_left = 0
        """Of the request's body: a count, or CHUNKED; 0 when all of it has come."""
        self.write_paused = False
        self.awaits_connection = False
        self.deadline = server.now + server.limits.keep_alive_seconds
        self._buffer = b""
        self._chunks: Chunks | None = None
        self._waiting: Waiting | None = None
        self._gathered = b""
        """Of a body for the platform, which is read before a connection is taken."""
        self._room = 0
        """How many bytes of it may still be gathered; 0: none is."""
        self._share: tuple[Share, object] | None = None
        """Which share of something scarce it uses, or waits for, and whose that is."""
        self._in_line = False
        """It waits for its share."""
        self._undecided: Wait | None = None
        """What the gate would look into if it were its turn."""
        self._held: tuple[object, int] | None = None
        """How many bytes are held for it, and as whose they were counted."""
        self._head_begun = False
        self._close_after = False
        self._closing = self._ended = False
        self._believed = self._forget_body = self._repeated = False

    # ── the transport's calls ────────────────────────────────────────────────────────────────────────────────────────

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        self.transport.set_write_buffer_limits(self.server.limits.write_buffer)
        self._peer = peer_address(transport.get_extra_info("peername"))
        self._believed = self.server.forwarders.include(self._peer)
        self._forwarded = Forwarded(self._peer, self.server.scheme)
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
            elif self.body_left and self._room:
                data = self._gather(data)
            else:
                self._hold(data)
                return

    def _hold(self, data: bytes) -> None:
        self._buffer = data
        self.transport.pause_reading()
        if not self._count_held():
            self.abort()

    def _count_held(self) -> bool:
        """Count what is held, if nobody has signed in over this connection. False: its address holds too much."""
        size = len(self._buffer) + len(self._gathered)
        if self._held is not None:
            self.server.held.drop(*self._held)
            self._held = None
        if not size or self.holder is not None or (self.forward is not None and self.forward.person is not None):
            return True
        whose = self._caller()
        if whose is None or self.server.held.add(whose, size):
            self._held = None if whose is None else (whose, size)
            return True
        self.server.turned_away[Cap.ADDRESS] += 1
        return False

    def _caller(self) -> bytes | None:
        """The address that asks, as it is counted; None while a proxy that is believed has not said whose it is."""
        if not self._believed:
            return self.counted_as
        return household(self.head.peer) if self.busy else None

    def eof_received(self) -> bool:
        self._ended = True
        if self._closing or self.body_left or not (self.busy or (self.write_paused and self._buffer)):
            return False
        self.deadline = min(self.deadline, self.server.now + self.server.limits.half_closed_seconds)
        return True

    def pause_writing(self) -> None:
        self.write_paused = True
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
        self._buffer = self._gathered = b""
        self._count_held()

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
                self._refuse(_HOLDS_TOO_MUCH)
        return b""

    def _read_over(self, rest: bytes) -> bytes:
        """A body that has come whole does not cost the connection, even if nobody wants it."""
        if 0 < self.body_left <= len(rest):
            rest, self.body_left = rest[self.body_left :], 0
        return rest

    def _wait(self, verdict: Wait) -> None:
        self.deadline = self.server.now + self.server.limits.wait_seconds
        if verdict.proven or self._gets(self.server.undecided, household(self.head.peer)):
            self._waiting = Waiting(verdict, self._decided, self.head.request_id)
        else:
            self._undecided = verdict

    def _decided(self, answer: Forward | Respond) -> None:
        self._waiting = None
        self._give_back()
        if isinstance(answer, Forward):
            self._pass_on(answer)
            if self.body_left and (self.upstream is not None or self._room):
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

    # ── to the platform, which strangers may ask: nothing of it is taken before the request is there ─────────────────

    def _pass_to_platform(self, forward: Forward) -> None:
        limits = self.server.limits
        if not self.body_left or (self.body_left > limits.small_body_bytes and forward.person is not None):
            self._ask_share(forward)
        elif self.body_left > limits.small_body_bytes:
            self._refuse(_too_large(limits.small_body_bytes))
        else:
            self._room = limits.small_body_bytes
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
        room = self.server.limits.small_body_bytes - len(self._gathered)
        self._room = max(room, 0) if self.body_left else 0
        forward = cast("Forward", self.forward)
        if self.body_left and not self._room and forward.person is None:
            self._refuse(_too_large(self.server.limits.small_body_bytes))
        elif not self._count_held():
            self._refuse(_HOLDS_TOO_MUCH)
        elif not self._room:
            self._ask_share(forward)
        return rest

    def _ask_share(self, forward: Forward) -> None:
        server = self.server
        share = server.strangers if forward.person is None else server.members
        self.deadline = server.now + server.limits.connect_seconds
        if self._gets(share, forward.person or household(self.head.peer)):
            self._take_connection(forward)

    def _gets(self, share: Share, whose: object) -> bool:
        """False: it stands in line for its share."""
        self._share = share, whose
        self._in_line = not share.take(self, whose)
        return not self._in_line

    def admitted(self) -> None:
        """Its share has room again."""
        self._in_line = False
        undecided, self._undecided = self._undecided, None
        if undecided is not None:
            self._waiting = Waiting(undecided, self._decided, self.head.request_id)
        elif self.forward is not None:
            self._take_connection(self.forward)
            if self.body_left and self.upstream is not None:
                self._next()

    def _give_back(self) -> None:
        if self._share is None:
            return
        (share, whose), self._share = self._share, None
        if not self._in_line:
            share.release(whose)
            return
        self._in_line = False
        share.leave(self, whose)
        if self._undecided is not None:
            asyncio.ensure_future(self._undecided.answer).cancel()  # it never began
            self._undecided = None

    # ── its connection ───────────────────────────────────────────────────────────────────────────────────────────────

    def connected(self, upstream: Upstream) -> None:
        self.awaits_connection = False
        if self.forward is not None:
            self._send(upstream, self.forward)
        if self.body_left:
            self._next()

    def _send(self, upstream: Upstream, forward: Forward) -> None:
        limits = self.server.limits
        self.upstream = upstream
        self.deadline = self.server.now + (limits.body_idle_seconds if self.body_left else limits.first_byte_seconds)
        head = request_for_upstream(self.head, forward, self._forwarded)
        if self._gathered:
            head += self._gathered
            self._gathered = b""
            self._count_held()
        upstream.begin(self, head)

    def _body(self, data: bytes, upstream: Upstream) -> bytes:
        """Pass the body's bytes on; returns what stands behind it."""
        self.progress()
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
        if not self.body_left and not upstream.answered:
            self.deadline = self.server.now + self.server.limits.first_byte_seconds
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
        self.deadline = self.server.now + self.server.limits.body_idle_seconds

    def begin_answer(self, status: int) -> bytes:
        """The workspace answers. Returns the Connection line, if there must be one."""
        server = self.server
        self.deadline = server.now + server.limits.body_idle_seconds
        server.note(self.head, self.forward, status)
        if self.body_left:
            self._forget_body = status >= 400
        elif self.head.keep_alive and not server.draining and (not self._ended or self._buffer):
            return b""
        self._close_after = True
        return b"Connection: close\r\n"

    def _answer(self, answer: Respond, *, last: bool = False) -> None:
        head = self.head
        last = last or not head.keep_alive or bool(self.body_left)
        self._close_after = last or self.server.draining or answer.status == 101
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

    def abort(self) -> None:
        if self.busy and not self.head.version_1_1:
            reset_on_close(self.transport)
        self.transport.abort()

    def finished(self) -> None:
        """The answer is out: on to the next request, or the end."""
        self.busy = False
        self.forward = None
        self.upstream = None
        self._repeated = False
        if self._share is not None:
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

    def read_on(self) -> None:
        if not self._ended and not self._buffer:
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

    def drain(self) -> None:
        """An idle one may be asking already, unread as yet or still on its way: it has a moment, and is then told that
        this answer is the last. One that has just come has a little more."""
        if not self.busy and not self._buffer:
            limits = self.server.limits
            moment = limits.last_request_seconds if hasattr(self, "head") else limits.linger_seconds
            self.deadline = min(self.deadline, self.server.now + moment)

    def expire(self) -> None:
        """Its deadline has passed."""
        upstream = self._leave_upstream()
        if self._closing or (upstream is not None and upstream.answered) or self.write_paused:
            self.abort()
        elif self._waiting is not None:
            self._waiting.give_up(problem(504, "It took too long to decide on this request. Try again shortly."))
        elif self._in_line:
            cap = Cap.ADDRESS if self.forward is None or self.forward.person is None else Cap.PERSON
            self.server.turned_away[cap] += 1
            self._answer(self.server.crowded(self.head, cap), last=True)
        elif self._head_begun or self._room or (upstream is not None and self.body_left):
            self._refuse(Refused(408, "The request took too long to arrive."))
        elif self.busy:
            self.fail(Failure.BUSY if upstream is None else Failure.TOO_SLOW)
        elif not has_unread(self.transport):  # else a request has come in time: it is read and answered first
            self._close()

    def _refuse(self, refused: Refused) -> None:
        answer = problem(refused.status, refused.why)
        self.transport.write(serialised(answer, self.server.date, b"", body=True, close=True))
        self.busy = False
        self._room = 0
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
        self._buffer = self._gathered = b""
        self._count_held()
        if self._ended or not self.transport.can_write_eof():
            self.transport.close()
            return
        self.deadline = self.server.now + self.server.limits.linger_seconds
        self.transport.write_eof()
        self.transport.resume_reading()
