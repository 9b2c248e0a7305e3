"""Reconcile one workspace: load → judge → plan → record → act (contracts 1, 2, 4, 10).

Recorded before acted, always; acted outside transactions; each later write is guarded by the operation's id and the
term's epoch, and one that finds nothing of ours (Stale) is dropped. The loop around it owns time, tries and logs.
The controller's metrics are read off the difference of two rows, as the ledger is.
"""

from dataclasses import dataclass, replace
from datetime import datetime
from typing import assert_never
from uuid import UUID

from codehub.coordinator.context import TermContext
from codehub.coordinator.executor import STARTED, Executor
from codehub.coordinator.observer import Observer
from codehub.domain import failures, naming, notices, operations
from codehub.domain.errors import REASONS, BackendError, JobInterrupted, Unreachable
from codehub.domain.failures import Failure, settle_health
from codehub.domain.judge import ArchiveState, Facts, judge
from codehub.domain.plan import (
    Abandon,
    Begin,
    Complete,
    Continue,
    CrashedAfterStart,
    Decision,
    Recover,
    RemoveLeftovers,
    ReplaceLostArchive,
    ResetFailures,
    Settled,
    TakeRestorePoint,
    TimedOut,
    Undelete,
    Wait,
    plan,
)
from codehub.domain.workspace import Operation, Phase, RecoverAction, Workspace
from codehub.telemetry import (
    OPERATION_SECONDS,
    OPERATIONS_COMPLETED,
    OPERATIONS_FAILED,
    OPERATIONS_STARTED,
    ROWS_WRITTEN,
    TERMINAL_ERRORS,
    Metrics,
)

SOON_SECONDS = 0.05
PROBE_SECONDS = 0.25
PROBE_SHARE = 0.1
"""The share of its age after which a start is probed again: one that takes long is probed more rarely, so that many
starts at once do not hold each other up.
"""
WATCH_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Assessment:
    """One workspace during a pass: its row as loaded, what was observed, and what was judged and decided of it."""

    loaded: Workspace
    judged: Workspace
    facts: Facts
    decision: Decision
    now: datetime


class Reconciler:
    def __init__(self, context: TermContext, observer: Observer) -> None:
        self._context = context
        self._observer = observer
        self._backends = context.backends
        self._statuses = context.statuses
        self._notifier = context.notifier
        self._clock = context.clock
        self._ids = context.ids
        self._policy = context.tuning.policy
        self._metrics = context.metrics
        self._robot = context.actor("coordinator")
        self._seen_at: dict[UUID, float] = {}

    async def reconcile(self, workspace_id: UUID) -> float | None:
        """Run one pass over one workspace; returns the seconds until the next one, or None: the periodic passes see to
        it."""
        rows, now = await self._statuses.load([workspace_id])
        if not rows:
            return None
        assessment = await self._judge(rows[0], now)
        row = await self._record(assessment)
        return await self._act(row, assessment)

    async def _judge(self, ws: Workspace, now: datetime) -> Assessment:
        assessment = self._assess(ws, await self._observer.facts(ws), now)
        if _rests_on_absence(assessment):
            assessment = self._assess(ws, await self._observer.look(ws), now)
        return assessment

    def _assess(self, ws: Workspace, facts: Facts, now: datetime) -> Assessment:
        judged = settle_health(ws, judge(ws, facts, now), now)
        waited = _unseen(ws) or ws.id not in self._seen_at
        if waited and facts.runtime_known and judged.operation is not Operation.NONE:
            judged = operations.excused(judged, self._since_last(ws, now))
        return Assessment(ws, judged, facts, plan(ws, judged, facts, self._policy, now), now)

    async def _record(self, it: Assessment) -> Workspace:
        after, reason = await self._decided(it)
        if after == it.loaded:
            return it.loaded
        row = await self._statuses.record(it.loaded, after, reason=reason)
        _count_change(self._metrics, it.loaded, row, it.now)
        if row.phase is Phase.ERROR and row.error_info != it.loaded.error_info:
            await self._notifier.notify(notices.workspace_in_error(row))
        if row.home.passed_over != it.loaded.home.passed_over:
            await self._tell_of_newer_home(row, it.loaded)
        return row

    async def _decided(self, it: Assessment) -> tuple[Workspace, str]:  # noqa: C901, PLR0911, PLR0912 - one line per decision
        ws, now = it.judged, it.now
        match it.decision:
            case Settled() | Continue():
                return ws, ""
            case Wait(why, _, excused):
                return (operations.excused(ws, self._silence(it)) if excused else ws), why
            case Begin(operation):
                return operations.begin(ws, operation, self._ids.new(), now, it.facts.volumes), "planned"
            case Complete():
                await self._audit_start(it.loaded)
                return operations.complete(ws), "observed"
            case TimedOut(elapsed, limit):
                return failures.timed_out(ws, elapsed, limit, now), "timeout"
            case Abandon():
                return operations.abandon(ws), "desired_state_changed"
            case CrashedAfterStart():
                return failures.crashed_after_start(it.loaded, ws, self._policy, self._ids.jitter(), now), "relapsed"
            case ResetFailures():
                return failures.failures_reset(ws), "held"
            case Recover():
                return await self._recovered(it)
            case TakeRestorePoint():
                return await self._restore_point_taken(ws)
            case ReplaceLostArchive():
                return await self._lost_archive_replaced(it)
            case RemoveLeftovers():
                return operations.without_leftovers(ws, it.facts.volumes or ()), "leftovers_gone"
            case Undelete():
                await self._context.commands.bring_back(ws.id, self._robot)
                # what was being uploaded when it was deleted may be swept even now: its name is not used again
                return replace(ws, undelete_handled_at=ws.undelete_requested_at, archive_op_id=None), "undelete"
        assert_never(it.decision)

    async def _audit_start(self, ws: Workspace) -> None:
        """Audit what a start was given whose answer was lost: whoever started it did not get to say so."""
        secrets = self._context.secrets
        if secrets and ws.operation is Operation.STARTING and ws.op_id is not None and ws.op_progress != STARTED:
            await secrets.record_use(ws, ws.op_id, await secrets.for_start(ws), self._robot)

    async def _act(self, row: Workspace, it: Assessment) -> float | None:
        silent = self._silence(it)
        self._seen_at[row.id] = max(self._clock.monotonic(), self._seen_at.get(row.id, 0.0))
        match it.decision:
            case Wait(_, until, _):
                return None if until is None else max((until - it.now).total_seconds(), SOON_SECONDS)
            case Settled():
                return None
            case Begin() | Continue():
                return await self._advance(row, it, silent)
            case RemoveLeftovers(volumes):
                for name in volumes:
                    await self._backends.delete_volume(row.id, name)
                return SOON_SECONDS if volumes else None
            case _:
                return 0.0

    async def _advance(self, row: Workspace, it: Assessment, silent: float) -> float | None:
        if row.operation is Operation.STOPPING and isinstance(it.decision, Begin):
            await self._context.specs.release_leases(row.id, self._robot)
        began = self._clock.monotonic()
        executor = Executor(self._context, row, it.facts, it.now)
        try:
            await executor.step()
        except BackendError as error:
            if isinstance(error, Unreachable) and "endpoint" not in error.context:
                raise  # our own database: the pass failed, not the operation
            return await self._failed(executor.row, error, it.now, silent + self._clock.monotonic() - began)
        if executor.watches:
            return WATCH_SECONDS
        if self._backends.acted_at(row.id) >= began or executor.row is not row:
            return SOON_SECONDS
        if row.operation is Operation.STARTING and row.op_started_at is not None:
            return max(PROBE_SECONDS, (it.now - row.op_started_at).total_seconds() * PROBE_SHARE)
        return None

    async def _failed(self, before: Workspace, error: BackendError, now: datetime, silent: float) -> float:
        """Record a failed step; returns the seconds until the next. `silent`: how long the backend has not answered,
        which in an outage counts against no deadline."""
        failure, row = Failure(error.reason, str(error), error.context), before
        if isinstance(error, JobInterrupted):
            row = operations.restarted(row, now)
        elif REASONS[error.reason].is_outage:
            row = operations.excused(row, silent)
        after = failures.failed(row, failure, self._policy, self._ids.jitter(), now)
        row = await self._statuses.record(before, after, reason=error.reason.value)
        _count_change(self._metrics, before, row, now)
        if row.phase is Phase.ERROR:
            await self._notifier.notify(notices.workspace_in_error(row))
            return 0.0
        pause = max((row.retry_at - now).total_seconds(), SOON_SECONDS) if row.retry_at else SOON_SECONDS
        if REASONS[error.reason].is_outage:
            self._seen_at[row.id] = self._clock.monotonic() + pause  # which is excused already
        return pause

    def _silence(self, it: Assessment) -> float:
        """How long the backend has been silent, as far as the assessment has not excused it already."""
        is_excused = it.judged.op_excused_seconds > it.loaded.op_excused_seconds
        return 0.0 if is_excused else self._since_last(it.loaded, it.now)

    def _since_last(self, loaded: Workspace, now: datetime) -> float:
        """How long the backend has been silent since this workspace was last looked at. What another leader saw of the
        silence stands in the row; what nobody saw of it, as nobody led, is silence too."""
        last = self._seen_at.get(loaded.id)
        if last is not None:
            return max(self._clock.monotonic() - last, 0.0)
        since = _silent_since(loaded)
        if since is None:
            return 0.0
        unseen = (now - max(loaded.updated_at, loaded.retry_at or loaded.updated_at)).total_seconds()
        whole = (now - max(since, loaded.op_progress_at or since)).total_seconds()
        return max(unseen, whole - loaded.op_excused_seconds, 0.0)

    async def _recovered(self, it: Assessment) -> tuple[Workspace, str]:
        """The row after a person asked for recovery. It is judged again in the same write, so that one which may run is
        never without its slot."""
        ws, facts = it.judged, it.facts
        if ws.phase is Phase.ERROR and ws.recover_action not in (RecoverAction.RETRY, RecoverAction.FORGET_ARCHIVE):
            volume_gone = ws.conditions.volume_ready.status is False
            if ws.recover_action is RecoverAction.REMOVE_CONTAINER or volume_gone:
                await self._backends.remove_container(ws.id)
                facts = await self._observer.look(ws)
        newest = None
        if ws.recover_action is RecoverAction.USE_ARCHIVE and not ws.restore_pending:
            newest = await self._newest_readable(ws, besides=_failed_restore_key(ws))
        row = failures.recovered(ws, newest, it.now)
        if row.archive_key != ws.archive_key:
            state = await self._backends.look(row.archive_key) if row.archive_key else ArchiveState.UNKNOWN
            facts = replace(facts, archive=state)
        return settle_health(row, judge(row, facts, it.now), it.now), f"recover:{ws.recover_action}"

    async def _restore_point_taken(self, ws: Workspace) -> tuple[Workspace, str]:
        chosen = ws.restore_from
        if chosen is None or await self._backends.look(chosen) is not ArchiveState.READABLE:
            return replace(ws, restore_handled_at=ws.restore_requested_at), "restore_point_unreadable"
        return operations.take_restore_point(ws), "restore_point"

    async def _lost_archive_replaced(self, it: Assessment) -> tuple[Workspace, str]:
        """The row with another archive instead of the lost one. It is judged again by the same facts, so that no phase
        in between is ever written."""
        ws = it.judged
        newest = await self._newest_readable(ws, besides=ws.archive_key)
        moved = operations.lost_archive_replaced(ws, newest)
        state = ArchiveState.READABLE if newest else ArchiveState.UNKNOWN
        await self._notifier.notify(notices.archive_lost(ws.id, ws.archive_key, newest))
        return judge(moved, replace(it.facts, archive=state), it.now), "archive_lost"

    async def _newest_readable(self, ws: Workspace, besides: str | None) -> str | None:
        for point in await self._statuses.restore_points(ws.id):
            # one that was given up and taken back is the workspace's own again
            held = point.released_at is None or point.key == ws.archive_key
            usable = held and point.key != besides and point.key not in ws.home.corrupted
            if usable and await self._backends.look(point.key) is ArchiveState.READABLE:
                return point.key
        return None

    async def _tell_of_newer_home(self, row: Workspace, loaded: Workspace) -> None:
        found = row.home.passed_over[len(loaded.home.passed_over) :]
        kept = [naming.volume_name(row.id, number) for number in found]
        await self._notifier.notify(notices.newer_home_found(row, kept))


def _count_change(metrics: Metrics, before: Workspace, after: Workspace, now: datetime) -> None:
    metrics.add(ROWS_WRITTEN)
    operation = before.operation.value.lower()
    if after.operation is not before.operation and after.operation is not Operation.NONE:
        metrics.add(OPERATIONS_STARTED, operation=after.operation.value.lower())
    if after.error_info is not None and after.error_info != before.error_info:
        metrics.add(OPERATIONS_FAILED, operation=operation, reason=after.error_info.reason.value)
    elif before.operation is not Operation.NONE and after.operation is Operation.NONE:
        metrics.add(OPERATIONS_COMPLETED, operation=operation)
        if before.op_started_at is not None:
            metrics.observe(OPERATION_SECONDS, (now - before.op_started_at).total_seconds(), operation=operation)
    if after.phase is Phase.ERROR and before.phase is not Phase.ERROR and after.error_reason is not None:
        metrics.add(TERMINAL_ERRORS, reason=after.error_reason.value)


def _failed_restore_key(ws: Workspace) -> str | None:
    """The archive whose restore has just ended in ERROR: a person who asks for an archive now means another."""
    error = ws.error_info
    return ws.archive_key if error is not None and error.operation == Operation.RESTORING.value else None


def _unseen(loaded: Workspace) -> bool:
    """Whether the runtime did not answer when this workspace was last observed."""
    return None in (loaded.conditions.container_ready.status, loaded.conditions.volume_ready.status)


def _silent_since(loaded: Workspace) -> datetime | None:
    """When the silence of a backend began in which this workspace was last looked at; None if all of them answered."""
    conditions, error = (loaded.conditions.container_ready, loaded.conditions.volume_ready), loaded.error_info
    times = [one.last_transition_time for one in conditions if one.status is None]
    if error is not None and REASONS[error.reason].is_outage:
        times.append(error.occurred_at)
    return min((time for time in times if time is not None), default=None)


def _rests_on_absence(it: Assessment) -> bool:
    """Whether the decision rests on something that is missing: ERROR, RESTORING, PROVISIONING and a lost archive need
    more than a list without it."""
    enters_error = it.judged.phase is Phase.ERROR and it.loaded.phase is not Phase.ERROR
    creates = isinstance(it.decision, Begin) and it.decision.operation in (Operation.RESTORING, Operation.PROVISIONING)
    return enters_error or creates or isinstance(it.decision, ReplaceLostArchive)
