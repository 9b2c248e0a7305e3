"""What is read of a workspace, for the audit log: every download, and each look of somebody who is not the owner.

Pages ask again every few seconds while they are open: the same look by the same person is told once in a while.
"""

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final
from uuid import UUID

from codehub.domain.audit import AuditAction
from codehub.domain.identity import Caller
from codehub.ports.accounts import Audit
from codehub.ports.signals import Clock
from codehub.ports.views import Owned
from codehub.usecases.identity import actor_of

AGAIN_SECONDS: Final = 600.0
MOST_REMEMBERED: Final = 10_000

_Look = tuple[str, UUID, AuditAction, str]


@dataclass(frozen=True, slots=True)
class Looks:
    audit: Audit
    clock: Clock
    _told: "OrderedDict[_Look, float]" = field(default_factory=OrderedDict)
    """Until when a look is not told again, the oldest first."""

    async def noted(
        self, caller: Caller, owned: Owned, action: AuditAction, details: Mapping[str, str] | None = None
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

    async def downloaded(self, caller: Caller, owned: Owned, action: AuditAction, details: Mapping[str, str]) -> None:
        """Told each time and of everybody: what leaves the house may have been taken with a stolen token."""
        await self._tell(caller, owned, action, details)

    async def _tell(self, caller: Caller, owned: Owned, action: AuditAction, details: Mapping[str, str] | None) -> None:
        said = {"owner": owned.owner, "workspace": owned.workspace.name, **(details or {})}
        await self.audit.append(actor_of(caller), action, f"workspace:{owned.workspace.id}", said)
