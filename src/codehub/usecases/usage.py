"""What workspaces use right now, for whoever looks, and what they used in the last hour.

The runtime is asked for the workspaces that anybody looks at, in one question for all who look: never while the last
answer is fresh, one question at a time, and for at most a fifth of the time. Beyond that, and while the runtime does
not answer, people see the leader's last sample. What a disk holds is always from there. None of it is activity.
"""

import asyncio
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Final
from uuid import UUID

from codehub.domain.errors import CodeHubError
from codehub.domain.usage import ComputeUsage, Usage, UsageSample, cpu_in_use, usage_of
from codehub.ports.runtime import Runtime
from codehub.ports.signals import Clock
from codehub.ports.stores import UsageHistory
from codehub.telemetry import get_logger

log = get_logger(__name__)

FRESH_SECONDS: Final = 4.0
REST: Final = 4.0
"""After a question that took a second, this many seconds pass before the next."""
ANSWER_SECONDS: Final = 3.0
LOOKED_AT_SECONDS: Final = 12.0
"""For so long after a look the workspace is part of every question: pages look again every five seconds."""
MOST_AT_ONCE: Final = 100
FORGET_SECONDS: Final = 60.0
RECENT: Final = timedelta(minutes=3)
"""How old a sample may be and still be what is used now."""


@dataclass(frozen=True, slots=True)
class _Reading:
    """What was measured of a workspace. `compute` None: it does not run."""

    compute: ComputeUsage | None
    cpu: float | None
    at: float


class WorkspaceUsage:
    def __init__(self, runtime: Runtime, history: UsageHistory, clock: Clock) -> None:
        self._runtime = runtime
        self._history = history
        self._clock = clock
        self._readings: dict[UUID, _Reading] = {}
        self._looked_at: dict[UUID, float] = {}
        self._one_at_a_time = asyncio.Lock()
        self._rests_until = float("-inf")

    async def now(self, ids: Collection[UUID]) -> Mapping[UUID, Usage]:
        """What each of the workspaces uses; those that do not run, and those of which nothing is known, are left
        out."""
        recorded = await self._history.newest(ids, RECENT)
        await self._refresh(ids)
        found = {key: self._usage(key, recorded.get(key)) for key in ids}
        return {key: usage for key, usage in found.items() if usage is not None}

    async def last_hour(self, workspace_id: UUID) -> Sequence[UsageSample]:
        return await self._history.of(workspace_id)

    def _usage(self, key: UUID, recorded: UsageSample | None) -> Usage | None:
        reading = self._readings.get(key)
        if reading is None:
            return recorded.usage if recorded else None
        if reading.compute is None:
            return None
        disk, cpu = (recorded.usage.disk, recorded.usage.cpu) if recorded else (None, None)
        return usage_of(reading.compute, cpu if reading.cpu is None else reading.cpu, disk)

    async def _refresh(self, ids: Collection[UUID]) -> None:
        now = self._clock.monotonic()
        recent = {key: at for key, at in self._looked_at.items() if now - at < LOOKED_AT_SECONDS and key not in ids}
        self._looked_at = dict.fromkeys(ids, now) | recent
        async with self._one_at_a_time:
            began = self._clock.monotonic()
            self._readings = {key: one for key, one in self._readings.items() if began - one.at < FORGET_SECONDS}
            if began < self._rests_until or all(self._is_fresh(key, began) for key in ids):
                return
            stale = [key for key in self._looked_at if not self._is_fresh(key, began)][:MOST_AT_ONCE]
            try:
                async with asyncio.timeout(ANSWER_SECONDS):
                    found = await self._runtime.compute_usage(stale)
            except (CodeHubError, TimeoutError) as error:
                log.info("the runtime does not tell what workspaces use", error=str(error) or "no answer in time")
            else:
                self._note(stale, found)
            ended = self._clock.monotonic()
            self._rests_until = ended + REST * (ended - began)

    def _is_fresh(self, key: UUID, now: float) -> bool:
        return key in self._readings and now - self._readings[key].at < FRESH_SECONDS

    def _note(self, asked: Collection[UUID], found: Mapping[UUID, ComputeUsage]) -> None:
        now = self._clock.monotonic()
        for key in asked:
            before, compute = self._readings.get(key), found.get(key)
            earlier = before.compute if before else None
            cpu = cpu_in_use(earlier, compute, now - before.at) if before and compute else None
            self._readings[key] = _Reading(compute, cpu, now)
