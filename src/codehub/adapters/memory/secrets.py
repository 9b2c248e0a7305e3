"""Secrets and profiles of users in memory, and a keyring that keeps what it sealed instead of encrypting it."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any
from uuid import UUID, uuid4

from codehub.adapters.memory.database_state import AccountStore, AccountTables, StoredSecretRow
from codehub.adapters.memory.fault_injection import effect
from codehub.domain.errors import Conflict, NotFound
from codehub.domain.ledger import AuditAction
from codehub.domain.secrets import (
    Dotfiles,
    GitIdentity,
    OwnerKind,
    SecretKind,
    SecretName,
    SecretOwner,
    SecretsHeld,
    refuse_too_many,
)
from codehub.ports.secrets import (
    CannotOpen,
    Profile,
    Sealed,
    SecretShown,
    SshKeyPair,
    StoredSecret,
)
from codehub.ports.stores import Actor


class MemoryKeyring:
    """Keeps the values of what it sealed. `keys`: their ids, the first of which seals."""

    def __init__(self, *keys: str) -> None:
        self.keys = list(keys)
        self._values: dict[bytes, tuple[SecretName, str, str, str]] = {}

    @property
    def key_ids(self) -> Sequence[str]:
        return self.keys

    def seal(self, name: SecretName, public: str, value: str) -> Sealed:
        if not self.keys:
            raise Conflict("This keyring has no key.", "no_secrets_key")
        # As long as what is kept, as encrypted data is: the bounds of an owner are counted in it.
        data = uuid4().bytes + bytes(len(value.encode()))
        self._values[data] = (name, public, self.keys[0], value)
        return Sealed(self.keys[0], data)

    def open(self, secret: StoredSecret) -> str:
        if secret.sealed.key_id not in self.keys:
            raise CannotOpen(f"the key {secret.sealed.key_id}, which it was encrypted with, is not here")
        found = self._values.get(secret.sealed.data)
        if found is None or found[:3] != (secret.name, secret.public, secret.sealed.key_id):
            raise CannotOpen("it is damaged, or was not encrypted for this place")
        return found[3]


def numbered_ssh_key(comment: str) -> SshKeyPair:
    """A pair that no server takes, made at once."""
    mark = uuid4().hex
    return SshKeyPair(f"private {mark}", f"ssh-ed25519 {mark} {comment}")


def place(name: SecretName) -> tuple[str, SecretKind, str]:
    """The order of secrets: by owners, kinds and names."""
    return str(name.owner), name.kind, name.name


class MemorySecrets(AccountStore):
    @effect("secrets.shown")
    def shown(self, owner: SecretOwner) -> Sequence[SecretShown]:
        return [_shown(row) for row in self._rows() if row.secret.name.owner == owner]

    @effect("secrets.put")
    def put(self, secret: StoredSecret, actor: Actor) -> SecretShown:
        subject = _subject(self._state, secret.name.owner)
        owned = [row.secret for row in self._rows() if row.secret.name.owner == secret.name.owner]
        others = [one for one in owned if one.name != secret.name]
        keys = sum(one.name.kind is SecretKind.SSH_KEY for one in others)
        held = SecretsHeld(len(others), keys, sum(len(one.sealed.data) for one in others))
        refuse_too_many(secret.name, len(secret.sealed.data), held)
        row = StoredSecretRow(secret, self._state.now())
        self._state.secrets[secret.name] = row
        self._state.append_audit(actor, AuditAction.PUT_SECRET, subject, _details(secret.name))
        return _shown(row)

    @effect("secrets.delete")
    def delete(self, name: SecretName, actor: Actor) -> bool:
        if self._state.secrets.pop(name, None) is None:
            return False
        subject = _subject(self._state, name.owner)
        self._state.append_audit(actor, AuditAction.DELETE_SECRET, subject, _details(name))
        return True

    @effect("secrets.of_owners")
    def of_owners(self, owners: Collection[SecretOwner]) -> Sequence[StoredSecret]:
        return [row.secret for row in self._rows() if row.secret.name.owner in owners]

    @effect("secrets.page")
    def page(self, after: SecretName | None, limit: int, other_than: str | None = None) -> Sequence[StoredSecret]:
        found = [row.secret for row in self._rows()]
        if after is not None:
            found = [one for one in found if place(one.name) > place(after)]
        return [one for one in found if one.sealed.key_id != other_than][:limit]

    @effect("secrets.reseal")
    def reseal(self, before: StoredSecret, sealed: Sealed) -> bool:
        row = self._state.secrets.get(before.name)
        if row is None or row.secret != before:
            return False
        self._state.secrets[before.name] = replace(row, secret=replace(before, sealed=sealed))
        return True

    @effect("secrets.count_by_key")
    def count_by_key(self) -> Mapping[str, int]:
        return Counter(row.secret.sealed.key_id for row in self._state.secrets.values())

    async def record_use(self, workspace_id: UUID, op_id: UUID, details: Mapping[str, Any], actor: Actor) -> bool:
        subject = f"workspace:{workspace_id}"

        def write() -> bool:
            for entry in self._state.audit:
                if (entry.subject, entry.action, entry.details.get("op_id")) == (
                    subject,
                    AuditAction.USE_SECRETS,
                    str(op_id),
                ):
                    return False
            self._state.append_audit(actor, AuditAction.USE_SECRETS, subject, {"op_id": str(op_id), **details})
            return True

        return await self._write("secrets.record_use", actor.epoch, write)

    def _rows(self) -> list[StoredSecretRow]:
        return sorted(self._state.secrets.values(), key=lambda row: place(row.secret.name))


class MemoryProfiles(AccountStore):
    @effect("profiles.get")
    def get(self, user_id: UUID) -> Profile:
        return self._state.profiles.get(user_id, Profile())

    @effect("profiles.set_git_identity")
    def set_git_identity(self, user_id: UUID, identity: GitIdentity | None, actor: Actor) -> None:
        details = asdict(identity) if identity else {}
        self._set(user_id, {"git_identity": identity}, actor, AuditAction.SET_GIT_IDENTITY, details)

    @effect("profiles.set_dotfiles")
    def set_dotfiles(self, user_id: UUID, dotfiles: Dotfiles | None, actor: Actor) -> None:
        # Not the command: people put secrets there.
        details = {"url": dotfiles.url} if dotfiles else {}
        self._set(user_id, {"dotfiles": dotfiles}, actor, AuditAction.SET_DOTFILES, details)

    def _set(
        self, user_id: UUID, fields: dict[str, Any], actor: Actor, action: AuditAction, details: Mapping[str, str]
    ) -> None:
        user, before = self._state.user(user_id), self._state.profiles.get(user_id, Profile())
        after = replace(before, **fields)
        if after != before:
            self._state.profiles[user_id] = after
            self._state.append_audit(actor, action, f"user:{user.username}", details)


def _details(name: SecretName) -> dict[str, str]:
    return {"kind": name.kind.value, "name": name.name}


def _shown(row: StoredSecretRow) -> SecretShown:
    secret = row.secret
    return SecretShown(secret.name, secret.public, secret.sealed.key_id, row.updated_at)


def _subject(state: AccountTables, owner: SecretOwner) -> str:
    """The owner as the audit log names it. NotFound."""
    if owner.kind is OwnerKind.USER:
        return f"user:{state.user(UUID(owner.id)).username}"
    if owner.id not in state.templates:
        raise NotFound(f"There is no template {owner.id!r}.")
    return f"template:{owner.id}"
