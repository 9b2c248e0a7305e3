"""The collector's part of the database: one snapshot to judge by, and, for the leader, marks and requests.

In the snapshot a row that cannot be read is an error, unlike in the controller's passes: left out, it would protect
nothing.
"""

import asyncio
import json
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import asyncpg

from codehub.adapters.postgres import rows
from codehub.adapters.postgres import statements as sql
from codehub.adapters.postgres.connections import PostgresStore, PostgresTermStore
from codehub.adapters.postgres.rows import ROWS_AT_ONCE
from codehub.domain.errors import BackendError
from codehub.domain.gc_rules import REQUEST_LIFETIME_SECONDS, BackendResource, ResourceKind, RestorePoint
from codehub.domain.workspace import Workspace
from codehub.ports.collector import (
    CollectionRequest,
    CollectorData,
    Mark,
    RestoredDatabase,
    SweepDecision,
)


class PostgresCollectorView(PostgresStore):
    async def read(self) -> CollectorData:
        async with self._sessions.snapshot() as connection:
            unpurged = await connection.fetch(sql.UNPURGED)
            purged = await connection.fetch(sql.PURGED)
            archives = await connection.fetch(sql.ALL_RESTORE_POINTS)
            marks = await connection.fetch(sql.MARKS)
            newest: datetime | None = await connection.fetchval(sql.NEWEST_ENTRY)
            oldest: datetime | None = await connection.fetchval(sql.OLDEST_WORKSPACE)
            restored = await connection.fetchrow(sql.RESTORED)
            now: datetime = await connection.fetchval(sql.NOW)
        workspaces: list[Workspace] = []
        for number, record in enumerate(unpurged, 1):
            if number % ROWS_AT_ONCE == 0:
                await asyncio.sleep(0)
            workspaces.append(_certain(record))
        points: defaultdict[UUID, list[RestorePoint]] = defaultdict(list)
        for record in archives:
            points[record["workspace_id"]].append(rows.restore_point(record))
        return CollectorData(
            workspaces=workspaces,
            points=dict(points),
            marks=[_mark(record) for record in marks],
            newest_entry_at=newest,
            oldest_workspace_at=oldest,
            now=now,
            purged=frozenset(record["id"] for record in purged),
            restored=RestoredDatabase(**restored) if restored else None,
        )

    async def recorded(self, operations: Collection[UUID]) -> Collection[UUID]:
        found = await self._sessions.fetch(sql.RECORDED_OPERATIONS, list(operations))
        return frozenset(record["op_id"] for record in found)

    async def ask(self, asked_by: str, waived: Collection[str]) -> int:
        async with self._sessions.writing() as connection:
            request_id: int = await connection.fetchval(sql.ASK_COLLECTION, asked_by, list(waived))
            return request_id

    async def request(self, request_id: int) -> CollectionRequest | None:
        found = await self._sessions.fetchrow(sql.COLLECTION_REQUEST, request_id)
        return _request(found) if found else None


class PostgresCollectorMarks(PostgresTermStore):
    async def remark(self, found: Mapping[BackendResource, str]) -> Sequence[Mark]:
        columns = (
            [resource.kind.value for resource in found],
            [resource.name for resource in found],
            [resource.workspace_id for resource in found],
            list(found.values()),
        )
        async with self._sessions.writing(self.epoch) as connection:
            await connection.execute(sql.UNMARK_OTHERS, *columns[:2])
            await connection.execute(sql.MARK, *columns)
            return [_mark(record) for record in await connection.fetch(sql.MARKS)]

    async def give_up(self, resource: BackendResource, decide: SweepDecision) -> bool:
        async with self._sessions.writing(self.epoch) as connection:
            found = await connection.fetchrow(sql.GET_LOCKED, resource.workspace_id)
            archives = await connection.fetch(sql.RESTORE_POINTS, resource.workspace_id)
            now: datetime = await connection.fetchval(sql.NOW)
            row = _certain(found) if found else None
            if not decide(row, [rows.restore_point(record) for record in archives], now):
                return False
            await connection.execute(sql.UNMARK, resource.kind.value, resource.name)
            if resource.kind is ResourceKind.OBJECT:
                await connection.execute(sql.FORGET_RESTORE_POINT, resource.name)
        return True

    async def pending(self) -> CollectionRequest | None:
        found = await self._sessions.fetchrow(sql.PENDING_COLLECTION, timedelta(seconds=REQUEST_LIFETIME_SECONDS))
        return _request(found) if found else None

    async def finish(self, request_id: int, report: Mapping[str, Any]) -> None:
        await self._sessions.execute(sql.FINISH_COLLECTION, request_id, json.dumps(report), epoch=self.epoch)


def _certain(record: asyncpg.Record) -> Workspace:
    try:
        return rows.workspace(record)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise BackendError(f"The row of workspace {record['id']} cannot be read: {error!r}") from error


def _mark(record: asyncpg.Record) -> Mark:
    resource = BackendResource(ResourceKind(record["kind"]), record["name"], record["workspace_id"])
    return Mark(resource, record["reason"], record["marked_at"])


def _request(record: asyncpg.Record) -> CollectionRequest:
    report = record["report"]
    return CollectionRequest(
        record["id"], record["asked_by"], tuple(record["waived"]), json.loads(report) if report else None
    )
