"""One leader's components on memory backends, not running by themselves: a test calls each of them.

The network can be told which calls fail, and what else happens just before a call.
"""

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from functools import wraps
from typing import Any, ParamSpec, TypeVar
from uuid import UUID

from codehub.adapters.memory import (
    Fault,
    FaultyNetwork,
    MemoryDatabase,
    MemoryNotifier,
)
from codehub.adapters.memory.archives import StoredArchive
from codehub.adapters.memory.fault_injection import FaultKind
from codehub.adapters.memory.runtime import Container, Volume
from codehub.coordinator.backends import Backends
from codehub.coordinator.context import Tuning
from codehub.coordinator.observer import Observer
from codehub.coordinator.process import TermRunner
from codehub.coordinator.queue import WorkQueue
from codehub.coordinator.reconciler import Reconciler
from codehub.domain import naming
from codehub.domain.gc_rules import RestorePoint
from codehub.domain.judge import ArchiveState, judge
from codehub.domain.ledger import LedgerEntry, LedgerKind
from codehub.domain.workspace import Workspace
from codehub.ports.stores import Actor, Term
from codehub.telemetry import Metrics
from codehub.usecases.workspace_commands import WorkspaceCommands
from tests.rows import LONG_AGO, NOW, VOLUME, WORKSPACE_ID
from tests.simulation.harness import BackendStates, observed
from tests.simulation.virtual_time import VirtualClock, run

P = ParamSpec("P")
T = TypeVar("T")

PERSON = Actor("ann")
FAILS, HANGS, ANSWER_LOST = Fault(FaultKind.FAIL), Fault(FaultKind.HANG), Fault(FaultKind.LOSE_ANSWER)
REFUSES = Fault(FaultKind.REFUSE)


def in_virtual_time(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    @wraps(test)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> None:
        run(test(*args, **kwargs))

    return wrapper


def now() -> datetime:
    return NOW + timedelta(seconds=asyncio.get_running_loop().time())


class ScriptedNetwork(FaultyNetwork):
    """A network whose `faults` hold by a call's name or its backend's; what is in `meanwhile` happens once, just before
    that call."""

    def __init__(self, clock: VirtualClock) -> None:
        super().__init__(clock, lambda name: self.faults.get(name) or self.faults.get(name.split(".", 1)[0]), 1000.0)
        self.faults: dict[str, Fault] = {}
        self.meanwhile: dict[str, Callable[[], object]] = {}
        self.calls: list[str] = []

    async def call(self, name: str, effect: Callable[[], T], about: UUID | None = None) -> T:
        self.calls.append(name)
        happens = self.meanwhile.pop(name, None)
        if happens is not None:
            happens()
        return await super().call(name, effect, about)


def began(key: str) -> LedgerEntry:
    """The ledger entry that says that the making of an archive began, long ago."""
    name = naming.stored_name("", key)
    assert name is not None
    return LedgerEntry(
        LONG_AGO, name.workspace_id, "me", LedgerKind.OPERATION_BEGAN, "NONE", "ARCHIVING", "", name.op_id, ""
    )


class CoordinatorHarness:
    term: Term
    term_runner: TermRunner
    queue: WorkQueue
    observer: Observer
    reconciler: Reconciler
    backends: Backends

    def __init__(self, tuning: Tuning | None = None, states: BackendStates | None = None) -> None:
        self.tuning = tuning or Tuning()
        self.clock = VirtualClock()
        self.network = ScriptedNetwork(self.clock)
        self.states = states or BackendStates.fresh()
        self.states.database.now = self.states.archives.now = now
        self.notifier = MemoryNotifier()
        self.metrics = Metrics()
        self.dependencies = self.states.dependencies(self.network, self.clock, 1, self.notifier, self.metrics)
        self.commands = WorkspaceCommands(MemoryDatabase(self.states.database).specs(), self.tuning.limits)

    @classmethod
    async def open(cls, tuning: Tuning | None = None) -> "CoordinatorHarness":
        """A harness that leads, whose backends' identities are checked, and which has called nothing yet."""
        harness = cls(tuning)
        await harness.become_leader()
        await harness.backends.check_all_identities()
        harness.network.calls.clear()
        return harness

    async def become_leader(self) -> None:
        self.term = await self.dependencies.leadership.campaign("me")
        self.term_runner = TermRunner(self.term, self.dependencies, self.tuning)
        self.queue, self.observer = self.term_runner.queue, self.term_runner.observer
        self.reconciler = self.term_runner.reconciler
        self.backends = self.term_runner.backends
        self.network.calls.clear()

    # ── the backends ────────────────────────────────────────────────────────────────────────────────────────────────

    def place(
        self,
        row: Workspace,
        *,
        volume: tuple[int, ...] | None = None,
        container: bool = False,
        archives: Mapping[str, tuple[int, ...]] | None = None,
    ) -> Workspace:
        """Put the row into the database and around it what it should find. Its conditions are those of an observation
        long ago."""
        if volume is not None:
            self.states.runtime.volumes[row.home_store_key or VOLUME] = Volume(row.id, volume)
        if container:
            self.states.runtime.containers[row.id] = Container("instance-0", row.home_store_key or VOLUME)
        for key, content in (archives or {}).items():
            self.keep(row.id, key, content)
        seen = judge(row, observed(self.states, row), LONG_AGO)
        return self.states.database.put(None, replace(seen, phase=row.phase), "test", "placed")

    def keep(self, workspace_id: UUID, key: str, content: tuple[int, ...], age: float = 0.0) -> None:
        """Store a proven archive and its restore point; the newest has the smallest age."""
        self.states.archives.objects[key] = StoredArchive(content, now(), committed=True)
        at = LONG_AGO - timedelta(seconds=age)
        point = RestorePoint(workspace_id, UUID(key.split("/")[-2]), key, len(content), len(content), "sha", at, at)
        points = self.states.database.points.setdefault(workspace_id, [])
        points.append(point)
        points.sort(key=lambda p: p.created_at, reverse=True)

    def lose_archive(self, key: str, state: ArchiveState = ArchiveState.NOT_FOUND) -> None:
        self.states.archives.objects[key].state = state

    @property
    def row(self) -> Workspace:
        return self.states.database.rows[WORKSPACE_ID]

    def change(self, **fields: Any) -> Callable[[], object]:
        """A write by somebody else, to happen when it is called."""
        return lambda: self.states.database.put(self.row, replace(self.row, **fields), "somebody", "meanwhile")

    def reasons(self) -> list[str]:
        """The reason of each ledger entry since the row was placed."""
        return [entry.reason for entry in self.states.database.ledger if entry.reason != "placed"]

    # ── the components ───────────────────────────────────────────────────────────────────────────────────────────────

    async def reconcile(self, times: int = 1) -> float | None:
        after = None
        for _ in range(times):
            after = await self.reconciler.reconcile(WORKSPACE_ID)
        return after

    async def converge(self, rounds: int = 60) -> None:
        """Reconcile as the queue would, until there is nothing to do for a while."""
        for _ in range(rounds):
            after = await self.reconcile()
            row = self.row
            if after is None and row.operation == "NONE" and not row.request_pending:
                assert self.network.meanwhile == {}, "something was to happen, and did not"
                return
            await asyncio.sleep(1.0 if after is None else after)
        raise AssertionError(f"no rest: {self.row.phase}/{self.row.desired_state} {self.row.operation}")

    def effects(self) -> list[str]:
        """The calls so far that have an effect on a backend."""
        return [name for name in self.network.calls if name.split(".", 1)[1] in EFFECTS]


EFFECTS = {
    "create_volume",
    "delete_volume",
    "start_container",
    "remove_container",
    "start",
    "clear",
    "create_empty",
    "delete",
}
