"""Registered SSH public keys. Each change and its audit row are one transaction."""

from collections.abc import Sequence
from uuid import UUID

import asyncpg

from codehub.adapters.postgres import rows
from codehub.adapters.postgres import statements as sql
from codehub.adapters.postgres.connections import PostgresStore, one_row
from codehub.adapters.postgres.stores import append_audit
from codehub.domain.authorized_keys import AuthorizedKey, PublicKey, refuse_too_many_keys
from codehub.domain.errors import NotFound
from codehub.domain.identity import User
from codehub.domain.ledger import AuditAction
from codehub.ports.authorized_keys import NewAuthorizedKey
from codehub.ports.stores import Actor


class PostgresAuthorizedKeys(PostgresStore):
    async def add(self, new: NewAuthorizedKey, most: int, actor: Actor) -> AuthorizedKey:
        async with self._sessions.writing(actor.epoch) as connection:
            user = await connection.fetchrow(sql.USER_LOCKED, new.user_id)
            if user is None:
                raise NotFound(f"There is no user {new.user_id}.")
            refuse_too_many_keys(await connection.fetchval(sql.COUNT_AUTHORIZED_KEYS, new.user_id), most)
            stored = await one_row(
                connection,
                sql.ADD_AUTHORIZED_KEY,
                new.id,
                new.user_id,
                new.name,
                new.key.algorithm,
                new.key.data,
                new.key.comment,
                new.key.fingerprint,
            )
            details = {"name": new.name, "fingerprint": new.key.fingerprint}
            await append_audit(connection, actor, AuditAction.ADD_SSH_KEY, f"user:{user['u_username']}", details)
        return _key(stored)

    async def of_user(self, user_id: UUID) -> Sequence[AuthorizedKey]:
        return [_key(record) for record in await self._sessions.fetch(sql.AUTHORIZED_KEYS, user_id)]

    async def remove(self, user_id: UUID, key_id: UUID, actor: Actor) -> bool:
        async with self._sessions.writing(actor.epoch) as connection:
            # The user first, as `add` does: two that lock both in different orders would wait for each other.
            user = await connection.fetchrow(sql.USER_LOCKED, user_id)
            removed = await connection.fetchrow(sql.REMOVE_AUTHORIZED_KEY, user_id, key_id)
            if user is None or removed is None:
                return False
            details = {"name": removed["name"], "fingerprint": removed["fingerprint"]}
            await append_audit(connection, actor, AuditAction.REMOVE_SSH_KEY, f"user:{user['u_username']}", details)
        return True

    async def find(self, fingerprint: str) -> tuple[AuthorizedKey, User] | None:
        found = await self._sessions.fetchrow(sql.FIND_AUTHORIZED_KEY, fingerprint)
        return (_key(found), rows.user(found)) if found else None

    async def record_use(self, key_id: UUID) -> None:
        await self._sessions.execute(sql.USE_AUTHORIZED_KEY, key_id)


def _key(record: asyncpg.Record) -> AuthorizedKey:
    key = PublicKey(record["algorithm"], record["data"], record["comment"])
    return AuthorizedKey(
        record["id"], record["user_id"], record["name"], key, record["created_at"], record["last_used_at"]
    )
