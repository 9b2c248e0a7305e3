"""The SSH public keys that people registered, by which the SSH gateway knows who connects.

A key is in the installation once: it says who somebody is, so two accounts cannot share one. Every change takes its
actor and writes its audit row in the same transaction; `last used` does not.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol
from uuid import UUID

from codehub.domain.authorized_keys import AuthorizedKey, PublicKey
from codehub.domain.identity import User
from codehub.ports.stores import Actor


@dataclass(frozen=True, slots=True)
class NewAuthorizedKey:
    id: UUID
    user_id: UUID
    name: str
    key: PublicKey


class AuthorizedKeys(Protocol):
    async def add(self, new: NewAuthorizedKey, most: int, actor: Actor) -> AuthorizedKey:
        """Register a key. NotFound if there is no such user; Conflict `ssh_key_taken` if the key is registered, for
        whomever; LimitReached if the user has `most` already: exact, also for many at once."""
        ...

    async def of_user(self, user_id: UUID) -> Sequence[AuthorizedKey]:
        """The user's keys, newest first."""
        ...

    async def remove(self, user_id: UUID, key_id: UUID, actor: Actor) -> bool:
        """Remove a key. False, having changed nothing, if the user has no such key."""
        ...

    async def find(self, fingerprint: str) -> tuple[AuthorizedKey, User] | None:
        """The key and whose it is; None if there is no such key, or its user is disabled."""
        ...

    async def record_use(self, key_id: UUID) -> None:
        """Record that somebody has just proved to have the key; at most once in SEEN_EVERY_SECONDS."""
        ...
