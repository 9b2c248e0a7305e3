"""When a workspace may be put to sleep: both TTLs, leases, warnings, and the maximum lifetime. Pure.

In doubt nothing is stopped. Nobody is stopped without a warning that was given time to be read.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from codehub.domain.workspace import Desired, Phase, Workspace

FIRST_WARNING_SECONDS = 600
LAST_WARNING_SECONDS = 120

BECOMES: Mapping[Phase, Desired] = {Phase.RUNNING: Desired.STANDBY, Phase.STANDBY: Desired.ARCHIVED}
"""What an idle workspace of each phase becomes: one step down."""


@dataclass(frozen=True, slots=True)
class IdlePolicy:
    """When idle workspaces stop, in seconds; 0 = never. `flush_seconds`: activity may be this late in reaching us."""

    standby_ttl: int = 600
    archive_ttl: int = 1800
    max_lifetime: int = 0
    flush_seconds: int = 30


@dataclass(frozen=True, slots=True)
class Keep:
    """The verdict that nothing is due."""


@dataclass(frozen=True, slots=True)
class Warn:
    """The verdict that the people in the workspace are warned. `deadline`: when a stop is due; `stops_at`: when it
    really happens, so that the warning can be read."""

    deadline: datetime
    stops_at: datetime
    becomes: Desired


@dataclass(frozen=True, slots=True)
class Sleep:
    becomes: Desired
    reason: str


Verdict = Keep | Warn | Sleep


@dataclass(frozen=True, slots=True)
class Warned:
    """The warnings already given for one deadline; a new deadline needs new ones."""

    stops_at: datetime
    first_at: datetime
    last_at: datetime | None = None


def idle_verdict(
    ws: Workspace,
    lease_until: datetime | None,
    warned: Warned | None,
    policy: IdlePolicy,
    now: datetime,
) -> Verdict:
    becomes = BECOMES.get(ws.phase)
    if becomes is None or not ws.is_at_rest:
        return Keep()
    stops_at, reason = idle_deadline(ws, lease_until, policy)
    if stops_at is None:
        return Keep()
    return _warn_then_sleep(stops_at, idle_ttl(ws, policy), becomes, reason, warned, now)


def idle_deadline(ws: Workspace, lease_until: datetime | None, policy: IdlePolicy) -> tuple[datetime | None, str]:
    """When a settled RUNNING or STANDBY workspace stops if nothing happens, and why: idle, lease_ended, max_lifetime,
    or never."""
    ttl = idle_ttl(ws, policy)
    idle_end = idle_since(ws) + timedelta(seconds=ttl + policy.flush_seconds) if ttl else None
    reason = "idle"
    if idle_end and lease_until and lease_until > idle_end:
        idle_end, reason = lease_until, "lease_ended"
    lifetime_end = None
    if policy.max_lifetime and ws.phase is Phase.RUNNING:
        lifetime_end = ws.phase_changed_at + timedelta(seconds=policy.max_lifetime)
    if lifetime_end and (idle_end is None or lifetime_end < idle_end):
        return lifetime_end, "max_lifetime"
    return idle_end, reason if idle_end else "never"


def idle_ttl(ws: Workspace, policy: IdlePolicy) -> int:
    if ws.phase is Phase.RUNNING:
        return policy.standby_ttl if ws.standby_ttl_seconds is None else ws.standby_ttl_seconds
    return policy.archive_ttl if ws.archive_ttl_seconds is None else ws.archive_ttl_seconds


def idle_since(ws: Workspace) -> datetime:
    if ws.phase is Phase.RUNNING and ws.last_access_at is not None:
        return max(ws.last_access_at, ws.phase_changed_at)
    return ws.phase_changed_at


def warning_leads(ttl: int) -> tuple[timedelta, timedelta]:
    """How long before the stop the two warnings come."""
    span = ttl or FIRST_WARNING_SECONDS * 2
    first, last = min(FIRST_WARNING_SECONDS, span / 2), min(LAST_WARNING_SECONDS, span / 5)
    return timedelta(seconds=first), timedelta(seconds=last)


def _warn_then_sleep(
    stops_at: datetime,
    ttl: int,
    becomes: Desired,
    reason: str,
    warned: Warned | None,
    now: datetime,
) -> Verdict:
    first, last = warning_leads(ttl)
    if now < stops_at - first:
        return Keep()
    unwarned = warned is None or warned.stops_at != stops_at
    if warned is None or unwarned or (warned.last_at is None and now >= stops_at - last):
        return Warn(stops_at, max(stops_at, now + last), becomes)
    if warned.last_at is not None and now >= max(stops_at, warned.last_at + last):
        return Sleep(becomes, reason)
    return Keep()


def remember(warned: Warned | None, given: Warn, now: datetime) -> Warned:
    """The warnings on record after `given` was given now."""
    is_last = given.stops_at > given.deadline or (warned is not None and warned.stops_at == given.deadline)
    if warned is None or warned.stops_at != given.deadline:
        return Warned(given.deadline, now, now if is_last else None)
    return Warned(given.deadline, warned.first_at, now)
