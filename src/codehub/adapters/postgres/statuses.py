"""What the controller may write (contract 3), in one term: the epoch is read under a share lock in each transaction.

Each write is guarded by what it was decided on, the operation and its id or the row's version; zero rows = stale.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from itertools import chain
from uuid import UUID

from codehub.adapters.postgres import ledger, rows
from codehub.adapters.postgres import statements as sql
from codehub.adapters.postgres.readable import readable
from codehub.adapters.postgres.sessions import Connection, Sessions
from codehub.domain.admission import overtaken
from codehub.domain.errors import Stale
from codehub.domain.gc_rules import RestorePoint
from codehub.domain.ledger import entries
from codehub.domain.workspace import STATUS_FIELDS, Workspace

ACTOR = "controller"


class PostgresStatuses:
    def __init__(self, sessions: Sessions, epoch: int) -> None:
        self._sessions = sessions
        self.epoch = epoch

    async def versions(self) -> Mapping[UUID, int]:
        async with self._sessions.reading() as connection:
            found = await connection.fetchrow(sql.VERSIONS)
        assert found is not None  # noqa: S101 - an aggregate gives its row
        return dict(zip(found["ids"] or (), found["versions"] or (), strict=True))

    async def active(self) -> Collection[UUID]:
        async with self._sessions.reading() as connection:
            return [record["id"] for record in await connection.fetch(sql.ACTIVE)]

    async def load(self, ids: Collection[UUID]) -> tuple[Sequence[Workspace], datetime]:
        async with self._sessions.reading() as connection:
            found = await connection.fetch(sql.LOAD, list(ids))
        return await readable(found), found[-1]["now"]

    async def record(
        self,
        before: Workspace,
        after: Workspace,
        *,
        reason: str = "",
        point: RestorePoint | None = None,
    ) -> Workspace:
        async with self._sessions.writing(self.epoch) as connection:
            current = await _ours(connection, before)
            if overtaken(before, after, current):
                raise Stale(f"workspace {before.id} is wished {current.desired_state} since its start was planned")
            if point is not None:
                await connection.execute(sql.INSERT_RESTORE_POINT, *rows.restore_point_parameters(point))
            meant = rows.changed_fields(STATUS_FIELDS, before, after)
            changed = rows.changed_fields(meant, current, after)
            if not changed:
                return current
            found = await connection.fetchrow(sql.record(changed), *_guard(before), *rows.parameters(after, changed))
            assert found is not None  # noqa: S101 - the row is locked
            stored = rows.workspace(found)
            await ledger.append(connection, entries(current, stored, ACTOR, reason, found["now"]))
        return stored

    async def record_observations(self, changes: Sequence[tuple[Workspace, Workspace]]) -> int:
        pairs = {before.id: (before, _with_status(before, after)) for before, after in changes}
        changed = _changed_anywhere(pairs.values())
        if not changed:
            return 0
        observed = [after for before, after in pairs.values() if after != before]
        async with self._sessions.writing(self.epoch) as connection:
            seen = rows.as_json(observed, ["id", "version", *changed])
            written = [pairs[record["id"]] for record in await connection.fetch(sql.record_observations(changed), seen)]
            now: datetime = await connection.fetchval(sql.NOW)
            explained = [entries(before, after, ACTOR, "", now) for before, after in written]
            await ledger.append(connection, list(chain.from_iterable(explained)))
        return len(written)

    async def pass_safe_point(self, workspace: Workspace) -> Workspace | None:
        async with self._sessions.writing(self.epoch) as connection:
            stored = await connection.fetchrow(sql.PASS_SAFE_POINT, *_guard(workspace))
            if stored is None:
                await _ours(connection, workspace)
                return None
        return rows.workspace(stored)

    async def restore_points(self, workspace_id: UUID) -> Sequence[RestorePoint]:
        async with self._sessions.reading() as connection:
            return [rows.restore_point(record) for record in await connection.fetch(sql.RESTORE_POINTS, workspace_id)]

    async def release_restore_points(self, workspace: Workspace) -> None:
        async with self._sessions.writing(self.epoch) as connection:
            await _ours(connection, workspace)
            await connection.execute(sql.RELEASE_RESTORE_POINTS, workspace.id)


def _guard(workspace: Workspace) -> tuple[UUID, str, UUID | None]:
    return workspace.id, workspace.operation.value, workspace.op_id


async def _ours(connection: Connection, workspace: Workspace) -> Workspace:
    """The row as it stands, ours until commit."""
    found = await connection.fetchrow(sql.STILL_OURS, *_guard(workspace))
    if found is None:
        raise Stale(f"workspace {workspace.id} has moved on from {workspace.operation} {workspace.op_id}")
    return rows.workspace(found)


def _with_status(before: Workspace, after: Workspace) -> Workspace:
    """Only the status side of the difference: what the other side wrote is explained by its own entries."""
    return replace(before, **{name: getattr(after, name) for name in STATUS_FIELDS})


def _changed_anywhere(pairs: Collection[tuple[Workspace, Workspace]]) -> list[str]:
    """The union, in the table's order, so that few different statements are prepared."""
    changed = set(chain.from_iterable(rows.changed_fields(STATUS_FIELDS, *pair) for pair in pairs))
    return [name for name in STATUS_FIELDS if name in changed]
