"""What people read of the database in memory: views of workspaces, the ledger, the front doors' traffic, and usage."""

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime, timedelta
from uuid import UUID

from codehub.adapters.memory.database_state import DatabaseStore
from codehub.adapters.memory.fault_injection import Network, effect
from codehub.domain.admission import holds_slot
from codehub.domain.gc_rules import RestorePoint
from codehub.domain.history import SPAN, HistoryData, TrafficMinute
from codehub.domain.ledger import LedgerEntry, LedgerKind
from codehub.domain.usage import SPAN as USAGE_SPAN
from codehub.domain.usage import Usage, UsageSample
from codehub.domain.workspace import Operation, Phase, Workspace
from codehub.ports.stores import KEPT_ENTRIES
from codehub.ports.views import OwnedWorkspace, Position, WorkspaceFilter


class MemoryViews(DatabaseStore):
    async def get(self, workspace_id: UUID) -> OwnedWorkspace | None:
        return (await self.some([workspace_id])).get(workspace_id)

    @effect("views.by_slug")
    def by_slug(self, slug: str) -> OwnedWorkspace | None:
        rows = self._state.rows.values()
        return next((self._owned(row) for row in rows if row.slug == slug and row.deleted_at is None), None)

    @effect("views.some")
    def some(self, ids: Collection[UUID]) -> Mapping[UUID, OwnedWorkspace]:
        return {key: self._owned(row) for key, row in self._state.rows.items() if key in ids}

    @effect("views.page")
    def page(self, sought: WorkspaceFilter, limit: int, after: Position | None = None) -> Sequence[OwnedWorkspace]:
        found = [row for row in self._newest_first() if _fits(row, sought)]
        if after is not None:
            found = [row for row in found if (row.created_at, row.id) < (after.created_at, after.id)]
        return [self._owned(row) for row in found[:limit]]

    async def everything(self, owner_id: str | None = None) -> Sequence[OwnedWorkspace]:
        sought = WorkspaceFilter(owner_id)
        return await self._network.call(
            "views.everything", lambda: [self._owned(row) for row in self._newest_first() if _fits(row, sought)]
        )

    @effect("views.slots")
    def slots(self, owner_id: str) -> tuple[Sequence[Workspace], int, int | None]:
        holders = [row for row in reversed(self._newest_first()) if holds_slot(row)]
        mine = [row for row in holders if row.owner_id == owner_id]
        return mine, len(holders), self._state.accounts.limit_of(owner_id)

    @effect("views.entries")
    def entries(
        self, workspace_id: UUID, limit: int, before: int | None = None, kinds: Collection[LedgerKind] | None = None
    ) -> Sequence[tuple[int, LedgerEntry]]:
        numbered = [
            (number, entry)
            for number, entry in enumerate(self._state.ledger, 1)
            if entry.workspace_id == workspace_id
            and (before is None or number < before)
            and (kinds is None or entry.kind in kinds)
        ]
        return numbered[::-1][:limit]

    @effect("views.restore_points")
    def restore_points(self, workspace_id: UUID) -> Sequence[RestorePoint]:
        return list(self._state.points.get(workspace_id, []))

    @effect("views.lease_until")
    def lease_until(self, workspace_id: UUID) -> datetime | None:
        now = self._state.now()
        return max((end for end in self._state.leases.get(workspace_id, {}).values() if end > now), default=None)

    @effect("views.day")
    def history_data(self) -> HistoryData:
        now = self._state.now()
        points = (point for some in self._state.points.values() for point in some)
        return HistoryData(
            now,
            sum(row.phase is Phase.RUNNING and row.deleted_at is None for row in self._state.rows.values()),
            [entry for entry in self._state.ledger if entry.at > now - SPAN and _tells_of_running(entry)],
            [(point.created_at, point.bytes) for point in points if point.created_at > now - SPAN],
            [minute for at, minute in sorted(self._state.traffic.items()) if at > now - SPAN],
        )

    @effect("views.now")
    def now(self) -> datetime:
        return self._state.now()

    def _newest_first(self) -> list[Workspace]:
        return sorted(self._state.rows.values(), key=lambda row: (row.created_at, row.id), reverse=True)

    def _owned(self, row: Workspace) -> OwnedWorkspace:
        template = self._state.accounts.templates.get(row.template)
        return OwnedWorkspace(row, self._state.accounts.name_of(row.owner_id), template.image_ref if template else None)


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


class MemoryLedger(DatabaseStore):
    @effect("db.ledger")
    def entries(self, workspace_id: UUID, limit: int = 100) -> Sequence[LedgerEntry]:
        mine = [entry for entry in self._state.ledger if entry.workspace_id == workspace_id]
        return mine[::-1][:limit]

    async def forget_older(self, seconds: float, epoch: int) -> int:
        def sweep() -> int:
            oldest = self._state.now() - timedelta(seconds=seconds)
            newer: Counter[UUID] = Counter()
            kept = []
            for entry in reversed(self._state.ledger):
                if entry.at >= oldest or newer[entry.workspace_id] < KEPT_ENTRIES:
                    kept.append(entry)
                newer[entry.workspace_id] += 1
            gone = len(self._state.ledger) - len(kept)
            self._state.ledger[:] = reversed(kept)
            return gone

        return await self._write("db.forget_entries", epoch, sweep)


class MemoryUsageHistory(DatabaseStore):
    async def record(self, used: Mapping[UUID, Usage], epoch: int) -> None:
        await self._write("usage.record", epoch, lambda: self._record(used))

    def _record(self, used: Mapping[UUID, Usage]) -> None:
        now, kept = self._state.now(), self._state.usage
        for key, usage in used.items():
            kept.setdefault(key, []).append(UsageSample(now, usage))
        recent = {key: [one for one in samples if one.at > now - USAGE_SPAN] for key, samples in kept.items()}
        kept.clear()
        kept.update({key: samples for key, samples in recent.items() if samples})

    @effect("usage.of")
    def of(self, workspace_id: UUID) -> Sequence[UsageSample]:
        since = self._state.now() - USAGE_SPAN
        return [one for one in self._state.usage.get(workspace_id, ()) if one.at > since]

    @effect("usage.newest")
    def newest(self, ids: Collection[UUID], within: timedelta) -> Mapping[UUID, UsageSample]:
        since = self._state.now() - within
        found = {key: self._state.usage[key][-1] for key in ids if key in self._state.usage}
        return {key: one for key, one in found.items() if one.at > since}


class MemoryTraffic:
    def __init__(self, minutes: dict[datetime, TrafficMinute], now: Callable[[], datetime], network: Network) -> None:
        self._minutes = minutes
        self._now = now
        self._network = network

    @effect("traffic.add")
    def add(self, requests: int, socket_seconds: float) -> None:
        now = self._now()
        at = now.replace(second=0, microsecond=0)
        known = self._minutes.get(at, TrafficMinute(at, 0, 0.0))
        self._minutes[at] = TrafficMinute(at, known.requests + requests, known.socket_seconds + socket_seconds)
        for old in [minute for minute in self._minutes if minute <= now - SPAN]:
            del self._minutes[old]
