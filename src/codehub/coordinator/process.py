"""The coordinator process: lead, supervise, step down; again (contract 3's single leader).

Nothing dies silently: a component that ends is restarted with back-off and the log says why. Losing the term ends
all of its work at once; everything of a term is built anew for the next.

Whether a coordinator does its job, for whoever probes its status address: a standby does, a leader while it sees.

The leader listens whether workspaces are still isolated from each other and from the platform.

The runtime looks and puts right; here the admins are told: at once of each disorder, and once of one that lasts.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from uuid import UUID

import structlog

from codehub.coordinator.backend_identity import AGAIN_SECONDS, BackendIdentityCheck, campaign
from codehub.coordinator.backends import BackendNotices, Backends, Breaker
from codehub.coordinator.event_listener import EventListener, WakeListener
from codehub.coordinator.executor import Executor
from codehub.coordinator.gc_report import CollectorReport, Survey
from codehub.coordinator.gc_runner import GcRunner
from codehub.coordinator.observer import Observer
from codehub.coordinator.queue import WorkQueue
from codehub.coordinator.reconciler import Reconciler
from codehub.coordinator.retention_runner import Records, RetentionRunner
from codehub.coordinator.ttl_runner import TtlRunner
from codehub.coordinator.tuning import Tuning
from codehub.domain.errors import BackendError, CodeHubError, Stale, Unreachable, WrongBackend
from codehub.ports.accounts import Templates
from codehub.ports.archives import Archives
from codehub.ports.collector import CollectorMarks, CollectorView
from codehub.ports.jobs import Jobs
from codehub.ports.runtime import IsolationReport, Runtime
from codehub.ports.signals import Activity, Bus, ChangeFeed, Clock, Ids, Notifier
from codehub.ports.stores import Actor, BackendIdentities, Leadership, Term, WorkspaceSpecs, WorkspaceStatuses
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
from codehub.usecases.workspace_commands import WorkspaceCommands

RESTORED = "the isolation of workspaces was broken and has been restored"
BROKEN = "workspaces are not isolated: none is started"


class IsolationWatch:
    def __init__(self, runtime: Runtime, notifier: Notifier, metrics: Metrics) -> None:
        self._runtime = runtime
        self._notifier = notifier
        self._metrics = metrics
        self._told = ""

    async def run(self) -> None:
        """Until it fails: then whoever supervises runs it again. A runtime that is silent is told of elsewhere."""
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
        subject = RESTORED if report.holds else BROKEN
        self._metrics.add(ISOLATION_DISTURBED, holds=str(report.holds).lower())
        await self._notifier.notify(subject, {"details": report.message})


STALE_PASS_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Readiness:
    """`pass_age`: seconds since the last pass that saw everything; None before the first."""

    leads: bool
    epoch: int | None
    pass_age: float | None
    queued: int

    @property
    def is_ready(self) -> bool:
        """A standby is: it is doing its job. A leader is while its last good pass is recent."""
        return not self.leads or (self.pass_age is not None and self.pass_age < STALE_PASS_SECONDS)


log = structlog.get_logger()

RESTART_CAP_SECONDS = 30.0
PEACE_SECONDS = 300.0
"""What runs rarely waits so long into a term, at most: terms may be shorter than its interval, and it must run all the
same."""
LEFTOVERS_SECONDS = 15.0


@dataclass(frozen=True, slots=True)
class Dependencies:
    """Every port the coordinator needs; the composition root fills it."""

    leadership: Leadership
    statuses: Callable[[int], WorkspaceStatuses]
    specs: WorkspaceSpecs
    collector: CollectorView
    marks: Callable[[int], CollectorMarks]
    worlds: BackendIdentities
    install: str
    feed: ChangeFeed
    bus: Bus
    activity: Activity
    runtime: Runtime
    jobs: Jobs
    archives: Archives
    notifier: Notifier
    clock: Clock
    ids: Ids
    metrics: Metrics
    records: Records | None = None
    """None: nothing is ever forgotten."""
    templates: Templates | None = None
    """None: a container gets its image and nothing else."""


class Coordinator:
    def __init__(self, holder: str, outside: Dependencies, tuning: Tuning) -> None:
        self._holder = holder
        self._outside = outside
        self._tuning = tuning
        self._reign: LeaderTerm | None = None

    async def run(self) -> None:
        """Campaign and lead, until cancelled."""
        while True:
            try:
                term = await campaign(
                    self._outside.leadership, self._holder, self._outside.worlds, self._outside.runtime
                )
            except WrongBackend as error:
                log.error("does not campaign", holder=self._holder, why=str(error))  # noqa: TRY400 - no bug of ours
                await self._outside.clock.sleep(AGAIN_SECONDS)
            except CodeHubError as error:
                log.warning("cannot campaign", error=str(error))
                await self._outside.clock.sleep(1.0)
            else:
                await self._lead(term)

    async def _lead(self, term: Term) -> None:
        metrics = self._outside.metrics
        metrics.set(IS_LEADER, 1)
        metrics.set(EPOCH, term.epoch)
        log.info("leading", epoch=term.epoch, holder=self._holder)
        self._reign = LeaderTerm(term, self._outside, self._tuning)
        try:
            await self._reign.run()
        finally:
            self._reign = None
            metrics.set(IS_LEADER, 0)
            await term.resign()
            log.info("no longer leading", epoch=term.epoch, holder=self._holder)

    def readiness(self) -> Readiness:
        if self._reign is None:
            return Readiness(leads=False, epoch=None, pass_age=None, queued=0)
        return self._reign.readiness()


class LeaderTerm:
    """All that runs during one term."""

    def __init__(self, term: Term, outside: Dependencies, tuning: Tuning) -> None:
        self._term = term
        self._outside = outside
        self._tuning = tuning
        clock = outside.clock
        self._clock = clock
        self._metrics = outside.metrics
        robot = Actor("coordinator", term.epoch)
        self._statuses = outside.statuses(term.epoch)
        wishes = WorkspaceCommands(outside.specs, tuning.limits)
        self._notices = BackendNotices(outside.notifier)
        breakers = {
            name: Breaker(name, clock, outside.metrics, self._notices.changed)
            for name in ("runtime", "jobs", "archives")
        }
        recognition = BackendIdentityCheck(
            outside.worlds, term.epoch, clock, outside.install, tuning.policy.archive_prefix
        )
        ports = outside.runtime, outside.jobs, outside.archives
        backends = Backends(*ports, term, clock, breakers, recognition, tuning.call_seconds)
        self.queue = WorkQueue(clock)
        self.observer = Observer(backends, self._statuses, self.queue, clock, tuning.policy, tuning.inventory_interval)
        executor = Executor(backends, self._statuses, wishes, robot, tuning.policy, outside.templates)
        self._reconciler = Reconciler(
            self._statuses,
            outside.specs,
            self.observer,
            executor,
            backends,
            outside.notifier,
            clock,
            outside.ids,
            tuning.policy,
            outside.metrics,
        )
        self._ttl = TtlRunner(
            outside.specs,
            wishes,
            outside.activity,
            outside.bus,
            Actor("ttl", term.epoch),
            tuning.idle,
            outside.metrics,
            tuning.sse_prefix,
        )
        self._gc = GcRunner(
            survey(outside, tuning),
            outside.marks(term.epoch),
            backends,
            self.queue,
            wishes,
            Actor("collector", term.epoch),
            outside.notifier,
            outside.metrics,
            tuning.retention,
            tuning.gc_limits,
        )
        sender = f"coordinator {term.epoch}"
        self._events = EventListener(
            outside.feed,
            outside.bus,
            self._wake,
            self._resync,
            outside.metrics,
            tuning.sse_prefix,
            tuning.wake_prefix,
            sender,
        )
        self._isolation = IsolationWatch(outside.runtime, outside.notifier, outside.metrics)
        self._backends = backends
        self._wakes = WakeListener(outside.bus, f"{tuning.wake_prefix}wc", self._look_at_once, self._resync, sender)
        self._gc_due = clock.monotonic() + _first(tuning.gc_interval)
        self._woken: dict[UUID, float] = {}
        self._look_at_all = asyncio.Event()

    async def run(self) -> None:
        """Until the term is over. The components never end by themselves."""
        components: dict[str, Callable[[], Awaitable[None]]] = {
            "event listener": self._events.run,
            "wake listener": self._wakes.run,
            "backend notices": self._notices.run,
            "hints": self._take_hints,
            "full passes": self._full_passes,
            "active passes": self._active_passes,
            "isolation watch": self._isolation.run,
            "leftovers": self._leftover_ticks,
            "ttl runner": self._ttl_ticks,
            "gc runner": self._gc_ticks,
        }
        if self._outside.records is not None:
            components["retention runner"] = partial(self._retention_ticks, self._outside.records)
        for number in range(self._tuning.workers):
            components[f"worker {number}"] = self._work
        tasks = [asyncio.create_task(self._supervise(name, run), name=name) for name, run in components.items()]
        try:
            await self._term.lost()
        finally:
            await _end(tasks)

    def readiness(self) -> Readiness:
        seen = self.observer.last_pass_at
        age = None if seen == float("-inf") else self._clock.monotonic() - seen
        return Readiness(self._term.held(), self._term.epoch, age, len(self.queue))

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
                after = await self._reconciler.reconcile(workspace_id)
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
        """Somebody outside says that something has changed: what was seen before says nothing of it."""
        self.observer.distrust(workspace_id)
        self._wake(workspace_id)

    def _resync(self) -> None:
        self._look_at_all.set()

    async def _take_hints(self) -> None:
        async for workspace_id in self._outside.runtime.hints():
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

    async def _leftover_ticks(self) -> None:
        while True:
            await self._clock.sleep(LEFTOVERS_SECONDS)
            try:
                await self._backends.remove_leftovers()
            except CodeHubError as error:
                log.debug("leftovers are looked for later", error=str(error))

    async def _ttl_ticks(self) -> None:
        while True:
            await self._clock.sleep(self._tuning.ttl_interval)
            try:
                slept = await self._ttl.tick()
            except CodeHubError as error:
                log.warning("nobody is put to sleep this time", error=str(error))
            else:
                log.debug("ttl tick", slept=slept)

    async def _gc_ticks(self) -> None:
        """By the clock, and when an admin asks. A run that was due while the database was away is soon made up for."""
        interval, pause = self._tuning.gc_interval, self._tuning.gc_request_interval
        while True:
            wait = min(self._gc_due - self._clock.monotonic(), pause)
            await self._clock.sleep(max(wait, 0.0))
            try:
                report = await self._gc.serve_request()
                if self._clock.monotonic() >= self._gc_due:
                    self._gc_due = self._clock.monotonic() + interval
                    report = await self._gc.run()
            except CodeHubError as error:
                # it stays due: without a pause it would be asked for again in the same moment
                self._gc_due = max(self._gc_due, self._clock.monotonic() + min(pause, interval))
                log.warning("nothing is collected this time", error=str(error))
            else:
                _log_collection(report)

    async def _retention_ticks(self, records: Records) -> None:
        runner = RetentionRunner(records, self._tuning.ages, self._term.epoch, self._metrics)
        wait = _first(self._tuning.retention_interval)
        while True:
            await self._clock.sleep(wait)
            wait = self._tuning.retention_interval
            log.info("old records forgotten", **await runner.tick())


def _first(interval: float) -> float:
    return min(interval / 10, PEACE_SECONDS)


def survey(outside: Dependencies, tuning: Tuning) -> Survey:
    reach = timedelta(seconds=tuning.ages.ledger) if tuning.ages.ledger else None
    gc_limits = replace(tuning.gc_limits, ledger_reach=reach)
    return Survey(outside.collector, outside.archives, outside.runtime, tuning.retention, gc_limits, outside.install)


def _log_collection(report: CollectorReport | None) -> None:
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
    """Asked again until they end: a library may swallow a cancellation, and an old leader must not linger for that."""
    pending = set(tasks)
    while pending:
        for task in pending:
            task.cancel()
        _, pending = await asyncio.wait(pending, timeout=1.0)
