"""A closed loop without a coordinator: the pure rules against a state of a few sets. Bytes are version numbers.

`effects` gives each operation's ideal effect in the order that contract 8 asks for, one small step at a time,
so that a walk may stop between any two of them.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from uuid import UUID

from codehub.domain import failures, naming, operations
from codehub.domain.failures import Policy
from codehub.domain.gc_rules import RestorePoint
from codehub.domain.judge import ArchiveState, ContainerSeen, Facts, judge
from codehub.domain.plan import (
    Abandon,
    Begin,
    Complete,
    Continue,
    CrashedAfterStart,
    Decision,
    Recover,
    ReplaceLostArchive,
    ResetFailures,
    TakeRestorePoint,
    TimedOut,
    plan,
    wants_volume_gone,
)
from codehub.domain.workspace import Desired, Operation, Phase, Workspace
from tests.rows import INSTANCE, NOW

HALF = -1
EMPTY = 0
POLICY = Policy()


@dataclass(frozen=True, slots=True)
class ModelState:
    """A model of the backends: `volumes` and `archives` map names to the version they hold; `points` are the proven
    archives."""

    row: Workspace
    volumes: dict[str, int]
    archives: dict[str, int]
    points: tuple[RestorePoint, ...] = ()
    container: ContainerSeen | None = None
    newest: int | None = None
    now: datetime = NOW
    ids: int = 0

    def facts(self) -> Facts:
        readable = self.row.archive_key in self.archives
        return Facts(
            container=self.container,
            volumes=dict.fromkeys(self.volumes, INSTANCE),
            archive=ArchiveState.READABLE if readable else ArchiveState.NOT_FOUND,
        )


def decide(state: ModelState, facts: Facts | None = None) -> tuple[Workspace, Decision]:
    """Judge and plan, as the reconciler does; the row is judged but nothing is decided on it yet."""
    seen = facts or state.facts()
    row = failures.settle_health(state.row, judge(state.row, seen, state.now), state.now)
    return row, plan(state.row, row, seen, POLICY, state.now)


def record(state: ModelState, row: Workspace, decision: Decision) -> ModelState:  # noqa: PLR0911 - one line per decision
    """The state after what the decision writes."""
    match decision:
        case Begin(operation):
            ids = state.ids + 1
            begun = operations.begin(row, operation, UUID(int=ids), state.now, state.volumes)
            return replace(state, row=begun, ids=ids)
        case Complete():
            return replace(state, row=operations.complete(row))
        case Abandon():
            return replace(state, row=operations.abandon(row))
        case TimedOut(elapsed, limit):
            return replace(state, row=failures.timed_out(row, elapsed, limit, state.now))
        case CrashedAfterStart():
            return replace(state, row=failures.crashed_after_start(state.row, row, POLICY, 0.0, state.now))
        case ResetFailures():
            return replace(state, row=failures.failures_reset(row))
        case Recover():
            return replace(state, row=failures.recovered(row, _newest_readable(state, None), state.now))
        case TakeRestorePoint():
            return replace(state, row=operations.take_restore_point(row))
        case ReplaceLostArchive():
            return replace(state, row=operations.lost_archive_replaced(row, _newest_readable(state, row.archive_key)))
        case _:
            return replace(state, row=row)


def _newest_readable(state: ModelState, besides: str | None) -> str | None:
    return next((p.key for p in reversed(state.points) if p.key in state.archives and p.key != besides), None)


Effect = Callable[[ModelState], ModelState]


def effects(state: ModelState) -> tuple[Effect, ...]:  # noqa: PLR0911 - one line per operation
    row = state.row
    match row.operation:
        case Operation.PROVISIONING:
            return (_create_volume,)
        case Operation.CREATE_EMPTY_ARCHIVE:
            return (_upload, _commit)
        case Operation.RESTORING:
            return (_remove_container, _create_volume, _begin_restore, _finish_restore)
        case Operation.STARTING:
            return (_start, _write)
        case Operation.STOPPING:
            return (_remove_container,)
        case Operation.ARCHIVING:
            return (_remove_container, _upload, _commit, _pass_safe_point, _delete_volume)
        case Operation.DISCARDING:
            return (_discard,)
        case Operation.DELETING:
            return (_remove_container, _delete)
        case _:
            return ()


def _create_volume(state: ModelState) -> ModelState:
    assert state.row.home_store_key is not None
    return replace(state, volumes={state.row.home_store_key: EMPTY} | state.volumes)


def _begin_restore(state: ModelState) -> ModelState:
    assert state.row.home_store_key is not None
    return replace(state, volumes=state.volumes | {state.row.home_store_key: HALF})


def _finish_restore(state: ModelState) -> ModelState:
    row = state.row
    assert row.home_store_key is not None
    assert row.op_id is not None
    if row.archive_key is None or row.archive_key not in state.archives:
        return state
    home = replace(row.home, marker=(row.archive_key, row.op_id), restoring=None)
    volumes = state.volumes | {row.home_store_key: state.archives[row.archive_key]}
    return replace(state, row=replace(row, home=home), volumes=volumes)


def _start(state: ModelState) -> ModelState:
    name = state.row.home_store_key
    assert name in state.volumes, "a container was started without its volume"
    assert state.volumes[name] != HALF, "a half-restored volume was started"
    seen = ContainerSeen(instance=f"c{state.ids}", running=True, volume=name, answered=True)
    return replace(state, container=seen)


def _write(state: ModelState) -> ModelState:
    """The user works: the newest version is now in the volume and nowhere else."""
    assert state.row.home_store_key is not None
    newest = max((state.newest or 0) + 1, *state.volumes.values(), *state.archives.values(), 1)
    return replace(state, volumes=state.volumes | {state.row.home_store_key: newest}, newest=newest)


def _remove_container(state: ModelState) -> ModelState:
    return replace(state, container=None)


def _upload(state: ModelState) -> ModelState:
    """Write an archive unless it is there already: it is never written over."""
    row = state.row
    assert row.archive_op_id is not None, f"{row.operation} has no archive id"
    version = EMPTY
    if row.operation is Operation.ARCHIVING:
        assert row.home_store_key in state.volumes, "an absent volume was archived"
        version = state.volumes[row.home_store_key]
        assert version != HALF, "a half-restored volume was archived"
    return replace(state, archives={naming.archive_key("", row.id, row.archive_op_id): version} | state.archives)


def _commit(state: ModelState) -> ModelState:
    row = state.row
    assert row.archive_op_id is not None
    key = naming.archive_key("", row.id, row.archive_op_id)
    if key not in state.archives:
        return state
    point = RestorePoint(row.id, row.archive_op_id, key, 1, 1, "", state.now, state.now)
    points = state.points if key in {p.key for p in state.points} else (*state.points, point)
    return replace(state, row=replace(row, archive_key=key), points=points)


def _pass_safe_point(state: ModelState) -> ModelState:
    row = state.row
    if not wants_volume_gone(row):
        return replace(state, row=operations.abandon(row))
    return replace(state, row=replace(row, home=replace(row.home, deleting_volume=True, live=False)))


def _delete_volume(state: ModelState) -> ModelState:
    if not state.row.home.deleting_volume or state.row.archive_key not in state.archives:
        return state
    return replace(state, volumes={n: v for n, v in state.volumes.items() if n != state.row.home_store_key})


def _discard(state: ModelState) -> ModelState:
    points = tuple(replace(p, released_at=p.released_at or state.now) for p in state.points)
    return replace(state, row=replace(state.row, archive_key=None, archive_op_id=None), points=points, newest=None)


def _delete(state: ModelState) -> ModelState:
    if state.row.desired_state is not Desired.DELETED:
        return replace(state, row=operations.abandon(state.row))
    return replace(state, row=replace(state.row, deleted_at=state.now))


def act(state: ModelState, steps: int | None = None) -> ModelState:
    """Take the running operation's effects in order; `steps` stops half-way."""
    for effect in effects(state)[:steps]:
        if state.row.operation is Operation.NONE:
            break
        state = effect(state)
    return state


def turns(state: ModelState) -> Iterator[ModelState]:
    """Reconcile with ideal effects until nothing more is decided; one state per recorded decision."""
    while True:
        row, decision = decide(state)
        after = record(state, row, decision)
        if isinstance(decision, Begin | Continue):
            after = act(after)
        if after == state:
            return
        state = replace(after, now=after.now + timedelta(seconds=1))
        yield state


def settled(state: ModelState) -> bool:
    row = state.row
    return row.operation is Operation.NONE and (row.phase.value == row.desired_state.value or row.phase is Phase.ERROR)
