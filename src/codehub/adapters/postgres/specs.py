"""What people and timers may write (contract 3): the spec fields, under the row's lock, decided by a pure function.

Whoever may end up running stands in one line for all of the installation, so that limits are exact.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from uuid import UUID

from codehub.adapters.postgres import ledger, rows
from codehub.adapters.postgres import statements as sql
from codehub.adapters.postgres.readable import readable
from codehub.adapters.postgres.sessions import Connection, Sessions
from codehub.domain.admission import Slots, holds_slot
from codehub.domain.errors import NotFound
from codehub.domain.ledger import entries
from codehub.domain.workspace import SPEC_FIELDS, Workspace
from codehub.ports.stores import Actor, SpecDecision


class PostgresSpecs:
    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions

    async def create(self, workspace: Workspace, decide: SpecDecision, actor: Actor) -> Workspace:
        async with self._sessions.writing(actor.epoch) as connection:
            await connection.execute(sql.ADMISSION)
            now: datetime = await connection.fetchval(sql.NOW)
            fresh = replace(workspace, created_at=now, updated_at=now, phase_changed_at=now, version=1)
            row = decide(fresh, await _slots(connection, fresh), now)
            stored = await connection.fetchrow(sql.INSERT, *rows.parameters(row, sql.FIELDS))
            assert stored is not None  # noqa: S101 - INSERT … RETURNING gives its row
            created = rows.workspace(stored)
            await ledger.append(connection, entries(None, created, actor.name, "", now))
        return created

    async def change(
        self,
        workspace_id: UUID,
        decide: SpecDecision,
        actor: Actor,
        *,
        reason: str = "",
        admission: bool = False,
    ) -> Workspace:
        async with self._sessions.writing(actor.epoch) as connection:
            if admission:
                await connection.execute(sql.ADMISSION)
            found = await connection.fetchrow(sql.GET_LOCKED, workspace_id)
            if found is None:
                raise NotFound(f"There is no workspace {workspace_id}.")
            before = rows.workspace(found)
            slots = await _slots(connection, before) if admission else Slots()
            now: datetime = await connection.fetchval(sql.NOW)
            wanted = decide(before, slots, now)
            changed = rows.changed_fields(SPEC_FIELDS, before, wanted)
            if not changed:
                return before
            stored = await connection.fetchrow(sql.change(changed), workspace_id, *rows.parameters(wanted, changed))
            assert stored is not None  # noqa: S101 - the row is locked
            after = rows.workspace(stored)
            await ledger.append(connection, entries(before, after, actor.name, reason, now))
        return after

    async def get(self, workspace_id: UUID) -> Workspace | None:
        async with self._sessions.reading() as connection:
            found = await connection.fetchrow(sql.GET, workspace_id)
        return rows.workspace(found) if found else None

    async def touch(self, accessed: Mapping[UUID, datetime], actor: Actor) -> None:
        async with self._sessions.writing(actor.epoch) as connection:
            await connection.execute(sql.TOUCH, list(accessed), list(accessed.values()))

    async def hold(self, workspace_id: UUID, holder: str, until: datetime) -> None:
        async with self._sessions.writing() as connection:
            held = await connection.fetchval(sql.HOLD, workspace_id, holder, until)
        if held is None:
            raise NotFound(f"There is no workspace {workspace_id}.")

    async def leases(self) -> Mapping[UUID, datetime]:
        async with self._sessions.reading() as connection:
            return {record["workspace_id"]: record["until"] for record in await connection.fetch(sql.LEASES)}

    async def release_leases(self, workspace_id: UUID, actor: Actor) -> None:
        async with self._sessions.writing(actor.epoch) as connection:
            await connection.execute(sql.RELEASE_LEASES, workspace_id)

    async def idle_candidates(self) -> tuple[Sequence[Workspace], datetime]:
        async with self._sessions.reading() as connection:
            found = await connection.fetch(sql.IDLE_CANDIDATES)
        return await readable(found), found[-1]["now"]


async def _slots(connection: Connection, asking: Workspace) -> Slots:
    held = await connection.fetchrow(sql.SLOTS, asking.id, asking.owner_id)
    assert held is not None  # noqa: S101 - an aggregate gives its row
    perhaps = await readable(await connection.fetch(sql.PERHAPS_SLOTS, asking.id))
    more = [row for row in perhaps if holds_slot(row)]
    mine = [row.name for row in more if row.owner_id == asking.owner_id]
    own: int | None = await connection.fetchval(sql.OWN_LIMIT, asking.owner_id)
    owned: int = await connection.fetchval(sql.OWNED, asking.id, asking.owner_id)
    return Slots([*held["mine"], *mine], held["total"] + len(more), own, owned)
