"""Requests that were sent before."""

import json
from collections.abc import Mapping
from typing import Any
from uuid import UUID

import asyncpg

from codehub.adapters.postgres import account_statements as sql
from codehub.adapters.postgres.rows import dumped, storable_text
from codehub.adapters.postgres.sessions import Sessions
from codehub.domain.errors import Conflict, NotFound
from codehub.ports.accounts import Claim


class PostgresIdempotencyKeys:
    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions

    async def claim(self, user_id: UUID, key: str, request_hash: bytes, workspace_id: UUID) -> Claim:
        key = storable_text(key)
        while True:
            async with self._sessions.writing() as connection:
                try:
                    mine = await connection.fetchval(sql.CLAIM_KEY, user_id, key, request_hash, workspace_id)
                except asyncpg.ForeignKeyViolationError:
                    raise NotFound(f"There is no user {user_id}.") from None
                if mine is not None:
                    return Claim(workspace_id, None, first=True)
                found = await connection.fetchrow(sql.CLAIMED_KEY, user_id, key)
            if found is not None:
                return _claimed(found, request_hash)
            # Released between the two statements: it is free again.

    async def answer(self, user_id: UUID, key: str, response: Mapping[str, Any]) -> None:
        async with self._sessions.writing() as connection:
            await connection.execute(sql.ANSWER_KEY, user_id, storable_text(key), dumped(dict(response)))

    async def release(self, user_id: UUID, key: str) -> None:
        async with self._sessions.writing() as connection:
            await connection.execute(sql.RELEASE_KEY, user_id, storable_text(key))

    async def forget_older(self, seconds: float, epoch: int | None = None) -> int:
        return await self._sessions.bite_by_bite(sql.FORGET_KEYS, seconds, epoch)


def _claimed(record: asyncpg.Record, request_hash: bytes) -> Claim:
    if record["request_hash"] != request_hash:
        raise Conflict(
            "This Idempotency-Key was used for another request. Send a new key with a new request.",
            "idempotency_key_reused",
        )
    response = json.loads(record["response"]) if record["response"] is not None else None
    return Claim(record["workspace_id"], response, first=False)
