"""One world (database, runtime, object store, Redis) and the coordinators and people who act in it."""

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
from codehub.coordinator.process import Coordinator, Dependencies
from codehub.coordinator.tuning import Tuning
from codehub.domain.workspace import Desired, Phase, Workspace
from codehub.ports.stores import Actor
from codehub.telemetry import Metrics
from codehub.usecases.workspace_commands import CreateWorkspace, WorkspaceCommands
from tests.simulation.virtual_time import VirtualClock

START = datetime(2026, 1, 1, tzinfo=UTC)
PERSON = Actor("person")
OWNER = "ann"


def world_now() -> datetime:
    return START + timedelta(seconds=asyncio.get_running_loop().time())


class SeededIds:
    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def new(self) -> UUID:
        return UUID(int=self._random.getrandbits(128), version=4)

    def jitter(self) -> float:
        return self._random.uniform(-1, 1)


@dataclass
class Worlds:
    database: DatabaseState
    runtime: RuntimeState
    archives: ArchivesState
    jobs: JobsState
    signals: SignalsState

    @classmethod
    def fresh(cls, *, boot_seconds: float = 0.0, job_seconds: float = 0.0) -> "Worlds":
        database = DatabaseState(now=world_now)
        runtime = RuntimeState(now=lambda: asyncio.get_running_loop().time(), boot_seconds=boot_seconds)
        archives = ArchivesState(now=world_now)
        jobs = JobsState(runtime, archives, VirtualClock(), step_seconds=job_seconds)
        return cls(database, runtime, archives, jobs, SignalsState())


@dataclass
class Cast:
    """A running coordinator, and how to kill it as `kill -9` would."""

    coordinator: Coordinator
    task: asyncio.Task[None]
    notifier: MemoryNotifier


@dataclass
class Stage:
    worlds: Worlds
    tuning: Tuning
    seed: int = 0
    front: Network | None = None
    starts: int = 0
    casts: dict[str, Cast] = field(default_factory=dict)
    bygone: set[UUID] = field(default_factory=set)

    def wishes(self) -> WorkspaceCommands:
        return WorkspaceCommands(MemoryDatabase(self.worlds.database, self.front).specs(), self.tuning.limits)

    def start(self, holder: str, network: Network | None = None, clock: VirtualClock | None = None) -> Cast:
        self.starts += 1
        worlds, network, clock = self.worlds, network or Network(), clock or VirtualClock()
        database = MemoryDatabase(worlds.database, network)
        runtime = MemoryRuntime(worlds.runtime, network)
        archives = MemoryArchives(worlds.archives, network)
        notifier = MemoryNotifier()
        outside = Dependencies(
            leadership=database.leadership(clock),
            statuses=database.statuses,
            specs=database.specs(),
            collector=database.collector(),
            marks=database.marks,
            worlds=database.backend_identities(),
            install="this",
            feed=database.changes(),
            bus=MemoryBus(worlds.signals, network),
            activity=MemoryActivity(worlds.signals, network),
            runtime=runtime,
            jobs=MemoryJobs(runtime, archives, worlds.jobs, network),
            archives=archives,
            notifier=notifier,
            clock=clock,
            ids=SeededIds(self.seed * 1000 + self.starts),
            metrics=Metrics(),
        )
        coordinator = Coordinator(holder, outside, self.tuning)
        cast = Cast(coordinator, asyncio.get_running_loop().create_task(coordinator.run()), notifier)
        self.casts[holder] = cast
        return cast

    async def kill(self, holder: str) -> None:
        """Its session ends with it, so the lock is free; its wire must already refuse every further call."""
        cast = self.casts.pop(holder)
        cast.task.cancel()
        await asyncio.gather(cast.task, return_exceptions=True)

    async def create(self, desired: Desired, number: int = 1, owner: str = OWNER) -> Workspace:
        new = CreateWorkspace(f"workspace {number}", owner, desired, image_ref="image", runtime="memory")
        return await self.wishes().create(new, UUID(int=number), PERSON, world_now())

    def purged_long_ago(self, workspace_id: UUID) -> None:
        """Nobody on the stage knows it any more; its row is still there."""
        self.bygone.add(workspace_id)
        self.worlds.database.rows[workspace_id] = Workspace(
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
        return sorted(self.worlds.database.rows.keys() - self.bygone)

    def row(self, workspace_id: UUID) -> Workspace:
        return self.worlds.database.rows[workspace_id]

    async def until(self, done: Callable[[], bool], seconds: float, step: float = 0.5) -> bool:
        """Whether it came to be within that (virtual) time."""
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
