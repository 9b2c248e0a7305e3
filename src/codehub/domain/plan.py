"""Planning: a judged row becomes exactly one decision (contracts 4, 5, 10). Pure.

Decisions are values; `operations.py` and `failures.py` say what each writes, the reconciler records it and the executor
acts. Unknown starts nothing: while the runtime does not answer, no operation begins, goes on or times out.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta

from codehub.domain import naming
from codehub.domain.failures import Policy, failures_expired, has_crashed_after_start
from codehub.domain.judge import Facts, volume_lives
from codehub.domain.transitions import GIVES_UP_VOLUME, OPERATIONS, transition
from codehub.domain.workspace import NO_CONTAINER, Desired, Operation, Phase, RecoverAction, Workspace

_WITHOUT_CONTAINER = (Phase.PENDING, Phase.ARCHIVED, Phase.STANDBY)
"""The phases without a container: one that is there all the same is a leftover, which holds a slot and is ended."""

_NEEDS_STORE = (Operation.RESTORING, Operation.ARCHIVING, Operation.CREATE_EMPTY_ARCHIVE)


@dataclass(frozen=True, slots=True)
class Settled:
    """The decision that there is nothing to do."""


@dataclass(frozen=True, slots=True)
class Wait:
    """The decision to look again at `until`, or at the next pass. `excused`: the deadline stands still meanwhile."""

    why: str
    until: datetime | None = None
    excused: bool = False


@dataclass(frozen=True, slots=True)
class Begin:
    operation: Operation


@dataclass(frozen=True, slots=True)
class Continue:
    """The decision to take the running operation's next step."""


@dataclass(frozen=True, slots=True)
class Complete:
    """The decision that the operation is done: its effect was observed."""


@dataclass(frozen=True, slots=True)
class TimedOut:
    elapsed_seconds: float
    limit_seconds: float


@dataclass(frozen=True, slots=True)
class Abandon:
    """The decision to give an operation up: between failed attempts the desired state changed, and nothing irreversible
    happened."""


@dataclass(frozen=True, slots=True)
class CrashedAfterStart:
    """The decision that a start has failed: the phase was reached and fell back at once."""


@dataclass(frozen=True, slots=True)
class ResetFailures:
    """The decision that earlier failures no longer count: the phase has held."""


@dataclass(frozen=True, slots=True)
class Recover:
    """The decision to do what a person asked for to leave ERROR."""


@dataclass(frozen=True, slots=True)
class TakeRestorePoint:
    """The decision to point at the archive that a person chose: the present state is archived."""


@dataclass(frozen=True, slots=True)
class ReplaceLostArchive:
    """The decision to point at the newest readable restore point or none: the archive is lost but the volume lives."""


@dataclass(frozen=True, slots=True)
class RemoveLeftovers:
    """The decision to remove the half-restored volumes of earlier tries: the home is whole again. None are named when
    those on record are gone already."""

    volumes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Undelete:
    """The decision to bring a deleted workspace back, as a person asked."""


Decision = (
    Settled
    | Wait
    | Begin
    | Continue
    | Complete
    | TimedOut
    | Abandon
    | CrashedAfterStart
    | ResetFailures
    | Recover
    | TakeRestorePoint
    | ReplaceLostArchive
    | RemoveLeftovers
    | Undelete
)


def plan(before: Workspace, ws: Workspace, facts: Facts, policy: Policy, now: datetime) -> Decision:  # noqa: PLR0911 - a decision table reads best as guards
    """The decision about one workspace. `before` is the row as loaded, `ws` the same row judged by `facts`."""
    if ws.undelete_pending:
        return Undelete()
    if ws.deleted_at is not None:
        return Complete() if ws.operation is not Operation.NONE else Settled()
    if ws.recover_pending and (ws.phase is Phase.ERROR or ws.operation is Operation.NONE):
        return _plan_recover(ws, facts)
    if ws.phase is Phase.ERROR:
        return _plan_error(before, ws, facts, policy, now)
    if ws.operation is not Operation.NONE and OPERATIONS[ws.operation].done(ws):
        return Complete()
    if _archive_lost_beside_volume(ws):
        return ReplaceLostArchive()
    if ws.operation is not Operation.NONE:
        return _plan_running(ws, facts, policy, now)
    if has_crashed_after_start(before, ws, now):
        return CrashedAfterStart()
    if failures_expired(ws, now):
        return ResetFailures()
    return _plan_idle(ws, facts, now)


def effective_desired(ws: Workspace) -> Desired:
    """The desired state that is planned for: a chosen restore point first sends the home through ARCHIVED, so that
    nothing is overwritten."""
    if ws.restore_pending and ws.desired_state is not Desired.DELETED and ws.phase in (Phase.RUNNING, Phase.STANDBY):
        return Desired.ARCHIVED
    return ws.desired_state


def next_operation(ws: Workspace) -> Operation:
    desired = effective_desired(ws)
    ready = ws.conditions.container_ready
    leftover = ready.status is not None and ready.reason != NO_CONTAINER.reason
    if leftover and ws.phase in _WITHOUT_CONTAINER and desired is not Desired.RUNNING:
        return Operation.STOPPING
    row = transition(ws.phase, desired)
    return row.operation if row else Operation.NONE


def wants_volume_gone(ws: Workspace) -> bool:
    return ws.desired_state in GIVES_UP_VOLUME or ws.restore_pending


def _plan_recover(ws: Workspace, facts: Facts) -> Decision:
    """The decision on a request to recover. A delete of the volume may still be on its way: the volume is the home
    again only if its archive is definitely lost."""
    if not facts.runtime_known:
        return Wait("recover waits for the runtime to answer")
    leaving = ws.home.deleting_volume and ws.recover_action is not RecoverAction.FORGET_ARCHIVE
    if leaving and ws.archive_key is not None and ws.conditions.archive_ready.status is None:
        return Wait("recover waits for the object store to answer")
    return Recover()


def _plan_error(before: Workspace, ws: Workspace, facts: Facts, policy: Policy, now: datetime) -> Decision:
    if before.operation is not ws.operation:
        return Wait("the end of the operation is recorded first", until=now)
    if ws.operation is Operation.DELETING:
        return _plan_running(ws, facts, policy, now)
    if ws.desired_state is not Desired.DELETED:
        return Settled()
    return _begin(ws, Operation.DELETING, facts, now)


def _plan_running(ws: Workspace, facts: Facts, policy: Policy, now: datetime) -> Decision:  # noqa: PLR0911 - as above
    if OPERATIONS[ws.operation].done(ws):
        return Complete()
    if not facts.runtime_known:
        return Wait("the runtime does not answer", excused=True)
    if _pointless(ws):
        return Abandon()
    if not _yields(ws):
        if ws.operation in _NEEDS_STORE and _store_silent(ws):
            return Wait("the object store does not answer", excused=True)
        late = _overdue(ws, policy, now)
        if late is not None:
            return late
    if ws.retry_at is not None and now < ws.retry_at:
        return Wait("the next try is not due", until=ws.retry_at)
    return Continue()


def _pointless(ws: Workspace) -> bool:
    """Whether the operation is pointless: unwanted between two tries, or an archive of a home that a container has
    changed since; never past the safe point."""
    outdated = ws.operation is Operation.ARCHIVING and ws.archive_op_id is None
    unwanted = ws.retry_at is not None and next_operation(ws) is not ws.operation
    return (outdated or unwanted) and not ws.home.deleting_volume


def _yields(ws: Workspace) -> bool:
    """Whether ARCHIVING gives the volume back in its next step: it is wanted before the safe point."""
    return ws.operation is Operation.ARCHIVING and not ws.home.deleting_volume and not wants_volume_gone(ws)


def _overdue(ws: Workspace, policy: Policy, now: datetime) -> TimedOut | None:
    """The time-out of the running operation, if it is due. A delete in ERROR has no deadline: it is tried until it
    succeeds."""
    limit, elapsed = policy.deadline(ws.operation), _elapsed(ws, now)
    if elapsed <= limit or ws.phase is Phase.ERROR:
        return None
    return TimedOut(elapsed.total_seconds(), limit.total_seconds())


def _elapsed(ws: Workspace, now: datetime) -> timedelta:
    since = ws.op_progress_at if OPERATIONS[ws.operation].progress_counts else ws.op_started_at
    return now - (since or now) - timedelta(seconds=ws.op_excused_seconds)


def _plan_idle(ws: Workspace, facts: Facts, now: datetime) -> Decision:
    if ws.restore_pending and ws.phase in (Phase.PENDING, Phase.ARCHIVED):
        return TakeRestorePoint() if facts.runtime_known else Wait("restore waits for the runtime to answer")
    operation = next_operation(ws)
    if operation is Operation.NONE:
        return _leftovers(ws, facts) or Settled()
    return _begin(ws, operation, facts, now)


def _leftovers(ws: Workspace, facts: Facts) -> RemoveLeftovers | None:
    """The half-restored volumes to remove, which are those made from the very archive that the home was then made whole
    from: what was restored from another archive may be the last that is left of it, and is the collector's, in time."""
    if facts.volumes is None or ws.conditions.volume_ready.status is not True:
        return None
    present = [(naming.volume_name(ws.id, number), key) for number, key in ws.home.half_restored]
    present = [(name, key) for name, key in present if name in facts.volumes and name != ws.home_store_key]
    whole_from = ws.home.marker[0] if ws.home.marker else None
    names = tuple(name for name, key in present if key == whole_from)
    return RemoveLeftovers(names) if names or len(present) < len(ws.home.half_restored) else None


def _begin(ws: Workspace, operation: Operation, facts: Facts, now: datetime) -> Decision:
    if not facts.runtime_known:
        return Wait("the runtime does not answer")
    if _in_doubt(ws, operation):
        return Wait("the phase is not known for certain")
    if ws.retry_at is not None and now < ws.retry_at:
        return Wait("the next try is not due", until=ws.retry_at)
    return Begin(operation)


def _store_silent(ws: Workspace) -> bool:
    return ws.archive_key is not None and ws.conditions.archive_ready.status is None


def _in_doubt(ws: Workspace, operation: Operation) -> bool:
    seen = ws.conditions
    match operation:
        case Operation.STARTING:
            return seen.volume_ready.status is not True
        case Operation.ARCHIVING:
            return seen.volume_ready.status is not True or _store_silent(ws)
        case Operation.STOPPING:
            return seen.volume_ready.status is not True and not ws.container_exists
        case Operation.RESTORING | Operation.DISCARDING:
            return seen.archive_ready.status is not True
        case Operation.PROVISIONING | Operation.CREATE_EMPTY_ARCHIVE:
            return _store_silent(ws)
        case _:
            return False


def _archive_lost_beside_volume(ws: Workspace) -> bool:
    lost = ws.archive_key is not None and ws.conditions.archive_ready.status is False
    return lost and volume_lives(ws.conditions.volume_ready)
