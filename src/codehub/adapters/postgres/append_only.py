"""The two append-only tables: the ledger of each workspace and the audit log of the installation.

An entry is written in the transaction of the change that it explains, and read newest first. A trigger refuses every
rewriting; only what is older than the retention period is deleted.
"""

from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

from codehub.adapters.postgres import account_statements, rows
from codehub.adapters.postgres import statements as sql
from codehub.adapters.postgres.connections import AnyConnection, Connection, Sessions
from codehub.domain.ledger import LedgerEntry
from codehub.ports.accounts import AuditEntry
from codehub.ports.stores import Actor


async def append_entries(connection: Connection, entries: Sequence[LedgerEntry]) -> None:
    if entries:
        await connection.execute(sql.APPEND, *rows.entry_columns(entries))


class PostgresLedger:
    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions

    async def entries(self, workspace_id: UUID, limit: int = 100) -> Sequence[LedgerEntry]:
        async with self._sessions.reading() as connection:
            return [rows.entry(record) for record in await connection.fetch(sql.ENTRIES, workspace_id, limit)]

    async def forget_older(self, seconds: float, epoch: int) -> int:
        return await self._sessions.delete_in_batches(sql.FORGET_ENTRIES, seconds, epoch)


async def append_audit(
    connection: AnyConnection,
    actor: Actor,
    action: str,
    subject: str,
    details: Mapping[str, Any] | None = None,
) -> None:
    words = [rows.storable_text(word) for word in (actor.name, action, subject, actor.address)]
    await connection.execute(account_statements.AUDIT, *words, rows.dumped(dict(details or {})))


class PostgresAudit:
    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions

    async def append(self, actor: Actor, action: str, subject: str, details: Mapping[str, Any] | None = None) -> None:
        async with self._sessions.writing(actor.epoch) as connection:
            await append_audit(connection, actor, action, subject, details)

    async def entries(
        self, limit: int = 100, *, before: int | None = None, actor: str | None = None, subject: str | None = None
    ) -> Sequence[AuditEntry]:
        async with self._sessions.reading() as connection:
            found = await connection.fetch(account_statements.AUDIT_ENTRIES, limit, before, actor, subject)
        return [rows.audit_entry(record) for record in found]

    async def forget_older(self, seconds: float, epoch: int | None = None) -> int:
        return await self._sessions.delete_in_batches(account_statements.FORGET_AUDIT, seconds, epoch)
