"""The usage sampler: the leader measures what every running workspace uses, and keeps an hour of it (ADR 31).

Its cost is bounded by construction: of the time that passes it takes at most a tenth for CPU and memory and a tenth for
disks, whose files have to be counted: those that fill up first, then those that were not measured for longest, and last
those that gave no figure when they were asked for: a home that cannot be counted keeps no other waiting. It asks the
runtime beside the circuit breaker: a sample that is missing is no reason to take the runtime for dead.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import quantiles
from uuid import UUID

import structlog

from codehub.coordinator.context import Dependencies, Tuning
from codehub.domain import notices
from codehub.domain.errors import CodeHubError, Stale
from codehub.domain.usage import (
    ComputeUsage,
    DiskUsage,
    Usage,
    UsageWarning,
    cpu_in_use,
    is_filling,
    usage_of,
    usage_warnings,
)
from codehub.ports.stores import UsageHistory
from codehub.telemetry import (
    USAGE_CPU,
    USAGE_DISK,
    USAGE_MEASURED,
    USAGE_MEMORY,
    USAGE_PASS_SECONDS,
    USAGE_WARNINGS,
    WORKSPACE_CPU,
    WORKSPACE_DISK,
    WORKSPACE_MEMORY,
    Metric,
    Metrics,
)

log = structlog.get_logger()

SHARE = 0.1
"""Of the time that passes, how much may go into measuring: once for CPU and memory, and once for disks."""
LONGEST_CALL_SECONDS = 60.0
LONGEST_LOOK_SECONDS = 0.1
"""The time limit of measuring CPU and memory is longer by this for each workspace."""
MOST_HOMES = 200
DISK_SECONDS = 300.0
"""How old what is known of a disk may become before it is measured again; one that fills up is measured each time."""
FORGET_DISK_SECONDS = 900.0


@dataclass(frozen=True, slots=True)
class _Measured:
    compute: ComputeUsage
    at: float


@dataclass(frozen=True, slots=True)
class _MeasuredDisk:
    disk: DiskUsage
    at: float


class UsageSampler:
    def __init__(self, dependencies: Dependencies, history: UsageHistory, tuning: Tuning, epoch: int) -> None:
        self._runtime = dependencies.runtime
        self._clock = dependencies.clock
        self._notifier = dependencies.notifier
        self._gauges = UsageGauges(
            dependencies.metrics, dependencies.runtime.name, per_workspace=tuning.usage_metrics_per_workspace
        )
        self._metrics = dependencies.metrics
        self._history = history
        self._interval = tuning.usage_interval
        self._epoch = epoch
        self._before: dict[UUID, _Measured] = {}
        self._disks: dict[UUID, _MeasuredDisk] = {}
        self._unanswered: list[UUID] = []
        self._told_nearly_full = False

    async def tick(self) -> float:
        """Measures all running workspaces and returns after how many seconds to do so again. A runtime or a database
        that does not answer leaves this sample out."""
        began = self._clock.monotonic()
        try:
            await self._sample()
        except Stale:
            raise
        except (CodeHubError, TimeoutError) as error:
            self._gauges.clear()
            log.info("usage is not known this time", error=str(error) or "no answer in time")
        took = self._clock.monotonic() - began
        return max(self._interval - took, took * (1 - SHARE) / SHARE)

    def close(self) -> None:
        """Stops telling what is no longer measured here."""
        self._gauges.clear()

    async def _sample(self) -> None:
        measured = await self._measure()
        await self._measure_disks(list(measured))
        used = {key: self._usage(key, one) for key, one in measured.items()}
        self._before = measured
        await self._history.record(used, self._epoch)
        self._gauges.show(used)
        await self._tell_admins(used)

    async def _measure(self) -> dict[UUID, _Measured]:
        began = self._clock.monotonic()
        async with asyncio.timeout(LONGEST_CALL_SECONDS):
            seen = await self._runtime.containers()
        running = [key for key, container in seen.items() if container.running]
        async with asyncio.timeout(LONGEST_CALL_SECONDS + LONGEST_LOOK_SECONDS * len(running)):
            found = await self._runtime.compute_usage(running) if running else {}
        now = self._clock.monotonic()
        self._metrics.observe(USAGE_PASS_SECONDS, now - began, kind="compute")
        return {key: _Measured(compute, now) for key, compute in found.items()}

    async def _measure_disks(self, running: Sequence[UUID]) -> None:
        """Measures the disks that are due, for a tenth of an interval. What fails leaves what was known before."""
        present = set(running)
        self._disks = {key: self._disks[key] for key in running if key in self._disks}
        self._unanswered = [key for key in self._unanswered if key in present]
        due = self._due(running)
        if not due:
            return
        began, seconds = self._clock.monotonic(), min(SHARE * self._interval, LONGEST_CALL_SECONDS / 2)
        try:
            async with asyncio.timeout(LONGEST_CALL_SECONDS):
                found = await self._runtime.disk_usage(due, seconds)
        except (CodeHubError, TimeoutError) as error:
            log.info("disks are not measured this time", error=str(error) or "no answer in time")
            self._put_last(due, {})
            return
        now = self._clock.monotonic()
        self._disks |= {key: _MeasuredDisk(disk, now) for key, disk in found.items()}
        self._put_last(due, found)
        self._metrics.observe(USAGE_PASS_SECONDS, now - began, kind="disk")

    def _due(self, running: Sequence[UUID]) -> list[UUID]:
        now = self._clock.monotonic()
        known = self._disks
        last = {key: place for place, key in enumerate(self._unanswered)}

        def order(key: UUID) -> tuple[int, bool, float]:
            if key not in known:
                return last.get(key, -1), True, float("-inf")
            return last.get(key, -1), not is_filling(known[key].disk), known[key].at

        due = [
            key
            for key in running
            if key not in known or is_filling(known[key].disk) or now - known[key].at >= DISK_SECONDS
        ]
        return sorted(due, key=order)[:MOST_HOMES]

    def _put_last(self, asked: Sequence[UUID], found: Mapping[UUID, DiskUsage]) -> None:
        """Notes which homes gave no figure. The first of them took the time, or ended the program; those behind it may
        only have had no chance: next time they come before it."""
        missed = [key for key in asked if key not in found or found[key].used_bytes is None]
        waiting = [key for key in self._unanswered if key not in asked]
        self._unanswered = [*waiting, *missed[1:], *missed[:1]]

    def _usage(self, key: UUID, measured: _Measured) -> Usage:
        before = self._before.get(key)
        cpu = cpu_in_use(before.compute, measured.compute, measured.at - before.at) if before else None
        disk = self._disks.get(key)
        if disk is not None and self._clock.monotonic() - disk.at >= FORGET_DISK_SECONDS:
            disk = None
        return usage_of(measured.compute, cpu, disk.disk if disk else None)

    async def _tell_admins(self, used: Mapping[UUID, Usage]) -> None:
        """Tells the admins once that a file system is nearly full, and again only after it was not."""
        warned = (
            usage.disk for usage in used.values() if UsageWarning.FILE_SYSTEM_NEARLY_FULL in usage_warnings(usage)
        )
        full = [disk for disk in warned if disk is not None]
        if full and not self._told_nearly_full:
            await self._notifier.notify(notices.disk_nearly_full(full[0], len(full)))
        self._told_nearly_full = bool(full)


class UsageGauges:
    """The last sample as metrics: sums and distributions, and each workspace by itself only where that is asked for,
    since a series for each would be kept long after its workspace is gone."""

    def __init__(self, metrics: Metrics, runtime: str, *, per_workspace: bool) -> None:
        self._metrics = metrics
        self._runtime = runtime
        self._per_workspace = per_workspace

    def clear(self) -> None:
        for metric in (USAGE_CPU, USAGE_MEMORY, USAGE_DISK, USAGE_MEASURED, USAGE_WARNINGS):
            self._metrics.clear(metric)
        for metric in (WORKSPACE_CPU, WORKSPACE_MEMORY, WORKSPACE_DISK):
            self._metrics.clear(metric)

    def show(self, used: Mapping[UUID, Usage]) -> None:
        cpu = {key: usage.cpu for key, usage in used.items() if usage.cpu is not None}
        memory = {key: float(usage.memory_bytes) for key, usage in used.items() if usage.memory_bytes is not None}
        disks = {key: usage.disk.used_bytes for key, usage in used.items() if usage.disk is not None}
        disk = {key: float(held) for key, held in disks.items() if held is not None}
        self._distribution(USAGE_CPU, cpu)
        self._distribution(USAGE_MEMORY, memory)
        self._distribution(USAGE_DISK, disk)
        for known, values in (("all", used), ("cpu", cpu), ("memory", memory), ("disk", disk)):
            self._metrics.set(USAGE_MEASURED, len(values), known=known)
        warnings = [warning for usage in used.values() for warning in usage_warnings(usage)]
        for warning in UsageWarning:
            self._metrics.set(USAGE_WARNINGS, warnings.count(warning), warning=warning.value)
        if self._per_workspace:
            for metric, values_of in ((WORKSPACE_CPU, cpu), (WORKSPACE_MEMORY, memory), (WORKSPACE_DISK, disk)):
                self._metrics.clear(metric)
                for key, value in values_of.items():
                    self._metrics.set(metric, value, workspace=str(key))

    def _distribution(self, metric: Metric, values: Mapping[UUID, float]) -> None:
        if not values:
            self._metrics.clear(metric)
            return
        ordered = sorted(values.values())
        tenths = quantiles(ordered, n=10, method="inclusive") if len(ordered) > 1 else ordered * 9
        shown = {"sum": sum(ordered), "median": tenths[4], "p90": tenths[8], "max": ordered[-1]}
        for statistic, value in shown.items():
            self._metrics.set(metric, value, runtime=self._runtime, statistic=statistic)
