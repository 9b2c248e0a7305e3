"""The TTL runner: a robot user that puts idle workspaces to sleep, after warning the people in them.

If activity cannot be read, nothing is stopped. It changes the desired state by compare-and-swap, so a fresh wake always
wins.
"""

from datetime import datetime
from uuid import UUID

import structlog

from codehub.coordinator.context import TermContext
from codehub.domain.errors import Unreachable
from codehub.domain.idle import Sleep, Warn, Warned, idle_verdict, remember
from codehub.domain.workspace import Workspace
from codehub.ports.signals import Activity, Bus
from codehub.telemetry import ACTIVITY_DRAINED, TTL_HELD, TTL_STOPS

log = structlog.get_logger()


class TtlRunner:
    def __init__(self, context: TermContext, activity: Activity, bus: Bus) -> None:
        self._specs = context.specs
        self._commands = context.commands
        self._activity = activity
        self._bus = bus
        self._robot = context.actor("ttl")
        self._policy = context.tuning.idle
        self._metrics = context.metrics
        self._sse_prefix = context.tuning.sse_prefix
        self._warned: dict[UUID, Warned] = {}

    async def tick(self) -> int:
        """Put the idle workspaces to sleep; returns how many."""
        try:
            await self._drain()
        except Unreachable:
            self._metrics.add(TTL_HELD)
            raise
        rows, now = await self._specs.idle_candidates()
        leases = await self._specs.leases()
        self._warned = {ws.id: self._warned[ws.id] for ws in rows if ws.id in self._warned}
        slept = 0
        for ws in rows:
            slept += await self._consider(ws, leases.get(ws.id), now)
        return slept

    async def _drain(self) -> None:
        """Record activity in the database. Raises Unreachable: a tick that cannot know who is active ends here."""
        seen = await self._activity.read()
        if seen:
            await self._specs.touch(seen, self._robot)
            await self._activity.forget(seen)
            self._metrics.add(ACTIVITY_DRAINED, len(seen))

    async def _consider(self, ws: Workspace, lease_until: datetime | None, now: datetime) -> bool:
        verdict = idle_verdict(ws, lease_until, self._warned.get(ws.id), self._policy, now)
        if isinstance(verdict, Warn):
            await self._warn(ws, verdict, now)
        if isinstance(verdict, Sleep):
            slept = await self._commands.put_to_sleep(ws.id, ws, verdict.becomes, self._robot, verdict.reason)
            self._metrics.add(TTL_STOPS, int(slept), ttl=verdict.becomes.value.lower())
            return slept
        return False

    async def _warn(self, ws: Workspace, warning: Warn, now: datetime) -> None:
        """Warn the owner; a warning that could not be sent does not count as given."""
        message = {
            "type": "idle_warning",
            "id": str(ws.id),
            "stops_at": warning.stops_at.isoformat(),
            "becomes": warning.becomes.value,
        }
        try:
            await self._bus.publish(f"{self._sse_prefix}{ws.owner_id}", message)
        except Unreachable as error:
            log.warning("idle warning not sent", workspace=str(ws.id), error=str(error))
            return
        self._warned[ws.id] = remember(self._warned.get(ws.id), warning, now)
