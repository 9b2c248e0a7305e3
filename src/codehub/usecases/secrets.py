"""What people keep for their workspaces, and admins for a template: put, listed and deleted, never read back.

Whatever is kept here reaches every later workspace of its owner and outlives the credential that put it there: so it is
made and replaced by a session whose person has just proved who they are, as tokens are. Deleting, and a git identity,
which is no secret, take the scope `write`. A template's variables are an admin's to set, with a token too, as templates
themselves are.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from codehub.domain.errors import NotFound
from codehub.domain.identity import Caller, Scope
from codehub.domain.secrets import (
    Dotfiles,
    GitIdentity,
    SecretKind,
    SecretName,
    SecretOwner,
    checked_dotfiles,
    checked_git_host,
    checked_git_identity,
    checked_git_token,
    checked_git_username,
    checked_value,
    checked_variable,
    template_owner,
    user_owner,
)
from codehub.ports.secrets import Keyring, MakeSshKey, Profile, Profiles, Secrets, SecretShown, StoredSecret
from codehub.ports.stores import Templates
from codehub.usecases.identity import actor_of

VARIABLES = (SecretKind.VARIABLE,)
GIT_CREDENTIALS = (SecretKind.GIT_TOKEN, SecretKind.SSH_KEY)


@dataclass(frozen=True, slots=True)
class SecretKeeping:
    """What the callers keep for themselves, and what admins keep for templates."""

    secrets: Secrets
    profiles: Profiles
    keyring: Keyring
    templates: Templates
    make_ssh_key: MakeSshKey

    def is_readable(self, shown: SecretShown) -> bool:
        """Whether the key that the secret was encrypted with is still there."""
        return shown.key_id in self.keyring.key_ids

    async def list_own(self, caller: Caller, kinds: Collection[SecretKind]) -> Sequence[SecretShown]:
        caller.must(Scope.READ)
        found = await self.secrets.shown(user_owner(caller.user.id))
        return sorted((one for one in found if one.name.kind in kinds), key=lambda one: (one.name.name, one.name.kind))

    async def put_variable(self, caller: Caller, name: str, value: str) -> SecretShown:
        _may_put(caller)
        return await self._put(caller, user_owner(caller.user.id), name, value)

    async def delete_variable(self, caller: Caller, name: str) -> None:
        caller.must(Scope.WRITE)
        await self._delete(caller, SecretName(user_owner(caller.user.id), SecretKind.VARIABLE, name))

    async def put_git_token(self, caller: Caller, host: str, username: str, token: str) -> SecretShown:
        _may_put(caller)
        name = SecretName(user_owner(caller.user.id), SecretKind.GIT_TOKEN, checked_git_host(host))
        public, value = checked_git_username(username), checked_git_token(token)
        stored = StoredSecret(name, public, self.keyring.seal(name, public, value))
        return await self.secrets.put(stored, actor_of(caller))

    async def make_git_ssh_key(self, caller: Caller, host: str) -> SecretShown:
        """Makes a key pair for a host, whose public half is shown; it replaces one that is there."""
        _may_put(caller)
        name = SecretName(user_owner(caller.user.id), SecretKind.SSH_KEY, checked_git_host(host))
        made = self.make_ssh_key(f"{caller.user.username}@codehub:{name.name}")
        stored = StoredSecret(name, made.public, self.keyring.seal(name, made.public, made.private))
        return await self.secrets.put(stored, actor_of(caller))

    async def delete_git_credential(self, caller: Caller, kind: SecretKind, host: str) -> None:
        caller.must(Scope.WRITE)
        await self._delete(caller, SecretName(user_owner(caller.user.id), kind, checked_git_host(host)))

    async def profile(self, caller: Caller) -> Profile:
        caller.must(Scope.READ)
        return await self.profiles.get(caller.user.id)

    async def set_git_identity(self, caller: Caller, name: str, email: str) -> GitIdentity:
        caller.must(Scope.WRITE)
        identity = checked_git_identity(name, email)
        await self.profiles.set_git_identity(caller.user.id, identity, actor_of(caller))
        return identity

    async def remove_git_identity(self, caller: Caller) -> None:
        caller.must(Scope.WRITE)
        await self.profiles.set_git_identity(caller.user.id, None, actor_of(caller))

    async def set_dotfiles(self, caller: Caller, url: str, command: str) -> Dotfiles:
        _may_put(caller)
        dotfiles = checked_dotfiles(url, command)
        await self.profiles.set_dotfiles(caller.user.id, dotfiles, actor_of(caller))
        return dotfiles

    async def remove_dotfiles(self, caller: Caller) -> None:
        caller.must(Scope.WRITE)
        await self.profiles.set_dotfiles(caller.user.id, None, actor_of(caller))

    async def list_of_template(self, caller: Caller, template: str) -> Sequence[SecretShown]:
        caller.must(Scope.ADMIN)
        await self._must_exist(template)
        return await self.secrets.shown(template_owner(template))

    async def put_template_variable(self, caller: Caller, template: str, name: str, value: str) -> SecretShown:
        caller.must(Scope.ADMIN)
        await self._must_exist(template)
        return await self._put(caller, template_owner(template), name, value)

    async def delete_template_variable(self, caller: Caller, template: str, name: str) -> None:
        caller.must(Scope.ADMIN)
        await self._must_exist(template)
        await self._delete(caller, SecretName(template_owner(template), SecretKind.VARIABLE, name))

    async def _put(self, caller: Caller, owner: SecretOwner, variable: str, value: str) -> SecretShown:
        name = SecretName(owner, SecretKind.VARIABLE, checked_variable(variable))
        stored = StoredSecret(name, "", self.keyring.seal(name, "", checked_value(value)))
        return await self.secrets.put(stored, actor_of(caller))

    async def _delete(self, caller: Caller, name: SecretName) -> None:
        if not await self.secrets.delete(name, actor_of(caller)):
            what = {SecretKind.VARIABLE: "secret", SecretKind.GIT_TOKEN: "token", SecretKind.SSH_KEY: "SSH key"}
            place = "" if name.kind is SecretKind.VARIABLE else " for"
            raise NotFound(f"There is no {what[name.kind]}{place} {name.name}.")

    async def _must_exist(self, template: str) -> None:
        if await self.templates.get(template) is None:
            raise NotFound(f"There is no template {template!r}.")


def _may_put(caller: Caller) -> None:
    caller.must(Scope.WRITE)
    caller.must_be_fresh()
