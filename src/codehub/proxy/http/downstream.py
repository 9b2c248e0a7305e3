"""A client's requests, one at a time and in order, and their answers.

A request that is refused ends its connection: what follows it could be read in two ways.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import cast

import structlog

from codehub.proxy.access.verdicts import Cap, Forward, Pending, Respond, UpstreamFailure, Verdict
from codehub.proxy.http.chunked import Chunks, take_body
from codehub.proxy.http.connection import HOLDS_TOO_MUCH, DownstreamConnection, ServerState, has_unread, reset_on_close
from codehub.proxy.http.headers import request_for_upstream, response_for_client
from codehub.proxy.http.limits import Permit, client_network
from codehub.proxy.http.parser import REPEATABLE, BadMessage, RequestHead, ResponseHead, parse_request
from codehub.proxy.http.pool import Pool
from codehub.proxy.http.responses import CONTINUE, problem, serialised
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
        """Stop waiting for the decision and answer this instead."""
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
                log.error("authorizer failed", request_id=self._request_id.decode(), exc_info=error)
        then(answer)


def too_large(most: int) -> BadMessage:
    return BadMessage(413, f"Who has not signed in may send a body of {most} bytes at most.")


class DownstreamServer(ServerState, ABC):
    """What a client's connection asks of the server that accepted it."""

    @abstractmethod
    def admit(self, client: "Downstream", address: bytes | None) -> None:
        """Count a new client, for its address too if it has one of its own. Beyond a cap it is rejected."""

    @abstractmethod
    def leave(self, client: "Downstream") -> None: ...

    @abstractmethod
    def count_for_user(self, client: "Downstream", counted_user: object) -> bool:
        """Count this client's connection for a user from now on. False: the user has as many as they may."""

    @abstractmethod
    def decide(self, head: RequestHead) -> Verdict: ...

    @abstractmethod
    def explain(self, head: RequestHead, forward: Forward, failure: UpstreamFailure) -> Respond: ...

    @abstractmethod
    def overloaded(self, head: RequestHead, cap: Cap) -> Respond: ...

    @abstractmethod
    def note(self, head: RequestHead, forward: Forward | None, status: int) -> None:
        """Count and log an answer that begins."""

    @abstractmethod
    def pool(self, forward: Forward) -> Pool: ...

    @abstractmethod
    def upgrade(
        self, client: "Downstream", upstream: Upstream, forward: Forward, from_client: bytes, from_upstream: bytes
    ) -> None: ...


class Downstream(DownstreamConnection):
    __slots__ = (
        "_chunks", "_forget_body", "_gathering", "_permit", "_repeated", "_waiting", "awaits_connection", "upstream",
    )  # fmt: skip

    server: DownstreamServer

    def __init__(self, server: DownstreamServer) -> None:
        super().__init__(server)
        self.upstream: Upstream | None = None
        self.awaits_connection = False
        self._chunks: Chunks | None = None
        self._waiting: PendingDecision | None = None
        self._gathering = False
        """Whether a body for the platform is being read, which is read whole before a connection is taken."""
        self._permit: Permit | None = None
        """The permit that the request uses or waits for, of a share that is bounded."""
        self._forget_body = self._repeated = False

    # ── the transport's calls ────────────────────────────────────────────────────────────────────────────────────────

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.server.admit(self, None if self._is_trusted else client_network(self._peer))

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
        self._release_permit()
        self._forget_held()

    def _leave_upstream(self) -> Upstream | None:
        upstream, self.upstream = self.upstream, None
        if upstream is not None:
            upstream.leave()
        return upstream

    # ── a request ────────────────────────────────────────────────────────────────────────────────────────────────────

    def _request(self, data: bytes) -> bytes:
        """Begin the request whose head stands first in `data`. Returns what stands behind the head."""
        server = self.server
        end = data.find(b"\r\n\r\n")
        if end < 0 or end > server.limits.head_bytes:
            return self._part_of_head(data)
        try:
            head = parse_request(data[:end], server.limits.header_lines)
        except BadMessage as refused:
            self._refuse(refused)
            return b""
        if self._is_trusted:
            self._forwarded = server.trusted_proxies.forwarded_by(self._peer, head.fields)
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
        """Discard a body that has come whole: nobody wants it, but it need not cost the connection."""
        if 0 < self.body_left <= len(rest):
            rest, self.body_left = rest[self.body_left :], 0
        return rest

    def _wait(self, verdict: Pending) -> None:
        self.deadline = self.server.now + self.server.limits.wait_seconds
        self._waiting = PendingDecision(verdict, self._decided, self.head.request_id)
        if verdict.proven:
            self._waiting.begin()
        else:
            self._permit = Permit(self.server.undecided_share, client_network(self.head.peer), self._waiting.begin)
            self._permit.acquire()

    def _decided(self, answer: Forward | Respond) -> None:
        self._waiting = None
        self._release_permit()
        if isinstance(answer, Forward):
            self._pass_on(answer)
            if self.body_left and (self.upstream is not None or self._gathering):
                self._next()  # the body was held while nobody knew where it goes
        else:
            self._buffer = self._read_over(self._buffer)
            self._answer(answer)

    def _pass_on(self, forward: Forward) -> None:
        if (
            forward.counted_user is not self.counted_user
            and forward.counted_user
            and not self.server.count_for_user(self, forward.counted_user)
        ):
            self._answer(self.server.overloaded(self.head, Cap.PERSON), last=True)
            return
        self.forward = forward
        if forward.to_platform:
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
        if not self.body_left or (self.body_left > limits.small_body_bytes and forward.platform_user is not None):
            self._ask_share(forward)
        elif self.body_left > limits.small_body_bytes:
            self._refuse(too_large(limits.small_body_bytes))
        else:
            self._gathering = True
            self.deadline = self.server.now + limits.small_body_seconds
            self.send_continue()

    def _gather(self, data: bytes) -> bytes:
        """Keep the body's bytes until all of them have come. Returns what stands behind the body."""
        try:
            pieces, rest, self.body_left = take_body(data, self.body_left, self._chunks)
        except BadMessage as refused:
            self._refuse(refused)
            return b""
        self._gathered += b"".join(pieces)
        forward, most = cast("Forward", self.forward), self.server.limits.small_body_bytes
        self._gathering = bool(self.body_left) and len(self._gathered) < most
        if self.body_left and not self._gathering and forward.platform_user is None:
            self._refuse(too_large(most))
        elif not self._count_held():
            self._refuse(HOLDS_TOO_MUCH)
        elif not self._gathering:
            self._ask_share(forward)
        return rest

    def _ask_share(self, forward: Forward) -> None:
        server = self.server
        share = server.anonymous_share if forward.platform_user is None else server.signed_in_share
        self.deadline = server.now + server.limits.connect_seconds
        self._permit = Permit(share, forward.platform_user or client_network(self.head.peer), self._has_share)
        self._permit.acquire()

    def _has_share(self) -> None:
        if self.forward is not None:
            self._take_connection(self.forward)
            if self.body_left and self.upstream is not None and self._buffer:
                self._next()

    def _release_permit(self) -> None:
        if self._permit is not None:
            permit, self._permit = self._permit, None
            permit.release()

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
        """Pass the body's bytes on to the workspace. Returns what stands behind the body."""
        self.deadline = self.server.now + self.server.limits.body_idle_seconds
        try:
            pieces, rest, self.body_left = take_body(data, self.body_left, self._chunks)
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
        """Whether the request may be sent again if a kept connection turns out to be closed."""
        return not (self._repeated or self.head.fields.body_length) and self.head.method in REPEATABLE

    def repeat(self) -> None:
        self._repeated = True
        self.upstream = None
        if self.forward is not None:
            self._ask_connection(self.forward)

    def send_continue(self) -> None:
        if self.head.fields.expects and self.body_left:
            self.transport.write(CONTINUE)

    def progress(self) -> None:
        """Move the deadline: something of the answer has come, and more may take its time."""
        self.deadline = self.server.now + self.server.limits.response_seconds

    def begin_answer(self, head: ResponseHead, framing: bytes) -> bytes:
        """Begin the workspace's answer. Returns the head of the answer for the client; `framing`: the line that says
        where its body ends."""
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
        """Answer for a workspace that will not: nothing of an answer has been sent yet."""
        self.upstream = None
        self.awaits_connection = False
        if self.forward is not None and not self._closing:
            self._answer(self.server.explain(self.head, self.forward, failure))

    def cut_off(self) -> None:
        """End the connection in the middle of an answer that broke off. The client must be able to tell, so it gets no
        regular end."""
        self.upstream = None
        if not self.head.version_1_1:
            reset_on_close(self.transport)  # a regular end of the connection would pass for that of the body
        self._closing = True
        self.transport.close()

    def end(self) -> None:
        """End the request under way. The client is told so, unless its answer has begun."""
        upstream = self._leave_upstream()
        if self._waiting is not None:
            self._waiting.give_up(problem(503, "The front door restarts. Try again shortly."))
        elif self.forward is None or self._closing or (upstream is not None and upstream.answered):
            self.abort()
        else:
            self.fail(UpstreamFailure.CLOSED_EARLY)

    def finished(self) -> None:
        """Go on to the next request, or to the end: the answer has been sent."""
        self.busy = False
        self.forward = None
        self.upstream = None
        self._repeated = False
        if self._permit is not None:
            self._release_permit()
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
        """Hand both connections to a WebSocket relay: from here on both sides' bytes pass as they are."""
        framing = b"Connection: Upgrade\r\nUpgrade: websocket\r\n"
        self.server.note(self.head, self.forward, 101)
        self.transport.write(response_for_client(head, framing, self.head.request_id, self.server.date))
        self.upstream = None
        self._release_permit()
        self.server.upgrade(self, upstream, cast("Forward", self.forward), self._buffer, rest)

    # ── the end ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def expire(self) -> None:
        """Answer or close a connection whose deadline has passed."""
        upstream = self._leave_upstream()
        if self._closing or (upstream is not None and upstream.answered) or self.write_paused:
            self.abort()
        elif self._waiting is not None:
            self._waiting.give_up(problem(504, "It took too long to decide on this request. Try again shortly."))
        elif self._permit is not None and self._permit.is_waiting:
            cap = Cap.ADDRESS if self.forward is None or self.forward.platform_user is None else Cap.PERSON
            self.server.rejected[cap] += 1
            self._answer(self.server.overloaded(self.head, cap), last=True)
        elif self._head_begun or self._gathering or (upstream is not None and self.body_left):
            self._refuse(BadMessage(408, "The request took too long to arrive."))
        elif self.busy:
            self.fail(UpstreamFailure.BUSY if upstream is None else UpstreamFailure.TOO_SLOW)
        elif not has_unread(self.transport):  # else a request has come in time: it is read and answered first
            self._close()
