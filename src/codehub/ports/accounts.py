"""Accounts, how their users sign in, and the audit log; with them the password hasher and the OpenID provider.

Time is the database's; secrets come here as hashes only. Every change takes its actor and writes its audit row in the
same transaction: there is no change without the row, and no row without the change. Sign-ins and sign-outs count as
changes; `last seen` and `last used` do not.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Protocol
from uuid import UUID

from codehub.domain.credentials import LONGEST_WAIT_SECONDS
from codehub.domain.identity import ALL_SCOPES, ApiToken, Role, Scope, Session, User
from codehub.ports.stores import Actor


@dataclass(frozen=True, slots=True)
class NewUser:
    id: UUID
    username: str
    role: Role = Role.USER
    password_hash: str | None = None
    issuer: str | None = None
    subject: str | None = None
    max_running: int | None = None


@dataclass(frozen=True, slots=True)
class SessionRules:
    """A session ends when nobody used it for `idle_seconds`, and in any case after `absolute_seconds`. Its user counts
    as having just proved who they are for `fresh_seconds`."""

    idle_seconds: float = 7 * 24 * 3600
    absolute_seconds: float = 30 * 24 * 3600
    fresh_seconds: float = 15 * 60


A_MONTH = SessionRules()


@dataclass(frozen=True, slots=True)
class NewToken:
    """A personal token to create. `lifetime_seconds` None: it has no end."""

    id: UUID
    user_id: UUID
    name: str
    token_hash: bytes
    scopes: frozenset[Scope]
    lifetime_seconds: int | None = None


@dataclass(frozen=True, slots=True)
class EndedCredentials:
    """The ids of the sessions and tokens that a new password has ended."""

    sessions: Sequence[str] = ()
    tokens: Sequence[UUID] = ()


UserDecision = Callable[[User, int, datetime], User]
"""A pure function: (the row, how many other enabled admins there are, now) → the row with another role, disabled_at or
max_running; raises Refused to change nothing."""


class Accounts(Protocol):
    """Users, their sessions and their tokens. Usernames are given in lower case."""

    async def create_user(self, new: NewUser, actor: Actor) -> User:
        """Create a user. Conflict `username_taken`, or `identity_taken` if (issuer, subject) is somebody else's."""
        ...

    async def create_first_user(self, new: NewUser, actor: Actor) -> User | None:
        """Create the installation's first user. None, having changed nothing, if there is any user. Of many such calls
        at once, one succeeds."""
        ...

    async def user(self, user_id: UUID) -> User | None: ...

    async def user_of_identity(self, issuer: str, subject: str) -> User | None: ...

    async def with_password(self, username: str) -> tuple[User, str | None] | None:
        """The user of that name, also a disabled one, and the stored hash of the password."""
        ...

    async def users(self, after: str = "", limit: int = 50) -> Sequence[User]:
        """A page of users in the order of usernames, those after `after`."""
        ...

    async def change_user(self, user_id: UUID, decide: UserDecision, actor: Actor, action: str) -> User:
        """Change a user's role, limit or `disabled_at` as `decide` says; NotFound. All such changes are made one after
        the other, so that the number of admins cannot be stale. Disabling ends the user's sessions. If nothing differs,
        nothing is written."""
        ...

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
        """Set a user's password; NotFound. Also ends all sessions but `keep_session`, and with `revoke_tokens` all
        tokens. With `replacing`, Conflict `password_changed` if that is no longer the stored hash."""
        ...

    async def rehash_password(self, user_id: UUID, old_hash: str, new_hash: str) -> None:
        """Store the same password, hashed anew; does nothing if it was changed meanwhile. Not audited."""
        ...

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
        """Open a session from the actor's address. NotFound if there is no such user, it is disabled, or `proved_by`,
        the hash that the password was compared with, is no longer the stored one: so no session outlives a change of
        password that ended the others. `proven_at`: when the user proved who they are, if that was before now."""
        ...

    async def prove_session(
        self,
        session_id: str,
        rules: SessionRules,
        actor: Actor,
        *,
        proved_by: str | None = None,
        proven_at: datetime | None = None,
    ) -> bool:
        """Record that the session's user has proved anew who they are, as for `open_session`. False, having changed
        nothing, if the session has ended, its user is disabled, or that is no longer their password."""
        ...

    async def session(self, session_id: str, rules: SessionRules) -> tuple[Session, User] | None:
        """The session and its user, marked as seen; None if it has ended, or its user is disabled."""
        ...

    async def sessions(self, user_id: UUID, rules: SessionRules) -> Sequence[Session]:
        """The user's living sessions, newest first. Does not mark them as seen."""
        ...

    async def end_session(self, user_id: UUID, session_id: str, actor: Actor, action: str = "sign_out") -> bool:
        """End a session. False, having changed nothing, if the user has no such session."""
        ...

    async def create_token(self, new: NewToken, most: int, actor: Actor) -> ApiToken:
        """Create a token. LimitReached if the user has `most` unrevoked ones already: exact, also for many at once."""
        ...

    async def token(self, token_hash: bytes) -> tuple[ApiToken, User] | None:
        """The token and its user, marked as used; None if it is revoked or expired, or its user is disabled."""
        ...

    async def tokens(self, user_id: UUID) -> Sequence[ApiToken]:
        """The user's tokens that are not revoked, newest first."""
        ...

    async def revoke_token(self, user_id: UUID, token_id: UUID, actor: Actor) -> bool:
        """Revoke a token. False, having changed nothing, if the user has no such token or it is revoked already."""
        ...

    async def forget_expired(self, rules: SessionRules, epoch: int | None = None) -> int:
        """Delete sessions, tickets, visits, provider sign-ins and failures that mean nothing any more. How many rows;
        what goes with its session is not counted. With `epoch`, for the leader of that term: Stale once it is over."""
        ...


@dataclass(frozen=True, slots=True)
class TryKey:
    """What failures are counted by, how many are free of waiting, and what the wait grows to."""

    key: str
    free_tries: int
    longest_seconds: float = LONGEST_WAIT_SECONDS


@dataclass(frozen=True, slots=True)
class Ticket:
    """One-time hand-over of a signed-in user to a workspace's own host. A ticket ends with the session or personal
    token that made it. `wakes`: it was made to open the workspace, so arriving with it may start it."""

    user_id: UUID
    workspace_id: UUID
    session_id: str | None = None
    port: int | None = None
    token_id: UUID | None = None
    wakes: bool = False


@dataclass(frozen=True, slots=True)
class Visit:
    """Somebody who came to a workspace's own host with a ticket. Ends with the session or token that made the
    ticket, and may what that may: `scopes` are the token's."""

    user: User
    workspace_id: UUID
    port: int | None = None
    session_id: str | None = None
    token_id: UUID | None = None
    scopes: frozenset[Scope] = ALL_SCOPES


class SignInState(Protocol):
    """What lives between a first try and being signed in: failed tries, sign-ins at an OpenID provider, and the tickets
    and visits by which a signed-in user reaches a workspace's own host. None of it is audited."""

    async def begin_try(self, keys: Collection[TryKey]) -> float:
        """Begin a sign-in by password. Returns 0 if a failure was counted under each key; else the seconds to wait, and
        nothing was counted. A try counts as failed until `clear_tries`, so that a thousand at once are a thousand."""
        ...

    async def clear_tries(self, cleared: str, given_back: Collection[str] = ()) -> None:
        """A try succeeded: forget all failures under `cleared`, and this one try under each of `given_back`."""
        ...

    async def begin_provider_sign_in(self, attempt_hash: bytes, next_path: str, lifetime_seconds: float) -> None:
        """Remember somebody who was sent to the OpenID provider, and the path to go on to afterwards."""
        ...

    async def finish_provider_sign_in(self, attempt_hash: bytes) -> str | None:
        """End the attempt: the path to go on to, exactly once; None if it is unknown or too late."""
        ...

    async def issue_ticket(self, ticket_hash: bytes, ticket: Ticket, lifetime_seconds: float) -> None:
        """Store a ticket under the hash of its secret. NotFound if there is no such user, session or token."""
        ...

    async def redeem_ticket(self, ticket_hash: bytes) -> Ticket | None:
        """Use the ticket up: exactly once, also for many at once. None if it is unknown, used or expired, if its
        session or token has ended, or its user is disabled."""
        ...

    async def open_visit(self, visit_hash: bytes, ticket: Ticket, lifetime_seconds: float) -> bool:
        """Open a visit with a redeemed ticket; its secret is in a cookie of the workspace's host alone. False, having
        changed nothing, if the ticket's user, session or token is no more."""
        ...

    async def visit(self, visit_hash: bytes, rules: SessionRules) -> Visit | None:
        """The visit; None if it or its session or token has ended, or its user is disabled. Marks the session as seen
        (or the token as used), so that who works in a workspace alone is not signed out."""
        ...


@dataclass(frozen=True, slots=True)
class AuditEntry:
    id: int
    at: datetime
    actor: str
    action: str
    subject: str
    details: Mapping[str, Any] = field(default_factory=dict)
    address: str = ""


class Audit(Protocol):
    """The log of who changed what. Entries are only appended, and never hold a secret: whoever appends leaves it
    out."""

    async def append(self, actor: Actor, action: str, subject: str, details: Mapping[str, Any] | None = None) -> None:
        """Append what no other store writes, such as failed sign-ins."""
        ...

    async def entries(
        self, limit: int = 100, *, before: int | None = None, actor: str | None = None, subject: str | None = None
    ) -> Sequence[AuditEntry]:
        """Audit entries, newest first; `before`: only those with a smaller id."""
        ...

    async def forget_older(self, seconds: float, epoch: int | None = None) -> int:
        """Delete older rows; returns how many. With `epoch`, for the leader of that term: Stale once it is over."""
        ...


@dataclass(frozen=True, slots=True)
class ProviderIdentity:
    """Whom the provider has identified, by `issuer` and `subject`; the rest helps to name a new user, and a verified
    email to say whether they may come in at all."""

    issuer: str
    subject: str
    preferred_username: str | None = None
    email: str | None = None
    email_verified: bool = False
    authenticated_at: datetime | None = None
    """When they proved to the provider who they are; None: it does not say."""


class OpenIdProvider(Protocol):
    """The OpenID Connect provider. Unreachable if it does not answer in time or answers nonsense."""

    async def authorization_url(self, *, state: str, nonce: str, challenge: str, anew: bool = False) -> str:
        """The address to send the browser to. `challenge`: the S256 challenge of the verifier. `anew`: the provider
        asks who they are even if it has just been told."""
        ...

    async def identify(self, *, code: str, verifier: str, nonce: str) -> ProviderIdentity:
        """Unauthenticated if the provider refuses the code, or if its signed answer is not meant for us, for this
        sign-in (`nonce`) and for now."""
        ...


class Passwords(Protocol):
    """Password hashing: slow on purpose, and never on the event loop."""

    async def hash(self, password: str) -> str:
        """A new hash of the password, another value each time."""
        ...

    async def verify(self, stored: str | None, password: str) -> bool:
        """Whether the password fits. The same work for every `stored`: with None, or with something that is no hash,
        the answer is False, and it takes as long as any other."""
        ...

    def outdated(self, stored: str) -> bool:
        """Whether the hash was made with other parameters than today's."""
        ...
