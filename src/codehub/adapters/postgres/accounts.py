"""Users, their sessions and tokens. Each change and its audit row are one transaction."""

from collections.abc import Sequence
from datetime import datetime
from uuid import UUID

import asyncpg

from codehub.adapters.postgres import rows
from codehub.adapters.postgres import statements as sql
from codehub.adapters.postgres.connections import Connection, PostgresStore, one_row
from codehub.adapters.postgres.rows import storable_text
from codehub.adapters.postgres.statements import NOW
from codehub.adapters.postgres.stores import append_audit
from codehub.domain.errors import Conflict, LimitReached, NotFound
from codehub.domain.identity import ApiToken, Session, User, account_changes
from codehub.ports.accounts import EndedCredentials, NewToken, NewUser, SessionRules, UserDecision
from codehub.ports.stores import Actor


class PostgresAccounts(PostgresStore):
    # ── users ────────────────────────────────────────────────────────────────────────────────────────────────────────

    async def create_user(self, new: NewUser, actor: Actor) -> User:
        async with self._sessions.writing(actor.epoch) as connection:
            await connection.execute(sql.ACCOUNTS)
            return await _insert(connection, new, actor)

    async def create_first_user(self, new: NewUser, actor: Actor) -> User | None:
        async with self._sessions.writing(actor.epoch) as connection:
            await connection.execute(sql.ACCOUNTS)
            if await connection.fetchval(sql.ANY_USER):
                return None
            return await _insert(connection, new, actor)

    async def user(self, user_id: UUID) -> User | None:
        return _user(await self._sessions.fetchrow(sql.USER, user_id))

    async def user_of_identity(self, issuer: str, subject: str) -> User | None:
        return _user(await self._sessions.fetchrow(sql.USER_OF_IDENTITY, storable_text(issuer), storable_text(subject)))

    async def with_password(self, username: str) -> tuple[User, str | None] | None:
        found = await self._sessions.fetchrow(sql.WITH_PASSWORD, username)
        return (rows.user(found), found["password_hash"]) if found else None

    async def users(self, after: str = "", limit: int = 50) -> Sequence[User]:
        return [rows.user(record) for record in await self._sessions.fetch(sql.USERS, after, limit)]

    async def change_user(self, user_id: UUID, decide: UserDecision, actor: Actor, action: str) -> User:
        async with self._sessions.writing(actor.epoch) as connection:
            await connection.execute(sql.ACCOUNTS)
            before = rows.user(await _locked(connection, user_id))
            others: int = await connection.fetchval(sql.OTHER_ADMINS, user_id)
            now: datetime = await connection.fetchval(NOW)
            wanted = decide(before, others, now)
            if wanted == before:
                return before
            stored = await one_row(
                connection, sql.CHANGE_USER, user_id, wanted.role.value, wanted.disabled_at, wanted.max_running
            )
            after = rows.user(stored)
            if after.disabled_at and not before.disabled_at:
                await connection.fetch(sql.END_SESSIONS, user_id, None)
            await append_audit(connection, actor, action, f"user:{after.username}", account_changes(before, after))
        return after

    async def set_password(
        self,
        user_id: UUID,
        password_hash: str,
        actor: Actor,
        action: str,
        *,
        keep_session: str | None = None,
        replacing: str | None = None,
        revoke_tokens: bool = False,
    ) -> EndedCredentials:
        async with self._sessions.writing(actor.epoch) as connection:
            found = await _locked(connection, user_id)
            if replacing is not None and found["password_hash"] != replacing:
                raise Conflict("The password was changed meanwhile. Sign in again.", "password_changed")
            await connection.execute(sql.SET_PASSWORD, user_id, password_hash)
            kept = None if keep_session is None else rows.session_hash(keep_session)
            ended = [record[0].hex() for record in await connection.fetch(sql.END_SESSIONS, user_id, kept)]
            revoked = await connection.fetch(sql.REVOKE_TOKENS, user_id) if revoke_tokens else []
            details = {"ended_sessions": len(ended), "revoked_tokens": len(revoked)}
            await append_audit(connection, actor, action, f"user:{found['u_username']}", details)
        return EndedCredentials(sorted(ended), sorted(record[0] for record in revoked))

    async def rehash_password(self, user_id: UUID, old_hash: str, new_hash: str) -> None:
        await self._sessions.execute(sql.REHASH_PASSWORD, user_id, old_hash, new_hash)

    # ── sessions ─────────────────────────────────────────────────────────────────────────────────────────────────────

    async def open_session(
        self,
        session_id: str,
        user_id: UUID,
        rules: SessionRules,
        actor: Actor,
        *,
        agent: str = "",
        action: str = "sign_in",
        proved_by: str | None = None,
        proven_at: datetime | None = None,
    ) -> Session:
        async with self._sessions.writing(actor.epoch) as connection:
            user = await connection.fetchrow(sql.ENABLED_USER, user_id, proved_by)
            if user is None:
                raise _no_user(user_id)
            opened = await one_row(
                connection,
                sql.OPEN_SESSION,
                rows.session_hash(session_id),
                user_id,
                rules.absolute_seconds,
                storable_text(actor.address),
                storable_text(agent),
                proven_at,
                rules.fresh_seconds,
            )
            await append_audit(connection, actor, action, f"user:{user['u_username']}", {"session": session_id})
        return rows.session(opened)

    async def prove_session(
        self,
        session_id: str,
        rules: SessionRules,
        actor: Actor,
        *,
        proved_by: str | None = None,
        proven_at: datetime | None = None,
    ) -> bool:
        key = rows.session_hash(session_id)
        async with self._sessions.writing(actor.epoch) as connection:
            user_id = await connection.fetchval(sql.SESSION_OF_USER, key)
            user = await connection.fetchrow(sql.ENABLED_USER, user_id, proved_by)
            if user is None or await connection.fetchval(sql.PROVE_SESSION, key, rules.idle_seconds, proven_at) is None:
                return False
            subject = f"user:{user['u_username']}"
            await append_audit(connection, actor, "prove_session", subject, {"session": session_id})
        return True

    async def session(self, session_id: str, rules: SessionRules) -> tuple[Session, User] | None:
        found = await self._sessions.fetchrow(
            sql.SESSION, rows.session_hash(session_id), rules.idle_seconds, rules.fresh_seconds
        )
        if found is None:
            return None
        if found["long_unseen"]:
            await self._sessions.execute(sql.SEE_SESSION, rows.session_hash(session_id))
        return rows.session(found), rows.user(found)

    async def sessions(self, user_id: UUID, rules: SessionRules) -> Sequence[Session]:
        found = await self._sessions.fetch(sql.SESSIONS, user_id, rules.idle_seconds)
        return [rows.session(record) for record in found]

    async def end_session(self, user_id: UUID, session_id: str, actor: Actor, action: str = "sign_out") -> bool:
        async with self._sessions.writing(actor.epoch) as connection:
            if await connection.fetchval(sql.END_SESSION, user_id, rows.session_hash(session_id)) is None:
                return False
            await append_audit(connection, actor, action, await _subject(connection, user_id), {"session": session_id})
        return True

    # ── tokens ───────────────────────────────────────────────────────────────────────────────────────────────────────

    async def create_token(self, new: NewToken, most: int, actor: Actor) -> ApiToken:
        async with self._sessions.writing(actor.epoch) as connection:
            user = await _locked(connection, new.user_id)
            if await connection.fetchval(sql.COUNT_TOKENS, new.user_id) >= most:
                raise LimitReached(f"You have {most} tokens already. Revoke one that you no longer use.")
            created = await one_row(
                connection,
                sql.CREATE_TOKEN,
                new.id,
                new.user_id,
                new.name,
                new.token_hash,
                sorted(scope.value for scope in new.scopes),
                new.lifetime_seconds,
            )
            token = rows.token(created)
            await append_audit(
                connection,
                actor,
                "create_token",
                f"user:{user['u_username']}",
                {"id": str(token.id), "name": token.name, "scopes": sorted(token.scopes)},
            )
        return token

    async def token(self, token_hash: bytes) -> tuple[ApiToken, User] | None:
        found = await self._sessions.fetchrow(sql.TOKEN, token_hash)
        if found is None:
            return None
        if found["long_unseen"]:
            await self._sessions.execute(sql.USE_TOKEN, found["t_id"])
        return rows.token(found), rows.user(found)

    async def tokens(self, user_id: UUID) -> Sequence[ApiToken]:
        return [rows.token(record) for record in await self._sessions.fetch(sql.TOKENS, user_id)]

    async def revoke_token(self, user_id: UUID, token_id: UUID, actor: Actor) -> bool:
        async with self._sessions.writing(actor.epoch) as connection:
            name = await connection.fetchval(sql.REVOKE_TOKEN, user_id, token_id)
            if name is None:
                return False
            details = {"id": str(token_id), "name": name}
            await append_audit(connection, actor, "revoke_token", await _subject(connection, user_id), details)
        return True

    async def forget_expired(self, rules: SessionRules, epoch: int | None = None) -> int:
        async with self._sessions.writing(epoch) as connection:
            gone: int = await connection.fetchval(sql.FORGET_EXPIRED, rules.idle_seconds)
        return gone


async def _insert(connection: Connection, new: NewUser, actor: Actor) -> User:
    created = await one_row(
        connection,
        sql.CREATE_USER,
        new.id,
        new.username,
        new.role.value,
        new.password_hash,
        None if new.issuer is None else storable_text(new.issuer),
        None if new.subject is None else storable_text(new.subject),
        new.max_running,
    )
    user = rows.user(created)
    await append_audit(connection, actor, "create_user", f"user:{user.username}", {"role": user.role.value})
    return user


async def _locked(connection: Connection, user_id: UUID) -> asyncpg.Record:
    found = await connection.fetchrow(sql.USER_LOCKED, user_id)
    if found is None:
        raise _no_user(user_id)
    return found


async def _subject(connection: Connection, user_id: UUID) -> str:
    found = await connection.fetchrow(sql.USER, user_id)
    return f"user:{found['u_username']}" if found else ""


def _user(record: asyncpg.Record | None) -> User | None:
    return rows.user(record) if record else None


def _no_user(user_id: UUID) -> NotFound:
    return NotFound(f"There is no user {user_id}, or it is disabled.")
