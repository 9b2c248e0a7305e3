"""What each decision writes: pure functions from the judged row to the row to record, before anything is done.

Every path to ERROR writes healthy, phase, operation and error_* together (contract 4); `op_id` and `archive_op_id`
stay. A retry keeps its op_id; only a new operation gets a new one.
"""

from collections.abc import Collection
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from codehub.domain import naming
from codehub.domain.errors import CONTEXT_FIELDS, REASONS, ErrorInfo, ErrorReason, Unreachable
from codehub.domain.judge import ARCHIVE_CORRUPTED, volume_lives
from codehub.domain.plan import Policy, backoff, outage_pause, terminal_reason
from codehub.domain.transitions import MAY_RUN_IN_ERROR, OPERATIONS
from codehub.domain.workspace import (
    HEALTHY,
    Condition,
    HomeContext,
    Operation,
    Phase,
    Progress,
    RecoverAction,
    Workspace,
)


@dataclass(frozen=True, slots=True)
class Failure:
    """One failed attempt, as the executor met it."""

    reason: ErrorReason
    message: str
    context: dict[str, Any] = field(default_factory=dict)


def begin(
    ws: Workspace, operation: Operation, op_id: UUID, now: datetime, volumes: Collection[str] | None
) -> Workspace:
    """`volumes`: the names of those that this workspace was just seen to have; None if they were not seen."""
    row = replace(
        ws,
        operation=operation,
        op_id=op_id,
        op_started_at=now,
        op_progress=None,
        op_progress_at=now,
        op_excused_seconds=0.0,
        retry_at=None,
    )
    if not _goes_on_trying(ws, operation):
        row = replace(row, error_count=0)
        if ws.phase is not Phase.ERROR:
            row = replace(row, error_reason=None, error_info=None)
    match operation:
        case Operation.PROVISIONING:
            return _new_incarnation(row, volumes, restoring=None)
        case Operation.RESTORING:
            return _new_incarnation(row, volumes, restoring=row.archive_key)
        case Operation.STARTING | Operation.STOPPING:
            return replace(row, archive_op_id=None)
        case Operation.CREATE_EMPTY_ARCHIVE:
            return replace(row, archive_op_id=op_id)
        case Operation.ARCHIVING:
            return replace(row, archive_op_id=row.archive_op_id or op_id)
        case _:
            return row


def _goes_on_trying(ws: Workspace, operation: Operation) -> bool:
    """Each operation has tries of its own. A start that succeeded leaves its count and no error, since a container that
    dies right away was a failed attempt too (plan.Relapse)."""
    tried = ws.error_info.operation if ws.error_info else Operation.STARTING.value
    return operation.value == tried


def _new_incarnation(ws: Workspace, volumes: Collection[str] | None, restoring: str | None) -> Workspace:
    """A new name for a new volume; the old home's archive id must not name the new home's archive. A number is recorded
    before its volume is made, so one above ours that is there already was made under a row that the database has lost:
    it is passed over, and never written to."""
    if volumes is None:
        raise Unreachable("which volumes there are is not known: a new home is not named by a guess")
    newer = {number for name in volumes if (number := naming.incarnation_of(ws.id, name) or 0) > ws.home.incarnation}
    number = max(newer, default=ws.home.incarnation) + 1
    home = HomeContext(incarnation=number, restoring=restoring, ready_instance=ws.home.ready_instance)
    home = replace(
        home,
        passed_over=(*ws.home.passed_over, *sorted(newer)),
        half_restored=_half_restored(ws.home),
        corrupted=ws.home.corrupted,
    )
    return replace(ws, home=home, home_store_key=naming.volume_name(ws.id, number), archive_op_id=None)


def _half_restored(home: HomeContext) -> tuple[tuple[int, str], ...]:
    """As the present incarnation is given up."""
    given_up = () if home.restoring is None else ((home.incarnation, home.restoring),)
    return (*home.half_restored, *(half for half in given_up if half not in home.half_restored))


def without_leftovers(ws: Workspace, volumes: Collection[str]) -> Workspace:
    """Half-restored volumes that are no longer there are forgotten."""
    kept = tuple(half for half in ws.home.half_restored if naming.volume_name(ws.id, half[0]) in volumes)
    return replace(ws, home=replace(ws.home, half_restored=kept))


def complete(ws: Workspace) -> Workspace:
    """The failed attempts of a start are counted until the phase has held (plan.Forgive); all others are over."""
    home = ws.home
    if ws.operation is Operation.ARCHIVING:
        home = replace(home, deleting_volume=False, live=False, marker=None, volume_instance=None)
    row = _ended(replace(ws, home=home))
    if ws.phase is Phase.ERROR:
        return row
    count = ws.error_count if ws.operation is Operation.STARTING else 0
    return replace(row, error_count=count, error_reason=None, error_info=None, retry_at=None)


def abandon(ws: Workspace) -> Workspace:
    return replace(_ended(ws), retry_at=None)


def _ended(ws: Workspace) -> Workspace:
    return replace(
        ws, operation=Operation.NONE, op_started_at=None, op_progress=None, op_progress_at=None, op_excused_seconds=0.0
    )


def progressed(ws: Workspace, progress: Progress, now: datetime) -> Workspace:
    if progress == ws.op_progress:
        return ws
    excuse = 0.0 if OPERATIONS[ws.operation].progress_counts else ws.op_excused_seconds
    return replace(ws, op_progress=progress, op_progress_at=now, op_excused_seconds=excuse)


def excused(ws: Workspace, seconds: float) -> Workspace:
    return replace(ws, op_excused_seconds=ws.op_excused_seconds + seconds)


def begun_anew(ws: Workspace, now: datetime) -> Workspace:
    """Nothing since the last progress counts against the deadline, and what comes next has made none yet."""
    return replace(ws, op_progress=None, op_progress_at=now, op_excused_seconds=0.0)


def failed(ws: Workspace, failure: Failure, policy: Policy, jitter: float, now: datetime) -> Workspace:
    """One more failed attempt: wait and try again, or, when no try is left, ERROR. An outage is no failed attempt."""
    if REASONS[failure.reason].is_outage:
        return interrupted(ws, failure, jitter, now)
    if failure.reason is ErrorReason.ARCHIVE_CORRUPTED and ws.operation is Operation.RESTORING:
        ws = _found_corrupted(ws, now)
    count = ws.error_count + 1
    if ws.phase is Phase.ERROR:
        return replace(ws, error_count=count, retry_at=now + backoff(count, policy, jitter))
    terminal = terminal_reason(failure.reason, count, policy)
    if terminal is None:
        info = _info(ws, failure, count, now, terminal=False)
        return replace(
            ws,
            error_count=count,
            error_reason=info.reason,
            error_info=info,
            op_progress=None,
            retry_at=now + backoff(count, policy, jitter),
        )
    if terminal is not failure.reason:
        context = {
            "max_retries": policy.max_retries,
            "last_error": failure.message,
            "last_reason": failure.reason.value,
            **failure.context,
        }
        message = f"{_doing(ws)} failed {count} times; the last time: {failure.message}"
        failure = Failure(terminal, message, context)
    return enter_error(replace(ws, error_count=count), failure, now)


def _found_corrupted(ws: Workspace, now: datetime) -> Workspace:
    """Held against this archive until a person asks for it by name or for another try: what can be seen from outside,
    that it is there and as long as it should be, says nothing of its bytes."""
    if ws.archive_key is None or ws.archive_key in ws.home.corrupted:
        return ws
    home = replace(ws.home, corrupted=(*ws.home.corrupted, ws.archive_key))
    archive = replace(ARCHIVE_CORRUPTED, last_transition_time=now)
    return replace(ws, home=home, conditions=replace(ws.conditions, archive_ready=archive))


def _believed_again(ws: Workspace, key: str | None) -> Workspace:
    kept = tuple(other for other in ws.home.corrupted if other != key)
    return replace(ws, home=replace(ws.home, corrupted=kept))


def interrupted(ws: Workspace, failure: Failure, jitter: float, now: datetime) -> Workspace:
    """A backend broke off, in whichever way: it is waited for, and neither tries nor time are used up. `occurred_at`
    is when that began."""
    before = ws.error_info
    goes_on = before is not None and REASONS[before.reason].is_outage and before.operation == ws.operation.value
    since = before.occurred_at if before is not None and goes_on else now
    pause = outage_pause(now - since, jitter)
    row = excused(replace(ws, retry_at=now + pause), pause.total_seconds())
    if ws.phase is Phase.ERROR:
        return row
    info = replace(_info(ws, failure, ws.error_count, now, terminal=False), occurred_at=since)
    return replace(row, error_reason=info.reason, error_info=info)


def timed_out(ws: Workspace, elapsed: float, limit: float, now: datetime) -> Workspace:
    message = f"{ws.operation} made no progress for {elapsed:.0f} s (its limit is {limit:.0f} s)"
    context = {"operation": ws.operation.value, "elapsed_seconds": round(elapsed), "limit_seconds": round(limit)}
    return enter_error(replace(ws, error_count=ws.error_count + 1), Failure(ErrorReason.TIMEOUT, message, context), now)


def enter_error(ws: Workspace, failure: Failure, now: datetime) -> Workspace:
    info = _info(ws, failure, ws.error_count, now, terminal=True)
    healthy = Condition(status=False, reason=failure.reason.value, message=failure.message, last_transition_time=now)
    if ws.conditions.healthy.status is False:
        healthy = replace(healthy, last_transition_time=ws.conditions.healthy.last_transition_time)
    row = replace(
        _ended(ws),
        phase=Phase.ERROR,
        conditions=replace(ws.conditions, healthy=healthy),
        phase_changed_at=ws.phase_changed_at if ws.phase is Phase.ERROR else now,
        error_reason=info.reason,
        error_info=info,
        retry_at=None,
    )
    if ws.operation is Operation.DELETING:
        # a wish to delete is never given up: it is tried again, slowly, until it succeeds
        return replace(row, retry_at=now + DELETE_AGAIN)
    return row


DELETE_AGAIN = timedelta(minutes=5)


def settle_health(before: Workspace, ws: Workspace, now: datetime) -> Workspace:
    """Carry what the judge found into error_*: ERROR is entered, renamed or left in one write."""
    if ws.phase is Phase.ERROR:
        reason = ErrorReason(ws.conditions.healthy.reason)
        if _stands(ws.error_info, reason):
            return ws if ws.operation in MAY_RUN_IN_ERROR else abandon(ws)
        failure = Failure(reason, ws.conditions.healthy.message, _policy_context(ws, reason))
        row = enter_error(replace(ws, phase=before.phase, phase_changed_at=before.phase_changed_at), failure, now)
        if ws.operation is not Operation.DELETING:
            return row
        return replace(
            row,
            operation=ws.operation,
            op_started_at=ws.op_started_at,
            op_progress=ws.op_progress,
            op_progress_at=ws.op_progress_at,
            op_excused_seconds=ws.op_excused_seconds,
            retry_at=ws.retry_at,
        )
    if before.phase is Phase.ERROR and ws.error_info is not None and ws.error_info.is_terminal:
        healthy = ws.conditions.healthy if ws.conditions.healthy.status else replace(HEALTHY, last_transition_time=now)
        conditions = replace(ws.conditions, healthy=healthy)
        return replace(ws, conditions=conditions, error_reason=None, error_info=None, error_count=0, retry_at=None)
    return ws


def _stands(present: ErrorInfo | None, found: ErrorReason) -> bool:
    """An error that needs a person is never replaced by one that may clear itself: it would clear with it."""
    if present is None or not present.is_terminal:
        return False
    return present.reason is found or (REASONS[found].clears_itself and not REASONS[present.reason].clears_itself)


def _policy_context(ws: Workspace, reason: ErrorReason) -> dict[str, Any]:
    if reason is ErrorReason.ARCHIVE_ACCESS_ERROR:
        return {"archive_key": ws.archive_key, "detail": ws.conditions.archive_ready.reason}
    volume = {"expected": f"volume {ws.home_store_key}", "actual": "no such volume"}
    if reason is ErrorReason.DATA_LOST:
        return {**volume, "archive_key": ws.archive_key, "detail": f"volume {ws.home_store_key} not found"}
    return volume


def lost_archive_replaced(ws: Workspace, archive_key: str | None) -> Workspace:
    """The volume lives and its archive is lost: the volume is the home again, whatever ARCHIVING was about to do."""
    home = replace(ws.home, deleting_volume=False, live=True)
    row = replace(ws, archive_key=archive_key, archive_op_id=None, home=home)
    return abandon(row) if row.operation is Operation.ARCHIVING else row


def take_restore_point(ws: Workspace) -> Workspace:
    half = _half_restored(ws.home)
    row = replace(
        ws,
        archive_key=ws.restore_from,
        archive_op_id=None,
        restore_handled_at=ws.restore_requested_at,
        home=replace(ws.home, live=False, restoring=None, marker=None, half_restored=half),
    )
    return _believed_again(row, ws.restore_from)


def recovered(ws: Workspace, newest_readable: str | None, now: datetime) -> Workspace:
    """Consume the recover wish. What each action gives up is only what the person named, and never the only copy."""
    handled = replace(ws, recover_handled_at=ws.recover_requested_at)
    chosen = ws.restore_from if ws.restore_pending else newest_readable
    whole = ws.conditions.volume_ready.status is True
    only_copy = volume_lives(ws.conditions.volume_ready) and ws.volume_may_be_only_copy
    action = ws.recover_action
    if ws.phase is not Phase.ERROR or (action is RecoverAction.USE_ARCHIVE and not chosen and not only_copy):
        return handled
    row = _out_of_error(handled, now)
    if action is RecoverAction.RETRY:
        row = _believed_again(row, row.archive_key)
    if only_copy and not whole:
        row = replace(row, home=replace(row.home, deleting_volume=False, live=True))
    if action is RecoverAction.FORGET_ARCHIVE:
        return replace(row, archive_key=None, archive_op_id=None)
    if only_copy or action not in (RecoverAction.USE_ARCHIVE, RecoverAction.EMPTY_HOME):
        # a volume that is there after all is kept: a chosen restore point then takes the safe way through ARCHIVED
        return row
    key = chosen if action is RecoverAction.USE_ARCHIVE else None
    used = ws.restore_requested_at if action is RecoverAction.USE_ARCHIVE else ws.restore_handled_at
    half = _half_restored(row.home)
    home = replace(row.home, live=False, restoring=None, deleting_volume=False, marker=None, half_restored=half)
    row = replace(row, archive_key=key, archive_op_id=None, restore_handled_at=used, home=home, home_store_key=None)
    return _believed_again(row, key)


def _out_of_error(ws: Workspace, now: datetime) -> Workspace:
    """As before the error, which the next look corrects; but since now: whoever waits for a phase to grow old begins
    anew."""
    phase = Phase(ws.error_info.previous_phase) if ws.error_info else ws.phase
    return replace(
        _ended(ws),
        error_reason=None,
        error_info=None,
        error_count=0,
        retry_at=None,
        phase=phase,
        phase_changed_at=now,
        conditions=replace(ws.conditions, healthy=replace(HEALTHY, last_transition_time=now)),
    )


def failures_reset(ws: Workspace) -> Workspace:
    return replace(ws, error_count=0, error_reason=None, error_info=None, retry_at=None)


def crashed_after_start(before: Workspace, ws: Workspace, policy: Policy, jitter: float, now: datetime) -> Workspace:
    lived = (now - before.phase_changed_at).total_seconds()
    detail = ws.conditions.container_ready.message
    message = f"the container ended {lived:.0f} s after its start" + (f": {detail}" if detail else "")
    failure = Failure(ErrorReason.ACTION_FAILED, message, {"action": "start"})
    row = failed(replace(ws, operation=Operation.STARTING), failure, policy, jitter, now)
    return replace(row, operation=Operation.NONE)


def _info(ws: Workspace, failure: Failure, count: int, now: datetime, *, terminal: bool) -> ErrorInfo:
    previous = ws.error_info.previous_phase if ws.phase is Phase.ERROR and ws.error_info else ws.phase.value
    return ErrorInfo(
        reason=failure.reason,
        message=failure.message,
        operation=ws.operation.value,
        is_terminal=terminal,
        error_count=count,
        previous_phase=previous,
        occurred_at=now,
        context=_context(ws, failure),
    )


_ACTIONS = {
    Operation.PROVISIONING: "provision",
    Operation.CREATE_EMPTY_ARCHIVE: "archive",
    Operation.RESTORING: "restore",
    Operation.STARTING: "start",
    Operation.STOPPING: "delete",
    Operation.ARCHIVING: "archive",
    Operation.DISCARDING: "discard",
    Operation.DELETING: "delete_volume",
}
"""What each operation does to the backend, in the specification's words."""


def _context(ws: Workspace, failure: Failure) -> dict[str, Any]:
    """Every field of the reason is there; what the failure itself does not say is taken from the row or is null."""
    known = {
        "action": _ACTIONS.get(ws.operation),
        "error": failure.message,
        "detail": failure.message,
        "actual": failure.message,
        "archive_key": ws.archive_key,
        "image": ws.image_ref or None,
    }
    return {name: known.get(name) for name in CONTEXT_FIELDS[failure.reason]} | failure.context


def _doing(ws: Workspace) -> str:
    return ws.operation.value if ws.operation is not Operation.NONE else "STARTING"
