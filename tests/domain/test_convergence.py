"""The closed loop: from every state that can be reached, under every wish, the wish is reached in a few neighbour
steps; and whatever is interrupted in between, the newest version stays in a copy that nobody may sweep."""

from collections import deque
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from itertools import islice, pairwise
from random import Random

import pytest

from codehub.domain import operations
from codehub.domain.errors import ErrorReason
from codehub.domain.gc_rules import Retention, protected_keys, protected_volumes
from codehub.domain.judge import NOTHING_KNOWN, ContainerSeen, judge
from codehub.domain.operations import Failure
from codehub.domain.plan import Begin, Continue
from codehub.domain.workspace import Desired, Operation, Phase, RecoverAction
from tests.domain.conftest import Tally
from tests.domain.world import HALF, POLICY, World, act, decide, effects, record, turns
from tests.rows import LONG_AGO, workspace

NEIGHBOURS = {
    (Phase.PENDING, Phase.STANDBY),
    (Phase.PENDING, Phase.ARCHIVED),
    (Phase.PENDING, Phase.DELETED),
    (Phase.ARCHIVED, Phase.STANDBY),
    (Phase.ARCHIVED, Phase.PENDING),
    (Phase.ARCHIVED, Phase.DELETED),
    (Phase.STANDBY, Phase.RUNNING),
    (Phase.STANDBY, Phase.ARCHIVED),
    (Phase.RUNNING, Phase.STANDBY),
}
RETENTION = Retention(restore_points=1000)
MOST_OPERATIONS = 6
MOST_TURNS = 40


def fresh() -> World:
    return World(row=workspace(phase_changed_at=LONG_AGO), volumes={}, archives={})


def wished(world: World, desired: Desired) -> World:
    return replace(world, row=replace(world.row, desired_state=desired))


def signature(world: World) -> tuple[object, ...]:
    """What makes two worlds the same to the rules, whatever their ids and times."""
    row = world.row
    return (
        row.phase,
        row.operation,
        row.desired_state,
        row.home.live,
        row.home.restoring is not None,
        row.home.deleting_volume,
        row.home.marker is not None,
        world.volumes.get(row.home_store_key or "", None) in world.archives.values(),
        row.home_store_key in world.volumes,
        world.container is not None,
        row.archive_key is not None,
        row.archive_op_id is not None,
    )


def reachable() -> dict[tuple[object, ...], World]:
    """Every world that wishes lead to, also those where a new wish meets an operation at any of its steps."""
    found: dict[tuple[object, ...], World] = {}
    waiting = deque([fresh()])
    while waiting:
        world = waiting.popleft()
        if signature(world) in found or world.row.deleted_at is not None:
            continue
        found[signature(world)] = world
        for desired in Desired:
            asked = wished(world, desired)
            row, decision = decide(asked)
            after = record(asked, row, decision)
            waiting.extend(act(after, steps) for steps in range(len(effects(after)) + 1))
    return found


def test_every_reachable_state_converges_to_every_wish(tally: Tally) -> None:
    starts = reachable()
    longest = 0
    for start in starts.values():
        for desired in Desired:
            began, path, last = 0, [start.row.phase], wished(start, desired)
            for turn, world in enumerate(turns(wished(start, desired))):
                assert turn < MOST_TURNS, (start.row, desired)
                assert world.row.phase is not Phase.ERROR, (start.row, desired, world.row.error_info)
                began += world.row.op_id != last.row.op_id
                path, last = [*path, world.row.phase], world
            assert last.row.phase == desired.value, (start.row, desired)
            assert last.row.operation is Operation.NONE
            assert began <= MOST_OPERATIONS, (start.row, desired, path)
            steps = {(a, b) for a, b in pairwise(path) if a is not b}
            assert steps <= NEIGHBOURS, (start.row, desired, path)
            longest = max(longest, began)
    tally(f"{len(starts)} reachable states × {len(Desired)} wishes converge, in at most {longest} operations")


def test_the_states_of_the_table_are_all_reached() -> None:
    found = {world.row.phase for world in reachable().values()}
    assert found == {Phase.PENDING, Phase.ARCHIVED, Phase.STANDBY, Phase.RUNNING}
    assert {world.row.operation for world in reachable().values()} == set(Operation)


# ── walks with faults ──────────────────────────────────────────────────────────────────────────────────────────────


class Walk:
    """One random history: wishes, steps that stop half-way or fail, outages, losses that leave a copy, recoveries."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.world = fresh()
        self.told: list[str] = []

    def run(self, length: int) -> Iterator[World]:
        events = (
            (self.wish, 3),
            (self.reconcile, 8),
            (self.interrupted, 4),
            (self.fail, 2),
            (self.outage, 1),
            (self.lose_archive, 1),
            (self.lose_container, 1),
            (self.late_start, 1),
            (self.ask_restore, 1),
            (self.ask_recover, 2),
            (self.pass_time, 2),
        )
        for _ in range(length):
            (event,) = self.random.choices([e for e, _ in events], [weight for _, weight in events])
            event()
            row = self.world.row
            self.told.append(f"{event.__name__}: {row.phase} → {row.desired_state}, {row.operation}, {row.home}")
            yield self.world

    def wish(self) -> None:
        wishes = (Desired.RUNNING, Desired.RUNNING, Desired.STANDBY, Desired.ARCHIVED, Desired.PENDING)
        self.world = wished(self.world, self.random.choice(wishes))

    def reconcile(self) -> None:
        self._turn(None)

    def interrupted(self) -> None:
        self._turn(self.random.randrange(5))

    def _turn(self, steps: int | None) -> None:
        row, decision = decide(self.world)
        self.world = record(self.world, row, decision)
        if isinstance(decision, Begin | Continue):
            self.world = act(self.world, steps)
        self.world = replace(self.world, now=self.world.now + timedelta(seconds=1))

    def fail(self) -> None:
        self.interrupted()
        if self.world.row.operation is not Operation.NONE:
            failure = Failure(ErrorReason.ACTION_FAILED, "no luck")
            self.world = replace(
                self.world, row=operations.failed(self.world.row, failure, POLICY, 0.0, self.world.now)
            )

    def outage(self) -> None:
        row, decision = decide(self.world, NOTHING_KNOWN)
        assert not isinstance(decision, Begin | Continue)
        self.world = record(self.world, row, decision)

    def lose_archive(self) -> None:
        world = self.world
        held = world.volumes.get(world.row.home_store_key or "")
        if world.row.archive_key in world.archives and held is not None and held == world.newest:
            self.world = replace(
                world, archives={k: v for k, v in world.archives.items() if k != world.row.archive_key}
            )

    def lose_container(self) -> None:
        self.world = replace(self.world, container=None)

    def late_start(self) -> None:
        """A stalled old leader wakes up and starts a container that nobody wants; somebody types in it."""
        world, name = self.world, self.world.row.home_store_key or ""
        if world.container is None and world.row.home.live and world.volumes.get(name, HALF) != HALF:
            seen = ContainerSeen(instance=f"late{len(self.told)}", running=True, volume=name, answered=True)
            newest = max((world.newest or 0) + 1, *world.volumes.values(), *world.archives.values(), 1)
            self.world = replace(world, container=seen, volumes=world.volumes | {name: newest}, newest=newest)
            self._look()

    def _look(self) -> None:
        """A pass that only observes."""
        row = operations.settle_health(
            self.world.row, judge(self.world.row, self.world.facts(), self.world.now), self.world.now
        )
        self.world = replace(self.world, row=row)

    def ask_restore(self) -> None:
        keys = [p.key for p in self.world.points if p.key in self.world.archives and p.released_at is None]
        if keys:
            row = replace(self.world.row, restore_from=self.random.choice(keys), restore_requested_at=self.world.now)
            self.world = replace(self.world, row=row)

    def ask_recover(self) -> None:
        action = self.random.choice((RecoverAction.RETRY, RecoverAction.USE_ARCHIVE, RecoverAction.REMOVE_CONTAINER))
        row = replace(self.world.row, recover_action=action, recover_requested_at=self.world.now)
        self.world = replace(self.world, row=row)

    def pass_time(self) -> None:
        self.world = replace(self.world, now=self.world.now + timedelta(minutes=self.random.choice((1, 6, 40))))


def check(world: World, told: list[str]) -> None:
    story = "\n".join(told[-15:])
    row = world.row
    if row.phase is Phase.ERROR and not row.recover_pending:
        assert row.operation in (Operation.NONE, Operation.DELETING), story
    seen = judge(row, world.facts(), world.now)
    if seen.conditions.volume_ready.status:
        assert world.volumes[row.home_store_key or ""] != HALF, f"a half-restored volume counts as a home:\n{story}"
    if world.newest is None:
        return
    keys = protected_keys(row, world.points, RETENTION, world.now)
    # the collector looks at the archive once more before it takes a volume that was past the safe point
    names = protected_volumes(seen, RETENTION, world.now)
    kept = {world.archives.get(key) for key in keys} | {world.volumes.get(name) for name in names}
    assert world.newest in kept, f"version {world.newest} is nowhere safe:\n{story}"


WALKS = 1000
LENGTH = 40


@pytest.mark.parametrize("batch", range(3))
def test_no_walk_loses_the_newest_version(batch: int, tally: Tally) -> None:
    for seed in range(batch * WALKS, (batch + 1) * WALKS):
        walk = Walk(seed)
        for world in walk.run(LENGTH):
            check(world, walk.told)
    tally(f"{WALKS} walks of {LENGTH} events with faults")


def test_once_faults_stop_a_walk_converges_or_says_why() -> None:
    for seed in range(500):
        walk = Walk(seed)
        *_, world = walk.run(LENGTH)
        later = replace(world, now=world.now + timedelta(hours=1))
        rested = [later, *islice(turns(later), MOST_TURNS)]
        assert len(rested) <= MOST_TURNS, "\n".join(walk.told)
        row = rested[-1].row
        assert row.operation is Operation.NONE, "\n".join(walk.told)
        assert row.phase is Phase.ERROR or row.phase == row.desired_state.value, "\n".join(walk.told)
        assert row.phase is not Phase.ERROR or row.error_info is not None, "\n".join(walk.told)
