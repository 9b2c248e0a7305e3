"""Restore points as their owner may read them: whatever the workspace's state, and without starting anything.

Which archive an operation id means comes from the proven ones in the
database, so that nobody can name an object. What is not the caller's is not there.
"""

from uuid import UUID

from codehub.domain.errors import NotFound
from codehub.domain.gc_rules import RestorePoint
from codehub.domain.identity import Caller
from codehub.ports.views import OwnedWorkspace, WorkspaceViews
from codehub.usecases.authorization import authorized_workspace


async def workspace_with_restore_points(views: WorkspaceViews, caller: Caller, workspace_id: UUID) -> OwnedWorkspace:
    """The workspace, also if it is deleted. NotFound once its data has been purged."""
    owned = await authorized_workspace(views, caller, workspace_id, deleted=True)
    if owned.workspace.purged_at is not None:
        raise NotFound(f"The data of workspace {workspace_id} has been purged; nothing of it is left.")
    return owned


async def restore_point(views: WorkspaceViews, owned: OwnedWorkspace, op_id: UUID) -> RestorePoint:
    """The workspace's restore point with this id. NotFound if it has none, even if another workspace has."""
    points = await views.restore_points(owned.workspace.id)
    found = next((point for point in points if point.op_id == op_id), None)
    if found is None:
        raise NotFound(f"The workspace has no restore point {op_id}.")
    return found
