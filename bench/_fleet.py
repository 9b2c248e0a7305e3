"""Workspaces by the thousand: rows in PostgreSQL, and backends in memory that agree with them.

Conditions and home are what judge makes of the backends, so a row is settled because the rules say so, not by a copy of
them. Every kind that rests is there: running, standing by and archived; half of the living have an archive too.
"""

import gc
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from uuid import UUID

import asyncpg

from codehub.adapters.memory import MemoryArchives, MemoryRuntime
from codehub.adapters.memory.archives import StoredArchive
from codehub.adapters.memory.runtime import Container, Volume
from codehub.adapters.postgres import rows, statements
from codehub.domain import naming
from codehub.domain.failures import Policy
from codehub.domain.judge import ArchiveState, ContainerSeen, Facts, judge
from codehub.domain.plan import Settled, plan
from codehub.domain.workspace import Desired, HomeContext, Workspace

RESTING = (*[Desired.RUNNING] * 2, *[Desired.STANDBY] * 3, *[Desired.ARCHIVED] * 5)
CHUNK = 5000
INSTANCE = "volume-0"
OWNERS = tuple(f"person-{number}" for number in range(1000))


@dataclass(slots=True)
class Fleet:
    runtime: MemoryRuntime = field(default_factory=MemoryRuntime)
    archives: MemoryArchives = field(default_factory=MemoryArchives)
    owners: Sequence[str] = OWNERS
    size: int = 0
    _rng: random.Random = field(default_factory=lambda: random.Random(7))

    async def grow(self, connection: "asyncpg.Connection[asyncpg.Record]", size: int) -> None:
        """Add settled workspaces, up to `size`."""
        now = datetime.now(UTC) - timedelta(hours=1)
        while self.size < size:
            until = min(self.size + CHUNK, size)
            await insert(connection, [self._settled(number, now) for number in range(self.size, until)])
            self.size = until
        await connection.execute("VACUUM ANALYZE workspaces")
        gc.collect()
        gc.freeze()  # the backends are not the controller's to carry

    def _settled(self, number: int, now: datetime) -> Workspace:
        desired = RESTING[number % len(RESTING)]
        ws = replace(_fresh(number, self._rng, now, self.owners), desired_state=desired, last_access_at=now)
        facts = Facts()
        if desired is Desired.ARCHIVED or number % 2:
            ws = self._archived(ws)
            facts = replace(facts, archive=ArchiveState.READABLE)
        if desired is not Desired.ARCHIVED:
            ws, facts = self._with_volume(ws, facts)
        if desired is Desired.RUNNING:
            ws, facts = self._with_container(ws, facts)
        ws = judge(ws, facts, now)
        assert judge(ws, facts, now) is ws
        assert ws.phase.value == desired.value
        assert plan(ws, ws, facts, Policy(), now) == Settled()
        return ws

    def _archived(self, ws: Workspace) -> Workspace:
        op_id = _random_id(self._rng)
        key = naming.archive_key("", ws.id, op_id)
        self.archives.state.objects[key] = StoredArchive((), ws.created_at, committed=True)
        return replace(ws, archive_key=key, archive_op_id=op_id)

    def _with_volume(self, ws: Workspace, facts: Facts) -> tuple[Workspace, Facts]:
        volume = naming.volume_name(ws.id, 1)
        self.runtime.state.volumes[volume] = Volume(ws.id, instance=INSTANCE)
        home = HomeContext(incarnation=1, live=True, volume_instance=INSTANCE)
        return replace(ws, home_store_key=volume, home=home), replace(facts, volumes={volume: INSTANCE})

    def _with_container(self, ws: Workspace, facts: Facts) -> tuple[Workspace, Facts]:
        instance, volume = f"instance-of-{ws.id}", naming.volume_name(ws.id, 1)
        self.runtime.state.containers[ws.id] = Container(instance, volume)
        ready = replace(ws, home=replace(ws.home, ready_instance=instance))
        return ready, replace(facts, container=ContainerSeen(instance, running=True, volume=volume))


def pending(count: int, owners: Sequence[str] = OWNERS) -> Iterator[Workspace]:
    rng, now = random.Random(11), datetime.now(UTC)
    return (_fresh(number, rng, now, owners) for number in range(count))


async def insert(connection: "asyncpg.Connection[asyncpg.Record]", workspaces: Sequence[Workspace]) -> None:
    """Insert rows without the triggers: nobody listens, and nobody is to be told of a hundred thousand."""
    await connection.execute("SET session_replication_role = replica")
    columns = [statements.column(name) for name in statements.FIELDS]
    records = [rows.parameters(ws, statements.FIELDS) for ws in workspaces]
    await connection.copy_records_to_table("workspaces", records=records, columns=columns)
    await connection.execute("SET session_replication_role = DEFAULT")


def _fresh(number: int, rng: random.Random, now: datetime, owners: Sequence[str]) -> Workspace:
    key = _random_id(rng)
    return Workspace(
        id=key,
        owner_id=owners[number % len(owners)],
        name=f"workspace {number}",
        slug=naming.slug_from(f"workspace {number}", key),
        runtime="memory",
        created_at=now,
        updated_at=now,
        phase_changed_at=now,
    )


def _random_id(rng: random.Random) -> UUID:
    return UUID(int=rng.getrandbits(128), version=4)
