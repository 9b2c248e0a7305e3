"""Sessions, passwords and personal tokens: the one place that turns a secret into a caller.

Unknown users, disabled users, users without a password and wrong passwords cost the same work and get the same answer.
Every sign-in makes a new session, whatever the browser brought along. Of secrets made here only a hash is kept; a fast
one, since they are long and random. Only a session whose person has just proved who they are makes tokens: whoever
steals a token or a session cannot make another credential that outlives it.
"""

import hashlib
import math
import secrets
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from codehub.domain.credentials import (
    PACE_ANYWHERE_SECONDS,
    PASSWORD_MOST,
    TOKEN_PREFIX,
    TOKENS_PER_USER,
    TRIES_PER_ACCOUNT,
    TRIES_PER_ACCOUNT_ANYWHERE,
    TRIES_PER_ADDRESS,
    address_group,
    checked_password,
    checked_token_lifetime,
    checked_token_name,
    one_line,
    possible_username,
    username_from,
)
from codehub.domain.errors import Conflict, NotFound, TooManyTries, Unauthenticated, WrongPassword
from codehub.domain.identity import (
    ApiToken,
    Caller,
    Role,
    Scope,
    Session,
    User,
    scopes_for,
    session_credential,
    token_credential,
)
from codehub.ports.accounts import (
    A_MONTH,
    Accounts,
    Audit,
    NewToken,
    NewUser,
    Passwords,
    SessionRules,
    SignInState,
    TryKey,
)
from codehub.ports.signals import Ids
from codehub.ports.stores import Actor
from codehub.usecases.revocations import Revocations

_BYTES = 32
_LONGEST = 512

WRONG = "That username and password do not belong together."
NOT_SIGNED_IN = "You are not signed in, or no longer. Sign in again."
BAD_TOKEN = "This token is unknown, expired or revoked. Make a new one."  # noqa: S105 - a sentence


def new_session_token() -> str:
    return secrets.token_urlsafe(_BYTES)


def new_api_token() -> str:
    return TOKEN_PREFIX + secrets.token_urlsafe(_BYTES)


def new_password() -> str:
    return secrets.token_urlsafe(15)


def digest(secret: str) -> bytes:
    """The hash of a secret that a client sent; none is longer than this, so a longer one need not be read to its
    end."""
    return hashlib.sha256(secret[:_LONGEST].encode("utf-8", "replace")).digest()


def session_id_of(session_token: str) -> str:
    return digest(session_token).hex()


@dataclass(frozen=True, slots=True)
class Identity:
    """Sessions and passwords: who signs in, and which user a session's secret or a token means."""

    accounts: Accounts
    sign_in_state: SignInState
    audit: Audit
    passwords: Passwords
    revocations: Revocations
    ids: Ids
    rules: SessionRules = A_MONTH

    async def sign_in(self, username: str, password: str, address: str, agent: str) -> tuple[Caller, str]:
        """The caller and the new session's secret. Unauthenticated, or TooManyTries before anything was tried."""
        address = one_line(address)
        here, *wider = _sign_in_keys(username, address)
        await self._begin_try(here, *wider)
        user, stored = await self._proven(username, password, address)
        await self.sign_in_state.clear_tries(here.key, [key.key for key in wider])
        try:
            return await self.open_session(user, address, agent, proved_by=stored)
        except Unauthenticated:
            # Disabled or changed meanwhile, or only hashed anew by another sign-in: what is stored by now decides.
            user, stored = await self._proven(username, password, address)
            return await self.open_session(user, address, agent, proved_by=stored)

    async def open_session(
        self,
        user: User,
        address: str,
        agent: str,
        action: str = "sign_in",
        proved_by: str | None = None,
        proven_at: datetime | None = None,
    ) -> tuple[Caller, str]:
        """Opens a session for a user who has proved who they are: here, by the password with the hash `proved_by`,
        or at a provider, perhaps a while ago. Unauthenticated if that is no longer their password."""
        secret, address = new_session_token(), one_line(address)
        actor = Actor(user.username, address=address)
        try:
            session = await self.accounts.open_session(
                session_id_of(secret),
                user.id,
                self.rules,
                actor,
                agent=one_line(agent),
                action=action,
                proved_by=proved_by,
                proven_at=proven_at,
            )
        except NotFound:
            raise Unauthenticated(WRONG) from None
        return Caller(user, session_credential(session.id), address=address, is_fresh=session.is_fresh), secret

    async def caller(self, session_token: str | None = None, bearer: str | None = None, address: str = "") -> Caller:
        """The caller of a request. A bearer token counts before a session, since it is sent on purpose.
        Unauthenticated."""
        address = one_line(address)
        if bearer is not None:
            known = await self.accounts.token(digest(bearer)) if bearer.startswith(TOKEN_PREFIX) else None
            if known is None:
                raise Unauthenticated(BAD_TOKEN)
            token, user = known
            return Caller(user, token_credential(token.id), token.scopes, token.expires_at, address)
        found = await self.accounts.session(session_id_of(session_token), self.rules) if session_token else None
        if found is None:
            raise Unauthenticated(NOT_SIGNED_IN)
        session, user = found
        return Caller(user, session_credential(session.id), address=address, is_fresh=session.is_fresh)

    async def sign_out(self, caller: Caller) -> None:
        """Ends the caller's session; nothing if it has ended."""
        session_id = _own_session(caller)
        if await self.accounts.end_session(caller.user.id, session_id, actor_of(caller)):
            await self.revocations.signed_out(caller.user.id, [session_id])

    async def sessions(self, caller: Caller) -> Sequence[Session]:
        caller.must(Scope.READ)
        return await self.accounts.sessions(caller.user.id, self.rules)

    async def revoke_session(self, caller: Caller, session_id: str) -> None:
        caller.must(Scope.WRITE)
        user_id = caller.user.id
        if not await self.accounts.end_session(user_id, session_id, actor_of(caller), "revoke_session"):
            raise NotFound("You have no such session.")
        await self.revocations.signed_out(user_id, [session_id])

    async def prove(self, caller: Caller, password: str) -> None:
        """Proves by the password that the caller is still who signed in, so that they may change accounts and make
        tokens for a while. WrongPassword."""
        session_id = _own_session(caller)
        stored = await self._own_password(caller, password)
        if not await self.accounts.prove_session(session_id, self.rules, actor_of(caller), proved_by=stored):
            raise Unauthenticated(NOT_SIGNED_IN)

    async def change_password(
        self, caller: Caller, old_password: str, new_password: str, *, revoke_tokens: bool = False
    ) -> None:
        """Changes the caller's own password. Their session stays; all others end, with `revoke_tokens` all tokens
        too."""
        session_id = _own_session(caller)
        checked_password(new_password, caller.user.username)
        stored = await self._own_password(caller, old_password)
        ended = await self.accounts.set_password(
            caller.user.id,
            await self.passwords.hash(new_password),
            actor_of(caller),
            "change_password",
            keep_session=session_id,
            replacing=stored,
            revoke_tokens=revoke_tokens,
        )
        await self.revocations.ended(caller.user.id, ended)

    async def _own_password(self, caller: Caller, password: str) -> str:
        """The stored hash of the caller's password. WrongPassword, TooManyTries."""
        own = TryKey(f"change:{caller.user.id}", TRIES_PER_ACCOUNT)  # whoever has no session cannot use it up
        await self._begin_try(own)
        _user, stored = await self._candidate(caller.user.username, password)
        if not await self.passwords.verify(stored, password[:PASSWORD_MOST]) or stored is None:
            raise WrongPassword("The present password is not that one. If you have none, ask an admin to set one.")
        await self.sign_in_state.clear_tries(own.key)
        return stored

    async def ensure_admin(self, username: str) -> str | None:
        """Creates the first admin and returns the password, this once. None if there is any user."""
        password = new_password()
        new = NewUser(self.ids.new(), username_from(username), Role.ADMIN, await self.passwords.hash(password))
        created = await self.accounts.create_first_user(new, Actor("first run"))
        return password if created else None

    async def _proven(self, username: str, password: str, address: str) -> tuple[User, str]:
        """The user with this password, and its hash in the database, renewed if that was due. Unauthenticated."""
        user, stored = await self._candidate(username, password)
        good = await self.passwords.verify(stored, password[:PASSWORD_MOST])
        if user is None or stored is None or not good:
            known = user.username if user else ""
            await self.audit.append(Actor("anonymous", address=address), "sign_in_failed", known)
            raise Unauthenticated(WRONG)
        if not self.passwords.outdated(stored):
            return user, stored
        renewed = await self.passwords.hash(password)
        await self.accounts.rehash_password(user.id, stored, renewed)
        return user, renewed

    async def _candidate(self, username: str, password: str) -> tuple[User | None, str | None]:
        """The user of that name, and the hash to compare with: None if no password could be right."""
        found = await self.accounts.with_password(possible_username(username))
        if found is None:
            return None, None
        user, stored = found
        return user, None if user.disabled_at or len(password) > PASSWORD_MOST else stored

    async def _begin_try(self, *keys: TryKey) -> None:
        wait = math.ceil(await self.sign_in_state.begin_try(keys))
        if wait:
            unit = "second" if wait == 1 else "seconds"
            raise TooManyTries(f"Too many failed tries. Wait {wait} {unit}, then try again.", wait)


def actor_of(caller: Caller) -> Actor:
    return Actor(caller.user.username, address=caller.address)


def _own_session(caller: Caller) -> str:
    if caller.session_id is None:
        raise Conflict("A token cannot do that: sign in with a browser.", "needs_session")
    return caller.session_id


def _sign_in_keys(username: str, address: str) -> tuple[TryKey, TryKey, TryKey]:
    """What failed sign-ins are counted by: the account from this address, the address, and the account from anywhere. A
    sign-in clears the first alone; the last only slows down, or anybody could lock the owner out."""
    # Hashed: people type passwords into the wrong field.
    name = hashlib.sha256(username.strip().lower().encode("utf-8", "replace")).hexdigest()
    origin = address_group(address)
    return (
        TryKey(f"account:{name}@{origin}", TRIES_PER_ACCOUNT),
        TryKey(f"address:{origin}", TRIES_PER_ADDRESS),
        TryKey(f"anywhere:{name}", TRIES_PER_ACCOUNT_ANYWHERE, PACE_ANYWHERE_SECONDS),
    )


@dataclass(frozen=True, slots=True)
class Tokens:
    accounts: Accounts
    revocations: Revocations
    ids: Ids

    async def create(
        self,
        caller: Caller,
        name: str,
        scopes: Collection[Scope],
        expires_in_seconds: int | None = None,
    ) -> tuple[ApiToken, str]:
        """The token and its secret, which is shown this once."""
        caller.must(Scope.WRITE)
        caller.must_be_fresh()
        secret = new_api_token()
        new = NewToken(
            id=self.ids.new(),
            user_id=caller.user.id,
            name=checked_token_name(name),
            token_hash=digest(secret),
            scopes=scopes_for(caller, scopes),
            lifetime_seconds=checked_token_lifetime(expires_in_seconds),
        )
        return await self.accounts.create_token(new, TOKENS_PER_USER, actor_of(caller)), secret

    async def list(self, caller: Caller) -> Sequence[ApiToken]:
        caller.must(Scope.READ)
        return await self.accounts.tokens(caller.user.id)

    async def revoke(self, caller: Caller, token_id: UUID) -> None:
        caller.must(Scope.WRITE)
        if not await self.accounts.revoke_token(caller.user.id, token_id, actor_of(caller)):
            raise NotFound("You have no such token.")
        await self.revocations.token_revoked(caller.user.id, token_id)
