"""Why a workspace is up, when it stops, and the leases that keep it up for a bounded time."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

from codehub.domain.errors import Conflict
from codehub.domain.idle import IdlePolicy, idle_ttl, warning_leads
from codehub.domain.lifecycle import TURNING_POINTS, Lifecycle, explain
from codehub.domain.workspace import Desired, Phase, Workspace
from codehub.ports.stores import Actor, WorkspaceSpecs
from codehub.ports.views import WorkspaceViews

MOST_ENTRIES = 200
"""The most entries of the ledger that are read to explain a workspace."""


@dataclass(frozen=True, slots=True)
class Lease:
    """A lease on a running workspace. `capped`: it is shorter than what was asked for."""

    until: datetime
    seconds: int
    capped: bool


@dataclass(frozen=True, slots=True)
class StopForecast:
    """In how many seconds a workspace stops, and for which reason: idle, lease_ended or max_lifetime. None: it does
    not. `warnings`: how many seconds before that people are told of it."""

    seconds: float | None
    reason: str | None
    warnings: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Lifecycles:
    specs: WorkspaceSpecs
    views: WorkspaceViews
    policy: IdlePolicy
    longest_lease_seconds: int = 24 * 3600

    async def explain(self, ws: Workspace) -> Lifecycle:
        lease_until = await self.views.lease_until(ws.id)
        entries = [entry for _, entry in await self.views.entries(ws.id, MOST_ENTRIES, kinds=TURNING_POINTS)]
        return explain(ws, lease_until, entries, self.policy, await self.views.now())

    async def stop_forecast(self, workspace_id: UUID) -> StopForecast:
        """When the workspace stops if nobody does anything."""
        owned = await self.views.get(workspace_id)
        if owned is None:
            return StopForecast(None, None)
        ws, now = owned.workspace, await self.views.now()
        found = explain(ws, await self.views.lease_until(ws.id), (), self.policy, now)
        if found.stops_at is None:
            return StopForecast(None, None)
        leads = tuple(lead.total_seconds() for lead in warning_leads(idle_ttl(ws, self.policy)))
        return StopForecast(max((found.stops_at - now).total_seconds(), 0.0), found.stop_reason, leads)

    async def note_activity(self, ws: Workspace, actor: Actor) -> None:
        """Counts as somebody's work in the workspace, at once: no idle stop comes before its time has passed anew."""
        await self.specs.touch({ws.id: await self.views.now()}, actor)

    async def keep_alive(self, ws: Workspace, seconds: int, actor: Actor) -> Lease:
        """Sets the person's one lease on the workspace to this long from now; 0 ends it."""
        coming_up = ws.desired_state is Desired.RUNNING
        if ws.phase not in (Phase.RUNNING, Phase.STANDBY) and not coming_up:
            raise Conflict(f"The workspace is {ws.phase}: there is nothing to keep alive.", "nothing_to_keep")
        if ws.phase is Phase.RUNNING and not coming_up and seconds:
            raise Conflict(
                f"The workspace is on its way to {ws.desired_state}. Start it, and it stays.", "nothing_to_keep"
            )
        granted = min(seconds, self.longest_lease_seconds)
        until = await self.views.now() + timedelta(seconds=granted)
        await self.specs.hold(ws.id, actor.name, until)
        return Lease(until, granted, capped=granted < seconds)
