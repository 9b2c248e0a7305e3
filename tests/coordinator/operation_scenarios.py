"""One scenario per operation: a home with bytes in it, the wish that begins the operation, and where it must end.

A scenario is prepared once and its state copied; each run then starts a coordinator there, interrupts its network at
one call and, if that killed it, lets another one take over.
"""

import asyncio
from collections.abc import Mapping
from copy import copy, deepcopy
from dataclasses import dataclass, fields, replace
from datetime import timedelta
from enum import StrEnum
from functools import cache
from uuid import UUID

from codehub.adapters.memory import MemoryActivity
from codehub.adapters.memory.archives import StoredArchive
from codehub.adapters.memory.runtime import Container, Volume
from codehub.coordinator.context import Tuning
from codehub.domain.failures import Policy
from codehub.domain.gc_rules import RestorePoint
from codehub.domain.idle import IdlePolicy
from codehub.domain.judge import judge
from codehub.domain.ledger import LedgerEntry, LedgerKind
from codehub.domain.workspace import Desired, Operation, Phase, RecoverAction, Workspace
from codehub.ports.jobs import JobState
from tests.coordinator.interrupted_network import KILLS, InterruptedNetwork, Interruption
from tests.simulation.faults import FaultState, MachineNetwork
from tests.simulation.harness import PERSON, BackendStates, SimulationHarness, observed, virtual_now
from tests.simulation.oracle import Home, Oracle, Watched
from tests.simulation.virtual_time import VirtualClock, run

MINE, NEIGHBOUR = UUID(int=1), UUID(int=2)
BYTES = (11, 12, 13, 14)
NEVER = 10**9
FOLDS = {
    LedgerKind.PHASE: "phase",
    LedgerKind.OPERATION_BEGAN: "operation",
    LedgerKind.OPERATION_ENDED: "operation",
    LedgerKind.CREATED: "wish",
    LedgerKind.WISH: "wish",
    LedgerKind.ARCHIVE: "archive",
}
CONVERGED_WITHIN = 90.0
TUNING = Tuning(
    idle_interval=15,
    active_interval=1,
    ttl_interval=0.4,
    gc_interval=NEVER,
    inventory_interval=60,
    call_seconds=5,
    workers=2,
    policy=Policy(),
    idle=IdlePolicy(standby_ttl=0, archive_ttl=0),
)
"""Intervals so short that each timer fires while the operation runs; the TTLs themselves are off."""

CALM = replace(TUNING, ttl_interval=60)


class Ask(StrEnum):
    """What else begins the scenario, beside a desired state."""

    NOTHING_ELSE = "nothing else"
    UNDELETE = "undelete"
    RESTORE_FIRST = "restore the first archive"
    RECOVER_FIRST = "recover with the first archive"


@dataclass(frozen=True)
class OperationScenario:
    """`through`: the desired states that prepare it, with bytes written whenever it runs; `mishap`: what happens to it
    then."""

    name: str
    operations: tuple[Operation, ...]
    through: tuple[Desired, ...]
    wish: Desired
    keeps_volume: bool = False
    mishap: str = ""
    ask: Ask = Ask.NOTHING_ELSE

    @property
    def ends(self) -> Phase:
        return Phase(self.wish.value)


RUN, REST, SLEEP, NOTHING, DELETED = (
    Desired.RUNNING,
    Desired.STANDBY,
    Desired.ARCHIVED,
    Desired.PENDING,
    Desired.DELETED,
)
BAD_IMAGE, VOLUME_REMOVED = "bad image", "volume removed by hand"

OPERATION_SCENARIOS = (
    OperationScenario("PROVISIONING", (Operation.PROVISIONING,), (), REST, keeps_volume=True),
    OperationScenario("CREATE_EMPTY_ARCHIVE", (Operation.CREATE_EMPTY_ARCHIVE,), (), SLEEP),
    OperationScenario("RESTORING", (Operation.RESTORING,), (RUN, SLEEP), REST, keeps_volume=True),
    OperationScenario("STARTING", (Operation.STARTING,), (RUN, REST), RUN, keeps_volume=True),
    OperationScenario("STOPPING", (Operation.STOPPING,), (RUN,), REST, keeps_volume=True),
    OperationScenario("ARCHIVING", (Operation.ARCHIVING,), (RUN, REST), SLEEP),
    OperationScenario("DISCARDING", (Operation.DISCARDING,), (RUN, SLEEP), NOTHING),
    OperationScenario("DELETING", (Operation.DELETING,), (RUN, SLEEP), DELETED),
    OperationScenario(
        "DELETING in ERROR", (Operation.DELETING,), (RUN, REST), DELETED, keeps_volume=True, mishap=BAD_IMAGE
    ),
    OperationScenario("restore point", (Operation.ARCHIVING,), (RUN, SLEEP, RUN, REST), SLEEP, ask=Ask.RESTORE_FIRST),
    OperationScenario("recover", (), (RUN, SLEEP, RUN), SLEEP, mishap=VOLUME_REMOVED, ask=Ask.RECOVER_FIRST),
    OperationScenario("undelete", (), (RUN, SLEEP, DELETED), SLEEP, ask=Ask.UNDELETE),
)


@dataclass(frozen=True)
class SavedState:
    """The state of all backends at rest, as plain data."""

    at: float
    epoch: int
    rows: Mapping[UUID, Workspace]
    ledger: list[LedgerEntry]
    points: Mapping[UUID, list[RestorePoint]]
    containers: Mapping[UUID, Container]
    volumes: Mapping[str, Volume]
    started: int
    objects: Mapping[str, StoredArchive]
    homes: Mapping[UUID, Home]

    @classmethod
    def of(cls, states: BackendStates, oracle: Oracle) -> "SavedState":
        database, runtime = states.database, states.runtime
        kept = (database.rows, database.ledger, database.points, runtime.containers, runtime.volumes, runtime.started)
        now = asyncio.get_running_loop().time()
        return cls(now, database.leadership.epoch, *deepcopy(kept), *deepcopy((states.archives.objects, oracle.homes)))

    def build(self) -> BackendStates:
        """The backends in this state. Rows, entries and restore points are frozen; the rest is copied."""
        states = _fresh()
        states.database.rows = dict(self.rows)
        states.database.ledger = list(self.ledger)
        states.database.points = {key: list(points) for key, points in self.points.items()}
        states.database.leadership.epoch = self.epoch
        states.runtime.containers = {key: copy(container) for key, container in self.containers.items()}
        states.runtime.volumes = {name: copy(volume) for name, volume in self.volumes.items()}
        states.runtime.started = self.started
        states.archives.objects = {key: copy(archive) for key, archive in self.objects.items()}
        return states


@cache
def saved_state(scenario: OperationScenario) -> SavedState:
    return run(_set(scenario))


@cache
def calls(scenario: OperationScenario) -> tuple[str, ...]:
    """What the coordinator calls, in order, from its start to the operation's recorded end, when nothing goes wrong."""
    return run(ScenarioRun(scenario, None, NEVER).play())


def run_interrupted(scenario: OperationScenario, interruption: Interruption, at: int) -> None:
    made = run(ScenarioRun(scenario, interruption, at).play())
    assert made[: at + 1] == calls(scenario)[: at + 1], "the run before the interruption differs from the clean one"


async def _set(scenario: OperationScenario) -> SavedState:
    simulation = SimulationHarness(_fresh(), CALM, seed=7)
    oracle = _oracle(simulation.states)
    simulation.start("first", MachineNetwork("first", 0, FaultState(0.0), oracle, VirtualClock()))
    await simulation.create(RUN, 2, owner="bob")
    assert await simulation.reaches(NEIGHBOUR, "RUNNING")
    oracle.person_works(NEIGHBOUR, 99)
    for number, desired in enumerate(scenario.through):
        await (simulation.commands.want(MINE, desired, PERSON) if number else simulation.create(desired))
        assert await simulation.reaches(MINE, desired.value)
        for value in BYTES:
            oracle.person_works(MINE, value)
    if scenario.mishap:
        await _inject(simulation, oracle, scenario.mishap)
        assert await simulation.reaches(MINE, "ERROR")
    await simulation.kill("first")
    assert oracle.first is None, oracle.first
    return SavedState.of(simulation.states, oracle)


async def _inject(simulation: SimulationHarness, oracle: Oracle, mishap: str) -> None:
    runtime = simulation.states.runtime
    if mishap == BAD_IMAGE:
        runtime.bad_images.add("image")
        await simulation.commands.want(MINE, RUN, PERSON)
    else:
        del runtime.volumes[runtime.containers[MINE].volume]
        oracle.home(MINE).hand_removed = True


def _fresh() -> BackendStates:
    return BackendStates.fresh(boot_seconds=0.6, job_seconds=0.2)


def _oracle(states: BackendStates) -> Oracle:
    return Oracle(Watched(states.database, states.runtime, states.archives, states.jobs), limit=2, idle=TUNING.idle)


class ScenarioRun:
    def __init__(self, scenario: OperationScenario, interruption: Interruption | None, at: int) -> None:
        self._scenario = scenario
        self._start_from = saved_state(scenario)
        self._interruption = interruption
        self._at = at

    async def play(self) -> tuple[str, ...]:
        """Run the scenario; returns the calls that were made. Raises if a promise was not kept."""
        await self._prepare()
        await self._wish()
        self._network = InterruptedNetwork("a", self._oracle, VirtualClock(), self._interruption, self._at)
        self._simulation.states.database.watchers.append(self._watch)
        self._simulation.start("a", self._network)
        await self._until_interrupted()
        await self._converges(self._scenario.ends)
        self._state_is_as_it_should()
        await self._back_to_work()
        return tuple(self._network.calls)

    async def _prepare(self) -> None:
        start = self._start_from
        await asyncio.sleep(start.at)
        self._simulation = SimulationHarness(start.build(), TUNING, seed=8)
        self._oracle = _oracle(self._simulation.states)
        self._oracle.homes = dict(deepcopy(start.homes))
        self._home = self._expected = self._oracle.home(MINE).content
        self._archives = {key: archive.content for key, archive in start.objects.items()}
        self._started = start.started
        self._told = sum(entry.workspace_id == MINE for entry in start.ledger)
        self._neighbour = start.containers[NEIGHBOUR].instance
        busy = {NEIGHBOUR: virtual_now() + timedelta(seconds=1)}
        await MemoryActivity(self._simulation.states.signals).record(busy)

    async def _wish(self) -> None:
        commands, scenario = self._simulation.commands, self._scenario
        if not scenario.through:
            await self._simulation.create(scenario.wish)
        elif scenario.ask is not Ask.UNDELETE:
            await commands.want(MINE, scenario.wish, PERSON, discard_home=scenario.wish is NOTHING)
        first = next(iter(self._archives), "")
        match scenario.ask:
            case Ask.UNDELETE:
                await commands.undelete(MINE, PERSON)
            case Ask.RESTORE_FIRST:
                await commands.restore(MINE, first, PERSON)
            case Ask.RECOVER_FIRST:
                await commands.recover(MINE, RecoverAction.USE_ARCHIVE, PERSON, first)
        if scenario.ask in (Ask.RESTORE_FIRST, Ask.RECOVER_FIRST):
            self._expected = self._archives[first]
            self._oracle.home(MINE).choices.add(self._expected)

    def _watch(self, _before: Workspace | None, row: Workspace, _actor: str, _reason: str) -> None:
        if row.id == MINE and self._reached(self._scenario.ends):
            self._network.recording = False

    async def _until_interrupted(self) -> None:
        """Wait for the interruption. The clean run polls alike, so that both are the same up to there."""
        await self._simulation.until(
            lambda: self._network.was_interrupted or self._reached(self._scenario.ends), CONVERGED_WITHIN, 0.25
        )
        assert self._network.was_interrupted is (self._interruption is not None)
        if self._interruption in KILLS:
            await self._bury()
        if self._interruption is not None:
            self._simulation.tuning = CALM
            self._simulation.start("b", MachineNetwork("b", 0, FaultState(0.0), self._oracle, VirtualClock()))

    async def _bury(self) -> None:
        """Remove a dead coordinator. As in PostgreSQL, its lock is free at once."""
        assert self._network.dead
        await self._simulation.kill("a")
        self._oracle.forget("a")
        leadership = self._simulation.states.database.leadership
        if self._oracle.epochs.get("a") == leadership.epoch:
            leadership.free(leadership.epoch)

    def _reached(self, phase: Phase) -> bool:
        row = self._simulation.row(MINE)
        return row.phase is phase and row.operation is Operation.NONE and not row.request_pending

    async def _converges(self, phase: Phase) -> None:
        """Wait until the phase is reached and, since what was unknown then is seen by a later pass, until the row is
        true."""
        reached = await self._simulation.until(lambda: self._reached(phase), CONVERGED_WITHIN)
        row = self._simulation.row(MINE)
        assert reached, f"{phase} is not reached: {row.phase}/{row.desired_state} {row.operation} {row.error_info}"
        await self._simulation.until(lambda: not self._untruths(), TUNING.idle_interval * 2)
        untruths = self._untruths()
        assert not untruths, f"the row does not tell the truth: {untruths}"
        assert self._oracle.first is None, self._oracle.first

    # ── what must be true once the wish is fulfilled ─────────────────────────────────────────────────────────────────

    def _state_is_as_it_should(self) -> None:
        row, states = self._simulation.row(MINE), self._simulation.states
        volumes = {name for name, v in states.runtime.volumes.items() if v.workspace_id == MINE}
        assert volumes == ({row.home_store_key} if self._scenario.keeps_volume else set()), (
            "a volume too many or too few"
        )
        assert (MINE in states.runtime.containers) is (row.phase is Phase.RUNNING)
        starts = states.runtime.started - self._started
        assert starts == (Operation.STARTING in self._scenario.operations), "the container was started twice"
        job = states.jobs.jobs.get(MINE)
        assert job is None or job.state is not JobState.RUNNING
        for key, content in self._archives.items():
            assert states.archives.objects[key].content == content, "an archive was changed"
        points = {point.key for point in states.database.points.get(MINE, ())}
        mine = {key: a.content for key, a in states.archives.objects.items() if key.startswith(str(MINE))}
        assert points == set(mine), "an archive that nobody knows"
        assert all(content == self._home for key, content in mine.items() if key not in self._archives)
        assert not row.home.deleting_volume
        assert row.home.restoring is None
        assert row.home.live is self._scenario.keeps_volume
        self._ledger_explains(row)
        self._neighbour_is_unharmed()

    def _untruths(self) -> list[str]:
        """What would change in the row, were it judged by what is really there."""
        row = self._simulation.row(MINE)
        judged = judge(row, observed(self._simulation.states, row), virtual_now())
        changes = [(f.name, getattr(row, f.name), getattr(judged, f.name)) for f in fields(row)]
        return [f"{name}: {said}, in truth {true}" for name, said, true in changes if said != true]

    def _ledger_explains(self, row: Workspace) -> None:
        """Check that the entries, folded from the beginning, give the row, and that the operation began once."""
        entries = [entry for entry in self._simulation.states.database.ledger if entry.workspace_id == MINE]
        told = {"phase": "PENDING", "operation": "NONE", "wish": None, "archive": None}
        for entry in entries:
            if entry.kind in FOLDS:
                told[FOLDS[entry.kind]] = entry.after
        wanted = {
            "phase": row.phase,
            "operation": row.operation,
            "wish": row.desired_state,
            "archive": row.archive_key,
        }
        assert told == wanted, "the ledger does not explain the row"
        began = [e.after for e in entries[self._told :] if e.kind is LedgerKind.OPERATION_BEGAN]
        assert began == list(self._scenario.operations), "not these operations, once each"

    def _neighbour_is_unharmed(self) -> None:
        states = self._simulation.states
        row, container = self._simulation.row(NEIGHBOUR), states.runtime.containers[NEIGHBOUR]
        assert (row.phase, row.operation, row.error_count) == (Phase.RUNNING, Operation.NONE, 0)
        assert container.instance == self._neighbour
        assert states.runtime.volumes[container.volume].content == (99,)

    # ── and the person finds their home as they left it ──────────────────────────────────────────────────────────────

    async def _back_to_work(self) -> None:
        await self._undo()
        await self._simulation.commands.want(MINE, RUN, PERSON)
        await self._converges(Phase.RUNNING)
        self._oracle.person_works(MINE, 77)
        assert self._oracle.first is None, self._oracle.first
        container = self._simulation.states.runtime.containers[MINE]
        assert self._simulation.states.runtime.volumes[container.volume].content == (*self._expected, 77)

    async def _undo(self) -> None:
        """Bring a discarded or deleted home back."""
        commands, scenario = self._simulation.commands, self._scenario
        if scenario.wish is NOTHING:
            (key,) = self._archives
            await commands.restore(MINE, key, PERSON)
        if scenario.wish is DELETED:
            await commands.undelete(MINE, PERSON)
            await self._converges(Phase.STANDBY if scenario.keeps_volume else Phase.ARCHIVED)
