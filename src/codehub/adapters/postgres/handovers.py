"""What lives for minutes: tickets to workspace hosts, sign-ins that are away at a provider, failed tries."""

from collections.abc import Collection

import asyncpg

from codehub.adapters.postgres import account_rows as rows
from codehub.adapters.postgres import account_statements as sql
from codehub.adapters.postgres.sessions import Sessions
from codehub.domain.credentials import FAILURES_FADE_SECONDS, wait_seconds
from codehub.domain.errors import NotFound
from codehub.ports.accounts import Ticket, TryKey


class PostgresTickets:
    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions

    async def issue(self, ticket_hash: bytes, ticket: Ticket, lifetime_seconds: float) -> None:
        session_hash = None if ticket.session_id is None else rows.session_hash(ticket.session_id)
        async with self._sessions.writing() as connection:
            try:
                await connection.execute(
                    sql.ISSUE_TICKET,
                    ticket_hash,
                    ticket.user_id,
                    session_hash,
                    ticket.token_id,
                    ticket.workspace_id,
                    ticket.port,
                    ticket.wakes,
                    lifetime_seconds,
                )
            except asyncpg.ForeignKeyViolationError:
                raise NotFound("There is no such user, session or token (any more). Sign in again.") from None

    async def redeem(self, ticket_hash: bytes) -> Ticket | None:
        async with self._sessions.writing() as connection:
            found = await connection.fetchrow(sql.REDEEM_TICKET, ticket_hash)
        return rows.ticket(found) if found else None


class PostgresProviderSignIns:
    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions

    async def begin(self, attempt_hash: bytes, next_path: str, lifetime_seconds: float) -> None:
        async with self._sessions.writing() as connection:
            await connection.execute(sql.BEGIN_PROVIDER_SIGN_IN, attempt_hash, next_path, lifetime_seconds)

    async def finish(self, attempt_hash: bytes) -> str | None:
        async with self._sessions.writing() as connection:
            found = await connection.fetchrow(sql.FINISH_PROVIDER_SIGN_IN, attempt_hash)
        return found["next_path"] if found and found["in_time"] else None


class PostgresSignInTries:
    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions

    async def begin(self, keys: Collection[TryKey]) -> float:
        by_name = {key.key: key for key in keys}
        async with self._sessions.writing() as connection:
            found = await connection.fetch(sql.LOCK_FAILURES, sorted(by_name))
            wait = max((_left(record, by_name[record["key"]]) for record in found), default=0.0)
            if wait <= 0:
                await connection.execute(sql.COUNT_FAILURES, sorted(by_name))
        return max(wait, 0.0)

    async def succeeded(self, cleared: str, given_back: Collection[str] = ()) -> None:
        async with self._sessions.writing() as connection:
            await connection.execute(sql.LOCK_KNOWN_FAILURES, [cleared, *given_back])
            await connection.execute(sql.CLEAR_FAILURES, cleared)
            await connection.execute(sql.GIVE_BACK_TRY, sorted(given_back))


def _left(record: asyncpg.Record, key: TryKey) -> float:
    age: float = record["age_seconds"]
    if age > FAILURES_FADE_SECONDS:
        return 0.0
    return wait_seconds(record["failures"], key.free_tries, key.longest_seconds) - max(age, 0.0)
