"""What people read of workspaces, from PostgreSQL, the traffic of the front doors, and what workspaces used.

Traffic is added up by the minute: some 1,440 small rows for the last day, however many doors there are.
"""

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime, timedelta
from uuid import UUID

import asyncpg

from codehub.adapters.postgres import rows
from codehub.adapters.postgres import statements as sql
from codehub.adapters.postgres.connections import PostgresStore
from codehub.adapters.postgres.rows import readable
from codehub.domain.admission import holds_slot
from codehub.domain.gc_rules import RestorePoint
from codehub.domain.history import SPAN, HistoryData, TrafficMinute
from codehub.domain.ledger import LedgerEntry, LedgerKind
from codehub.domain.naming import is_slug
from codehub.domain.usage import SPAN as USAGE_SPAN
from codehub.domain.usage import DiskUsage, Usage, UsageSample
from codehub.domain.workspace import Workspace
from codehub.ports.views import OwnedWorkspace, Position, WorkspaceFilter


class PostgresViews(PostgresStore):
    async def get(self, workspace_id: UUID) -> OwnedWorkspace | None:
        found = await self._sessions.fetch(sql.OWNED_BY_ID, workspace_id)
        return next(iter(await _owned(found)), None)

    async def by_slug(self, slug: str) -> OwnedWorkspace | None:
        if not is_slug(slug):  # whatever a stranger put into a host name
            return None
        found = await self._sessions.fetch(sql.OWNED_BY_SLUG, slug)
        return next(iter(await _owned(found)), None)

    async def some(self, ids: Collection[UUID]) -> Mapping[UUID, OwnedWorkspace]:
        found = await self._sessions.fetch(sql.OWNED_BY_IDS, list(ids))
        return {owned.workspace.id: owned for owned in await _owned(found)}

    async def page(
        self, sought: WorkspaceFilter, limit: int, after: Position | None = None
    ) -> Sequence[OwnedWorkspace]:
        last = (after.created_at, after.id) if after else (None, None)
        conditions = (sought.owner_id, _pattern(sought.text), sought.phase, sought.error_reason, sought.deleted)
        return await _owned(await self._sessions.fetch(sql.OWNED_PAGE, *conditions, *last, limit))

    async def everything(self, owner_id: str | None = None) -> Sequence[OwnedWorkspace]:
        return await _owned(await self._sessions.fetch(sql.OWNED_ALL, owner_id))

    async def slots(self, owner_id: str) -> tuple[Sequence[Workspace], int, int | None]:
        async with self._sessions.snapshot() as connection:
            found = await connection.fetch(sql.SLOT_HOLDERS)
            own: int | None = await connection.fetchval(sql.OWN_LIMIT, owner_id)
        holders = [row for row in await readable(found) if holds_slot(row)]
        return [row for row in holders if row.owner_id == owner_id], len(holders), own

    async def entries(
        self, workspace_id: UUID, limit: int, before: int | None = None, kinds: Collection[LedgerKind] | None = None
    ) -> Sequence[tuple[int, LedgerEntry]]:
        wanted = None if kinds is None else [kind.value for kind in kinds]
        found = await self._sessions.fetch(sql.ENTRIES_PAGE, workspace_id, before, wanted, limit)
        return [(record["number"], rows.entry(record)) for record in found]

    async def restore_points(self, workspace_id: UUID) -> Sequence[RestorePoint]:
        return [rows.restore_point(record) for record in await self._sessions.fetch(sql.RESTORE_POINTS, workspace_id)]

    async def lease_until(self, workspace_id: UUID) -> datetime | None:
        until: datetime | None = await self._sessions.fetchval(sql.LEASE_UNTIL, workspace_id)
        return until

    async def history_data(self) -> HistoryData:
        async with self._sessions.snapshot() as connection:
            now: datetime = await connection.fetchval(sql.NOW)
            running: int = await connection.fetchval(sql.COUNT_RUNNING)
            entries = [rows.entry(record) for record in await connection.fetch(sql.DAY_ENTRIES, now - SPAN)]
            archived = [(at, size) for at, size in await connection.fetch(sql.DAY_ARCHIVES, now - SPAN)]
            traffic = [TrafficMinute(*record) for record in await connection.fetch(sql.DAY_TRAFFIC, now - SPAN)]
        return HistoryData(now, running, entries, archived, traffic)

    async def now(self) -> datetime:
        now: datetime = await self._sessions.fetchval(sql.NOW)
        return now


def _pattern(text: str) -> str | None:
    """The text as an ILIKE pattern: `%` and `_` are what somebody typed, not wildcards."""
    escaped = text.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")
    return f"%{escaped}%" if text else None


async def _owned(records: Sequence[asyncpg.Record]) -> list[OwnedWorkspace]:
    beside = {record["id"]: (record["owner"], record["template_image"]) for record in records}
    return [OwnedWorkspace(row, *beside[row.id]) for row in await readable(records)]


class PostgresTraffic(PostgresStore):
    async def add(self, requests: int, socket_seconds: float) -> None:
        await self._sessions.execute(sql.ADD_TRAFFIC, requests, socket_seconds, SPAN)


class PostgresUsageHistory(PostgresStore):
    async def record(self, used: Mapping[UUID, Usage], epoch: int) -> None:
        rows_at_once = [(key, *_usage_values(usage)) for key, usage in used.items()]
        columns = [list(column) for column in zip(*rows_at_once, strict=True)]
        if columns:
            await self._sessions.execute(sql.RECORD_USAGE, *columns, USAGE_SPAN, epoch=epoch)

    async def of(self, workspace_id: UUID) -> Sequence[UsageSample]:
        return [_sample(record) for record in await self._sessions.fetch(sql.USAGE_OF, workspace_id, USAGE_SPAN)]

    async def newest(self, ids: Collection[UUID], within: timedelta) -> Mapping[UUID, UsageSample]:
        found = await self._sessions.fetch(sql.NEWEST_USAGE, list(ids), within)
        return {record["id"]: _sample(record) for record in found}


def _usage_values(usage: Usage) -> tuple[float | int | None, ...]:
    disk = usage.disk or DiskUsage()
    compute = usage.cpu, usage.cpu_limit, usage.memory_bytes, usage.memory_limit_bytes
    return (*compute, disk.used_bytes, disk.limit_bytes, disk.total_bytes, disk.free_bytes)


def _sample(record: asyncpg.Record) -> UsageSample:
    disk = DiskUsage(*(record[f"disk_{name}_bytes"] for name in ("used", "limit", "total", "free")))
    compute = {name: record[name] for name in ("cpu", "cpu_limit", "memory_bytes", "memory_limit_bytes")}
    return UsageSample(record["at"], Usage(**compute, disk=None if disk == DiskUsage() else disk))
