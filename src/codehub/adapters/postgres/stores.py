"""The rows of workspaces, and the tables beside them: the ledger, the audit log, backend identities and templates.

`PostgresSpecs` is what people and timers may write (contract 3): the spec fields, under the row's lock, decided by a
pure function; admissions of the whole installation stand in one queue, so that limits are exact. `PostgresStatuses` is
what the controller may write in one term: each write is guarded by the epoch and by what it was decided on, the
operation and its id or the row's version. Zero rows = stale. Ledger and audit log are append-only: an entry is written
in the transaction of the change that it explains, and a trigger refuses every rewriting.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, astuple, replace
from datetime import datetime
from itertools import chain
from typing import Any
from uuid import UUID

from codehub.adapters.postgres import rows
from codehub.adapters.postgres import statements as sql
from codehub.adapters.postgres.connections import AnyConnection, Connection, PostgresStore, PostgresTermStore, one_row
from codehub.adapters.postgres.rows import readable
from codehub.domain.admission import Slots, holds_slot, overtaken
from codehub.domain.errors import NotFound, Stale
from codehub.domain.gc_rules import RestorePoint
from codehub.domain.ledger import LedgerEntry, entries
from codehub.domain.naming import Backend
from codehub.domain.template import Template
from codehub.domain.workspace import SPEC_FIELDS, STATUS_FIELDS, Workspace
from codehub.ports.accounts import AuditEntry
from codehub.ports.stores import Actor, BackendRecord, SpecDecision

_ACTOR = "controller"


class PostgresSpecs(PostgresStore):
    async def create(self, workspace: Workspace, decide: SpecDecision, actor: Actor) -> Workspace:
        async with self._sessions.writing(actor.epoch) as connection:
            await connection.execute(sql.ADMISSION)
            now: datetime = await connection.fetchval(sql.NOW)
            fresh = replace(workspace, created_at=now, updated_at=now, phase_changed_at=now, version=1)
            row = decide(fresh, await _slots(connection, fresh), now)
            stored = await one_row(connection, sql.INSERT, *rows.parameters(row, sql.FIELDS))
            created = rows.workspace(stored)
            await append_entries(connection, entries(None, created, actor.name, "", now))
        return created

    async def change(
        self, workspace_id: UUID, decide: SpecDecision, actor: Actor, *, reason: str = "", admission: bool = False
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
            stored = await one_row(connection, sql.change(changed), workspace_id, *rows.parameters(wanted, changed))
            after = rows.workspace(stored)
            await append_entries(connection, entries(before, after, actor.name, reason, now))
        return after

    async def get(self, workspace_id: UUID) -> Workspace | None:
        found = await self._sessions.fetchrow(sql.GET, workspace_id)
        return rows.workspace(found) if found else None

    async def touch(self, accessed: Mapping[UUID, datetime], actor: Actor) -> None:
        await self._sessions.execute(sql.TOUCH, list(accessed), list(accessed.values()), epoch=actor.epoch)

    async def hold(self, workspace_id: UUID, holder: str, until: datetime) -> None:
        async with self._sessions.writing() as connection:
            held = await connection.fetchval(sql.HOLD, workspace_id, holder, until)
        if held is None:
            raise NotFound(f"There is no workspace {workspace_id}.")

    async def leases(self) -> Mapping[UUID, datetime]:
        return {record["workspace_id"]: record["until"] for record in await self._sessions.fetch(sql.LEASES)}

    async def release_leases(self, workspace_id: UUID, actor: Actor) -> None:
        await self._sessions.execute(sql.RELEASE_LEASES, workspace_id, epoch=actor.epoch)

    async def idle_candidates(self) -> tuple[Sequence[Workspace], datetime]:
        found = await self._sessions.fetch(sql.IDLE_CANDIDATES)
        return await readable(found), found[-1]["now"]


async def _slots(connection: Connection, asking: Workspace) -> Slots:
    held = await one_row(connection, sql.SLOTS, asking.id, asking.owner_id)
    perhaps = await readable(await connection.fetch(sql.PERHAPS_SLOTS, asking.id))
    more = [row for row in perhaps if holds_slot(row)]
    mine = [row.name for row in more if row.owner_id == asking.owner_id]
    own: int | None = await connection.fetchval(sql.OWN_LIMIT, asking.owner_id)
    owned: int = await connection.fetchval(sql.OWNED, asking.id, asking.owner_id)
    return Slots([*held["mine"], *mine], held["total"] + len(more), own, owned)


class PostgresStatuses(PostgresTermStore):
    async def versions(self) -> Mapping[UUID, int]:
        found = await self._sessions.fetchrow(sql.VERSIONS)
        assert found is not None  # noqa: S101 - an aggregate gives its row
        return dict(zip(found["ids"] or (), found["versions"] or (), strict=True))

    async def active(self) -> Collection[UUID]:
        return [record["id"] for record in await self._sessions.fetch(sql.ACTIVE)]

    async def load(self, ids: Collection[UUID]) -> tuple[Sequence[Workspace], datetime]:
        found = await self._sessions.fetch(sql.LOAD, list(ids))
        return await readable(found), found[-1]["now"]

    async def record(
        self, before: Workspace, after: Workspace, *, reason: str = "", point: RestorePoint | None = None
    ) -> Workspace:
        async with self._sessions.writing(self.epoch) as connection:
            current = await _ours(connection, before)
            if overtaken(before, after, current):
                raise Stale(f"workspace {before.id} is asked to be {current.desired_state} since its start was planned")
            if point is not None:
                await connection.execute(sql.INSERT_RESTORE_POINT, *astuple(point))
            meant = rows.changed_fields(STATUS_FIELDS, before, after)
            changed = rows.changed_fields(meant, current, after)
            if not changed:
                return current
            found = await one_row(connection, sql.record(changed), *_guard(before), *rows.parameters(after, changed))
            stored = rows.workspace(found)
            await append_entries(connection, entries(current, stored, _ACTOR, reason, found["now"]))
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
            explained = [entries(before, after, _ACTOR, "", now) for before, after in written]
            await append_entries(connection, list(chain.from_iterable(explained)))
        return len(written)

    async def pass_safe_point(self, workspace: Workspace) -> Workspace | None:
        async with self._sessions.writing(self.epoch) as connection:
            stored = await connection.fetchrow(sql.PASS_SAFE_POINT, *_guard(workspace))
            if stored is None:
                await _ours(connection, workspace)
                return None
        return rows.workspace(stored)

    async def restore_points(self, workspace_id: UUID) -> Sequence[RestorePoint]:
        return [rows.restore_point(record) for record in await self._sessions.fetch(sql.RESTORE_POINTS, workspace_id)]

    async def release_restore_points(self, workspace: Workspace) -> None:
        async with self._sessions.writing(self.epoch) as connection:
            await _ours(connection, workspace)
            await connection.execute(sql.RELEASE_RESTORE_POINTS, workspace.id)


def _guard(workspace: Workspace) -> tuple[UUID, str, UUID | None]:
    return workspace.id, workspace.operation.value, workspace.op_id


async def _ours(connection: Connection, workspace: Workspace) -> Workspace:
    """The row as it stands, locked until commit. Raises Stale if another operation owns it."""
    found = await connection.fetchrow(sql.STILL_OURS, *_guard(workspace))
    if found is None:
        raise Stale(f"workspace {workspace.id} has moved on from {workspace.operation} {workspace.op_id}")
    return rows.workspace(found)


def _with_status(before: Workspace, after: Workspace) -> Workspace:
    """`before` with the status side of `after`: what the other side wrote is explained by its own entries."""
    return replace(before, **{name: getattr(after, name) for name in STATUS_FIELDS})


def _changed_anywhere(pairs: Collection[tuple[Workspace, Workspace]]) -> list[str]:
    """The fields that changed in any of the rows, in the table's order, so that few different statements are
    prepared."""
    changed = set(chain.from_iterable(rows.changed_fields(STATUS_FIELDS, *pair) for pair in pairs))
    return [name for name in STATUS_FIELDS if name in changed]


async def append_entries(connection: Connection, entries: Sequence[LedgerEntry]) -> None:
    if entries:
        await connection.execute(sql.APPEND, *rows.entry_columns(entries))


class PostgresLedger(PostgresStore):
    async def entries(self, workspace_id: UUID, limit: int = 100) -> Sequence[LedgerEntry]:
        return [rows.entry(record) for record in await self._sessions.fetch(sql.ENTRIES, workspace_id, limit)]

    async def forget_older(self, seconds: float, epoch: int) -> int:
        return await self._sessions.delete_in_batches(sql.FORGET_ENTRIES, seconds, epoch)


async def append_audit(
    connection: AnyConnection, actor: Actor, action: str, subject: str, details: Mapping[str, Any] | None = None
) -> None:
    words = [rows.storable_text(word) for word in (actor.name, action, subject, actor.address)]
    await connection.execute(sql.AUDIT, *words, rows.dumped(dict(details or {})))


class PostgresAudit(PostgresStore):
    async def append(self, actor: Actor, action: str, subject: str, details: Mapping[str, Any] | None = None) -> None:
        async with self._sessions.writing(actor.epoch) as connection:
            await append_audit(connection, actor, action, subject, details)

    async def entries(
        self, limit: int = 100, *, before: int | None = None, actor: str | None = None, subject: str | None = None
    ) -> Sequence[AuditEntry]:
        found = await self._sessions.fetch(sql.AUDIT_ENTRIES, limit, before, actor, subject)
        return [rows.audit_entry(record) for record in found]

    async def forget_older(self, seconds: float, epoch: int | None = None) -> int:
        return await self._sessions.delete_in_batches(sql.FORGET_AUDIT, seconds, epoch)


class PostgresBackendIdentities(PostgresStore):
    async def remembered(self) -> Mapping[Backend, BackendRecord]:
        found = await self._sessions.fetch(sql.BACKEND_IDENTITIES)
        return {Backend(row["backend"]): BackendRecord(row["identity"], row["since"]) for row in found}

    async def adopt(self, backend: Backend, identity: str, epoch: int) -> str:
        async with self._sessions.writing(epoch) as connection:
            await connection.execute(sql.ADOPT_BACKEND, backend.value, identity)
            known: str = await connection.fetchval(sql.BACKEND_IDENTITY, backend.value)
            return known

    async def forget(self, backend: Backend) -> bool:
        async with self._sessions.writing() as connection:
            return await connection.fetchval(sql.FORGET_BACKEND, backend.value) is not None


class PostgresTemplates(PostgresStore):
    async def get(self, name: str) -> Template | None:
        found = await self._sessions.fetchrow(sql.TEMPLATE, name)
        return rows.template(found) if found else None

    async def all(self) -> Sequence[Template]:
        return [rows.template(record) for record in await self._sessions.fetch(sql.TEMPLATES)]

    async def put(self, template: Template, actor: Actor) -> Template:
        values = asdict(template)
        async with self._sessions.writing(actor.epoch) as connection:
            stored = await one_row(
                connection,
                sql.PUT_TEMPLATE,
                values["name"],
                values["description"],
                values["image_ref"],
                rows.dumped(values["env"]),
                values["cpu"],
                values["memory_bytes"],
                values["disk_bytes"],
                values["pids"],
                template.disabled_at is not None,
                values["sudo"],
                rows.dumped(template.kubernetes.to_json()),
            )
            # Not the environment: people put secrets there.
            details = {
                "image_ref": template.image_ref,
                "sudo": template.sudo,
                "disabled": template.disabled_at is not None,
            }
            await append_audit(connection, actor, "put_template", f"template:{template.name}", details)
        return rows.template(stored)
