"""Restore points as their owner sees them: listed, browsed and downloaded whatever the workspace's state.

Nothing is started and no limit is asked. Which archive an operation id means comes from the proven ones in the
database, so that nobody can name an object. What is not the caller's is not there.
"""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from codehub.domain.errors import NotFound
from codehub.domain.gc_rules import RestorePoint
from codehub.domain.identity import Caller
from codehub.ports.archives import ArchiveContents, Content, Listing
from codehub.ports.views import OwnedWorkspace, WorkspaceViews
from codehub.usecases.authorization import Reading


@dataclass(frozen=True, slots=True)
class PointShown:
    """`is_present`: what the workspace sleeps on, or was last restored from. `released_at`: given up, and soon gone."""

    op_id: UUID
    bytes: int
    files: int
    created_at: datetime
    verified_at: datetime
    released_at: datetime | None
    is_present: bool


@dataclass(frozen=True, slots=True)
class BrowseRestorePoints:
    views: WorkspaceViews
    contents: ArchiveContents

    async def list(self, workspace_id: UUID, caller: Caller) -> Sequence[PointShown]:
        """Newest first."""
        owned = await self._owned(workspace_id, caller)
        points = await self.views.restore_points(workspace_id)
        return [_shown(point, owned.workspace.archive_key) for point in points]

    async def tree(
        self, workspace_id: UUID, op_id: UUID, path: str, caller: Caller, start: int = 0, most: int | None = None
    ) -> Listing:
        key, owner = await self._place(workspace_id, op_id, caller)
        return await self.contents.tree(key, path, start, most, owner=owner)

    @asynccontextmanager
    async def content(self, workspace_id: UUID, op_id: UUID, path: str, caller: Caller) -> AsyncIterator[Content]:
        """A file as it is, a folder as a tar; "" is the whole home."""
        key, owner = await self._place(workspace_id, op_id, caller)
        async with self.contents.content(key, path, owner=owner) as content:
            yield content

    @asynccontextmanager
    async def original(self, workspace_id: UUID, op_id: UUID, caller: Caller) -> AsyncIterator[Content]:
        """The whole as it is stored."""
        key, _ = await self._place(workspace_id, op_id, caller)
        async with self.contents.original(key) as content:
            yield content

    async def _owned(self, workspace_id: UUID, caller: Caller) -> OwnedWorkspace:
        owned = await Reading(self.views).one(caller, workspace_id, deleted=True)
        if owned.workspace.purged_at is not None:
            raise NotFound(f"The data of workspace {workspace_id} has been purged; nothing of it is left.")
        return owned

    async def _place(self, workspace_id: UUID, op_id: UUID, caller: Caller) -> tuple[str, str]:
        """(Its key, its owner, who need not be the caller.)"""
        owned = await self._owned(workspace_id, caller)
        return (await Reading(self.views).restore_point(owned, op_id)).key, owned.workspace.owner_id


def _shown(point: RestorePoint, present_key: str | None) -> PointShown:
    return PointShown(
        op_id=point.op_id,
        bytes=point.bytes,
        files=point.files,
        created_at=point.created_at,
        verified_at=point.verified_at,
        released_at=point.released_at,
        is_present=point.key == present_key,
    )
