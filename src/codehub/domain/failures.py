"""Failed attempts and ERROR: when an operation is tried again, when it ends in ERROR, and how ERROR is left. Pure.

Every path to ERROR writes healthy, phase, operation and error_* together (contract 4). An outage is waited for and uses
up no try; a start that was followed by a crash has failed, until its phase has held for a while.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

from codehub.domain.errors import CONTEXT_FIELDS, REASONS, ErrorInfo, ErrorReason
from codehub.domain.judge import ARCHIVE_CORRUPTED, volume_lives
from codehub.domain.operations import abandon, ended, excused, half_restored_volumes, without_corruption_mark
from codehub.domain.transitions import MAY_RUN_IN_ERROR, OPERATIONS
from codehub.domain.workspace import HEALTHY, Condition, Desired, Operation, Phase, RecoverAction, Workspace

HOLD_SECONDS = 60
"""How long a phase must hold before the failures on the way to it no longer count."""

SHORTEST_PAUSE, LONGEST_PAUSE = 1.0, 15.0
"""The seconds between two tries while a backend is out."""

DELETE_AGAIN = timedelta(minutes=5)

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


@dataclass(frozen=True, slots=True)
class Policy:
    """The controller's settings: how often an operation is tried, how long it may take, where archives are kept."""

    max_retries: int = 3
    backoff_cap_seconds: float = 300.0
    archive_prefix: str = ""
    deadlines: Mapping[Operation, float] = field(default_factory=dict)

    def deadline(self, operation: Operation) -> timedelta:
        return timedelta(seconds=self.deadlines.get(operation, OPERATIONS[operation].deadline_seconds))


@dataclass(frozen=True, slots=True)
class Failure:
    """Why one attempt of an operation failed."""

    reason: ErrorReason
    message: str
    context: dict[str, Any] = field(default_factory=dict)


def terminal_reason(reason: ErrorReason, error_count: int, policy: Policy) -> ErrorReason | None:
    """The reason under which the workspace enters ERROR, or None while tries are left. An outage uses up none."""
    if REASONS[reason].terminal_at_once:
        return reason
    if REASONS[reason].is_outage:
        return None
    return ErrorReason.RETRY_EXCEEDED if error_count >= policy.max_retries else None


def backoff(error_count: int, policy: Policy, jitter: float) -> timedelta:
    """The pause after the k-th failure: min(2^(k−1) s, 5 min) ± 10 %; `jitter` is in [−1, 1]."""
    seconds = min(2.0 ** min(error_count - 1, 60), policy.backoff_cap_seconds)
    return timedelta(seconds=seconds * (1 + 0.1 * jitter))


def outage_pause(lasted: timedelta, jitter: float) -> timedelta:
    """How long until a backend that is out is tried again: the longer the outage, the longer the pause; ± 10 %."""
    pause = min(max(lasted.total_seconds() / 2, SHORTEST_PAUSE), LONGEST_PAUSE)
    return timedelta(seconds=pause * (1 + 0.1 * jitter))


def failed(ws: Workspace, failure: Failure, policy: Policy, jitter: float, now: datetime) -> Workspace:
    """The row after a failed attempt: it waits for the next try or, when none is left, is in ERROR. An outage is no
    failed attempt."""
    if REASONS[failure.reason].is_outage:
        return interrupted(ws, failure, jitter, now)
    if failure.reason is ErrorReason.ARCHIVE_CORRUPTED and ws.operation is Operation.RESTORING:
        ws = _with_corruption_mark(ws, now)
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


def _with_corruption_mark(ws: Workspace, now: datetime) -> Workspace:
    """The row with the mark that its archive is corrupted, which stays until a person asks for that archive by name or
    for another try: that the object is there and as long as it should be says nothing of its bytes."""
    if ws.archive_key is None or ws.archive_key in ws.home.corrupted:
        return ws
    home = replace(ws.home, corrupted=(*ws.home.corrupted, ws.archive_key))
    archive = replace(ARCHIVE_CORRUPTED, last_transition_time=now)
    return replace(ws, home=home, conditions=replace(ws.conditions, archive_ready=archive))


def interrupted(ws: Workspace, failure: Failure, jitter: float, now: datetime) -> Workspace:
    """The row while a backend is out: it is waited for, and neither tries nor time are used up. `occurred_at` is when
    the outage began."""
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


def has_crashed_after_start(before: Workspace, ws: Workspace, now: datetime) -> bool:
    """Whether the container died right after its start, which is a failed attempt."""
    fell = before.phase is Phase.RUNNING and ws.phase is Phase.STANDBY
    soon = now - before.phase_changed_at < timedelta(seconds=HOLD_SECONDS)
    return fell and soon and ws.desired_state is Desired.RUNNING


def crashed_after_start(before: Workspace, ws: Workspace, policy: Policy, jitter: float, now: datetime) -> Workspace:
    lived = (now - before.phase_changed_at).total_seconds()
    detail = ws.conditions.container_ready.message
    message = f"the container ended {lived:.0f} s after its start" + (f": {detail}" if detail else "")
    failure = Failure(ErrorReason.ACTION_FAILED, message, {"action": "start"})
    of_another = ws.error_info is not None and ws.error_info.operation != Operation.STARTING.value
    count = 0 if of_another else ws.error_count
    row = failed(replace(ws, operation=Operation.STARTING, error_count=count), failure, policy, jitter, now)
    return replace(row, operation=Operation.NONE)


def failures_expired(ws: Workspace, now: datetime) -> bool:
    held = now - ws.phase_changed_at >= timedelta(seconds=HOLD_SECONDS)
    return ws.error_count > 0 and held and ws.phase.value == ws.desired_state.value


def failures_reset(ws: Workspace) -> Workspace:
    return replace(ws, error_count=0, error_reason=None, error_info=None, retry_at=None)


def enter_error(ws: Workspace, failure: Failure, now: datetime) -> Workspace:
    info = _info(ws, failure, ws.error_count, now, terminal=True)
    healthy = Condition(status=False, reason=failure.reason.value, message=failure.message, last_transition_time=now)
    if ws.conditions.healthy.status is False:
        healthy = replace(healthy, last_transition_time=ws.conditions.healthy.last_transition_time)
    row = replace(
        ended(ws),
        phase=Phase.ERROR,
        conditions=replace(ws.conditions, healthy=healthy),
        phase_changed_at=ws.phase_changed_at if ws.phase is Phase.ERROR else now,
        error_reason=info.reason,
        error_info=info,
        retry_at=None,
    )
    if ws.operation is Operation.DELETING:
        # a request to delete is never given up: it is tried again, slowly, until it succeeds
        return replace(row, retry_at=now + DELETE_AGAIN)
    return row


def settle_health(before: Workspace, ws: Workspace, now: datetime) -> Workspace:
    """Carry the judged health into error_*: ERROR is entered, gets another reason, or is left, in one write."""
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
    """Whether the present error stays. An error that needs a person is never replaced by one that may clear itself."""
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


def recovered(ws: Workspace, newest_readable: str | None, now: datetime) -> Workspace:
    """The row after a person asked for recovery. Each action gives up only what the person named, and never the only
    copy."""
    handled = replace(ws, recover_handled_at=ws.recover_requested_at)
    chosen = ws.restore_from if ws.restore_pending else newest_readable
    whole = ws.conditions.volume_ready.status is True
    only_copy = volume_lives(ws.conditions.volume_ready) and ws.volume_may_be_only_copy
    action = ws.recover_action
    if ws.phase is not Phase.ERROR or (action is RecoverAction.USE_ARCHIVE and not chosen and not only_copy):
        return handled
    row = _out_of_error(handled, now)
    if action is RecoverAction.RETRY:
        row = without_corruption_mark(row, row.archive_key)
    if only_copy and not whole:
        row = replace(row, home=replace(row.home, deleting_volume=False, live=True))
    if action is RecoverAction.FORGET_ARCHIVE:
        return replace(row, archive_key=None, archive_op_id=None)
    if only_copy or action not in (RecoverAction.USE_ARCHIVE, RecoverAction.EMPTY_HOME):
        # a volume that is there after all is kept: a chosen restore point then takes the safe way through ARCHIVED
        return row
    key = chosen if action is RecoverAction.USE_ARCHIVE else None
    used = ws.restore_requested_at if action is RecoverAction.USE_ARCHIVE else ws.restore_handled_at
    half = half_restored_volumes(row.home)
    home = replace(row.home, live=False, restoring=None, deleting_volume=False, marker=None, half_restored=half)
    row = replace(row, archive_key=key, archive_op_id=None, restore_handled_at=used, home=home, home_store_key=None)
    return without_corruption_mark(row, key)


def _out_of_error(ws: Workspace, now: datetime) -> Workspace:
    """The row in its phase before the error, which the next observation corrects. The phase counts from now: TTLs begin
    anew."""
    phase = Phase(ws.error_info.previous_phase) if ws.error_info else ws.phase
    return replace(
        ended(ws),
        error_reason=None,
        error_info=None,
        error_count=0,
        retry_at=None,
        phase=phase,
        phase_changed_at=now,
        conditions=replace(ws.conditions, healthy=replace(HEALTHY, last_transition_time=now)),
    )


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


def _context(ws: Workspace, failure: Failure) -> dict[str, Any]:
    """The error's context with every field of its reason; what the failure does not say is taken from the row or
    null."""
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
