"""Access to workspaces over SSH: who a key is, which workspace a name means, waking it, and what is audited.

The rule is the front door's: the owner may enter, and an admin, who is audited. Whoever connects by SSH means to: a
workspace that sleeps is started, in whatever way it sleeps.
"""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from codehub.domain.access import AccessAction, access_to
from codehub.domain.authorized_keys import AuthorizedKey
from codehub.domain.credentials import one_line
from codehub.domain.errors import CodeHubError, Conflict, LimitReached, NotFound
from codehub.domain.identity import User, ssh_key_credential
from codehub.domain.ledger import AuditAction, command_details
from codehub.domain.workspace import Operation, Workspace
from codehub.ports.accounts import Audit
from codehub.ports.authorized_keys import AuthorizedKeys
from codehub.ports.signals import Clock
from codehub.ports.views import OwnedWorkspace, WorkspaceViews
from codehub.usecases.identity import actor_of
from codehub.usecases.workspace_access import WorkspaceAccess, WorkspaceCaller

POLL_SECONDS: Final = 0.25
START_SECONDS: Final = 900.0

Tell = Callable[[str], None]
"""Shows a line of progress to the person who waits."""


@dataclass(frozen=True, slots=True)
class SshAccess:
    keys: AuthorizedKeys
    views: WorkspaceViews
    workspace_access: WorkspaceAccess
    audit: Audit
    clock: Clock

    async def key(self, fingerprint: str) -> tuple[AuthorizedKey, User] | None:
        return await self.keys.find(fingerprint)

    async def signed_in(self, key: AuthorizedKey) -> None:
        """Records that somebody has proved to have the key."""
        await self.keys.record_use(key.id)

    async def same_key(self, key: AuthorizedKey) -> tuple[AuthorizedKey, User] | None:
        """The key and its user as they are now; None if it was removed, is somebody else's, or its user is disabled."""
        found = await self.keys.find(key.key.fingerprint)
        return found if found and (found[0].id, found[1].id) == (key.id, key.user_id) else None

    async def still_allowed(self, key: AuthorizedKey, workspace_id: UUID | None) -> bool:
        """Whether the key still is its user's, who may enter the workspace."""
        found = await self.same_key(key)
        if found is None:
            return False
        if workspace_id is None:
            return True
        owned = await self.views.get(workspace_id)
        caller = caller_of(*found)
        return owned is not None and owned.workspace.deleted_at is None and caller.owns(owned.workspace)

    async def workspace(self, caller: WorkspaceCaller, name: str) -> OwnedWorkspace:
        """The workspace that the caller means: one of their own by its name, or any that they may enter by its id or
        the name in its address. NotFound."""
        for owned in await self.views.everything(caller.user.owner_id):
            if owned.workspace.name.lower() == name.lower():
                return owned
        found = await self._by_id(name) or await self.views.by_slug(name.lower())
        if found is None or found.workspace.deleted_at is not None or not caller.owns(found.workspace):
            raise NotFound(f"There is no workspace {one_line(name, 100)!r}, or it is not yours.")
        return found

    async def _by_id(self, name: str) -> OwnedWorkspace | None:
        try:
            return await self.views.get(UUID(name))
        except ValueError:
            return None

    async def running(self, caller: WorkspaceCaller, workspace: Workspace, tell: Tell) -> Workspace:
        """The workspace once it runs; it is started if it sleeps, with progress. Raises NotFound, LimitReached,
        Conflict if it cannot be started, or BackendError."""
        said, deadline = "", self.clock.monotonic() + START_SECONDS
        is_asked = False
        while self.clock.monotonic() < deadline:
            access = access_to(workspace)
            if access.action is AccessAction.FORWARD:
                return workspace
            if access.action is AccessAction.NOT_FOUND:
                raise NotFound("This workspace is deleted.")
            if access.action is AccessAction.EXPLAIN_ERROR:
                info = workspace.error_info
                raise Conflict(f"This workspace has a problem: {info.message if info else 'see the dashboard'}")
            if not is_asked:
                workspace = await self.workspace_access.wake(caller, workspace.id)
                is_asked = True
                continue
            now = f"{workspace.phase.value} {workspace.operation.value}"
            if now != said:
                tell(_progress(workspace))
                said = now
            await self.clock.sleep(POLL_SECONDS)
            found = await self.views.get(workspace.id)
            if found is None:
                raise NotFound("This workspace is deleted.")
            workspace = found.workspace
        raise Conflict("This workspace has not started in time: see the dashboard.")

    async def record(
        self, caller: WorkspaceCaller, key: AuthorizedKey, owned: OwnedWorkspace, details: Mapping[str, str]
    ) -> None:
        """Audits what was begun over SSH, an owner's own sessions too: the key may have been stolen. What is said in
        them is not recorded."""
        entry = {
            "owner": owned.owner,
            "workspace": owned.workspace.name,
            "fingerprint": key.key.fingerprint,
            **(command_details(details["command"]) if "command" in details else details),
        }
        subject = f"workspace:{owned.workspace.id}"
        await self.audit.append(actor_of(caller), AuditAction.OPEN_SSH, subject, entry)


def caller_of(key: AuthorizedKey, user: User, address: str = "") -> WorkspaceCaller:
    """The caller who has proved to have the key."""
    return WorkspaceCaller(user, ssh_key_credential(key.id), address=one_line(address))


def refusal(error: CodeHubError) -> str:
    """What a person is told who was refused: the sentence itself, and which of their workspaces hold the places."""
    if isinstance(error, LimitReached) and error.holders:
        return f"{error} Running: {', '.join(error.holders)}."
    return str(error)


def _progress(workspace: Workspace) -> str:
    if workspace.operation is Operation.NONE:
        return f"{workspace.name} is {workspace.phase.value.lower()} and will be started …"
    return f"{workspace.name}: {workspace.operation.value.lower().replace('_', ' ')} …"


async def every(clock: Clock, seconds: float, early: asyncio.Event) -> None:
    """Waits for so long, or until `early` is set, which is cleared."""
    waits = [asyncio.ensure_future(clock.sleep(seconds)), asyncio.ensure_future(early.wait())]
    try:
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()
    early.clear()
