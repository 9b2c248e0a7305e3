"""Who asks, and what they may. Pure: a caller is the same value whether a browser, a script or the CLI brought it."""

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from uuid import UUID


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
    """`max_running`: this person's own limit; None = the installation's. `issuer`, `subject`: from OpenID Connect."""

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
        """As `workspaces.owner_id` holds it."""
        return str(self.id)


@dataclass(frozen=True, slots=True)
class Caller:
    """Somebody signed in. `credential` names the session or token in the audit log, never its secret."""

    user: User
    credential: str
    scopes: Collection[Scope] = ALL_SCOPES

    def may(self, scope: Scope) -> bool:
        if scope is Scope.ADMIN and self.user.role is not Role.ADMIN:
            return False
        return scope in self.scopes
