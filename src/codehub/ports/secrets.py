"""What people keep for their workspaces, encrypted, and the keys that it is encrypted with.

The store holds sealed values and knows no key; the keyring holds keys and stores nothing. Every change takes its actor
and writes its audit row, with names and never with values, in the same transaction.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, NamedTuple, Protocol
from uuid import UUID

from codehub.domain.errors import CodeHubError
from codehub.domain.secrets import Dotfiles, GitIdentity, SecretName, SecretOwner
from codehub.ports.stores import Actor


@dataclass(frozen=True, slots=True)
class Sealed:
    """An encrypted value. `key_id`: which key opens it."""

    key_id: str
    data: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class SecretShown:
    """What anybody is shown of a secret. `public`: of a git token the user name, of an SSH key its public half."""

    name: SecretName
    public: str
    key_id: str
    updated_at: datetime


@dataclass(frozen=True, slots=True)
class StoredSecret:
    """A secret as it lies in the database."""

    name: SecretName
    public: str
    sealed: Sealed


class CannotOpen(CodeHubError):
    """A sealed value cannot be opened: its key is not there, or it is not what was sealed under this name."""


class Keyring(Protocol):
    """Seals values and opens them. What was sealed under one name, with one public part, opens under no other."""

    @property
    def key_ids(self) -> Sequence[str]:
        """The keys that there are; the first one seals."""
        ...

    def seal(self, name: SecretName, public: str, value: str) -> Sealed:
        """Another result each time. Conflict `no_secrets_key`, which says how to make one, if there is no key."""
        ...

    def open(self, secret: StoredSecret) -> str:
        """The value. Raises CannotOpen, which never shows it."""
        ...


class SshKeyPair(NamedTuple):
    """A private key in OpenSSH's format, and its public half on one line."""

    private: str
    public: str


MakeSshKey = Callable[[str], SshKeyPair]
"""Makes a new Ed25519 key pair; the text is the comment on the public half."""


class Secrets(Protocol):
    """The sealed secrets of users and templates."""

    async def shown(self, owner: SecretOwner) -> Sequence[SecretShown]:
        """What the owner has, in the order of kinds and names."""
        ...

    async def put(self, secret: StoredSecret, actor: Actor) -> SecretShown:
        """Insert or replace a secret. NotFound if there is no such owner; LimitReached by `refuse_too_many`: exact,
        also for many at once."""
        ...

    async def delete(self, name: SecretName, actor: Actor) -> bool:
        """Delete a secret. False, having changed nothing, if there is none."""
        ...

    async def of_owners(self, owners: Collection[SecretOwner]) -> Sequence[StoredSecret]:
        """All secrets of these owners, in one moment, in the order of owners, kinds and names."""
        ...

    async def page(self, after: SecretName | None, limit: int, other_than: str | None = None) -> Sequence[StoredSecret]:
        """A page of everybody's secrets in the order of owners, kinds and names; with `other_than`, only of those that
        are sealed with another key than this."""
        ...

    async def reseal(self, before: StoredSecret, sealed: Sealed) -> bool:
        """Replace the sealed data alone. False, having changed nothing, if it is no longer `before`'s."""
        ...

    async def count_by_key(self) -> Mapping[str, int]:
        """How many secrets are sealed with each key."""
        ...

    async def record_use(self, workspace_id: UUID, op_id: UUID, details: Mapping[str, Any], actor: Actor) -> bool:
        """Append to the audit log what a workspace was given by the start `op_id`. False, having changed nothing, if it
        says so already. Stale once the actor's term is over."""
        ...


@dataclass(frozen=True, slots=True)
class Profile:
    """What somebody keeps for their workspaces that is no secret."""

    git_identity: GitIdentity | None = None
    dotfiles: Dotfiles | None = None


class Profiles(Protocol):
    async def get(self, user_id: UUID) -> Profile:
        """The user's profile; an empty one if there is none."""
        ...

    async def set_git_identity(self, user_id: UUID, identity: GitIdentity | None, actor: Actor) -> None:
        """NotFound if there is no such user. If nothing differs, nothing is written."""
        ...

    async def set_dotfiles(self, user_id: UUID, dotfiles: Dotfiles | None, actor: Actor) -> None:
        """NotFound if there is no such user. If nothing differs, nothing is written."""
        ...
