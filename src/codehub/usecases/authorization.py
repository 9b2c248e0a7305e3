"""Who may see which workspace, and the audit entries for what was read of it.

What is not the caller's does not exist for them, for reading and for changing alike; an admin, with the scope for it,
may do what the owner may. Every download is audited, and each look of somebody who is not the owner: pages ask again
every few seconds while they are open, so the same look by the same person is audited once in a while.
"""

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final
from uuid import UUID

from codehub.domain.errors import NotFound
from codehub.domain.identity import Caller, Scope
from codehub.domain.ledger import AuditAction
from codehub.ports.accounts import Audit
from codehub.ports.signals import Clock
from codehub.ports.views import OwnedWorkspace, WorkspaceViews
from codehub.usecases.identity import actor_of

REPEAT_AFTER_SECONDS: Final = 600.0
MOST_REMEMBERED: Final = 10_000

_Look = tuple[str, UUID, AuditAction, str]
"""Who looked with which credential, at which workspace, how, and with which details."""


async def authorized_workspace(
    views: WorkspaceViews, caller: Caller, workspace_id: UUID, scope: Scope = Scope.READ, *, deleted: bool = False
) -> OwnedWorkspace:
    """The workspace, with `deleted` also if it is deleted. NotFound unless the caller may see it; Forbidden if they
    may, but not with this scope."""
    found = await views.get(workspace_id)
    hidden = found is not None and found.workspace.deleted_at is not None and not deleted
    if found is None or hidden or not may_see(caller, found):
        raise NotFound(f"There is no workspace {workspace_id}, or it is not yours.")
    caller.must(scope)
    return found


def may_see(caller: Caller, owned: OwnedWorkspace) -> bool:
    return owned.workspace.owner_id == caller.user.owner_id or caller.may(Scope.ADMIN)


@dataclass(frozen=True, slots=True)
class AccessAudit:
    """Audits what is read of workspaces, and not the same look again for a while."""

    audit: Audit
    clock: Clock
    _recent: "OrderedDict[_Look, float]" = field(default_factory=OrderedDict)
    """Until when the same look is not audited again, the oldest first."""

    async def viewed(
        self, caller: Caller, owned: OwnedWorkspace, action: AuditAction, details: Mapping[str, str] | None = None
    ) -> None:
        """Audits that somebody looked at another person's workspace; an owner's own looks are not audited."""
        if owned.workspace.owner_id == caller.user.owner_id:
            return
        look = (caller.credential, owned.workspace.id, action, repr(details))
        now = self.clock.monotonic()
        if self._recent.get(look, now) > now:
            return
        await self._write(caller, owned, action, details)
        self._recent[look] = now + REPEAT_AFTER_SECONDS
        self._recent.move_to_end(look)
        while len(self._recent) > MOST_REMEMBERED:
            self._recent.popitem(last=False)

    async def downloaded(
        self, caller: Caller, owned: OwnedWorkspace, action: AuditAction, details: Mapping[str, str]
    ) -> None:
        """Audits every download, the owner's too: it may have been made with a stolen token."""
        await self._write(caller, owned, action, details)

    async def changed(self, caller: Caller, owned: OwnedWorkspace, fields: Mapping[str, object]) -> None:
        """Audits what somebody set in another person's workspace, whose repository and template decide what runs there
        with the owner's secrets."""
        if fields and owned.workspace.owner_id != caller.user.owner_id:
            details = {name: "" if value is None else str(value) for name, value in sorted(fields.items())}
            await self._write(caller, owned, AuditAction.CHANGE_WORKSPACE, details)

    async def _write(
        self, caller: Caller, owned: OwnedWorkspace, action: AuditAction, details: Mapping[str, str] | None
    ) -> None:
        entry = {"owner": owned.owner, "workspace": owned.workspace.name, **(details or {})}
        await self.audit.append(actor_of(caller), action, f"workspace:{owned.workspace.id}", entry)
