"""A circuit breaker per backend: after repeated silence nobody asks for a while, and waiting burns no tries. The admins
are told when a backend falls silent and when it answers again.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

import structlog

from codehub.domain.errors import BackendError, CircuitOpen, Unreachable
from codehub.ports.signals import Clock, Notifier
from codehub.telemetry import BREAKER_STATE, Metrics

T = TypeVar("T")

log = structlog.get_logger()

FAILURES_TO_OPEN = 3
OPEN_SECONDS = 5.0


class Breaker:
    """Closed → open after `failures` unanswered calls in a row → one trial call after `seconds`. `changed` hears the
    backend's name and, when it opens, the error; when it closes, None."""

    def __init__(
        self,
        backend: str,
        clock: Clock,
        metrics: Metrics,
        changed: Callable[[str, str | None], None] = lambda _backend, _error: None,
        *,
        failures: int = FAILURES_TO_OPEN,
        seconds: float = OPEN_SECONDS,
    ) -> None:
        self.backend = backend
        self._metrics = metrics
        self._clock = clock
        self._limit = failures
        self._seconds = seconds
        self._failures = 0
        self._opened_at: float | None = None
        self._trying = False
        self._changed = changed

    @property
    def is_open(self) -> bool:
        return self._opened_at is not None and self._clock.monotonic() - self._opened_at < self._seconds

    async def call(self, ask: Callable[[], Awaitable[T]]) -> T:
        if self.is_open or self._trying:
            raise CircuitOpen(f"{self.backend} has not answered {self._failures} times; waiting before asking again")
        self._trying = self._opened_at is not None
        try:
            answer = await ask()
        except Unreachable as error:
            self._failures += 1
            if self._failures >= self._limit:
                self._open(error)
            raise
        except BackendError:
            self._close()
            raise
        finally:
            self._trying = False
        self._close()
        return answer

    def _open(self, error: Unreachable) -> None:
        if self._opened_at is None:
            log.warning("backend does not answer", backend=self.backend, error=str(error))
            self._changed(self.backend, str(error))
        self._opened_at = self._clock.monotonic()
        self._metrics.set(BREAKER_STATE, 1, backend=self.backend)

    def _close(self) -> None:
        self._failures = 0
        if self._opened_at is not None:
            log.info("backend answers again", backend=self.backend)
            self._changed(self.backend, None)
            self._opened_at = None
            self._metrics.set(BREAKER_STATE, 0, backend=self.backend)


class BackendNotices:
    """One notice to the admins when a backend falls silent and one when it answers again. A notice may take a webhook's
    time, so it is sent beside the calls. Jobs run on the runtime's engine, which speaks for them."""

    def __init__(self, notifier: Notifier) -> None:
        self._notifier = notifier
        self._waiting: asyncio.Queue[tuple[str, str | None]] = asyncio.Queue()

    def changed(self, backend: str, error: str | None) -> None:
        if backend != "jobs":
            self._waiting.put_nowait((backend, error))

    async def run(self) -> None:
        while True:
            backend, error = await self._waiting.get()
            if error is None:
                await self._notifier.notify("backend answers again", {"backend": backend})
            else:
                await self._notifier.notify("backend does not answer", {"backend": backend, "error": error})
