"""The audit log in memory."""

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

from codehub.adapters.memory.people import PeopleWorld
from codehub.adapters.memory.wire import Wire
from codehub.ports.accounts import AuditEntry
from codehub.ports.stores import Actor


class MemoryAudit:
    def __init__(self, world: PeopleWorld, wire: Wire) -> None:
        self._world = world
        self._wire = wire

    async def append(self, actor: Actor, action: str, subject: str, details: Mapping[str, Any] | None = None) -> None:
        await self._wire.call("audit.append", lambda: self._world.told(actor, action, subject, details))

    async def entries(
        self, limit: int = 100, *, before: int | None = None, actor: str | None = None, subject: str | None = None
    ) -> Sequence[AuditEntry]:
        def read() -> list[AuditEntry]:
            wanted = [
                entry
                for entry in reversed(self._world.audit)
                if (before is None or entry.id < before)
                and (actor is None or entry.actor == actor)
                and (subject is None or entry.subject == subject)
            ]
            return wanted[:limit]

        return await self._wire.call("audit.entries", read)

    async def forget_older(self, seconds: float, epoch: int | None = None) -> int:
        def sweep() -> int:
            oldest = self._world.now() - timedelta(seconds=seconds)
            kept = [entry for entry in self._world.audit if entry.at >= oldest]
            gone = len(self._world.audit) - len(kept)
            self._world.audit[:] = kept
            return gone

        return await self._world.within(epoch, self._wire, "audit.forget_older", sweep)
