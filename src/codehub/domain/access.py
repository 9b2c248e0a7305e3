"""What the front door may do for each phase. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from codehub.domain.workspace import Desired, Operation, Phase, Workspace


class Door(StrEnum):
    FORWARD = "forward"
    WAIT = "wait"
    OFFER_RESTORE = "offer_restore"
    OFFER_START = "offer_start"
    EXPLAIN_ERROR = "explain_error"
    NOT_FOUND = "not_found"


@dataclass(frozen=True, slots=True)
class Doorway:
    door: Door
    may_wake: bool
    http_status: int


_BY_PHASE: Mapping[Phase, Doorway] = {
    Phase.RUNNING: Doorway(Door.FORWARD, may_wake=False, http_status=200),
    Phase.STANDBY: Doorway(Door.WAIT, may_wake=True, http_status=200),
    Phase.ARCHIVED: Doorway(Door.OFFER_RESTORE, may_wake=False, http_status=502),
    Phase.PENDING: Doorway(Door.OFFER_START, may_wake=False, http_status=502),
    Phase.ERROR: Doorway(Door.EXPLAIN_ERROR, may_wake=False, http_status=502),
    Phase.DELETED: Doorway(Door.NOT_FOUND, may_wake=False, http_status=404),
}


def doorway_of_phase(phase: Phase) -> Doorway:
    """Of one that is settled there."""
    return _BY_PHASE[phase]


_ON_ITS_WAY = Doorway(Door.WAIT, may_wake=False, http_status=200)


def doorway(ws: Workspace) -> Doorway:
    if ws.desired_state is Desired.DELETED and ws.phase is not Phase.RUNNING and ws.phase is not Phase.ERROR:
        return _BY_PHASE[Phase.DELETED]
    if ws.phase is Phase.RUNNING and ws.operation is Operation.STOPPING:
        return Doorway(Door.WAIT, may_wake=ws.desired_state is not Desired.DELETED, http_status=200)
    coming_up = ws.desired_state is Desired.RUNNING and ws.phase in (Phase.PENDING, Phase.ARCHIVED, Phase.STANDBY)
    return _ON_ITS_WAY if coming_up else _BY_PHASE[ws.phase]
