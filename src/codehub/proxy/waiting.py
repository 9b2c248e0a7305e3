"""Waiting for a gate that answers later, without a task of our own, and no longer than the client does."""

import asyncio
from collections.abc import Callable

import structlog

from codehub.proxy.gate import Forward, Respond, Wait
from codehub.proxy.responses import problem

log = structlog.get_logger()
UNDECIDED = problem(500, "The front door could not decide on this request. Try again shortly.")


class Waiting:
    __slots__ = ("_future", "_request_id", "_then", "_wait")

    def __init__(self, wait: Wait, then: Callable[[Forward | Respond], None], request_id: bytes) -> None:
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
