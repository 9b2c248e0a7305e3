"""Registered SSH public keys in memory."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from uuid import UUID

from codehub.adapters.memory.database_state import AccountStore
from codehub.adapters.memory.fault_injection import effect
from codehub.domain.authorized_keys import AuthorizedKey, refuse_too_many_keys
from codehub.domain.credentials import SEEN_EVERY_SECONDS
from codehub.domain.errors import Conflict
from codehub.domain.identity import User
from codehub.domain.ledger import AuditAction
from codehub.ports.authorized_keys import NewAuthorizedKey
from codehub.ports.stores import Actor


class MemoryAuthorizedKeys(AccountStore):
    @effect("authorized_keys.add")
    def add(self, new: NewAuthorizedKey, most: int, actor: Actor) -> AuthorizedKey:
        user = self._state.user(new.user_id)
        refuse_too_many_keys(len(self._of_user(user.id)), most)
        if self._of_fingerprint(new.key.fingerprint):
            raise Conflict("That key is registered already, here or by somebody else.", "ssh_key_taken")
        added = AuthorizedKey(new.id, user.id, new.name, new.key, self._state.now())
        self._state.authorized_keys[added.id] = added
        self._audit(actor, AuditAction.ADD_SSH_KEY, user, added)
        return added

    @effect("authorized_keys.of_user")
    def of_user(self, user_id: UUID) -> Sequence[AuthorizedKey]:
        return self._of_user(user_id)

    @effect("authorized_keys.remove")
    def remove(self, user_id: UUID, key_id: UUID, actor: Actor) -> bool:
        found = self._state.authorized_keys.get(key_id)
        if found is None or found.user_id != user_id:
            return False
        del self._state.authorized_keys[key_id]
        self._audit(actor, AuditAction.REMOVE_SSH_KEY, self._state.user(user_id), found)
        return True

    @effect("authorized_keys.find")
    def find(self, fingerprint: str) -> tuple[AuthorizedKey, User] | None:
        found = self._of_fingerprint(fingerprint)
        user = self._state.users[found.user_id] if found else None
        return None if found is None or user is None or user.disabled_at else (found, user)

    @effect("authorized_keys.record_use")
    def record_use(self, key_id: UUID) -> None:
        found, now = self._state.authorized_keys.get(key_id), self._state.now()
        if found and (found.last_used_at is None or found.last_used_at < now - timedelta(seconds=SEEN_EVERY_SECONDS)):
            self._state.authorized_keys[key_id] = replace(found, last_used_at=now)

    def _of_user(self, user_id: UUID) -> list[AuthorizedKey]:
        own = [one for one in self._state.authorized_keys.values() if one.user_id == user_id]
        return sorted(own, key=lambda one: (-one.created_at.timestamp(), str(one.id)))

    def _of_fingerprint(self, fingerprint: str) -> AuthorizedKey | None:
        every = self._state.authorized_keys.values()
        return next((one for one in every if one.key.fingerprint == fingerprint), None)

    def _audit(self, actor: Actor, action: AuditAction, user: User, key: AuthorizedKey) -> None:
        details = {"name": key.name, "fingerprint": key.key.fingerprint}
        self._state.append_audit(actor, action, f"user:{user.username}", details)
