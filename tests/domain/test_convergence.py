"""The closed loop: from every state that can be reached, under every wish, the wish is reached in a few neighbour
steps; and whatever is interrupted in between, the newest version stays in a copy that nobody may sweep."""

from collections import deque
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from itertools import islice, pairwise
from random import Random

import pytest

from codehub.domain import failures
from codehub.domain.errors import ErrorReason
from codehub.domain.failures import Failure
from codehub.domain.gc_rules import Retention, protected_keys, protected_volumes
from codehub.domain.judge import NOTHING_KNOWN, ContainerSeen, judge
from codehub.domain.plan import Begin, Continue
from codehub.domain.workspace import Desired, Operation, Phase, RecoverAction
from tests.domain.conftest import Tally
from tests.domain.model import HALF, POLICY, ModelState, act, decide, effects, record, turns
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


def fresh() -> ModelState:
    return ModelState(row=workspace(phase_changed_at=LONG_AGO), volumes={}, archives={})


def wished(state: ModelState, desired: Desired) -> ModelState:
    return replace(state, row=replace(state.row, desired_state=desired))


def signature(state: ModelState) -> tuple[object, ...]:
    """What makes two completions the same to the rules, whatever their ids and times."""
    row = state.row
    return (
        row.phase,
        row.operation,
        row.desired_state,
        row.home.live,
        row.home.restoring is not None,
        row.home.deleting_volume,
        row.home.marker is not None,
        state.volumes.get(row.home_store_key or "", None) in state.archives.values(),
        row.home_store_key in state.volumes,
        state.container is not None,
        row.archive_key is not None,
        row.archive_op_id is not None,
    )


def reachable() -> dict[tuple[object, ...], ModelState]:
    """Every state that wishes lead to, also those where a new wish meets an operation at any of its steps."""
    found: dict[tuple[object, ...], ModelState] = {}
    waiting = deque([fresh()])
    while waiting:
        state = waiting.popleft()
        if signature(state) in found or state.row.deleted_at is not None:
            continue
        found[signature(state)] = state
        for desired in Desired:
            asked = wished(state, desired)
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
            for turn, state in enumerate(turns(wished(start, desired))):
                assert turn < MOST_TURNS, (start.row, desired)
                assert state.row.phase is not Phase.ERROR, (start.row, desired, state.row.error_info)
                began += state.row.op_id != last.row.op_id
                path, last = [*path, state.row.phase], state
            assert last.row.phase == desired.value, (start.row, desired)
            assert last.row.operation is Operation.NONE
            assert began <= MOST_OPERATIONS, (start.row, desired, path)
            steps = {(a, b) for a, b in pairwise(path) if a is not b}
            assert steps <= NEIGHBOURS, (start.row, desired, path)
            longest = max(longest, began)
    tally(f"{len(starts)} reachable states × {len(Desired)} wishes converge, in at most {longest} operations")


def test_the_states_of_the_table_are_all_reached() -> None:
    found = {state.row.phase for state in reachable().values()}
    assert found == {Phase.PENDING, Phase.ARCHIVED, Phase.STANDBY, Phase.RUNNING}
    assert {state.row.operation for state in reachable().values()} == set(Operation)


# ── walks with faults ──────────────────────────────────────────────────────────────────────────────────────────────


class Walk:
    """One random history: wishes, steps that stop half-way or fail, outages, losses that leave a copy, recoveries."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.state = fresh()
        self.told: list[str] = []

    def run(self, length: int) -> Iterator[ModelState]:
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
            row = self.state.row
            self.told.append(f"{event.__name__}: {row.phase} → {row.desired_state}, {row.operation}, {row.home}")
            yield self.state

    def wish(self) -> None:
        wishes = (Desired.RUNNING, Desired.RUNNING, Desired.STANDBY, Desired.ARCHIVED, Desired.PENDING)
        self.state = wished(self.state, self.random.choice(wishes))

    def reconcile(self) -> None:
        self._turn(None)

    def interrupted(self) -> None:
        self._turn(self.random.randrange(5))

    def _turn(self, steps: int | None) -> None:
        row, decision = decide(self.state)
        self.state = record(self.state, row, decision)
        if isinstance(decision, Begin | Continue):
            self.state = act(self.state, steps)
        self.state = replace(self.state, now=self.state.now + timedelta(seconds=1))

    def fail(self) -> None:
        self.interrupted()
        if self.state.row.operation is not Operation.NONE:
            failure = Failure(ErrorReason.ACTION_FAILED, "no luck")
            self.state = replace(self.state, row=failures.failed(self.state.row, failure, POLICY, 0.0, self.state.now))

    def outage(self) -> None:
        row, decision = decide(self.state, NOTHING_KNOWN)
        assert not isinstance(decision, Begin | Continue)
        self.state = record(self.state, row, decision)

    def lose_archive(self) -> None:
        state = self.state
        held = state.volumes.get(state.row.home_store_key or "")
        if state.row.archive_key in state.archives and held is not None and held == state.newest:
            self.state = replace(
                state, archives={k: v for k, v in state.archives.items() if k != state.row.archive_key}
            )

    def lose_container(self) -> None:
        self.state = replace(self.state, container=None)

    def late_start(self) -> None:
        """A stalled old leader wakes up and starts a container that nobody wants; somebody types in it."""
        state, name = self.state, self.state.row.home_store_key or ""
        if state.container is None and state.row.home.live and state.volumes.get(name, HALF) != HALF:
            seen = ContainerSeen(instance=f"late{len(self.told)}", running=True, volume=name, answered=True)
            newest = max((state.newest or 0) + 1, *state.volumes.values(), *state.archives.values(), 1)
            self.state = replace(state, container=seen, volumes=state.volumes | {name: newest}, newest=newest)
            self._look()

    def _look(self) -> None:
        """Take a pass that only observes."""
        row = failures.settle_health(
            self.state.row, judge(self.state.row, self.state.facts(), self.state.now), self.state.now
        )
        self.state = replace(self.state, row=row)

    def ask_restore(self) -> None:
        keys = [p.key for p in self.state.points if p.key in self.state.archives and p.released_at is None]
        if keys:
            row = replace(self.state.row, restore_from=self.random.choice(keys), restore_requested_at=self.state.now)
            self.state = replace(self.state, row=row)

    def ask_recover(self) -> None:
        action = self.random.choice((RecoverAction.RETRY, RecoverAction.USE_ARCHIVE, RecoverAction.REMOVE_CONTAINER))
        row = replace(self.state.row, recover_action=action, recover_requested_at=self.state.now)
        self.state = replace(self.state, row=row)

    def pass_time(self) -> None:
        self.state = replace(self.state, now=self.state.now + timedelta(minutes=self.random.choice((1, 6, 40))))


def check(state: ModelState, told: list[str]) -> None:
    story = "\n".join(told[-15:])
    row = state.row
    if row.phase is Phase.ERROR and not row.recover_pending:
        assert row.operation in (Operation.NONE, Operation.DELETING), story
    seen = judge(row, state.facts(), state.now)
    if seen.conditions.volume_ready.status:
        assert state.volumes[row.home_store_key or ""] != HALF, f"a half-restored volume counts as a home:\n{story}"
    if state.newest is None:
        return
    keys = protected_keys(row, state.points, RETENTION, state.now)
    # the collector looks at the archive once more before it takes a volume that was past the safe point
    names = protected_volumes(seen, RETENTION, state.now)
    kept = {state.archives.get(key) for key in keys} | {state.volumes.get(name) for name in names}
    assert state.newest in kept, f"version {state.newest} is nowhere safe:\n{story}"


WALKS = 1000
LENGTH = 40


@pytest.mark.parametrize("batch", range(3))
def test_no_walk_loses_the_newest_version(batch: int, tally: Tally) -> None:
    for seed in range(batch * WALKS, (batch + 1) * WALKS):
        walk = Walk(seed)
        for state in walk.run(LENGTH):
            check(state, walk.told)
    tally(f"{WALKS} walks of {LENGTH} events with faults")


def test_once_faults_stop_a_walk_converges_or_says_why() -> None:
    for seed in range(500):
        walk = Walk(seed)
        *_, state = walk.run(LENGTH)
        later = replace(state, now=state.now + timedelta(hours=1))
        rested = [later, *islice(turns(later), MOST_TURNS)]
        assert len(rested) <= MOST_TURNS, "\n".join(walk.told)
        row = rested[-1].row
        assert row.operation is Operation.NONE, "\n".join(walk.told)
        assert row.phase is Phase.ERROR or row.phase == row.desired_state.value, "\n".join(walk.told)
        assert row.phase is not Phase.ERROR or row.error_info is not None, "\n".join(walk.told)
