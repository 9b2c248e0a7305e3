"""The coordinator process: wait for leadership, lead, supervise, step down, again (contract 3's single leader).

Nothing dies silently: a component that ends is restarted with back-off and the log says why. Losing the term ends
all of its work at once; everything of a term is built anew for the next.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from uuid import UUID

import structlog

from codehub.coordinator.backends import WRONG_BACKEND_PAUSE_SECONDS, BackendNotices, acquire_leadership
from codehub.coordinator.context import Dependencies, Tuning, term_context
from codehub.coordinator.event_listener import EventListener, WakeListener
from codehub.coordinator.gc_runner import CollectionReport, GcRunner, GcScanner
from codehub.coordinator.observer import Observer
from codehub.coordinator.reconciler import Reconciler
from codehub.coordinator.retention_runner import Records, RetentionRunner
from codehub.coordinator.ttl_runner import TtlRunner
from codehub.coordinator.usage_sampler import UsageSampler
from codehub.domain import notices
from codehub.domain.errors import BackendError, CodeHubError, Stale, Unreachable, WrongBackend
from codehub.ports.runtime import IsolationReport, Runtime
from codehub.ports.signals import Notifier
from codehub.ports.stores import Term, UsageHistory
from codehub.telemetry import (
    COMPONENT_RESTARTS,
    EPOCH,
    IS_LEADER,
    ISOLATION_DISTURBED,
    LAST_GOOD_PASS,
    PASS_SECONDS,
    QUEUE_DEPTH,
    RECONCILE_SECONDS,
    ROWS_WRITTEN,
    STALE_WRITES,
    Metrics,
)

log = structlog.get_logger()

STALE_PASS_SECONDS = 60.0
RESTART_CAP_SECONDS = 30.0
FIRST_RUN_SECONDS = 300.0
"""A periodic task runs for the first time this long into a term, at most: terms may be shorter than its interval."""
ORPHANS_SECONDS = 15.0


@dataclass(frozen=True, slots=True)
class CoordinatorReadiness:
    """Whether a coordinator does its job, for its status address. `pass_age`: the seconds since the last pass that saw
    everything; None before the first."""

    leads: bool
    epoch: int | None
    pass_age: float | None
    queued: int

    @property
    def is_ready(self) -> bool:
        """Whether the coordinator is ready: a standby always is, a leader while its last good pass is recent."""
        return not self.leads or (self.pass_age is not None and self.pass_age < STALE_PASS_SECONDS)


class Coordinator:
    def __init__(self, holder: str, dependencies: Dependencies, tuning: Tuning) -> None:
        self._holder = holder
        self._dependencies = dependencies
        self._tuning = tuning
        self._term_runner: TermRunner | None = None

    async def run(self) -> None:
        """Wait for leadership and lead, again and again, until cancelled."""
        while True:
            try:
                term = await acquire_leadership(
                    self._dependencies.leadership,
                    self._holder,
                    self._dependencies.backend_identities,
                    self._dependencies.runtime,
                )
            except WrongBackend as error:
                log.error("does not campaign", holder=self._holder, why=str(error))  # noqa: TRY400 - no bug of ours
                await self._dependencies.clock.sleep(WRONG_BACKEND_PAUSE_SECONDS)
            except CodeHubError as error:
                log.warning("cannot campaign", error=str(error))
                await self._dependencies.clock.sleep(1.0)
            else:
                await self._lead(term)

    async def _lead(self, term: Term) -> None:
        metrics = self._dependencies.metrics
        metrics.set(IS_LEADER, 1)
        metrics.set(EPOCH, term.epoch)
        log.info("leading", epoch=term.epoch, holder=self._holder)
        self._term_runner = TermRunner(term, self._dependencies, self._tuning)
        try:
            await self._term_runner.run()
        finally:
            self._term_runner = None
            metrics.set(IS_LEADER, 0)
            await term.resign()
            log.info("no longer leading", epoch=term.epoch, holder=self._holder)

    def readiness(self) -> CoordinatorReadiness:
        if self._term_runner is None:
            return CoordinatorReadiness(leads=False, epoch=None, pass_age=None, queued=0)
        return self._term_runner.readiness()


class TermRunner:
    """All components that run during one term of leadership."""

    def __init__(self, term: Term, dependencies: Dependencies, tuning: Tuning) -> None:
        self._term = term
        self._dependencies = dependencies
        self._tuning = tuning
        self._clock = clock = dependencies.clock
        self._metrics = dependencies.metrics
        self._notices = BackendNotices(dependencies.notifier)
        context = term_context(term, dependencies, tuning, self._notices.changed)
        self.backends = context.backends
        self.queue = context.queue
        self.observer = Observer(context)
        self.reconciler = Reconciler(context, self.observer)
        self.ttl = TtlRunner(context, dependencies.activity, dependencies.bus)
        self.gc = GcRunner(context, gc_scanner(dependencies, tuning), dependencies.marks(term.epoch))
        self._isolation = IsolationWatch(dependencies.runtime, dependencies.notifier, dependencies.metrics)
        sender = f"coordinator {term.epoch}"
        self._events = EventListener(
            dependencies.feed,
            dependencies.bus,
            self._wake,
            self._resync,
            dependencies.metrics,
            tuning.sse_prefix,
            tuning.wake_prefix,
            sender,
        )
        wake_channel = f"{tuning.wake_prefix}wc"
        self._wakes = WakeListener(dependencies.bus, wake_channel, self._look_at_once, self._resync, sender)
        self._gc_due = clock.monotonic() + _first(tuning.gc_interval)
        self._woken: dict[UUID, float] = {}
        self._look_at_all = asyncio.Event()

    async def run(self) -> None:
        """Run all components until the term is over. They never end by themselves."""
        components: dict[str, Callable[[], Awaitable[None]]] = {
            "event listener": self._events.run,
            "wake listener": self._wakes.run,
            "backend notices": self._notices.run,
            "hints": self._take_hints,
            "full passes": self._full_passes,
            "active passes": self._active_passes,
            "isolation watch": self._isolation.run,
            "leftovers": self._orphan_ticks,
            "ttl runner": self._ttl_ticks,
            "gc runner": self._gc_ticks,
        }
        if self._dependencies.records is not None:
            components["retention runner"] = partial(self._retention_ticks, self._dependencies.records)
        if self._dependencies.usage_history is not None:
            components["usage sampler"] = partial(self._usage_ticks, self._dependencies.usage_history)
        for number in range(self._tuning.workers):
            components[f"worker {number}"] = self._work
        tasks = [asyncio.create_task(self._supervise(name, run), name=name) for name, run in components.items()]
        try:
            await self._term.lost()
        finally:
            await _end(tasks)

    def readiness(self) -> CoordinatorReadiness:
        seen = self.observer.last_pass_at
        age = None if seen == float("-inf") else self._clock.monotonic() - seen
        return CoordinatorReadiness(self._term.held(), self._term.epoch, age, len(self.queue))

    async def _supervise(self, name: str, run: Callable[[], Awaitable[None]]) -> None:
        delay = 1.0
        while True:
            began = self._clock.monotonic()
            try:
                await run()
                log.warning("component ended", component=name)
            except CodeHubError as error:
                log.warning("component failed", component=name, error=str(error))
            except Exception:
                log.exception("component crashed", component=name)
            self._metrics.add(COMPONENT_RESTARTS, component=name.rstrip(" 0123456789"))
            if self._clock.monotonic() - began > RESTART_CAP_SECONDS:
                delay = 1.0
            await self._clock.sleep(delay)
            delay = min(delay * 2, RESTART_CAP_SECONDS)

    async def _work(self) -> None:
        while True:
            workspace_id = await self.queue.get()
            began, outcome = self._clock.monotonic(), "ok"
            try:
                after = await self.reconciler.reconcile(workspace_id)
                self.queue.succeeded(workspace_id)
                if after is not None:
                    self.queue.add(workspace_id, after)
            except Stale as stale:
                outcome = "stale"
                self._metrics.add(STALE_WRITES)
                log.info("dropped", workspace=str(workspace_id), why=str(stale))
            except CodeHubError as error:
                outcome = "failed"
                seconds = self.queue.failed(workspace_id)
                log.warning("pass failed", workspace=str(workspace_id), error=str(error), again_in=seconds)
            except Exception:
                outcome = "crashed"
                seconds = self.queue.failed(workspace_id)
                log.exception("pass crashed", workspace=str(workspace_id), again_in=seconds)
            finally:
                self.queue.done(workspace_id)
                self._metrics.observe(RECONCILE_SECONDS, self._clock.monotonic() - began, outcome=outcome)

    def _wake(self, workspace_id: UUID) -> None:
        self._woken[workspace_id] = self._clock.monotonic() + self._tuning.active_duration
        self.queue.add(workspace_id)

    def _look_at_once(self, workspace_id: UUID) -> None:
        """Act on a hint from another process: what was observed before it is no longer believed."""
        self.observer.distrust(workspace_id)
        self._wake(workspace_id)

    def _resync(self) -> None:
        self._look_at_all.set()

    async def _take_hints(self) -> None:
        async for workspace_id in self._dependencies.runtime.hints():
            self.observer.distrust(workspace_id)
            self.queue.add(workspace_id)

    async def _full_passes(self) -> None:
        while True:
            self._look_at_all.clear()
            began = self._clock.monotonic()
            report = await self.observer.full_pass()
            self._metrics.observe(PASS_SECONDS, self._clock.monotonic() - began, kind="full")
            self._metrics.add(ROWS_WRITTEN, report.written)
            if report.whole:
                self._metrics.set(LAST_GOOD_PASS, time.time())
            log.debug("pass", rows=report.rows, judged=report.judged, written=report.written, queued=report.queued)
            try:
                async with asyncio.timeout(self._tuning.idle_interval):
                    await self._look_at_all.wait()
            except TimeoutError:
                pass

    async def _active_passes(self) -> None:
        while True:
            now = self._clock.monotonic()
            self._woken = {key: until for key, until in self._woken.items() if until > now}
            await self.observer.active_pass(list(self._woken))
            self._metrics.observe(PASS_SECONDS, self._clock.monotonic() - now, kind="active")
            self._metrics.set(QUEUE_DEPTH, len(self.queue))
            await self._clock.sleep(self._tuning.active_interval)

    async def _orphan_ticks(self) -> None:
        while True:
            await self._clock.sleep(ORPHANS_SECONDS)
            try:
                await self.backends.remove_orphans()
            except CodeHubError as error:
                log.debug("leftovers are looked for later", error=str(error))

    async def _ttl_ticks(self) -> None:
        while True:
            await self._clock.sleep(self._tuning.ttl_interval)
            try:
                slept = await self.ttl.tick()
            except CodeHubError as error:
                log.warning("nobody is put to sleep this time", error=str(error))
            else:
                log.debug("ttl tick", slept=slept)

    async def _gc_ticks(self) -> None:
        """Collect at each interval, and when an admin asks. A run missed while the database was away comes soon."""
        interval, pause = self._tuning.gc_interval, self._tuning.gc_request_interval
        while True:
            wait = min(self._gc_due - self._clock.monotonic(), pause)
            await self._clock.sleep(max(wait, 0.0))
            try:
                report = await self.gc.serve_request()
                if self._clock.monotonic() >= self._gc_due:
                    self._gc_due = self._clock.monotonic() + interval
                    report = await self.gc.run()
            except CodeHubError as error:
                # it stays due: without a pause it would be asked for again in the same moment
                self._gc_due = max(self._gc_due, self._clock.monotonic() + min(pause, interval))
                log.warning("nothing is collected this time", error=str(error))
            else:
                _log_collection(report)

    async def _usage_ticks(self, history: UsageHistory) -> None:
        sampler = UsageSampler(self._dependencies, history, self._tuning, self._term.epoch)
        try:
            await self._clock.sleep(_first(self._tuning.usage_interval))
            while True:
                await self._clock.sleep(await sampler.tick())
        finally:
            sampler.close()

    async def _retention_ticks(self, records: Records) -> None:
        runner = RetentionRunner(records, self._tuning.ages, self._term.epoch, self._metrics)
        wait = _first(self._tuning.retention_interval)
        while True:
            await self._clock.sleep(wait)
            wait = self._tuning.retention_interval
            log.info("old records forgotten", **await runner.tick())


class IsolationWatch:
    """Tells the admins when workspaces are not isolated: at once of each disturbance, and once of one that lasts. The
    runtime itself looks for them and restores the isolation."""

    def __init__(self, runtime: Runtime, notifier: Notifier, metrics: Metrics) -> None:
        self._runtime = runtime
        self._notifier = notifier
        self._metrics = metrics
        self._told = ""

    async def run(self) -> None:
        """Runs until it fails, and is restarted then. A silent runtime is told of by BackendNotices."""
        try:
            async for report in self._runtime.watch_isolation():
                await self._tell(report)
        except Unreachable:
            raise
        except BackendError as error:
            await self._tell(IsolationReport(str(error), holds=False))
            raise

    async def _tell(self, report: IsolationReport) -> None:
        if not report.holds and report.message == self._told:
            return
        self._told = "" if report.holds else report.message
        notice = notices.isolation_restored if report.holds else notices.isolation_broken
        self._metrics.add(ISOLATION_DISTURBED, holds=str(report.holds).lower())
        await self._notifier.notify(notice(report.message))


def gc_scanner(dependencies: Dependencies, tuning: Tuning) -> GcScanner:
    reach = timedelta(seconds=tuning.ages.ledger) if tuning.ages.ledger else None
    gc_limits = replace(tuning.gc_limits, ledger_reach=reach)
    return GcScanner(
        dependencies.collector,
        dependencies.archives,
        dependencies.runtime,
        tuning.retention,
        gc_limits,
        dependencies.install,
    )


def _first(interval: float) -> float:
    return min(interval / 10, FIRST_RUN_SECONDS)


def _log_collection(report: CollectionReport | None) -> None:
    if report is not None:
        log.info(
            "collection",
            existing=sum(report.existing.values()),
            garbage=len(report.candidates),
            swept=len(report.swept),
            left=len(report.left),
            refused=[refusal.check.value for refusal in report.refusals],
            cap_reached=report.cap_reached,
        )


async def _end(tasks: "list[asyncio.Task[None]]") -> None:
    """Cancel the tasks until they end: a library may swallow a cancellation, and an old leader must not linger."""
    pending = set(tasks)
    while pending:
        for task in pending:
            task.cancel()
        _, pending = await asyncio.wait(pending, timeout=1.0)
