"""Short-lived secrets: tickets to workspace hosts, visits there, sign-ins that are away at a provider, failed tries,
and the keys of repeated requests.

A visit is asked for on every request at a workspace's own host, so a look is one statement, and that its session was
seen is written once in a while.
"""

import json
from collections.abc import Collection, Mapping
from typing import Any
from uuid import UUID

import asyncpg

from codehub.adapters.postgres import rows
from codehub.adapters.postgres import statements as sql
from codehub.adapters.postgres.connections import PostgresStore
from codehub.adapters.postgres.rows import dumped, storable_text
from codehub.domain.credentials import FAILURES_FADE_SECONDS, wait_seconds
from codehub.domain.errors import Conflict, NotFound
from codehub.ports.accounts import SessionRules, Ticket, TryKey, Visit
from codehub.ports.stores import IdempotencyClaim


class PostgresSignInState(PostgresStore):
    async def begin_try(self, keys: Collection[TryKey]) -> float:
        by_name = {key.key: key for key in keys}
        async with self._sessions.writing() as connection:
            found = await connection.fetch(sql.LOCK_FAILURES, sorted(by_name))
            wait = max((_left(record, by_name[record["key"]]) for record in found), default=0.0)
            if wait <= 0:
                await connection.execute(sql.COUNT_FAILURES, sorted(by_name))
        return max(wait, 0.0)

    async def clear_tries(self, cleared: str, given_back: Collection[str] = ()) -> None:
        async with self._sessions.writing() as connection:
            await connection.execute(sql.LOCK_KNOWN_FAILURES, [cleared, *given_back])
            await connection.execute(sql.CLEAR_FAILURES, cleared)
            await connection.execute(sql.GIVE_BACK_TRY, sorted(given_back))

    async def begin_provider_sign_in(self, attempt_hash: bytes, next_path: str, lifetime_seconds: float) -> None:
        await self._sessions.execute(sql.BEGIN_PROVIDER_SIGN_IN, attempt_hash, next_path, lifetime_seconds)

    async def finish_provider_sign_in(self, attempt_hash: bytes) -> str | None:
        async with self._sessions.writing() as connection:
            found = await connection.fetchrow(sql.FINISH_PROVIDER_SIGN_IN, attempt_hash)
        return found["next_path"] if found and found["in_time"] else None

    async def issue_ticket(self, ticket_hash: bytes, ticket: Ticket, lifetime_seconds: float) -> None:
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

    async def redeem_ticket(self, ticket_hash: bytes) -> Ticket | None:
        async with self._sessions.writing() as connection:
            found = await connection.fetchrow(sql.REDEEM_TICKET, ticket_hash)
        return rows.ticket(found) if found else None

    async def open_visit(self, visit_hash: bytes, ticket: Ticket, lifetime_seconds: float) -> bool:
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
        found = await self._sessions.fetchrow(sql.VISIT, visit_hash, rules.idle_seconds)
        if found is None:
            return None
        if found["session_long_unseen"]:
            await self._sessions.execute(sql.SEE_SESSION, found["session_hash"])
        if found["token_long_unseen"]:
            await self._sessions.execute(sql.USE_TOKEN, found["token_id"])
        return rows.visit(found)


def _left(record: asyncpg.Record, key: TryKey) -> float:
    age: float = record["age_seconds"]
    if age > FAILURES_FADE_SECONDS:
        return 0.0
    return wait_seconds(record["failures"], key.free_tries, key.longest_seconds) - max(age, 0.0)


class PostgresIdempotencyKeys(PostgresStore):
    async def claim(self, user_id: UUID, key: str, request_hash: bytes, workspace_id: UUID) -> IdempotencyClaim:
        key = storable_text(key)
        while True:
            async with self._sessions.writing() as connection:
                try:
                    mine = await connection.fetchval(sql.CLAIM_KEY, user_id, key, request_hash, workspace_id)
                except asyncpg.ForeignKeyViolationError:
                    raise NotFound(f"There is no user {user_id}.") from None
                if mine is not None:
                    return IdempotencyClaim(workspace_id, None, first=True)
                found = await connection.fetchrow(sql.CLAIMED_KEY, user_id, key)
            if found is not None:
                return _claimed(found, request_hash)
            # Released between the two statements: it is free again.

    async def answer(self, user_id: UUID, key: str, response: Mapping[str, Any]) -> None:
        await self._sessions.execute(sql.ANSWER_KEY, user_id, storable_text(key), dumped(dict(response)))

    async def release(self, user_id: UUID, key: str) -> None:
        await self._sessions.execute(sql.RELEASE_KEY, user_id, storable_text(key))

    async def forget_older(self, seconds: float, epoch: int | None = None) -> int:
        return await self._sessions.delete_in_batches(sql.FORGET_KEYS, seconds, epoch)


def _claimed(record: asyncpg.Record, request_hash: bytes) -> IdempotencyClaim:
    if record["request_hash"] != request_hash:
        raise Conflict(
            "This Idempotency-Key was used for another request. Send a new key with a new request.",
            "idempotency_key_reused",
        )
    response = json.loads(record["response"]) if record["response"] is not None else None
    return IdempotencyClaim(record["workspace_id"], response, first=False)
