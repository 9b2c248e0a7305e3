"""Users, sessions, tokens, templates, repeated requests and the audit log in memory."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, TypeVar
from uuid import UUID

from codehub.adapters.memory.authorized_keys import MemoryAuthorizedKeys
from codehub.adapters.memory.database_state import AccountStore, AccountTables, StoredKey
from codehub.adapters.memory.fault_injection import Network, effect
from codehub.adapters.memory.secrets import MemoryProfiles, MemorySecrets
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

K = TypeVar("K")
V = TypeVar("V")


def _delete(table: dict[K, V], is_old: Callable[[V], bool]) -> int:
    """Deletes what is old from a table, and returns how many rows that were."""
    gone = [key for key, row in table.items() if is_old(row)]
    for key in gone:
        del table[key]
    return len(gone)


class MemoryTemplates(AccountStore):
    @effect("templates.get")
    def get(self, name: str) -> Template | None:
        return self._state.templates.get(name)

    @effect("templates.all")
    def all(self) -> Sequence[Template]:
        return sorted(self._state.templates.values(), key=lambda template: template.name)

    @effect("templates.put")
    def put(self, template: Template, actor: Actor) -> Template:
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
        details = {"image_ref": stored.image_ref, "sudo": stored.sudo, "disabled": stored.disabled_at is not None}
        self._state.append_audit(actor, "put_template", f"template:{stored.name}", details)
        return stored


class MemoryIdempotencyKeys(AccountStore):
    @effect("idempotency_keys.claim")
    def claim(self, user_id: UUID, key: str, request_hash: bytes, workspace_id: UUID) -> IdempotencyClaim:
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

    @effect("idempotency_keys.answer")
    def answer(self, user_id: UUID, key: str, response: Mapping[str, Any]) -> None:
        known = self._state.keys.get((user_id, key))
        if known is not None and known.response is None:
            known.response = dict(response)

    @effect("idempotency_keys.release")
    def release(self, user_id: UUID, key: str) -> None:
        known = self._state.keys.get((user_id, key))
        if known is not None and known.response is None:
            del self._state.keys[user_id, key]

    async def forget_older(self, seconds: float, epoch: int | None = None) -> int:
        def sweep() -> int:
            oldest = self._state.now() - timedelta(seconds=seconds)
            return _delete(self._state.keys, lambda stored: stored.created_at < oldest)

        return await self._write("idempotency_keys.forget_older", epoch, sweep)


class MemoryAudit(AccountStore):
    @effect("audit.append")
    def append(self, actor: Actor, action: str, subject: str, details: Mapping[str, Any] | None = None) -> None:
        self._state.append_audit(actor, action, subject, details)

    @effect("audit.entries")
    def entries(
        self, limit: int = 100, *, before: int | None = None, actor: str | None = None, subject: str | None = None
    ) -> Sequence[AuditEntry]:
        wanted = [
            entry
            for entry in reversed(self._state.audit)
            if (before is None or entry.id < before)
            and (actor is None or entry.actor == actor)
            and (subject is None or entry.subject == subject)
        ]
        return wanted[:limit]

    async def forget_older(self, seconds: float, epoch: int | None = None) -> int:
        def sweep() -> int:
            oldest = self._state.now() - timedelta(seconds=seconds)
            kept = [entry for entry in self._state.audit if entry.at >= oldest]
            gone = len(self._state.audit) - len(kept)
            self._state.audit[:] = kept
            return gone

        return await self._write("audit.forget_older", epoch, sweep)


class MemoryAccounts(AccountStore):
    # ── users ────────────────────────────────────────────────────────────────────────────────────────────────────────

    @effect("accounts.create_user")
    def create_user(self, new: NewUser, actor: Actor) -> User:
        return self._insert(new, actor)

    @effect("accounts.create_first_user")
    def create_first_user(self, new: NewUser, actor: Actor) -> User | None:
        return None if self._state.users else self._insert(new, actor)

    def _insert(self, new: NewUser, actor: Actor) -> User:
        others = self._state.users.values()
        if new.id in self._state.users:
            raise Conflict("There is a user of that id already.", "id_taken")
        if any(user.username == new.username for user in others):
            raise Conflict("That username is taken.", "username_taken")
        identity = (new.issuer, new.subject)
        if new.issuer is not None and any((user.issuer, user.subject) == identity for user in others):
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

    @effect("accounts.user")
    def user(self, user_id: UUID) -> User | None:
        return self._state.users.get(user_id)

    @effect("accounts.user_of_identity")
    def user_of_identity(self, issuer: str, subject: str) -> User | None:
        others = self._state.users.values()
        return next((user for user in others if (user.issuer, user.subject) == (issuer, subject)), None)

    @effect("accounts.with_password")
    def with_password(self, username: str) -> tuple[User, str | None] | None:
        user = next((user for user in self._state.users.values() if user.username == username), None)
        return (user, self._state.password_hashes.get(user.id)) if user else None

    @effect("accounts.users")
    def users(self, after: str = "", limit: int = 50) -> Sequence[User]:
        later = [user for user in self._state.users.values() if user.username > after]
        return sorted(later, key=lambda user: user.username)[:limit]

    @effect("accounts.change_user")
    def change_user(self, user_id: UUID, decide: UserDecision, actor: Actor, action: str) -> User:
        before = self._state.user(user_id)
        after = decide(before, self._other_admins(user_id), self._state.now())
        if after == before:
            return before
        self._state.users[user_id] = after
        if after.disabled_at and not before.disabled_at:
            self._end_sessions(user_id, None)
        self._state.append_audit(actor, action, f"user:{after.username}", account_changes(before, after))
        return after

    def _other_admins(self, user_id: UUID) -> int:
        others = [user for user in self._state.users.values() if user.id != user_id and user.disabled_at is None]
        return sum(user.role is Role.ADMIN for user in others)

    @effect("accounts.set_password")
    def set_password(
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

    @effect("accounts.rehash_password")
    def rehash_password(self, user_id: UUID, old_hash: str, new_hash: str) -> None:
        if self._state.password_hashes.get(user_id) == old_hash:
            self._state.password_hashes[user_id] = new_hash

    # ── sessions ─────────────────────────────────────────────────────────────────────────────────────────────────────

    @effect("accounts.open_session")
    def open_session(
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
        user, now = self._state.enabled_user(user_id, proved_by), self._state.now()
        end = now + timedelta(seconds=rules.absolute_seconds)
        session = Session(session_id, user_id, now, now, end, actor.address, agent)
        self._state.sessions[session_id] = session
        self._state.proven[session_id] = min(proven_at or now, now)
        self._state.append_audit(actor, action, f"user:{user.username}", {"session": session_id})
        return replace(session, is_fresh=self._state.is_fresh(session_id, rules))

    @effect("accounts.prove_session")
    def prove_session(
        self,
        session_id: str,
        rules: SessionRules,
        actor: Actor,
        *,
        proved_by: str | None = None,
        proven_at: datetime | None = None,
    ) -> bool:
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

    @effect("accounts.session")
    def session(self, session_id: str, rules: SessionRules) -> tuple[Session, User] | None:
        session = self._state.sessions.get(session_id)
        if session is None or not self._state.lives(session, rules):
            return None
        user = self._state.users[session.user_id]
        if user.disabled_at:
            return None
        self._state.see_session(session_id)
        return replace(session, is_fresh=self._state.is_fresh(session_id, rules)), user

    @effect("accounts.sessions")
    def sessions(self, user_id: UUID, rules: SessionRules) -> Sequence[Session]:
        mine = [s for s in self._state.sessions.values() if s.user_id == user_id and self._state.lives(s, rules)]
        return sorted(mine, key=lambda s: (-s.created_at.timestamp(), s.id))

    @effect("accounts.end_session")
    def end_session(self, user_id: UUID, session_id: str, actor: Actor, action: str = "sign_out") -> bool:
        session = self._state.sessions.get(session_id)
        if session is None or session.user_id != user_id:
            return False
        self._state.end_session(session_id)
        self._state.append_audit(actor, action, f"user:{self._state.user(user_id).username}", {"session": session_id})
        return True

    # ── tokens ───────────────────────────────────────────────────────────────────────────────────────────────────────

    @effect("accounts.create_token")
    def create_token(self, new: NewToken, most: int, actor: Actor) -> ApiToken:
        user, now = self._state.user(new.user_id), self._state.now()
        if len(self._tokens(user.id)) >= most:
            raise LimitReached(f"You have {most} tokens already. Revoke one that you no longer use.")
        end = None if new.lifetime_seconds is None else now + timedelta(seconds=new.lifetime_seconds)
        token = ApiToken(new.id, user.id, new.name, new.scopes, now, end)
        self._state.tokens[new.token_hash] = token
        details = {"id": str(token.id), "name": token.name, "scopes": sorted(token.scopes)}
        self._state.append_audit(actor, "create_token", f"user:{user.username}", details)
        return token

    def _tokens(self, user_id: UUID) -> list[ApiToken]:
        mine = [t for t in self._state.tokens.values() if t.user_id == user_id and t.revoked_at is None]
        return sorted(mine, key=lambda t: (-t.created_at.timestamp(), str(t.id)))

    @effect("accounts.token")
    def token(self, token_hash: bytes) -> tuple[ApiToken, User] | None:
        token = self._state.tokens.get(token_hash)
        if token is None or not self._state.token_lives(token):
            return None
        user = self._state.users[token.user_id]
        if user.disabled_at:
            return None
        self._state.use_token(token_hash)
        return token, user

    @effect("accounts.tokens")
    def tokens(self, user_id: UUID) -> Sequence[ApiToken]:
        return self._tokens(user_id)

    @effect("accounts.revoke_token")
    def revoke_token(self, user_id: UUID, token_id: UUID, actor: Actor) -> bool:
        for key, token in self._state.tokens.items():
            if (token.user_id, token.id, token.revoked_at) == (user_id, token_id, None):
                self._state.tokens[key] = replace(token, revoked_at=self._state.now())
                subject = f"user:{self._state.user(user_id).username}"
                self._state.append_audit(actor, "revoke_token", subject, {"id": str(token_id), "name": token.name})
                return True
        return False

    async def forget_expired(self, rules: SessionRules, epoch: int | None = None) -> int:
        def sweep() -> int:
            state, now = self._state, self._state.now()
            faded = now - timedelta(seconds=FAILURES_FADE_SECONDS)
            sessions = [key for key, session in state.sessions.items() if not state.lives(session, rules)]
            gone = (
                _delete(state.tickets, lambda ticket: ticket.expires_at <= now)
                + _delete(state.visits, lambda visit: visit.expires_at <= now)
                + _delete(state.provider_sign_ins, lambda sign_in: sign_in[1] <= now)
                + _delete(state.failures, lambda found: found.at <= faded)
            )
            for key in sessions:
                state.end_session(key)
            return gone + len(sessions)

        return await self._write("accounts.forget_expired", epoch, sweep)


class MemoryAccountDatabase:
    """Hands out what PostgresDatabase does, under the same names."""

    def __init__(self, state: AccountTables | None = None, network: Network | None = None) -> None:
        self.state = state or AccountTables()
        self._network = network or Network()

    def accounts(self) -> MemoryAccounts:
        return MemoryAccounts(self.state, self._network)

    def authorized_keys(self) -> MemoryAuthorizedKeys:
        return MemoryAuthorizedKeys(self.state, self._network)

    def sign_in_state(self) -> MemorySignInState:
        return MemorySignInState(self.state, self._network)

    def audit(self) -> MemoryAudit:
        return MemoryAudit(self.state, self._network)

    def templates(self) -> MemoryTemplates:
        return MemoryTemplates(self.state, self._network)

    def idempotency_keys(self) -> MemoryIdempotencyKeys:
        return MemoryIdempotencyKeys(self.state, self._network)

    def secrets(self) -> MemorySecrets:
        return MemorySecrets(self.state, self._network)

    def profiles(self) -> MemoryProfiles:
        return MemoryProfiles(self.state, self._network)
