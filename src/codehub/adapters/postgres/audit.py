"""The audit log: written in the transaction of the change it tells of, read newest first."""

from collections.abc import Mapping, Sequence
from typing import Any

from codehub.adapters.postgres import account_statements as sql
from codehub.adapters.postgres import rows
from codehub.adapters.postgres.connections import AnyConnection, Sessions
from codehub.ports.accounts import AuditEntry
from codehub.ports.stores import Actor


async def append(
    connection: "AnyConnection",
    actor: Actor,
    action: str,
    subject: str,
    details: Mapping[str, Any] | None = None,
) -> None:
    words = [rows.storable_text(word) for word in (actor.name, action, subject)]
    await connection.execute(sql.AUDIT, *words, rows.dumped(dict(details or {})), rows.storable_text(actor.address))


class PostgresAudit:
    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions

    async def append(self, actor: Actor, action: str, subject: str, details: Mapping[str, Any] | None = None) -> None:
        async with self._sessions.writing(actor.epoch) as connection:
            await append(connection, actor, action, subject, details)

    async def entries(
        self, limit: int = 100, *, before: int | None = None, actor: str | None = None, subject: str | None = None
    ) -> Sequence[AuditEntry]:
        async with self._sessions.reading() as connection:
            found = await connection.fetch(sql.AUDIT_ENTRIES, limit, before, actor, subject)
        return [rows.audit_entry(record) for record in found]

    async def forget_older(self, seconds: float, epoch: int | None = None) -> int:
        return await self._sessions.bite_by_bite(sql.FORGET_AUDIT, seconds, epoch)
