"""What a workspace is given at its start of what its owner and its template keep.

What cannot be opened (a lost key, a damaged row) is left out: the workspace starts without it, the log says which and
why, the owner and the admins get a notice, and nothing is deleted. A database that does not answer is Unreachable, and
nothing starts.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from uuid import UUID

import structlog

from codehub.domain import notices
from codehub.domain.errors import Unreachable
from codehub.domain.secrets import GitIdentity, OwnerKind, SecretKind, SecretOwner, precedence, template_owner
from codehub.domain.workspace import Workspace
from codehub.ports.accounts import Accounts
from codehub.ports.runtime import GitCredential, StartSecrets
from codehub.ports.secrets import CannotOpen, Keyring, Profile, Profiles, Secrets, StoredSecret
from codehub.ports.signals import Bus, Notifier
from codehub.ports.stores import Actor

log = structlog.get_logger()

OWNER_NOTICE = "owner_notice"
"""The type of a bus message on an owner's channel whose subject and details the owner's event streams show."""

MOST_NAMES = 50
"""How many names of one kind the audit log and notices hold; the others are counted."""


@dataclass(frozen=True, slots=True)
class StartContents:
    """What a start is given: secrets, and variables that are none. `used`: the names of the secrets by kind;
    `left_out`: those that could not be opened, and why."""

    secrets: StartSecrets = field(default_factory=StartSecrets)
    env: Mapping[str, str] = field(default_factory=dict)
    used: Mapping[str, Sequence[str]] = field(default_factory=dict)
    left_out: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class WorkspaceSecrets:
    """What workspaces are given. `email_host`: where people who have set no git identity have their address."""

    secrets: Secrets
    profiles: Profiles
    accounts: Accounts
    keyring: Keyring
    bus: Bus
    notifier: Notifier
    sse_prefix: str
    email_host: str

    async def for_start(self, ws: Workspace) -> StartContents:
        """What the workspace is given now. Raises Unreachable."""
        template, owner = template_owner(ws.template), SecretOwner(OwnerKind.USER, ws.owner_id)
        found = await self.secrets.of_owners([template, owner])
        opened: list[tuple[StoredSecret, str]] = []
        left_out: dict[str, str] = {}
        for secret in sorted(found, key=lambda one: precedence(one.name.owner)):
            try:
                opened.append((secret, self.keyring.open(secret)))
            except CannotOpen as error:
                left_out[_label(secret)] = str(error)
        profile = await self._profile(UUID(ws.owner_id)) if _is_id(ws.owner_id) else Profile()
        return StartContents(_start_secrets(opened), _variables(profile), _names(opened), left_out)

    async def _profile(self, user_id: UUID) -> Profile:
        """The owner's profile. Who has set no git identity commits under the name of the account: git commits nothing
        without one."""
        profile = await self.profiles.get(user_id)
        if profile.git_identity is not None:
            return profile
        user = await self.accounts.user(user_id)
        if user is None:
            return profile
        return replace(profile, git_identity=GitIdentity(user.username, f"{user.username}@{self.email_host}"))

    async def record_use(self, ws: Workspace, op_id: UUID, given: StartContents, actor: Actor) -> None:
        """Audits what a workspace was started with, once for each start, and tells of what was left out."""
        if not given.used and not given.left_out:
            return
        left_out = {"left_out": sorted(given.left_out)} if given.left_out else {}
        details = {"workspace": ws.name, **_bounded({**given.used, **left_out})}
        if await self.secrets.record_use(ws.id, op_id, details, actor) and given.left_out:
            await self._tell(ws, given.left_out)

    async def _tell(self, ws: Workspace, left_out: Mapping[str, str]) -> None:
        why = "; ".join(sorted(set(left_out.values())))
        notice = notices.secrets_not_opened(ws, _bounded({"names": sorted(left_out)}), why)
        log.warning(notice.subject, **notice.details)
        message = {"type": OWNER_NOTICE, "id": str(ws.id), **notice._asdict()}
        try:
            await self.bus.publish(f"{self.sse_prefix}{ws.owner_id}", message)
        except Unreachable as error:
            log.warning("the owner's notice was not published", workspace=str(ws.id), error=str(error))
        await self.notifier.notify(notice)


def _start_secrets(opened: Sequence[tuple[StoredSecret, str]]) -> StartSecrets:
    of_kind = {kind: [(one, value) for one, value in opened if one.name.kind is kind] for kind in SecretKind}
    return StartSecrets(
        env={one.name.name: value for one, value in of_kind[SecretKind.VARIABLE]},
        git_credentials=tuple(
            GitCredential(one.name.name, one.public, value) for one, value in of_kind[SecretKind.GIT_TOKEN]
        ),
        ssh_keys=tuple(value for _, value in of_kind[SecretKind.SSH_KEY]),
    )


def _names(opened: Sequence[tuple[StoredSecret, str]]) -> dict[str, list[str]]:
    """The names of what was opened, by kind and for templates apart, as the audit log has them."""
    found: dict[str, list[str]] = {}
    for one, _ in opened:
        of_template = one.name.owner.kind is OwnerKind.TEMPLATE
        found.setdefault("template_variables" if of_template else f"{one.name.kind.value}s", []).append(one.name.name)
    return found


def _bounded(names: Mapping[str, Sequence[str]]) -> dict[str, Sequence[str] | int]:
    """The first names of each kind, and how many others there are: each start is a row of the audit log."""
    found: dict[str, Sequence[str] | int] = {kind: some[:MOST_NAMES] for kind, some in names.items()}
    others = {f"{kind}_others": len(some) - MOST_NAMES for kind, some in names.items() if len(some) > MOST_NAMES}
    return found | others


def _variables(profile: Profile) -> dict[str, str]:
    found = {}
    if profile.git_identity is not None:
        found["CODEHUB_GIT_NAME"] = profile.git_identity.name
        found["CODEHUB_GIT_EMAIL"] = profile.git_identity.email
    if profile.dotfiles is not None:
        found["CODEHUB_DOTFILES_URL"] = profile.dotfiles.url
        if profile.dotfiles.command:
            found["CODEHUB_DOTFILES_COMMAND"] = profile.dotfiles.command
    return found


def _label(secret: StoredSecret) -> str:
    what = {SecretKind.VARIABLE: "", SecretKind.GIT_TOKEN: "token for ", SecretKind.SSH_KEY: "SSH key for "}
    of_template = " (template)" if secret.name.owner.kind is OwnerKind.TEMPLATE else ""
    return f"{what[secret.name.kind]}{secret.name.name}{of_template}"


def _is_id(text: str) -> bool:
    try:
        UUID(text)
    except ValueError:
        return False
    return True
