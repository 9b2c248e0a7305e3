"""Why a workspace is up, when it will stop, what keeps it from stopping, and why it stopped last. Pure.

The answers come from the same rules that the TTL runner follows (idle.py) and from the ledger, so that they cannot
differ from what really happens.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from codehub.domain.idle import BECOMES, IdlePolicy, idle_deadline, idle_since, idle_ttl, warning_leads
from codehub.domain.ledger import LedgerEntry, LedgerKind
from codehub.domain.workspace import Desired, Operation, Phase, Workspace


@dataclass(frozen=True, slots=True)
class Cause:
    """Who started or stopped a workspace, when and why, in the ledger's words."""

    reason: str
    actor: str
    at: datetime


@dataclass(frozen=True, slots=True)
class Obstacle:
    """What keeps a workspace from being put to sleep. `kind`: lease, never, operation, wish, unsettled, error,
    nothing_to_stop. `until`: when it ends by itself."""

    kind: str
    message: str
    until: datetime | None = None


@dataclass(frozen=True, slots=True)
class Lifecycle:
    """Why a workspace is up, and when it stops. `stops_at` and `warnings` are None and empty while an obstacle without
    an end stands in the way."""

    why_up: Cause | None
    last_activity_at: datetime | None
    stops_at: datetime | None
    becomes: Desired | None
    stop_reason: str | None
    blocked_by: tuple[Obstacle, ...]
    warnings: tuple[datetime, ...]
    last_stop: Cause | None


TURNING_POINTS = (LedgerKind.CREATED, LedgerKind.WISH, LedgerKind.PHASE)
"""The kinds of ledger entries that `explain` reads."""


def explain(
    ws: Workspace, lease_until: datetime | None, entries: Sequence[LedgerEntry], policy: IdlePolicy, now: datetime
) -> Lifecycle:
    """Explain a workspace's lifecycle. `entries`: its ledger entries of the kinds in TURNING_POINTS, newest first."""
    obstacles = _obstacles(ws, lease_until, policy, now)
    stops_at: datetime | None = None
    reason: str | None = None
    warnings: tuple[datetime, ...] = ()
    if all(obstacle.until is not None for obstacle in obstacles):
        deadline, reason = idle_deadline(ws, lease_until, policy)
        if deadline is not None:
            stops_at, warnings = _times(deadline, idle_ttl(ws, policy), now)
    up = ws.phase is Phase.RUNNING or ws.desired_state is Desired.RUNNING
    return Lifecycle(
        why_up=_why_up(entries) if up else None,
        last_activity_at=idle_since(ws) if ws.phase is Phase.RUNNING else ws.last_access_at,
        stops_at=stops_at,
        becomes=BECOMES.get(ws.phase) if stops_at else None,
        stop_reason=reason if stops_at else None,
        blocked_by=obstacles,
        warnings=warnings,
        last_stop=_last_stop(entries),
    )


def _obstacles(ws: Workspace, lease_until: datetime | None, policy: IdlePolicy, now: datetime) -> tuple[Obstacle, ...]:
    if ws.phase is Phase.ERROR:
        return (Obstacle("error", "In ERROR nothing is put to sleep: recover it first."),)
    if ws.phase not in BECOMES:
        return (Obstacle("nothing_to_stop", f"{ws.phase} holds neither compute nor disk."),)
    found = []
    if ws.operation is not Operation.NONE:
        found.append(Obstacle("operation", f"{ws.operation} is under way."))
    elif ws.desired_state.value != ws.phase.value:
        found.append(Obstacle("unsettled", f"It is on its way from {ws.phase} to {ws.desired_state}."))
    if ws.request_pending:
        found.append(Obstacle("wish", "A recovery, restore or undelete is about to begin."))
    if idle_deadline(ws, lease_until, policy)[0] is None:
        found.append(Obstacle("never", f"Its {'standby' if ws.phase is Phase.RUNNING else 'archive'} TTL is 0: never."))
    elif lease_until is not None and lease_until > now:
        found.append(Obstacle("lease", "It was asked to be kept alive.", lease_until))
    return tuple(found)


def _times(deadline: datetime, ttl: int, now: datetime) -> tuple[datetime, tuple[datetime, ...]]:
    """When it stops and when it is warned. Nobody is stopped without the last warning: one that nobody was there to
    give before the deadline comes now, and the stop after it."""
    first, last = warning_leads(ttl)
    stops_at = now + last if now > deadline + last else max(deadline, now)
    ahead = tuple(at for at in (deadline - first, deadline - last) if at > now)
    return stops_at, ahead or (now,)


def _why_up(entries: Sequence[LedgerEntry]) -> Cause | None:
    asked = (
        entry
        for entry in entries
        if entry.kind in (LedgerKind.WISH, LedgerKind.CREATED) and entry.after == Desired.RUNNING
    )
    return next((_cause(entry) for entry in asked), None)


def _last_stop(entries: Sequence[LedgerEntry]) -> Cause | None:
    """What ended the last run: the changed desired state or, without one, what was observed: a container that ended by
    itself."""
    ended = next(
        (n for n, entry in enumerate(entries) if entry.kind is LedgerKind.PHASE and entry.before == Phase.RUNNING), None
    )
    if ended is None:
        return None
    for entry in entries[ended + 1 :]:
        if entry.kind is LedgerKind.PHASE and entry.after == Phase.RUNNING:
            break
        if entry.kind is LedgerKind.WISH and entry.before == Desired.RUNNING:
            return _cause(entry)
    observed = entries[ended]
    return Cause(observed.reason or "container_ended", observed.actor, observed.at)


def _cause(entry: LedgerEntry) -> Cause:
    return Cause(entry.reason or entry.kind.value, entry.actor, entry.at)
