"""Restore points as their owner sees them: listed, browsed and downloaded whatever the workspace's state.

Nothing is started and no limit is asked. Which archive an operation id means comes from the proven ones in the
database, so that nobody can name an object. What is not the caller's is not there.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from codehub.domain.errors import NotFound
from codehub.domain.gc_rules import RestorePoint
from codehub.domain.identity import Caller
from codehub.ports.views import OwnedWorkspace, WorkspaceViews
from codehub.usecases.authorization import authorized_workspace


@dataclass(frozen=True, slots=True)
class ListedRestorePoint:
    """A restore point in a list. `is_present`: the workspace sleeps on it, or was last restored from it. `released_at`:
    it was given up, and is soon gone."""

    op_id: UUID
    bytes: int
    files: int
    created_at: datetime
    verified_at: datetime
    released_at: datetime | None
    is_present: bool


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


async def list_restore_points(views: WorkspaceViews, owned: OwnedWorkspace) -> Sequence[ListedRestorePoint]:
    """The workspace's restore points, newest first."""
    return [
        ListedRestorePoint(
            op_id=point.op_id,
            bytes=point.bytes,
            files=point.files,
            created_at=point.created_at,
            verified_at=point.verified_at,
            released_at=point.released_at,
            is_present=point.key == owned.workspace.archive_key,
        )
        for point in await views.restore_points(owned.workspace.id)
    ]
