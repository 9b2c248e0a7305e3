"""Whose workspace is it? Whatever is not yours does not exist, for reading and for wishing alike.

An admin, with the scope for it, stands where the owner stands.

What is read of a workspace, for the audit log: every download, and each look of somebody who is not the owner.

Pages ask again every few seconds while they are open: the same look by the same person is told once in a while.
"""

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final
from uuid import UUID

from codehub.domain.audit import AuditAction
from codehub.domain.errors import NotFound
from codehub.domain.gc_rules import RestorePoint
from codehub.domain.identity import Caller, Scope
from codehub.ports.accounts import Audit
from codehub.ports.signals import Clock
from codehub.ports.views import OwnedWorkspace, WorkspaceViews
from codehub.usecases.identity import actor_of


@dataclass(frozen=True, slots=True)
class Reading:
    views: WorkspaceViews

    async def one(
        self, caller: Caller, workspace_id: UUID, scope: Scope = Scope.READ, *, deleted: bool = False
    ) -> OwnedWorkspace:
        """NotFound unless it is the caller's to see. Forbidden if it is, but this token may not do that. With
        `deleted`, a deleted one too."""
        found = await self.views.get(workspace_id)
        if found is None or not may_see(caller, found):
            raise _missing(workspace_id)
        if found.workspace.deleted_at is not None and not deleted:
            raise _missing(workspace_id)
        caller.must(scope)
        return found

    async def restore_point(self, owned: OwnedWorkspace, op_id: UUID) -> RestorePoint:
        """Of this workspace, whatever id is asked for."""
        points = await self.views.restore_points(owned.workspace.id)
        found = next((point for point in points if point.op_id == op_id), None)
        if found is None:
            raise NotFound(f"The workspace has no restore point {op_id}.")
        return found


def may_see(caller: Caller, owned: OwnedWorkspace) -> bool:
    return owned.workspace.owner_id == caller.user.owner_id or caller.may(Scope.ADMIN)


def _missing(workspace_id: UUID) -> NotFound:
    return NotFound(f"There is no workspace {workspace_id}, or it is not yours.")


AGAIN_SECONDS: Final = 600.0
MOST_REMEMBERED: Final = 10_000

_Look = tuple[str, UUID, AuditAction, str]


@dataclass(frozen=True, slots=True)
class AccessAudit:
    audit: Audit
    clock: Clock
    _told: "OrderedDict[_Look, float]" = field(default_factory=OrderedDict)
    """Until when a look is not told again, the oldest first."""

    async def noted(
        self, caller: Caller, owned: OwnedWorkspace, action: AuditAction, details: Mapping[str, str] | None = None
    ) -> None:
        """A look at somebody else's workspace. The owner's own looks are nobody's business."""
        if owned.workspace.owner_id == caller.user.owner_id:
            return
        look = (caller.credential, owned.workspace.id, action, repr(details))
        now = self.clock.monotonic()
        if self._told.get(look, now) > now:
            return
        await self._tell(caller, owned, action, details)
        self._told[look] = now + AGAIN_SECONDS
        self._told.move_to_end(look)
        while len(self._told) > MOST_REMEMBERED:
            self._told.popitem(last=False)

    async def downloaded(
        self, caller: Caller, owned: OwnedWorkspace, action: AuditAction, details: Mapping[str, str]
    ) -> None:
        """Told each time and of everybody: what leaves the house may have been taken with a stolen token."""
        await self._tell(caller, owned, action, details)

    async def _tell(
        self, caller: Caller, owned: OwnedWorkspace, action: AuditAction, details: Mapping[str, str] | None
    ) -> None:
        said = {"owner": owned.owner, "workspace": owned.workspace.name, **(details or {})}
        await self.audit.append(actor_of(caller), action, f"workspace:{owned.workspace.id}", said)
