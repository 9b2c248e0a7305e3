"""One deployment in memory (database, runtime, object store, Redis), its coordinators and the users who act in it."""

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from uuid import UUID

from codehub.adapters.memory import (
    MemoryActivity,
    MemoryArchives,
    MemoryBus,
    MemoryDatabase,
    MemoryJobs,
    MemoryNotifier,
    MemoryRuntime,
    Network,
)
from codehub.adapters.memory.archives import ArchivesState
from codehub.adapters.memory.database_state import DatabaseState
from codehub.adapters.memory.jobs import JobsState
from codehub.adapters.memory.runtime import RuntimeState
from codehub.adapters.memory.signals import SignalsState
from codehub.coordinator.context import Dependencies, Tuning
from codehub.coordinator.process import Coordinator
from codehub.domain.judge import ArchiveState, ContainerSeen, Facts
from codehub.domain.workspace import Desired, Phase, Workspace
from codehub.ports.stores import Actor
from codehub.telemetry import Metrics
from codehub.usecases.workspace_commands import CreateWorkspace, WorkspaceCommands
from tests.simulation.virtual_time import VirtualClock

START = datetime(2026, 1, 1, tzinfo=UTC)
PERSON = Actor("person")
OWNER = "ann"


def virtual_now() -> datetime:
    return START + timedelta(seconds=asyncio.get_running_loop().time())


class SeededIds:
    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def new(self) -> UUID:
        return UUID(int=self._random.getrandbits(128), version=4)

    def jitter(self) -> float:
        return self._random.uniform(-1, 1)


@dataclass
class BackendStates:
    database: DatabaseState
    runtime: RuntimeState
    archives: ArchivesState
    jobs: JobsState
    signals: SignalsState

    @classmethod
    def fresh(cls, *, boot_seconds: float = 0.0, job_seconds: float = 0.0) -> "BackendStates":
        database = DatabaseState(now=virtual_now)
        runtime = RuntimeState(now=lambda: asyncio.get_running_loop().time(), boot_seconds=boot_seconds)
        archives = ArchivesState(now=virtual_now)
        jobs = JobsState(runtime, archives, VirtualClock(), step_seconds=job_seconds)
        return cls(database, runtime, archives, jobs, SignalsState())

    def dependencies(
        self, network: Network, clock: VirtualClock, seed: int, notifier: MemoryNotifier, metrics: Metrics
    ) -> Dependencies:
        """What a coordinator needs, with all of its calls to these backends through this network."""
        database = MemoryDatabase(self.database, network)
        runtime = MemoryRuntime(self.runtime, network)
        archives = MemoryArchives(self.archives, network)
        return Dependencies(
            leadership=database.leadership(clock),
            statuses=database.statuses,
            specs=database.specs(),
            collector=database.collector(),
            marks=database.marks,
            backend_identities=database.backend_identities(),
            install="this",
            feed=database.changes(),
            bus=MemoryBus(self.signals, network),
            activity=MemoryActivity(self.signals, network),
            runtime=runtime,
            jobs=MemoryJobs(runtime, archives, self.jobs, network),
            archives=archives,
            notifier=notifier,
            clock=clock,
            ids=SeededIds(seed),
            metrics=metrics,
        )


def observed(states: BackendStates, row: Workspace) -> Facts:
    """What an observer would see of this workspace if everything answered."""
    seen = states.runtime.containers.get(row.id)
    container = ContainerSeen(seen.instance, seen.running, seen.volume, answered=True) if seen else None
    names = {name: volume.instance for name, volume in states.runtime.volumes.items() if volume.workspace_id == row.id}
    archive = states.archives.objects.get(row.archive_key or "")
    return Facts(container, volumes=names, archive=archive.state if archive else ArchiveState.NOT_FOUND)


@dataclass
class RunningCoordinator:
    """A running coordinator, and its notices."""

    coordinator: Coordinator
    task: asyncio.Task[None]
    notifier: MemoryNotifier


@dataclass
class SimulationHarness:
    states: BackendStates
    tuning: Tuning
    seed: int = 0
    front: Network | None = None
    starts: int = 0
    running: dict[str, RunningCoordinator] = field(default_factory=dict)
    purged_ids: set[UUID] = field(default_factory=set)

    @property
    def commands(self) -> WorkspaceCommands:
        return WorkspaceCommands(MemoryDatabase(self.states.database, self.front).specs(), self.tuning.limits)

    def start(
        self, holder: str, network: Network | None = None, clock: VirtualClock | None = None
    ) -> RunningCoordinator:
        self.starts += 1
        notifier, seed = MemoryNotifier(), self.seed * 1000 + self.starts
        dependencies = self.states.dependencies(
            network or Network(), clock or VirtualClock(), seed, notifier, Metrics()
        )
        coordinator = Coordinator(holder, dependencies, self.tuning)
        running = RunningCoordinator(coordinator, asyncio.get_running_loop().create_task(coordinator.run()), notifier)
        self.running[holder] = running
        return running

    async def kill(self, holder: str) -> None:
        """Kill a coordinator as `kill -9` would. Its session ends with it, so the lock is free; its network must
        already refuse every further call."""
        running = self.running.pop(holder)
        running.task.cancel()
        await asyncio.gather(running.task, return_exceptions=True)

    async def create(self, desired: Desired, number: int = 1, owner: str = OWNER) -> Workspace:
        new = CreateWorkspace(f"workspace {number}", owner, desired, image_ref="image", runtime="memory")
        return await self.commands.create(new, UUID(int=number), PERSON, virtual_now())

    def purged_long_ago(self, workspace_id: UUID) -> None:
        """Add the row of a purged workspace that nobody in the simulation knows any more."""
        self.purged_ids.add(workspace_id)
        self.states.database.rows[workspace_id] = Workspace(
            id=workspace_id,
            owner_id=OWNER,
            name="gone",
            slug=f"gone-{workspace_id}",
            created_at=START,
            updated_at=START,
            phase=Phase.DELETED,
            phase_changed_at=START,
            desired_state=Desired.DELETED,
            deleted_at=START,
            purged_at=START,
        )

    def ids(self) -> list[UUID]:
        return sorted(self.states.database.rows.keys() - self.purged_ids)

    def row(self, workspace_id: UUID) -> Workspace:
        return self.states.database.rows[workspace_id]

    async def until(self, done: Callable[[], bool], seconds: float, step: float = 0.5) -> bool:
        """Wait for something; returns whether it came to be within that (virtual) time."""
        end = asyncio.get_running_loop().time() + seconds
        while not done():
            if asyncio.get_running_loop().time() >= end:
                return False
            await asyncio.sleep(step)
        return True

    async def reaches(self, workspace_id: UUID, phase: str, seconds: float = 600) -> bool:
        def there() -> bool:
            row = self.row(workspace_id)
            return row.phase.value == phase and row.operation.value == "NONE"

        return await self.until(there, seconds)
