"""The work queue: keyed by workspace, de-duplicated, delayed. One id is never in two workers.

An id that is added while it is being worked on is handed out again afterwards, so no change is missed.
"""

import asyncio
import heapq
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count
from uuid import UUID

from codehub.ports.signals import Clock

BACKOFF_CAP_SECONDS = 300
RESOLUTION = 0.001


class WorkQueue:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._heap: list[tuple[float, int, UUID]] = []
        self._due: dict[UUID, float] = {}
        self._working: set[UUID] = set()
        self._order = count()
        self._changed = asyncio.Event()
        self._freed = asyncio.Event()
        self._failures: dict[UUID, int] = {}
        self._not_before: dict[UUID, float] = {}

    def __len__(self) -> int:
        return len(self._due)

    def add(self, workspace_id: UUID, after: float = 0.0) -> None:
        """Make the id due in `after` seconds, or when it was due before, whichever is sooner; never inside its
        back-off."""
        due = max(self._clock.monotonic() + after, self._not_before.get(workspace_id, 0.0))
        if self._due.get(workspace_id, float("inf")) <= due:
            return
        self._due[workspace_id] = due
        heapq.heappush(self._heap, (due, next(self._order), workspace_id))
        self._changed.set()

    async def get(self) -> UUID:
        while True:
            workspace_id = self._pop()
            if workspace_id is not None:
                self._working.add(workspace_id)
                return workspace_id
            await self._wait()

    @asynccontextmanager
    async def holding(self, workspace_id: UUID) -> AsyncIterator[None]:
        """Keep the workers from this id while the context lasts, for work that is not done by a worker."""
        while workspace_id in self._working:
            self._freed.clear()
            await self._freed.wait()
        self._working.add(workspace_id)
        try:
            yield
        finally:
            self.done(workspace_id)

    def failed(self, workspace_id: UUID) -> float:
        """Back off after a failed pass, from 1 s to 5 min; returns the seconds."""
        count = self._failures[workspace_id] = self._failures.get(workspace_id, 0) + 1
        seconds = float(min(2 ** (count - 1), BACKOFF_CAP_SECONDS))
        self._not_before[workspace_id] = self._clock.monotonic() + seconds
        self._due.pop(workspace_id, None)
        self.add(workspace_id)
        return seconds

    def succeeded(self, workspace_id: UUID) -> None:
        self._failures.pop(workspace_id, None)
        self._not_before.pop(workspace_id, None)

    def done(self, workspace_id: UUID) -> None:
        self._working.discard(workspace_id)
        self._freed.set()
        if workspace_id in self._due:
            heapq.heappush(self._heap, (self._due[workspace_id], next(self._order), workspace_id))
            self._changed.set()

    def _pop(self) -> UUID | None:
        now = self._clock.monotonic() + RESOLUTION
        while self._heap and self._heap[0][0] <= now:
            due, _, workspace_id = heapq.heappop(self._heap)
            if self._due.get(workspace_id) != due or workspace_id in self._working:
                continue
            del self._due[workspace_id]
            return workspace_id
        return None

    async def _wait(self) -> None:
        self._changed.clear()
        if not self._heap:
            await self._changed.wait()
            return
        delay = self._heap[0][0] - self._clock.monotonic()
        timer = asyncio.ensure_future(self._clock.sleep(max(delay, 0.0)))
        changed = asyncio.ensure_future(self._changed.wait())
        try:
            await asyncio.wait((timer, changed), return_when=asyncio.FIRST_COMPLETED)
        finally:
            timer.cancel()
            changed.cancel()
