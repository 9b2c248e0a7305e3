"""Whose workspace is it? Whatever is not yours does not exist, for reading and for wishing alike.

An admin, with the scope for it, stands where the owner stands.
"""

from dataclasses import dataclass
from uuid import UUID

from codehub.domain.errors import NotFound
from codehub.domain.identity import Caller, Scope
from codehub.domain.protection import RestorePoint
from codehub.ports.views import Owned, WorkspaceViews


@dataclass(frozen=True, slots=True)
class Reading:
    views: WorkspaceViews

    async def one(
        self, caller: Caller, workspace_id: UUID, scope: Scope = Scope.READ, *, deleted: bool = False
    ) -> Owned:
        """NotFound unless it is the caller's to see. Forbidden if it is, but this token may not do that. With
        `deleted`, a deleted one too."""
        found = await self.views.get(workspace_id)
        if found is None or not may_see(caller, found):
            raise _missing(workspace_id)
        if found.workspace.deleted_at is not None and not deleted:
            raise _missing(workspace_id)
        caller.must(scope)
        return found

    async def restore_point(self, owned: Owned, op_id: UUID) -> RestorePoint:
        """Of this workspace, whatever id is asked for."""
        points = await self.views.restore_points(owned.workspace.id)
        found = next((point for point in points if point.op_id == op_id), None)
        if found is None:
            raise NotFound(f"The workspace has no restore point {op_id}.")
        return found


def may_see(caller: Caller, owned: Owned) -> bool:
    return owned.workspace.owner_id == caller.user.owner_id or caller.may(Scope.ADMIN)


def _missing(workspace_id: UUID) -> NotFound:
    return NotFound(f"There is no workspace {workspace_id}, or it is not yours.")
