"""What is read of the database in memory: by people, and the ledger."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING
from uuid import UUID

from codehub.adapters.memory.fault_injection import Network
from codehub.domain.admission import holds_slot
from codehub.domain.gc_rules import RestorePoint
from codehub.domain.history import SPAN, HistoryData
from codehub.domain.ledger import LedgerEntry, LedgerKind
from codehub.domain.workspace import Operation, Phase, Workspace
from codehub.ports.stores import KEPT_ENTRIES
from codehub.ports.views import OwnedWorkspace, Position, WorkspaceFilter

if TYPE_CHECKING:
    from codehub.adapters.memory.database import DatabaseState


class MemoryViews:
    def __init__(self, world: "DatabaseState", wire: Network) -> None:
        self._world = world
        self._wire = wire

    async def get(self, workspace_id: UUID) -> OwnedWorkspace | None:
        return (await self.some([workspace_id])).get(workspace_id)

    async def by_slug(self, slug: str) -> OwnedWorkspace | None:
        def find() -> OwnedWorkspace | None:
            rows = self._world.rows.values()
            return next((self._owned(row) for row in rows if row.slug == slug and row.deleted_at is None), None)

        return await self._wire.call("views.by_slug", find)

    async def some(self, ids: Collection[UUID]) -> Mapping[UUID, OwnedWorkspace]:
        return await self._wire.call(
            "views.some", lambda: {key: self._owned(row) for key, row in self._world.rows.items() if key in ids}
        )

    async def page(
        self, sought: WorkspaceFilter, limit: int, after: Position | None = None
    ) -> Sequence[OwnedWorkspace]:
        def read() -> list[OwnedWorkspace]:
            found = [row for row in self._newest_first() if _fits(row, sought)]
            if after is not None:
                found = [row for row in found if (row.created_at, row.id) < (after.created_at, after.id)]
            return [self._owned(row) for row in found[:limit]]

        return await self._wire.call("views.page", read)

    async def everything(self, owner_id: str | None = None) -> Sequence[OwnedWorkspace]:
        sought = WorkspaceFilter(owner_id)
        return await self._wire.call(
            "views.everything", lambda: [self._owned(row) for row in self._newest_first() if _fits(row, sought)]
        )

    async def slots(self, owner_id: str) -> tuple[Sequence[Workspace], int, int | None]:
        def read() -> tuple[list[Workspace], int, int | None]:
            holders = [row for row in reversed(self._newest_first()) if holds_slot(row)]
            mine = [row for row in holders if row.owner_id == owner_id]
            return mine, len(holders), self._world.people.limit_of(owner_id)

        return await self._wire.call("views.slots", read)

    async def entries(
        self, workspace_id: UUID, limit: int, before: int | None = None, kinds: Collection[LedgerKind] | None = None
    ) -> Sequence[tuple[int, LedgerEntry]]:
        def read() -> list[tuple[int, LedgerEntry]]:
            numbered = [
                (number, entry)
                for number, entry in enumerate(self._world.ledger, 1)
                if entry.workspace_id == workspace_id
                and (before is None or number < before)
                and (kinds is None or entry.kind in kinds)
            ]
            return numbered[::-1][:limit]

        return await self._wire.call("views.entries", read)

    async def restore_points(self, workspace_id: UUID) -> Sequence[RestorePoint]:
        return await self._wire.call("views.restore_points", lambda: list(self._world.points.get(workspace_id, [])))

    async def lease_until(self, workspace_id: UUID) -> datetime | None:
        def read() -> datetime | None:
            now = self._world.now()
            return max((end for end in self._world.leases.get(workspace_id, {}).values() if end > now), default=None)

        return await self._wire.call("views.lease_until", read)

    async def history_data(self) -> HistoryData:
        def read() -> HistoryData:
            now = self._world.now()
            points = (point for some in self._world.points.values() for point in some)
            return HistoryData(
                now,
                sum(row.phase is Phase.RUNNING and row.deleted_at is None for row in self._world.rows.values()),
                [entry for entry in self._world.ledger if entry.at > now - SPAN and _tells_of_running(entry)],
                [(point.created_at, point.bytes) for point in points if point.created_at > now - SPAN],
                [minute for at, minute in sorted(self._world.traffic.items()) if at > now - SPAN],
            )

        return await self._wire.call("views.day", read)

    async def now(self) -> datetime:
        return await self._wire.call("views.now", self._world.now)

    def _newest_first(self) -> list[Workspace]:
        return sorted(self._world.rows.values(), key=lambda row: (row.created_at, row.id), reverse=True)

    def _owned(self, row: Workspace) -> OwnedWorkspace:
        template = self._world.people.templates.get(row.template)
        return OwnedWorkspace(row, self._world.people.name_of(row.owner_id), template.image_ref if template else None)


def _fits(row: Workspace, sought: WorkspaceFilter) -> bool:
    text = sought.text.lower()
    return (
        (row.deleted_at is not None) == sought.deleted
        and sought.owner_id in (None, row.owner_id)
        and (text in row.name.lower() or text in row.description.lower())
        and sought.phase in (None, row.phase)
        and sought.error_reason in (None, row.error_reason)
    )


def _tells_of_running(entry: LedgerEntry) -> bool:
    if entry.kind is LedgerKind.PHASE:
        return Phase.RUNNING in (entry.before, entry.after)
    return entry.kind is LedgerKind.OPERATION_BEGAN and entry.after == Operation.STARTING


class MemoryLedger:
    def __init__(self, world: "DatabaseState", wire: Network) -> None:
        self._world = world
        self._wire = wire

    async def entries(self, workspace_id: UUID, limit: int = 100) -> Sequence[LedgerEntry]:
        def read() -> list[LedgerEntry]:
            mine = [entry for entry in self._world.ledger if entry.workspace_id == workspace_id]
            return mine[::-1][:limit]

        return await self._wire.call("db.ledger", read)

    async def forget_older(self, seconds: float, epoch: int) -> int:
        def sweep() -> int:
            oldest = self._world.now() - timedelta(seconds=seconds)
            newer: Counter[UUID] = Counter()
            kept = []
            for entry in reversed(self._world.ledger):
                if entry.at >= oldest or newer[entry.workspace_id] < KEPT_ENTRIES:
                    kept.append(entry)
                newer[entry.workspace_id] += 1
            gone = len(self._world.ledger) - len(kept)
            self._world.ledger[:] = reversed(kept)
            return gone

        return await self._world.people.within(epoch, self._wire, "db.forget_entries", sweep)
