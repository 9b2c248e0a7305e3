"""The database in memory: the two stores, the ledger, the change feed; leadership is in leadership.py.

A fenced write is a transaction that holds the leadership row shared from the epoch's check to its commit. A bump of
the epoch ends the transactions that are open, as the rival does on PostgreSQL by ending the old leader's backends.

Which world each backend was, in memory.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import TypeVar
from uuid import UUID

from codehub.adapters.memory.account_tables import AccountTables
from codehub.adapters.memory.fault_injection import Network
from codehub.adapters.memory.leadership import LeadershipState, MemoryLeadership
from codehub.adapters.memory.records import CollectorState, MemoryCollectorMarks, MemoryCollectorView, MemoryTraffic
from codehub.adapters.memory.views import MemoryLedger, MemoryViews
from codehub.domain.admission import Slots, holds_slot, overtaken
from codehub.domain.backend_identity import Backend
from codehub.domain.errors import Conflict, NotFound, Stale
from codehub.domain.gc_rules import RestorePoint
from codehub.domain.history import TrafficMinute
from codehub.domain.ledger import LedgerEntry, entries
from codehub.domain.plan import wants_volume_gone
from codehub.domain.workspace import SPEC_FIELDS, STATUS_FIELDS, Desired, Operation, Phase, Workspace
from codehub.ports.signals import Change, Channel, Clock
from codehub.ports.stores import Actor, BackendRecord, SpecDecision


class MemoryBackendIdentities:
    def __init__(self, world: "DatabaseState", wire: Network) -> None:
        self._world = world
        self._wire = wire

    async def remembered(self) -> Mapping[Backend, BackendRecord]:
        return await self._wire.call("db.worlds", lambda: dict(self._world.worlds))

    async def adopt(self, backend: Backend, identity: str, epoch: int) -> str:
        def write() -> str:
            return self._world.worlds.setdefault(backend, BackendRecord(identity, self._world.now())).identity

        with self._world.leadership.shared(epoch) as transaction:
            return await self._wire.call("db.adopt_world", lambda: transaction.commit(write))

    async def forget(self, backend: Backend) -> bool:
        return await self._wire.call("db.forget_world", lambda: self._world.worlds.pop(backend, None) is not None)


T = TypeVar("T")


def _wall_clock() -> datetime:
    return datetime.now(UTC)


@dataclass(slots=True)
class DatabaseState:
    now: Callable[[], datetime] = _wall_clock
    rows: dict[UUID, Workspace] = field(default_factory=dict)
    ledger: list[LedgerEntry] = field(default_factory=list)
    points: dict[UUID, list[RestorePoint]] = field(default_factory=dict)
    leases: dict[UUID, dict[str, datetime]] = field(default_factory=dict)
    traffic: dict[datetime, TrafficMinute] = field(default_factory=dict)
    worlds: dict[Backend, BackendRecord] = field(default_factory=dict)
    people: AccountTables = field(default_factory=AccountTables)
    leadership: LeadershipState = field(default_factory=LeadershipState)
    collector: CollectorState = field(default_factory=CollectorState)
    admission: asyncio.Lock = field(default_factory=asyncio.Lock)
    listeners: list[asyncio.Queue[Change | None]] = field(default_factory=list)
    row_writes: int = 0
    watchers: list[Callable[[Workspace | None, Workspace, str, str], None]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.people.leadership = self.leadership

    def put(self, before: Workspace | None, after: Workspace, actor: str, reason: str) -> Workspace:
        now = self.now()
        row = replace(after, version=(before.version + 1 if before else 1), updated_at=now)
        self.rows[row.id] = row
        self.row_writes += 1
        self.ledger.extend(entries(before, row, actor, reason, now))
        for change in _changes(before, row):
            for listener in self.listeners:
                listener.put_nowait(change)
        for watcher in self.watchers:
            watcher(before, row, actor, reason)
        return row


_SSE = (
    "phase",
    "operation",
    "error_reason",
    "name",
    "description",
    "memo",
    "desired_state",
    "op_progress",
    "last_access_at",
    "conditions",
)
_WAKE = ("desired_state", "recover_requested_at", "restore_requested_at", "undelete_requested_at")


def _changes(before: Workspace | None, after: Workspace) -> list[Change]:
    found = []
    if before is None or _differ(before, after, _SSE):
        found.append(Change(Channel.SSE, after.id, after.owner_id))
    if before is None or _differ(before, after, _WAKE):
        found.append(Change(Channel.WAKE, after.id, after.owner_id))
    if before is not None and before.deleted_at != after.deleted_at:
        found.append(Change(Channel.DELETED, after.id, after.owner_id))
    return found


def _differ(before: Workspace, after: Workspace, names: Collection[str]) -> bool:
    return any(getattr(before, name) != getattr(after, name) for name in names)


def _only(names: Collection[str], row: Workspace, wanted: Workspace) -> Workspace:
    """`row` with `wanted`'s values for the named fields alone: the single-writer rule (contract 3)."""
    return replace(row, **{name: getattr(wanted, name) for name in names})


def at_rest(ws: Workspace) -> bool:
    if ws.deleted_at is not None:
        return ws.operation is Operation.NONE and ws.phase is Phase.DELETED and not ws.undelete_pending
    if ws.operation is not Operation.NONE or ws.wish_pending:
        return False
    return ws.phase.value == ws.desired_state.value or (
        ws.phase is Phase.ERROR and ws.desired_state is not Desired.DELETED
    )


class MemoryDatabase:
    def __init__(self, world: DatabaseState | None = None, wire: Network | None = None) -> None:
        self.world = world or DatabaseState()
        self._wire = wire or Network()

    def specs(self) -> "MemorySpecs":
        return MemorySpecs(self.world, self._wire)

    def statuses(self, epoch: int) -> "MemoryStatuses":
        return MemoryStatuses(self.world, self._wire, epoch)

    def ledger(self) -> MemoryLedger:
        return MemoryLedger(self.world, self._wire)

    def leadership(self, clock: Clock) -> MemoryLeadership:
        return MemoryLeadership(self.world.leadership, self.world.now, clock, self._wire)

    def changes(self) -> "MemoryChangeFeed":
        return MemoryChangeFeed(self.world)

    def views(self) -> MemoryViews:
        return MemoryViews(self.world, self._wire)

    def traffic(self) -> MemoryTraffic:
        return MemoryTraffic(self.world.traffic, self.world.now, self._wire)

    def worlds(self) -> MemoryBackendIdentities:
        return MemoryBackendIdentities(self.world, self._wire)

    def collector(self) -> MemoryCollectorView:
        return MemoryCollectorView(self.world, self._wire)

    def marks(self, epoch: int) -> MemoryCollectorMarks:
        return MemoryCollectorMarks(self.world, self._wire, epoch)


class _Fenced:
    def __init__(self, world: DatabaseState, wire: Network) -> None:
        self._world = world
        self._wire = wire

    async def _write(self, name: str, epoch: int | None, work: Callable[[], T]) -> T:
        if epoch is None:
            return await self._wire.call(name, work)
        with self._world.leadership.shared(epoch) as transaction:
            return await self._wire.call(name, lambda: transaction.commit(work))


class MemorySpecs(_Fenced):
    async def create(self, workspace: Workspace, decide: SpecDecision, actor: Actor) -> Workspace:
        def insert() -> Workspace:
            now = self._world.now()
            fresh = replace(workspace, created_at=now, updated_at=now, phase_changed_at=now)
            row = decide(fresh, slots, now)
            if row.id in self._world.rows:
                raise Conflict("There is a workspace of that id already.", "id_taken")
            self._refuse_taken(row)
            return self._world.put(None, row, actor.name, "")

        async with self._world.admission:
            slots = await self._wire.call("db.slots", lambda: self._slots(workspace))
            return await self._write("db.create", actor.epoch, insert)

    async def change(
        self,
        workspace_id: UUID,
        decide: SpecDecision,
        actor: Actor,
        *,
        reason: str = "",
        admission: bool = False,
    ) -> Workspace:
        if not admission:
            return await self._change(workspace_id, decide, Slots(), actor, reason)
        async with self._world.admission:
            slots = await self._write("db.slots", actor.epoch, lambda: self._slots(self._row(workspace_id)))
            return await self._change(workspace_id, decide, slots, actor, reason)

    async def _change(
        self,
        workspace_id: UUID,
        decide: SpecDecision,
        slots: Slots,
        actor: Actor,
        reason: str,
    ) -> Workspace:
        def update() -> Workspace:
            row = self._row(workspace_id)
            after = _only(SPEC_FIELDS, row, decide(row, slots, self._world.now()))
            if after == row:
                return row
            self._refuse_taken(after)
            return self._world.put(row, after, actor.name, reason)

        return await self._write("db.change", actor.epoch, update)

    def _refuse_taken(self, row: Workspace) -> None:
        others = [r for r in self._world.rows.values() if r.id != row.id]
        mine = [r for r in others if r.owner_id == row.owner_id and r.deleted_at is None]
        if row.deleted_at is None and any(r.name.lower() == row.name.lower() for r in mine):
            raise Conflict("You already have a workspace of that name.", "name_taken")
        if any(r.slug == row.slug for r in others):
            raise Conflict("That address is taken.", "slug_taken")

    def _row(self, workspace_id: UUID) -> Workspace:
        row = self._world.rows.get(workspace_id)
        if row is None:
            raise NotFound(f"There is no workspace {workspace_id}.")
        return row

    def _slots(self, asking: Workspace) -> Slots:
        others = [r for r in self._world.rows.values() if r.id != asking.id and r.deleted_at is None]
        holders = [r for r in others if holds_slot(r)]
        owned = sum(r.owner_id == asking.owner_id for r in others)
        own = self._world.people.limit_of(asking.owner_id)
        return Slots([r.name for r in holders if r.owner_id == asking.owner_id], len(holders), own, owned)

    async def get(self, workspace_id: UUID) -> Workspace | None:
        return await self._wire.call("db.get", lambda: self._world.rows.get(workspace_id))

    async def touch(self, accessed: Mapping[UUID, datetime], actor: Actor) -> None:
        def write() -> None:
            for key, at in accessed.items():
                row = self._world.rows.get(key)
                if row is not None and (row.last_access_at is None or row.last_access_at < at):
                    self._world.put(row, replace(row, last_access_at=at), actor.name, "")

        await self._write("db.touch", actor.epoch, write)

    async def hold(self, workspace_id: UUID, holder: str, until: datetime) -> None:
        def write() -> None:
            row = self._row(workspace_id)
            self._world.leases.setdefault(workspace_id, {})[holder] = until
            self._world.put(row, row, "", "")

        await self._wire.call("db.hold", write)

    async def leases(self) -> Mapping[UUID, datetime]:
        def read() -> dict[UUID, datetime]:
            now = self._world.now()
            ends = {key: max(held.values()) for key, held in self._world.leases.items() if held}
            return {key: end for key, end in ends.items() if end > now}

        return await self._wire.call("db.leases", read)

    async def release_leases(self, workspace_id: UUID, actor: Actor) -> None:
        def write() -> None:
            self._world.leases.pop(workspace_id, None)

        await self._write("db.release_leases", actor.epoch, write)

    async def idle_candidates(self) -> tuple[Sequence[Workspace], datetime]:
        def settled(ws: Workspace) -> bool:
            return ws.phase in (Phase.RUNNING, Phase.STANDBY) and at_rest(ws) and ws.deleted_at is None

        return await self._wire.call(
            "db.idle_candidates",
            lambda: (
                [ws for ws in self._world.rows.values() if settled(ws)],
                self._world.now(),
            ),
        )


class MemoryStatuses(_Fenced):
    def __init__(self, world: DatabaseState, wire: Network, epoch: int) -> None:
        super().__init__(world, wire)
        self.epoch = epoch

    async def versions(self) -> Mapping[UUID, int]:
        return await self._wire.call(
            "db.versions",
            lambda: {
                key: ws.version for key, ws in self._world.rows.items() if ws.deleted_at is None or not at_rest(ws)
            },
        )

    async def active(self) -> Collection[UUID]:
        return await self._wire.call(
            "db.active",
            lambda: [key for key, ws in self._world.rows.items() if not at_rest(ws)],
        )

    async def load(self, ids: Collection[UUID]) -> tuple[Sequence[Workspace], datetime]:
        return await self._wire.call(
            "db.load",
            lambda: (
                [self._world.rows[key] for key in ids if key in self._world.rows],
                self._world.now(),
            ),
        )

    async def record(
        self,
        before: Workspace,
        after: Workspace,
        *,
        reason: str = "",
        point: RestorePoint | None = None,
    ) -> Workspace:
        def write() -> Workspace:
            row = self._current(before)
            if overtaken(before, after, row):
                raise Stale(f"workspace {before.id} is wished {row.desired_state} since its start was planned")
            changed = [name for name in STATUS_FIELDS if getattr(before, name) != getattr(after, name)]
            wanted = _only(changed, row, after)
            if point is not None:
                self._keep(point)
            return row if wanted == row else self._world.put(row, wanted, self._actor, reason)

        return await self._write("db.record", self.epoch, write)

    @property
    def _actor(self) -> str:
        return "controller"

    def _current(self, before: Workspace) -> Workspace:
        row = self._world.rows.get(before.id)
        if row is None or row.operation is not before.operation or row.op_id != before.op_id:
            raise Stale(f"workspace {before.id} has moved on")
        return row

    def _keep(self, point: RestorePoint) -> None:
        points = self._world.points.setdefault(point.workspace_id, [])
        if all(p.key != point.key for p in points):
            points.insert(0, point)

    async def record_observations(self, changes: Sequence[tuple[Workspace, Workspace]]) -> int:
        def write() -> int:
            written = 0
            for before, after in changes:
                row = self._world.rows.get(before.id)
                if row is not None and row.version == before.version and _differ(before, after, STATUS_FIELDS):
                    self._world.put(row, _only(STATUS_FIELDS, row, after), self._actor, "")
                    written += 1
            return written

        return await self._write("db.record_observations", self.epoch, write)

    async def pass_safe_point(self, workspace: Workspace) -> Workspace | None:
        def write() -> Workspace | None:
            row = self._current(workspace)
            if not wants_volume_gone(row):
                return None
            leaving = replace(row, home=replace(row.home, deleting_volume=True, live=False))
            return self._world.put(row, leaving, self._actor, "safe_point")

        return await self._write("db.pass_safe_point", self.epoch, write)

    async def restore_points(self, workspace_id: UUID) -> Sequence[RestorePoint]:
        return await self._wire.call("db.restore_points", lambda: list(self._world.points.get(workspace_id, [])))

    async def release_restore_points(self, workspace: Workspace) -> None:
        def write() -> None:
            self._current(workspace)
            points = self._world.points.get(workspace.id, [])
            now = self._world.now()
            self._world.points[workspace.id] = [p if p.released_at else replace(p, released_at=now) for p in points]

        await self._write("db.release_restore_points", self.epoch, write)


class MemoryChangeFeed:
    def __init__(self, world: DatabaseState) -> None:
        self._world = world

    async def changes(self, listening: Callable[[], None] | None = None) -> AsyncIterator[Change]:
        listener: asyncio.Queue[Change | None] = asyncio.Queue()
        self._world.listeners.append(listener)
        if listening is not None:
            listening()
        try:
            while (change := await listener.get()) is not None:
                yield change
        finally:
            self._world.listeners.remove(listener)
