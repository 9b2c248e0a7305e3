"""The ledger: written in the transaction of the change it explains, read newest first."""

from collections.abc import Sequence
from uuid import UUID

from codehub.adapters.postgres import rows
from codehub.adapters.postgres import statements as sql
from codehub.adapters.postgres.connections import Connection, Sessions
from codehub.domain.ledger import LedgerEntry


async def append(connection: Connection, entries: Sequence[LedgerEntry]) -> None:
    if entries:
        await connection.execute(sql.APPEND, *rows.entry_columns(entries))


class PostgresLedger:
    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions

    async def entries(self, workspace_id: UUID, limit: int = 100) -> Sequence[LedgerEntry]:
        async with self._sessions.reading() as connection:
            return [rows.entry(record) for record in await connection.fetch(sql.ENTRIES, workspace_id, limit)]

    async def forget_older(self, seconds: float, epoch: int) -> int:
        return await self._sessions.bite_by_bite(sql.FORGET_ENTRIES, seconds, epoch)
