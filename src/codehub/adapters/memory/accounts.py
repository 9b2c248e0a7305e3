"""Users, sessions, tokens, templates, repeated requests and the audit log in memory."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, TypeVar
from uuid import UUID

from codehub.adapters.memory.database_state import AccountStore, AccountTables, StoredKey
from codehub.adapters.memory.fault_injection import Network
from codehub.adapters.memory.sign_in import MemorySignInState
from codehub.domain.credentials import FAILURES_FADE_SECONDS
from codehub.domain.errors import Conflict, LimitReached, NotFound
from codehub.domain.identity import ApiToken, Role, Session, User, account_changes
from codehub.domain.template import Template
from codehub.ports.accounts import (
    AuditEntry,
    EndedCredentials,
    NewToken,
    NewUser,
    SessionRules,
    UserDecision,
)
from codehub.ports.stores import Actor, IdempotencyClaim

T = TypeVar("T")


class MemoryTemplates(AccountStore):
    async def get(self, name: str) -> Template | None:
        return await self._network.call("templates.get", lambda: self._state.templates.get(name))

    async def all(self) -> Sequence[Template]:
        return await self._network.call(
            "templates.all", lambda: sorted(self._state.templates.values(), key=lambda template: template.name)
        )

    async def put(self, template: Template, actor: Actor) -> Template:
        def write() -> Template:
            now, before = self._state.now(), self._state.templates.get(template.name)
            since = (before.disabled_at if before else None) or now
            stored = replace(
                template,
                created_at=before.created_at if before else now,
                updated_at=now,
                disabled_at=since if template.disabled_at else None,
            )
            self._state.templates[stored.name] = stored
            # Not the environment: people put secrets there.
            details = {"image_ref": stored.image_ref, "disabled": stored.disabled_at is not None}
            self._state.append_audit(actor, "put_template", f"template:{stored.name}", details)
            return stored

        return await self._network.call("templates.put", write)


class MemoryIdempotencyKeys(AccountStore):
    async def claim(self, user_id: UUID, key: str, request_hash: bytes, workspace_id: UUID) -> IdempotencyClaim:
        def take() -> IdempotencyClaim:
            self._state.user(user_id)
            known = self._state.keys.get((user_id, key))
            if known is None:
                self._state.keys[user_id, key] = StoredKey(request_hash, workspace_id, self._state.now())
                return IdempotencyClaim(workspace_id, None, first=True)
            if known.request_hash != request_hash:
                raise Conflict(
                    "This Idempotency-Key was used for another request. Send a new key with a new request.",
                    "idempotency_key_reused",
                )
            return IdempotencyClaim(known.workspace_id, known.response, first=False)

        return await self._network.call("idempotency_keys.claim", take)

    async def answer(self, user_id: UUID, key: str, response: Mapping[str, Any]) -> None:
        def write() -> None:
            known = self._state.keys.get((user_id, key))
            if known is not None and known.response is None:
                known.response = dict(response)

        await self._network.call("idempotency_keys.answer", write)

    async def release(self, user_id: UUID, key: str) -> None:
        def free() -> None:
            known = self._state.keys.get((user_id, key))
            if known is not None and known.response is None:
                del self._state.keys[user_id, key]

        await self._network.call("idempotency_keys.release", free)

    async def forget_older(self, seconds: float, epoch: int | None = None) -> int:
        def sweep() -> int:
            oldest = self._state.now() - timedelta(seconds=seconds)
            gone = [name for name, stored in self._state.keys.items() if stored.created_at < oldest]
            for name in gone:
                del self._state.keys[name]
            return len(gone)

        return await self._state.within(epoch, self._network, "idempotency_keys.forget_older", sweep)


class MemoryAudit(AccountStore):
    async def append(self, actor: Actor, action: str, subject: str, details: Mapping[str, Any] | None = None) -> None:
        await self._network.call("audit.append", lambda: self._state.append_audit(actor, action, subject, details))

    async def entries(
        self, limit: int = 100, *, before: int | None = None, actor: str | None = None, subject: str | None = None
    ) -> Sequence[AuditEntry]:
        def read() -> list[AuditEntry]:
            wanted = [
                entry
                for entry in reversed(self._state.audit)
                if (before is None or entry.id < before)
                and (actor is None or entry.actor == actor)
                and (subject is None or entry.subject == subject)
            ]
            return wanted[:limit]

        return await self._network.call("audit.entries", read)

    async def forget_older(self, seconds: float, epoch: int | None = None) -> int:
        def sweep() -> int:
            oldest = self._state.now() - timedelta(seconds=seconds)
            kept = [entry for entry in self._state.audit if entry.at >= oldest]
            gone = len(self._state.audit) - len(kept)
            self._state.audit[:] = kept
            return gone

        return await self._state.within(epoch, self._network, "audit.forget_older", sweep)


class MemoryAccountDatabase:
    """Hands out what PostgresDatabase does, under the same names."""

    def __init__(self, state: AccountTables | None = None, network: Network | None = None) -> None:
        self.state = state or AccountTables()
        self._network = network or Network()

    def accounts(self) -> "MemoryAccounts":
        return MemoryAccounts(self.state, self._network)

    def sign_in_state(self) -> MemorySignInState:
        return MemorySignInState(self.state, self._network)

    def audit(self) -> MemoryAudit:
        return MemoryAudit(self.state, self._network)

    def templates(self) -> MemoryTemplates:
        return MemoryTemplates(self.state, self._network)

    def idempotency_keys(self) -> MemoryIdempotencyKeys:
        return MemoryIdempotencyKeys(self.state, self._network)


class MemoryAccounts(AccountStore):
    async def _call(self, name: str, work: Callable[[], T]) -> T:
        return await self._network.call(f"accounts.{name}", work)

    # ── people ───────────────────────────────────────────────────────────────────────────────────────────────────────

    async def create_user(self, new: NewUser, actor: Actor) -> User:
        return await self._call("create_user", lambda: self._insert(new, actor))

    async def create_first_user(self, new: NewUser, actor: Actor) -> User | None:
        return await self._call("create_first_user", lambda: None if self._state.users else self._insert(new, actor))

    def _insert(self, new: NewUser, actor: Actor) -> User:
        people = self._state.users.values()
        if new.id in self._state.users:
            raise Conflict("There is a user of that id already.", "id_taken")
        if any(user.username == new.username for user in people):
            raise Conflict("That username is taken.", "username_taken")
        identity = (new.issuer, new.subject)
        if new.issuer is not None and any((user.issuer, user.subject) == identity for user in people):
            raise Conflict("Somebody else signs in with that identity.", "identity_taken")
        user = User(
            id=new.id,
            username=new.username,
            role=new.role,
            created_at=self._state.now(),
            max_running=new.max_running,
            issuer=new.issuer,
            subject=new.subject,
            has_password=new.password_hash is not None,
        )
        self._state.users[user.id] = user
        if new.password_hash is not None:
            self._state.password_hashes[user.id] = new.password_hash
        self._state.append_audit(actor, "create_user", f"user:{user.username}", {"role": user.role.value})
        return user

    async def user(self, user_id: UUID) -> User | None:
        return await self._call("user", lambda: self._state.users.get(user_id))

    async def user_of_identity(self, issuer: str, subject: str) -> User | None:
        def find() -> User | None:
            people = self._state.users.values()
            return next((user for user in people if (user.issuer, user.subject) == (issuer, subject)), None)

        return await self._call("user_of_identity", find)

    async def with_password(self, username: str) -> tuple[User, str | None] | None:
        def find() -> tuple[User, str | None] | None:
            user = next((user for user in self._state.users.values() if user.username == username), None)
            return (user, self._state.password_hashes.get(user.id)) if user else None

        return await self._call("with_password", find)

    async def users(self, after: str = "", limit: int = 50) -> Sequence[User]:
        def page() -> list[User]:
            later = [user for user in self._state.users.values() if user.username > after]
            return sorted(later, key=lambda user: user.username)[:limit]

        return await self._call("users", page)

    async def change_user(self, user_id: UUID, decide: UserDecision, actor: Actor, action: str) -> User:
        def change() -> User:
            before = self._state.user(user_id)
            after = decide(before, self._other_admins(user_id), self._state.now())
            if after == before:
                return before
            self._state.users[user_id] = after
            if after.disabled_at and not before.disabled_at:
                self._end_sessions(user_id, None)
            self._state.append_audit(actor, action, f"user:{after.username}", account_changes(before, after))
            return after

        return await self._call("change_user", change)

    def _other_admins(self, user_id: UUID) -> int:
        others = [user for user in self._state.users.values() if user.id != user_id and user.disabled_at is None]
        return sum(user.role is Role.ADMIN for user in others)

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
        def write() -> EndedCredentials:
            user = self._state.user(user_id)
            if replacing is not None and self._state.password_hashes.get(user_id) != replacing:
                raise Conflict("The password was changed meanwhile. Sign in again.", "password_changed")
            self._state.password_hashes[user_id] = password_hash
            self._state.users[user_id] = replace(user, has_password=True)
            ended = self._end_sessions(user_id, keep_session)
            revoked = self._revoke_tokens(user_id) if revoke_tokens else []
            details = {"ended_sessions": len(ended), "revoked_tokens": len(revoked)}
            self._state.append_audit(actor, action, f"user:{user.username}", details)
            return EndedCredentials(sorted(ended), sorted(revoked))

        return await self._call("set_password", write)

    def _end_sessions(self, user_id: UUID, keep: str | None) -> list[str]:
        ended = [key for key, s in self._state.sessions.items() if s.user_id == user_id and key != keep]
        for key in ended:
            self._state.end_session(key)
        return ended

    def _revoke_tokens(self, user_id: UUID) -> list[UUID]:
        living = [(key, t) for key, t in self._state.tokens.items() if t.user_id == user_id and t.revoked_at is None]
        for key, token in living:
            self._state.tokens[key] = replace(token, revoked_at=self._state.now())
        return [token.id for _key, token in living]

    async def rehash_password(self, user_id: UUID, old_hash: str, new_hash: str) -> None:
        def write() -> None:
            if self._state.password_hashes.get(user_id) == old_hash:
                self._state.password_hashes[user_id] = new_hash

        await self._call("rehash_password", write)

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
        def insert() -> Session:
            user, now = self._state.enabled_user(user_id, proved_by), self._state.now()
            end = now + timedelta(seconds=rules.absolute_seconds)
            session = Session(session_id, user_id, now, now, end, actor.address, agent)
            self._state.sessions[session_id] = session
            self._state.proven[session_id] = min(proven_at or now, now)
            self._state.append_audit(actor, action, f"user:{user.username}", {"session": session_id})
            return replace(session, is_fresh=self._state.is_fresh(session_id, rules))

        return await self._call("open_session", insert)

    async def prove_session(
        self,
        session_id: str,
        rules: SessionRules,
        actor: Actor,
        *,
        proved_by: str | None = None,
        proven_at: datetime | None = None,
    ) -> bool:
        def prove() -> bool:
            session, now = self._state.sessions.get(session_id), self._state.now()
            if session is None or not self._state.lives(session, rules):
                return False
            try:
                user = self._state.enabled_user(session.user_id, proved_by)
            except NotFound:
                return False
            self._state.proven[session_id] = min(proven_at or now, now)
            self._state.append_audit(actor, "prove_session", f"user:{user.username}", {"session": session_id})
            return True

        return await self._call("prove_session", prove)

    async def session(self, session_id: str, rules: SessionRules) -> tuple[Session, User] | None:
        def look() -> tuple[Session, User] | None:
            session = self._state.sessions.get(session_id)
            if session is None or not self._state.lives(session, rules):
                return None
            user = self._state.users[session.user_id]
            if user.disabled_at:
                return None
            self._state.see_session(session_id)
            return replace(session, is_fresh=self._state.is_fresh(session_id, rules)), user

        return await self._call("session", look)

    async def sessions(self, user_id: UUID, rules: SessionRules) -> Sequence[Session]:
        def read() -> list[Session]:
            mine = [s for s in self._state.sessions.values() if s.user_id == user_id and self._state.lives(s, rules)]
            return sorted(mine, key=lambda s: (-s.created_at.timestamp(), s.id))

        return await self._call("sessions", read)

    async def end_session(self, user_id: UUID, session_id: str, actor: Actor, action: str = "sign_out") -> bool:
        def end() -> bool:
            session = self._state.sessions.get(session_id)
            if session is None or session.user_id != user_id:
                return False
            self._state.end_session(session_id)
            self._state.append_audit(
                actor, action, f"user:{self._state.user(user_id).username}", {"session": session_id}
            )
            return True

        return await self._call("end_session", end)

    # ── tokens ───────────────────────────────────────────────────────────────────────────────────────────────────────

    async def create_token(self, new: NewToken, most: int, actor: Actor) -> ApiToken:
        def insert() -> ApiToken:
            user, now = self._state.user(new.user_id), self._state.now()
            if len(self._tokens(user.id)) >= most:
                raise LimitReached(f"You have {most} tokens already. Revoke one that you no longer use.")
            end = None if new.lifetime_seconds is None else now + timedelta(seconds=new.lifetime_seconds)
            token = ApiToken(new.id, user.id, new.name, new.scopes, now, end)
            self._state.tokens[new.token_hash] = token
            details = {"id": str(token.id), "name": token.name, "scopes": sorted(token.scopes)}
            self._state.append_audit(actor, "create_token", f"user:{user.username}", details)
            return token

        return await self._call("create_token", insert)

    def _tokens(self, user_id: UUID) -> list[ApiToken]:
        mine = [t for t in self._state.tokens.values() if t.user_id == user_id and t.revoked_at is None]
        return sorted(mine, key=lambda t: (-t.created_at.timestamp(), str(t.id)))

    async def token(self, token_hash: bytes) -> tuple[ApiToken, User] | None:
        def look() -> tuple[ApiToken, User] | None:
            token = self._state.tokens.get(token_hash)
            if token is None or not self._state.token_lives(token):
                return None
            user = self._state.users[token.user_id]
            if user.disabled_at:
                return None
            self._state.use_token(token_hash)
            return token, user

        return await self._call("token", look)

    async def tokens(self, user_id: UUID) -> Sequence[ApiToken]:
        return await self._call("tokens", lambda: self._tokens(user_id))

    async def revoke_token(self, user_id: UUID, token_id: UUID, actor: Actor) -> bool:
        def revoke() -> bool:
            for key, token in self._state.tokens.items():
                if (token.user_id, token.id, token.revoked_at) == (user_id, token_id, None):
                    self._state.tokens[key] = replace(token, revoked_at=self._state.now())
                    subject = f"user:{self._state.user(user_id).username}"
                    self._state.append_audit(actor, "revoke_token", subject, {"id": str(token_id), "name": token.name})
                    return True
            return False

        return await self._call("revoke_token", revoke)

    async def forget_expired(self, rules: SessionRules, epoch: int | None = None) -> int:
        def sweep() -> int:
            state, now = self._state, self._state.now()
            faded = now - timedelta(seconds=FAILURES_FADE_SECONDS)
            tickets = [key for key, ticket in state.tickets.items() if ticket.expires_at <= now]
            visits = [key for key, visit in state.visits.items() if visit.expires_at <= now]
            sign_ins = [key for key, (_path, end) in state.provider_sign_ins.items() if end <= now]
            failures = [key for key, found in state.failures.items() if found.at <= faded]
            sessions = [key for key, session in state.sessions.items() if not state.lives(session, rules)]
            for key in tickets:
                del state.tickets[key]
            for key in visits:
                del state.visits[key]
            for key in sign_ins:
                del state.provider_sign_ins[key]
            for name in failures:
                del state.failures[name]
            for name in sessions:
                state.end_session(name)
            return len(tickets) + len(visits) + len(sign_ins) + len(failures) + len(sessions)

        return await self._state.within(epoch, self._network, "accounts.forget_expired", sweep)
