"""Who was let in at a workspace's own host. Asked on every request there, so a look is one statement, and being seen is
written once in a while.
"""

import asyncpg

from codehub.adapters.postgres import account_rows as rows
from codehub.adapters.postgres import account_statements as sql
from codehub.adapters.postgres.sessions import Sessions
from codehub.ports.accounts import SessionRules, Ticket, Visit


class PostgresVisits:
    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions

    async def open(self, visit_hash: bytes, ticket: Ticket, lifetime_seconds: float) -> bool:
        session_hash = None if ticket.session_id is None else rows.session_hash(ticket.session_id)
        async with self._sessions.writing() as connection:
            try:
                opened = await connection.fetchval(
                    sql.OPEN_VISIT,
                    visit_hash,
                    ticket.user_id,
                    session_hash,
                    ticket.token_id,
                    ticket.workspace_id,
                    ticket.port,
                    lifetime_seconds,
                )
            except asyncpg.ForeignKeyViolationError:  # the session ended in this very moment
                return False
        return opened is not None

    async def visit(self, visit_hash: bytes, rules: SessionRules) -> Visit | None:
        async with self._sessions.reading() as connection:
            found = await connection.fetchrow(sql.VISIT, visit_hash, rules.idle_seconds)
        if found is None:
            return None
        if found["session_long_unseen"]:
            async with self._sessions.writing() as connection:
                await connection.execute(sql.SEE_SESSION, found["session_hash"])
        if found["token_long_unseen"]:
            async with self._sessions.writing() as connection:
                await connection.execute(sql.USE_TOKEN, found["token_id"])
        return rows.visit(found)
