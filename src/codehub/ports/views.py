"""What people read: workspaces with their owners' names, in pages, and what explains them.

Pages are by keyset, newest first: rows that come or go between two pages move no other row from one to the other.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol
from uuid import UUID

from codehub.domain.gc_rules import RestorePoint
from codehub.domain.history import HistoryData
from codehub.domain.ledger import LedgerEntry, LedgerKind
from codehub.domain.workspace import Phase, Workspace


@dataclass(frozen=True, slots=True)
class OwnedWorkspace:
    """A workspace with its owner's name. `owner`: the user's name, or the bare owner id if there is no such user.
    `template_image`: what its template names now; None if there is no such template."""

    workspace: Workspace
    owner: str
    template_image: str | None = None

    @property
    def next_image_ref(self) -> str:
        """The image that the workspace's next start gets."""
        return self.workspace.image_ref if self.template_image is None else self.template_image


@dataclass(frozen=True, slots=True)
class Position:
    """The last item of a page; the next page begins after it."""

    created_at: datetime
    id: UUID


@dataclass(frozen=True, slots=True)
class WorkspaceFilter:
    """A search for workspaces: every condition that is given must hold. `text` is found in name or description,
    whatever its case. Deleted ones are left out unless `deleted`; with it, those alone."""

    owner_id: str | None = None
    text: str = ""
    phase: Phase | None = None
    error_reason: str | None = None
    deleted: bool = False


class WorkspaceViews(Protocol):
    async def get(self, workspace_id: UUID) -> OwnedWorkspace | None:
        """The workspace of that id, also a deleted one."""
        ...

    async def by_slug(self, slug: str) -> OwnedWorkspace | None:
        """The workspace of that slug; deleted ones are not found."""
        ...

    async def some(self, ids: Collection[UUID]) -> Mapping[UUID, OwnedWorkspace]:
        """Those of the ids that exist, deleted ones too, in one call."""
        ...

    async def page(
        self, sought: WorkspaceFilter, limit: int, after: Position | None = None
    ) -> Sequence[OwnedWorkspace]:
        """A page of workspaces, newest first."""
        ...

    async def everything(self, owner_id: str | None = None) -> Sequence[OwnedWorkspace]:
        """All workspaces of one owner or of everybody; not the deleted ones."""
        ...

    async def slots(self, owner_id: str) -> tuple[Sequence[Workspace], int, int | None]:
        """The owner's workspaces that hold a slot, how many are held in all, and the owner's own limit if any."""
        ...

    async def entries(
        self, workspace_id: UUID, limit: int, before: int | None = None, kinds: Collection[LedgerKind] | None = None
    ) -> Sequence[tuple[int, LedgerEntry]]:
        """Ledger entries, newest first, each with its number; `before`: only those with a smaller number."""
        ...

    async def restore_points(self, workspace_id: UUID) -> Sequence[RestorePoint]:
        """The workspace's restore points, newest first; released ones included."""
        ...

    async def lease_until(self, workspace_id: UUID) -> datetime | None:
        """The latest end of the workspace's leases that still hold."""
        ...

    async def history_data(self) -> HistoryData:
        """What the last day's history is made from, seen at one moment."""
        ...

    async def now(self) -> datetime:
        """The database's present time."""
        ...
