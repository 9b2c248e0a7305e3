"""The workspaces that people are at work in, written from memory to Redis in batches. A worker that dies loses one
batch at most.

Seeing somebody costs a flag; a tick turns flags into times, and a flush writes the times. Somebody who comes back is
written at once, for the workspace may be about to be stopped. They are the database's times: a machine whose clock is
wrong must not stop people early or keep them for ever.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final
from uuid import UUID

import structlog

from codehub.domain.errors import CodeHubError
from codehub.ports.signals import Activity, Clock
from codehub.ports.views import WorkspaceViews
from codehub.proxy.presence.periodic import PeriodicTraffic, kind_of_request
from codehub.proxy.presence.tap import may_be_activity

log = structlog.get_logger()

MOST_KINDS: Final = 64
"""How many kinds of requests to one workspace are remembered."""


@dataclass(eq=False, slots=True)
class WorkspaceActivity:
    """What the proxy has seen lately of the work in one workspace."""

    workspace_id: UUID
    is_active: bool = False
    """Whether somebody was seen at work in it since the last tick."""
    seen_at: float = float("-inf")
    """When somebody was last seen at work in it, by our own clock."""
    requests: PeriodicTraffic = field(default_factory=lambda: PeriodicTraffic(MOST_KINDS))
    """Which of the requests to it a page makes by itself."""


async def flush_regularly(
    flush: Callable[[], Awaitable[None]], clock: Clock, seconds: float, early: asyncio.Event | None = None
) -> None:
    """Flush regularly, and whenever `early` is set, until cancelled, and then once more."""
    try:
        while True:
            await _sleep(clock, seconds, early or asyncio.Event())
            await flush()
    finally:
        await asyncio.shield(flush())


async def _sleep(clock: Clock, seconds: float, early: asyncio.Event) -> None:
    """Sleep for so long, or until `early` is set, which is cleared."""
    waits = [asyncio.ensure_future(clock.sleep(seconds)), asyncio.ensure_future(early.wait())]
    try:
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()
        await asyncio.gather(*waits, return_exceptions=True)
    early.clear()


class Activities:
    def __init__(self, activity: Activity, views: WorkspaceViews, clock: Clock, flush_seconds: float) -> None:
        self._activity = activity
        self._views = views
        self._clock = clock
        self._flush_seconds = flush_seconds
        self._active: list[WorkspaceActivity] = []
        self._times: dict[UUID, float] = {}
        """When somebody was last seen in each workspace, by our own clock; not flushed yet."""
        self._somebody_is_back = asyncio.Event()

    def seen(self, workspace: WorkspaceActivity) -> None:
        if not workspace.is_active:
            workspace.is_active = True
            self._active.append(workspace)

    def requested(
        self, workspace: WorkspaceActivity, method: bytes, target: bytes, length: int, port: int | None = None
    ) -> None:
        """Note a request as somebody's work, unless a page makes it by itself. The target is the workspace's."""
        if method == b"HEAD" if port else not may_be_activity(method, target):
            return
        kind = kind_of_request(port, method, target, length)
        if not workspace.requests.is_periodic(kind, self._clock.monotonic()):
            self.seen(workspace)

    def tick(self) -> None:
        now = self._clock.monotonic()
        for workspace in self._active:
            workspace.is_active = False
            if now - workspace.seen_at > self._flush_seconds:
                self._somebody_is_back.set()
            workspace.seen_at = self._times[workspace.workspace_id] = now
        self._active.clear()

    async def run(self) -> None:
        await flush_regularly(self.flush, self._clock, self._flush_seconds, self._somebody_is_back)

    async def flush(self) -> None:
        self.tick()
        self._somebody_is_back.clear()
        times, self._times = self._times, {}
        if not times:
            return
        try:
            now, at = await self._views.now(), self._clock.monotonic()
            ages = {key: timedelta(seconds=max(at - time, 0.0)) for key, time in times.items()}
            await self._activity.record({key: now - age for key, age in ages.items()})
        except CodeHubError as error:
            log.warning("activity waits to be written", workspaces=len(times), error=str(error))
            self._times = {**times, **self._times}
