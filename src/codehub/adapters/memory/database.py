"""The database in memory, as PostgresDatabase hands it out: specs, statuses, backend identities, the change feed, and
the collector's part (marks, requests, and one moment's view of all rows).
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from codehub.adapters.memory.database_state import DatabaseState, DatabaseStore, TermStore, differ, fenced_effect
from codehub.adapters.memory.fault_injection import Network, effect
from codehub.adapters.memory.leadership import MemoryLeadership
from codehub.adapters.memory.views import MemoryLedger, MemoryTraffic, MemoryUsageHistory, MemoryViews
from codehub.domain.admission import Slots, holds_slot, overtaken
from codehub.domain.errors import Conflict, NotFound, Stale
from codehub.domain.gc_rules import REQUEST_LIFETIME_SECONDS, BackendResource, ResourceKind, RestorePoint
from codehub.domain.naming import Backend
from codehub.domain.plan import wants_volume_gone
from codehub.domain.workspace import SPEC_FIELDS, STATUS_FIELDS, Phase, Workspace
from codehub.ports.collector import CollectionRequest, CollectorData, Mark, SweepDecision
from codehub.ports.signals import Change, Clock
from codehub.ports.stores import Actor, BackendRecord, SpecDecision

_ACTOR = "controller"


class MemorySpecs(DatabaseStore):
    async def create(self, workspace: Workspace, decide: SpecDecision, actor: Actor) -> Workspace:
        def insert() -> Workspace:
            now = self._state.now()
            fresh = replace(workspace, created_at=now, updated_at=now, phase_changed_at=now)
            row = decide(fresh, slots, now)
            if row.id in self._state.rows:
                raise Conflict("There is a workspace of that id already.", "id_taken")
            self._refuse_taken(row)
            return self._state.put(None, row, actor.name, "")

        async with self._state.admission:
            slots = await self._network.call("db.slots", lambda: self._slots(workspace))
            return await self._write("db.create", actor.epoch, insert)

    async def change(
        self, workspace_id: UUID, decide: SpecDecision, actor: Actor, *, reason: str = "", admission: bool = False
    ) -> Workspace:
        if not admission:
            return await self._change(workspace_id, decide, Slots(), actor, reason)
        async with self._state.admission:
            slots = await self._write("db.slots", actor.epoch, lambda: self._slots(self._row(workspace_id)))
            return await self._change(workspace_id, decide, slots, actor, reason)

    async def _change(
        self, workspace_id: UUID, decide: SpecDecision, slots: Slots, actor: Actor, reason: str
    ) -> Workspace:
        def update() -> Workspace:
            row = self._row(workspace_id)
            after = _only(SPEC_FIELDS, row, decide(row, slots, self._state.now()))
            if after == row:
                return row
            self._refuse_taken(after)
            return self._state.put(row, after, actor.name, reason)

        return await self._write("db.change", actor.epoch, update)

    def _refuse_taken(self, row: Workspace) -> None:
        others = [r for r in self._state.rows.values() if r.id != row.id]
        mine = [r for r in others if r.owner_id == row.owner_id and r.deleted_at is None]
        if row.deleted_at is None and any(r.name.lower() == row.name.lower() for r in mine):
            raise Conflict("You already have a workspace of that name.", "name_taken")
        if any(r.slug == row.slug for r in others):
            raise Conflict("That address is taken.", "slug_taken")

    def _row(self, workspace_id: UUID) -> Workspace:
        row = self._state.rows.get(workspace_id)
        if row is None:
            raise NotFound(f"There is no workspace {workspace_id}.")
        return row

    def _slots(self, asking: Workspace) -> Slots:
        others = [r for r in self._state.rows.values() if r.id != asking.id and r.deleted_at is None]
        holders = [r for r in others if holds_slot(r)]
        owned = sum(r.owner_id == asking.owner_id for r in others)
        own = self._state.accounts.limit_of(asking.owner_id)
        return Slots([r.name for r in holders if r.owner_id == asking.owner_id], len(holders), own, owned)

    @effect("db.get")
    def get(self, workspace_id: UUID) -> Workspace | None:
        return self._state.rows.get(workspace_id)

    async def touch(self, accessed: Mapping[UUID, datetime], actor: Actor) -> None:
        def write() -> None:
            for key, at in accessed.items():
                row = self._state.rows.get(key)
                if row is not None and (row.last_access_at is None or row.last_access_at < at):
                    self._state.put(row, replace(row, last_access_at=at), actor.name, "")

        await self._write("db.touch", actor.epoch, write)

    @effect("db.hold")
    def hold(self, workspace_id: UUID, holder: str, until: datetime) -> None:
        row = self._row(workspace_id)
        self._state.leases.setdefault(workspace_id, {})[holder] = until
        self._state.put(row, row, "", "")

    @effect("db.leases")
    def leases(self) -> Mapping[UUID, datetime]:
        now = self._state.now()
        ends = {key: max(held.values()) for key, held in self._state.leases.items() if held}
        return {key: end for key, end in ends.items() if end > now}

    async def release_leases(self, workspace_id: UUID, actor: Actor) -> None:
        def write() -> None:
            self._state.leases.pop(workspace_id, None)

        await self._write("db.release_leases", actor.epoch, write)

    @effect("db.idle_candidates")
    def idle_candidates(self) -> tuple[Sequence[Workspace], datetime]:
        living = [row for row in self._state.rows.values() if row.deleted_at is None and row.is_at_rest]
        return [row for row in living if row.phase in (Phase.RUNNING, Phase.STANDBY)], self._state.now()


def _only(names: Collection[str], row: Workspace, wanted: Workspace) -> Workspace:
    """`row` with `wanted`'s values for the named fields alone: the single-writer rule (contract 3)."""
    return replace(row, **{name: getattr(wanted, name) for name in names})


class MemoryStatuses(TermStore):
    @effect("db.versions")
    def versions(self) -> Mapping[UUID, int]:
        return {key: ws.version for key, ws in self._state.rows.items() if ws.deleted_at is None or not ws.is_at_rest}

    @effect("db.active")
    def active(self) -> Collection[UUID]:
        return [key for key, ws in self._state.rows.items() if not ws.is_at_rest]

    @effect("db.load")
    def load(self, ids: Collection[UUID]) -> tuple[Sequence[Workspace], datetime]:
        return [self._state.rows[key] for key in ids if key in self._state.rows], self._state.now()

    @fenced_effect("db.record")
    def record(
        self, before: Workspace, after: Workspace, *, reason: str = "", point: RestorePoint | None = None
    ) -> Workspace:
        row = self._current(before)
        if overtaken(before, after, row):
            raise Stale(f"workspace {before.id} is asked to be {row.desired_state} since its start was planned")
        changed = [name for name in STATUS_FIELDS if getattr(before, name) != getattr(after, name)]
        wanted = _only(changed, row, after)
        if point is not None:
            self._keep(point)
        return row if wanted == row else self._state.put(row, wanted, _ACTOR, reason)

    def _current(self, before: Workspace) -> Workspace:
        row = self._state.rows.get(before.id)
        if row is None or row.operation is not before.operation or row.op_id != before.op_id:
            raise Stale(f"workspace {before.id} has moved on")
        return row

    def _keep(self, point: RestorePoint) -> None:
        points = self._state.points.setdefault(point.workspace_id, [])
        if all(p.key != point.key for p in points):
            points.insert(0, point)

    @fenced_effect("db.record_observations")
    def record_observations(self, changes: Sequence[tuple[Workspace, Workspace]]) -> int:
        written = 0
        for before, after in changes:
            row = self._state.rows.get(before.id)
            if row is not None and row.version == before.version and differ(before, after, STATUS_FIELDS):
                self._state.put(row, _only(STATUS_FIELDS, row, after), _ACTOR, "")
                written += 1
        return written

    @fenced_effect("db.pass_safe_point")
    def pass_safe_point(self, workspace: Workspace) -> Workspace | None:
        row = self._current(workspace)
        if not wants_volume_gone(row):
            return None
        leaving = replace(row, home=replace(row.home, deleting_volume=True, live=False))
        return self._state.put(row, leaving, _ACTOR, "safe_point")

    @effect("db.restore_points")
    def restore_points(self, workspace_id: UUID) -> Sequence[RestorePoint]:
        return list(self._state.points.get(workspace_id, []))

    @fenced_effect("db.release_restore_points")
    def release_restore_points(self, workspace: Workspace) -> None:
        self._current(workspace)
        points = self._state.points.get(workspace.id, [])
        now = self._state.now()
        self._state.points[workspace.id] = [p if p.released_at else replace(p, released_at=now) for p in points]


class MemoryChangeFeed:
    def __init__(self, state: DatabaseState) -> None:
        self._state = state

    async def changes(self, listening: Callable[[], None] | None = None) -> AsyncIterator[Change]:
        listener: asyncio.Queue[Change | None] = asyncio.Queue()
        self._state.listeners.append(listener)
        if listening is not None:
            listening()
        try:
            while (change := await listener.get()) is not None:
                yield change
        finally:
            self._state.listeners.remove(listener)


class MemoryBackendIdentities(DatabaseStore):
    @effect("db.backend_identities")
    def remembered(self) -> Mapping[Backend, BackendRecord]:
        return dict(self._state.backend_identities)

    async def adopt(self, backend: Backend, identity: str, epoch: int) -> str:
        def write() -> str:
            record = BackendRecord(identity, self._state.now())
            return self._state.backend_identities.setdefault(backend, record).identity

        return await self._write("db.adopt_backend", epoch, write)

    @effect("db.forget_backend")
    def forget(self, backend: Backend) -> bool:
        return self._state.backend_identities.pop(backend, None) is not None


class MemoryCollectorView(DatabaseStore):
    @effect("db.collector")
    def read(self) -> CollectorData:
        state = self._state
        return CollectorData(
            workspaces=[ws for ws in state.rows.values() if ws.purged_at is None],
            points={key: list(points) for key, points in state.points.items()},
            marks=list(state.collector.marks.values()),
            newest_entry_at=max((entry.at for entry in state.ledger), default=None),
            oldest_workspace_at=min((ws.created_at for ws in state.rows.values()), default=None),
            now=state.now(),
            purged=frozenset(ws.id for ws in state.rows.values() if ws.purged_at is not None),
            restored=state.collector.restored,
        )

    @effect("db.recorded")
    def recorded(self, operations: Collection[UUID]) -> Collection[UUID]:
        return set(operations) & {entry.op_id for entry in self._state.ledger if entry.op_id is not None}

    @effect("db.ask_collection")
    def ask(self, asked_by: str, waived: Collection[str]) -> int:
        requests = self._state.collector.requests
        requests.append((self._state.now(), CollectionRequest(len(requests) + 1, asked_by, tuple(waived))))
        return len(requests)

    @effect("db.collection_request")
    def request(self, request_id: int) -> CollectionRequest | None:
        return next((r for _, r in self._state.collector.requests if r.id == request_id), None)


class MemoryCollectorMarks(TermStore):
    @fenced_effect("db.remark")
    def remark(self, found: Mapping[BackendResource, str]) -> Sequence[Mark]:
        before, now = self._state.collector.marks, self._state.now()
        after = {
            (thing.kind.value, thing.name): before.get((thing.kind.value, thing.name)) or Mark(thing, reason, now)
            for thing, reason in found.items()
        }
        self._state.collector.marks = after
        return [after[name] for name in sorted(after)]

    @fenced_effect("db.give_up")
    def give_up(self, thing: BackendResource, decide: SweepDecision) -> bool:
        state, owner = self._state, thing.workspace_id
        points = state.points.get(owner, [])
        if not decide(state.rows.get(owner), list(points), state.now()):
            return False
        state.collector.marks.pop((thing.kind.value, thing.name), None)
        if thing.kind is ResourceKind.OBJECT and any(p.key == thing.name for p in points):
            state.points[owner] = [p for p in points if p.key != thing.name]
        return True

    @effect("db.collection_pending")
    def pending(self) -> CollectionRequest | None:
        since = self._state.now() - timedelta(seconds=REQUEST_LIFETIME_SECONDS)
        requests = self._state.collector.requests
        return next((r for at, r in requests if r.report is None and at > since), None)

    @fenced_effect("db.finish_collection")
    def finish(self, request_id: int, report: Mapping[str, Any]) -> None:
        self._state.collector.requests = [
            (at, replace(r, report=dict(report)) if r.id == request_id and r.report is None else r)
            for at, r in self._state.collector.requests
        ]


class MemoryDatabase:
    def __init__(self, state: DatabaseState | None = None, network: Network | None = None) -> None:
        self.state = state or DatabaseState()
        self._network = network or Network()

    def specs(self) -> MemorySpecs:
        return MemorySpecs(self.state, self._network)

    def statuses(self, epoch: int) -> MemoryStatuses:
        return MemoryStatuses(self.state, self._network, epoch)

    def ledger(self) -> MemoryLedger:
        return MemoryLedger(self.state, self._network)

    def leadership(self, clock: Clock) -> MemoryLeadership:
        return MemoryLeadership(self.state.leadership, self.state.now, clock, self._network)

    def changes(self) -> MemoryChangeFeed:
        return MemoryChangeFeed(self.state)

    def views(self) -> MemoryViews:
        return MemoryViews(self.state, self._network)

    def traffic(self) -> MemoryTraffic:
        return MemoryTraffic(self.state.traffic, self.state.now, self._network)

    def usage_history(self) -> MemoryUsageHistory:
        return MemoryUsageHistory(self.state, self._network)

    def backend_identities(self) -> MemoryBackendIdentities:
        return MemoryBackendIdentities(self.state, self._network)

    def collector(self) -> MemoryCollectorView:
        return MemoryCollectorView(self.state, self._network)

    def marks(self, epoch: int) -> MemoryCollectorMarks:
        return MemoryCollectorMarks(self.state, self._network, epoch)
