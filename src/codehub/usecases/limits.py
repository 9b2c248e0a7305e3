"""Who holds the running slots: the answer to "why may I not start this one?"."""

from collections.abc import Sequence
from dataclasses import dataclass

from codehub.domain.admission import Limits
from codehub.domain.identity import User
from codehub.domain.workspace import Workspace
from codehub.ports.views import WorkspaceViews


@dataclass(frozen=True, slots=True)
class Standing:
    """`is_own`: the limit is this person's own, not the installation's. The holders are the person's."""

    max_running: int
    is_own: bool
    holders: Sequence[Workspace]
    max_running_global: int
    running_global: int

    def has_room_for(self, workspace: Workspace) -> bool:
        """Whether the admission would let this workspace of the same person start now. It is asked once more, and
        exactly, when the start is wished."""
        others = sum(holder.id != workspace.id for holder in self.holders)
        elsewhere = self.running_global - (len(self.holders) - others)
        return others < self.max_running and elsewhere < self.max_running_global


@dataclass(frozen=True, slots=True)
class RunningSlots:
    views: WorkspaceViews
    limits: Limits

    async def of(self, user: User) -> Standing:
        return await self.of_owner(user.owner_id)

    async def of_owner(self, owner_id: str) -> Standing:
        """By the id that workspaces hold."""
        holders, total, own = await self.views.slots(owner_id)
        limit = self.limits.max_running_per_user if own is None else own
        return Standing(limit, own is not None, holders, self.limits.max_running_global, total)
