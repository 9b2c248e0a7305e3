"""A closed loop without a coordinator: the pure rules against a world of a few sets. Bytes are version numbers.

`effects` gives each operation's ideal effect in the order that contract 8 asks for, one small step at a time,
so that a walk may stop between any two of them.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from uuid import UUID

from codehub.domain import naming, operations
from codehub.domain.gc_rules import RestorePoint
from codehub.domain.judge import ArchiveState, ContainerSeen, Facts, judge
from codehub.domain.plan import (
    Abandon,
    Begin,
    Complete,
    Continue,
    CrashedAfterStart,
    Decision,
    Policy,
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
class World:
    """`volumes` and `archives` map names to the version they hold; `points` are the proven archives."""

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


def decide(world: World, facts: Facts | None = None) -> tuple[Workspace, Decision]:
    """Judge and plan, as the reconciler does; the row is judged but nothing is decided on it yet."""
    seen = facts or world.facts()
    row = operations.settle_health(world.row, judge(world.row, seen, world.now), world.now)
    return row, plan(world.row, row, seen, POLICY, world.now)


def record(world: World, row: Workspace, decision: Decision) -> World:  # noqa: PLR0911 - one line per decision
    """What the decision writes."""
    match decision:
        case Begin(operation):
            ids = world.ids + 1
            begun = operations.begin(row, operation, UUID(int=ids), world.now, world.volumes)
            return replace(world, row=begun, ids=ids)
        case Complete():
            return replace(world, row=operations.complete(row))
        case Abandon():
            return replace(world, row=operations.abandon(row))
        case TimedOut(elapsed, limit):
            return replace(world, row=operations.timed_out(row, elapsed, limit, world.now))
        case CrashedAfterStart():
            return replace(world, row=operations.crashed_after_start(world.row, row, POLICY, 0.0, world.now))
        case ResetFailures():
            return replace(world, row=operations.failures_reset(row))
        case Recover():
            return replace(world, row=operations.recovered(row, _newest_readable(world, None), world.now))
        case TakeRestorePoint():
            return replace(world, row=operations.take_restore_point(row))
        case ReplaceLostArchive():
            return replace(world, row=operations.lost_archive_replaced(row, _newest_readable(world, row.archive_key)))
        case _:
            return replace(world, row=row)


def _newest_readable(world: World, besides: str | None) -> str | None:
    return next((p.key for p in reversed(world.points) if p.key in world.archives and p.key != besides), None)


Effect = Callable[[World], World]


def effects(world: World) -> tuple[Effect, ...]:  # noqa: PLR0911 - one line per operation
    row = world.row
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


def _create_volume(world: World) -> World:
    assert world.row.home_store_key is not None
    return replace(world, volumes={world.row.home_store_key: EMPTY} | world.volumes)


def _begin_restore(world: World) -> World:
    assert world.row.home_store_key is not None
    return replace(world, volumes=world.volumes | {world.row.home_store_key: HALF})


def _finish_restore(world: World) -> World:
    row = world.row
    assert row.home_store_key is not None
    assert row.op_id is not None
    if row.archive_key is None or row.archive_key not in world.archives:
        return world
    home = replace(row.home, marker=(row.archive_key, row.op_id), restoring=None)
    volumes = world.volumes | {row.home_store_key: world.archives[row.archive_key]}
    return replace(world, row=replace(row, home=home), volumes=volumes)


def _start(world: World) -> World:
    name = world.row.home_store_key
    assert name in world.volumes, "a container was started without its volume"
    assert world.volumes[name] != HALF, "a half-restored volume was started"
    seen = ContainerSeen(instance=f"c{world.ids}", running=True, volume=name, answered=True)
    return replace(world, container=seen)


def _write(world: World) -> World:
    """The person works: the newest version is now in the volume and nowhere else."""
    assert world.row.home_store_key is not None
    newest = max((world.newest or 0) + 1, *world.volumes.values(), *world.archives.values(), 1)
    return replace(world, volumes=world.volumes | {world.row.home_store_key: newest}, newest=newest)


def _remove_container(world: World) -> World:
    return replace(world, container=None)


def _upload(world: World) -> World:
    """Create-only: an archive that is there already is done."""
    row = world.row
    assert row.archive_op_id is not None, f"{row.operation} has no archive id"
    version = EMPTY
    if row.operation is Operation.ARCHIVING:
        assert row.home_store_key in world.volumes, "an absent volume was archived"
        version = world.volumes[row.home_store_key]
        assert version != HALF, "a half-restored volume was archived"
    return replace(world, archives={naming.archive_key("", row.id, row.archive_op_id): version} | world.archives)


def _commit(world: World) -> World:
    row = world.row
    assert row.archive_op_id is not None
    key = naming.archive_key("", row.id, row.archive_op_id)
    if key not in world.archives:
        return world
    point = RestorePoint(row.id, row.archive_op_id, key, 1, 1, "", world.now, world.now)
    points = world.points if key in {p.key for p in world.points} else (*world.points, point)
    return replace(world, row=replace(row, archive_key=key), points=points)


def _pass_safe_point(world: World) -> World:
    row = world.row
    if not wants_volume_gone(row):
        return replace(world, row=operations.abandon(row))
    return replace(world, row=replace(row, home=replace(row.home, deleting_volume=True, live=False)))


def _delete_volume(world: World) -> World:
    if not world.row.home.deleting_volume or world.row.archive_key not in world.archives:
        return world
    return replace(world, volumes={n: v for n, v in world.volumes.items() if n != world.row.home_store_key})


def _discard(world: World) -> World:
    points = tuple(replace(p, released_at=p.released_at or world.now) for p in world.points)
    return replace(world, row=replace(world.row, archive_key=None, archive_op_id=None), points=points, newest=None)


def _delete(world: World) -> World:
    if world.row.desired_state is not Desired.DELETED:
        return replace(world, row=operations.abandon(world.row))
    return replace(world, row=replace(world.row, deleted_at=world.now))


def act(world: World, steps: int | None = None) -> World:
    """Take the running operation's effects in order; `steps` stops half-way."""
    for effect in effects(world)[:steps]:
        if world.row.operation is Operation.NONE:
            break
        world = effect(world)
    return world


def turns(world: World) -> Iterator[World]:
    """Reconcile with ideal effects until nothing more is decided; one world per recorded decision."""
    while True:
        row, decision = decide(world)
        after = record(world, row, decision)
        if isinstance(decision, Begin | Continue):
            after = act(after)
        if after == world:
            return
        world = replace(after, now=after.now + timedelta(seconds=1))
        yield world


def settled(world: World) -> bool:
    row = world.row
    return row.operation is Operation.NONE and (row.phase.value == row.desired_state.value or row.phase is Phase.ERROR)
