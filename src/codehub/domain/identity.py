"""Who asks, and what they may. A caller is the same value whether a browser, a script or the CLI brought it. Pure.

The rules for names, passwords and guesses are in credentials.py.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from uuid import UUID

from codehub.domain.errors import Conflict, Forbidden, ProofNeeded


class Role(StrEnum):
    USER = "user"
    ADMIN = "admin"


class Scope(StrEnum):
    """What a personal token may do for its owner. A session may do all of it."""

    READ = "read"
    WRITE = "write"
    ADMIN = "admin"


ALL_SCOPES = frozenset(Scope)


@dataclass(frozen=True, slots=True)
class User:
    """A person with an account. `max_running`: their own limit; None is the installation's. `issuer`, `subject`: who
    they are to an OpenID provider."""

    id: UUID
    username: str
    role: Role
    created_at: datetime
    disabled_at: datetime | None = None
    max_running: int | None = None
    issuer: str | None = None
    subject: str | None = None
    has_password: bool = True

    @property
    def owner_id(self) -> str:
        """The user's id as `workspaces.owner_id` holds it."""
        return str(self.id)


@dataclass(frozen=True, slots=True)
class Session:
    """A browser's session. `id` is the hash of its secret in hexadecimal: good for naming it, useless for being it.
    `is_fresh`: when it was read, its person had proved who they are a short while ago."""

    id: str
    user_id: UUID
    created_at: datetime
    last_seen_at: datetime
    expires_at: datetime
    address: str = ""
    agent: str = ""
    is_fresh: bool = False


@dataclass(frozen=True, slots=True)
class ApiToken:
    """A personal token, for scripts. Its secret is shown once, when the token is made."""

    id: UUID
    user_id: UUID
    name: str
    scopes: frozenset[Scope]
    created_at: datetime
    expires_at: datetime | None = None
    last_used_at: datetime | None = None
    revoked_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Caller:
    """Somebody signed in. `credential` names the session or token in the audit log, never its secret; `expires_at` is
    when a token that has an end ends; `address` is where the request came from; `is_fresh`: the person behind the
    session proved who they are a short while ago, which no token ever does."""

    user: User
    credential: str
    scopes: Collection[Scope] = ALL_SCOPES
    expires_at: datetime | None = None
    address: str = ""
    is_fresh: bool = False

    def may(self, scope: Scope) -> bool:
        if scope is Scope.ADMIN and self.user.role is not Role.ADMIN:
            return False
        return scope in self.scopes

    def must(self, *scopes: Scope) -> None:
        """Raise Forbidden unless the caller has all of these scopes."""
        missing = sorted(scope.value for scope in scopes if not self.may(scope))
        if not missing:
            return
        if Scope.ADMIN in missing and self.user.role is not Role.ADMIN:
            raise Forbidden("Only an admin may do that. Ask one of them.")
        raise Forbidden(f"This token lacks the scope {', '.join(missing)}. Use one that has it, or sign in.")

    def must_be_fresh(self) -> None:
        """Raise unless the person has just proved who they are, which changes need that outlive the credential:
        accounts, roles, passwords, new tokens. Conflict `needs_session` for a token, ProofNeeded for an older proof."""
        if self.session_id is None:
            raise Conflict("A token cannot do that. Sign in, and prove that it is you.", "needs_session")
        if not self.is_fresh:
            raise ProofNeeded("Prove that it is you: enter your password, or sign in again at your provider.")

    @property
    def session_id(self) -> str | None:
        """The id of the session that brought the caller; None for a token."""
        kind, _, name = self.credential.partition(":")
        return name if kind == "session" else None

    @property
    def token_id(self) -> UUID | None:
        """The id of the token that brought the caller; None for a session."""
        kind, _, name = self.credential.partition(":")
        return UUID(name) if kind == "token" else None


def session_credential(session_id: str) -> str:
    return f"session:{session_id}"


def token_credential(token_id: UUID) -> str:
    return f"token:{token_id}"


def ssh_key_credential(key_id: UUID) -> str:
    return f"ssh_key:{key_id}"


def scopes_for(caller: Caller, wanted: Iterable[Scope]) -> frozenset[Scope]:
    """The scopes of a token made by this caller: never more than the caller has, and at least one."""
    scopes = frozenset(wanted)
    if not scopes:
        raise Forbidden("A token without a scope can do nothing. Give it at least 'read'.")
    caller.must(*scopes)
    return scopes


def changed_role(user: User, role: Role, other_admins: int) -> User:
    if role is not Role.ADMIN:
        _keep_an_admin(user, other_admins)
    return replace(user, role=role)


def disabled(user: User, now: datetime, other_admins: int) -> User:
    _keep_an_admin(user, other_admins)
    return user if user.disabled_at else replace(user, disabled_at=now)


def enabled(user: User) -> User:
    return replace(user, disabled_at=None)


def limited(user: User, max_running: int | None) -> User:
    return replace(user, max_running=max_running)


def account_changes(before: User, after: User) -> dict[str, str | int | bool | None]:
    """The new values of what differs between two rows of a user, for the audit log."""
    values = {
        "role": (before.role.value, after.role.value),
        "disabled": (before.disabled_at is not None, after.disabled_at is not None),
        "max_running": (before.max_running, after.max_running),
    }
    return {name: new for name, (old, new) in values.items() if old != new}


def _keep_an_admin(user: User, other_admins: int) -> None:
    """Raise Conflict `last_admin` if this user is the last admin. `other_admins`: how many others are enabled."""
    is_one = user.role is Role.ADMIN and user.disabled_at is None
    if is_one and not other_admins:
        raise Conflict(f"{user.username} is the last admin. Make another admin first.", "last_admin")
