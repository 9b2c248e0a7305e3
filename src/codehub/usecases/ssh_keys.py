"""The SSH public keys that people register to reach their workspaces with: added, listed and removed.

A key is a credential that outlives the session that added it, so only a session whose person has just proved who they
are adds one, as for tokens. Removing one takes the scope `write`, and ends what was opened with it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

from codehub.domain.authorized_keys import KEYS_PER_USER, AuthorizedKey, checked_key_name, checked_public_key
from codehub.domain.errors import NotFound
from codehub.domain.identity import Caller, Scope
from codehub.ports.authorized_keys import AuthorizedKeys, NewAuthorizedKey
from codehub.ports.signals import Ids
from codehub.usecases.identity import actor_of
from codehub.usecases.revocations import Revocations


@dataclass(frozen=True, slots=True)
class SshKeys:
    keys: AuthorizedKeys
    revocations: Revocations
    ids: Ids

    async def add(self, caller: Caller, public_key: str, name: str = "") -> AuthorizedKey:
        """Registers the key of one line in OpenSSH's format; without a name, by its comment."""
        caller.must(Scope.WRITE)
        caller.must_be_fresh()
        key = checked_public_key(public_key)
        new = NewAuthorizedKey(self.ids.new(), caller.user.id, checked_key_name(name, key), key)
        return await self.keys.add(new, KEYS_PER_USER, actor_of(caller))

    async def list(self, caller: Caller) -> Sequence[AuthorizedKey]:
        caller.must(Scope.READ)
        return await self.keys.of_user(caller.user.id)

    async def remove(self, caller: Caller, key_id: UUID) -> None:
        caller.must(Scope.WRITE)
        if not await self.keys.remove(caller.user.id, key_id, actor_of(caller)):
            raise NotFound("You have no such SSH key.")
        await self.revocations.ssh_key_removed(caller.user.id, key_id)
