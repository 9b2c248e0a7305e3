"""What a request to a workspace gets in each phase: it is forwarded, answered with a page, or refused. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from codehub.domain.workspace import Desired, Phase, Workspace


class AccessAction(StrEnum):
    FORWARD = "forward"
    WAIT = "wait"
    OFFER_RESTORE = "offer_restore"
    OFFER_START = "offer_start"
    EXPLAIN_ERROR = "explain_error"
    NOT_FOUND = "not_found"


@dataclass(frozen=True, slots=True)
class Access:
    action: AccessAction
    may_wake: bool
    http_status: int


_BY_PHASE: Mapping[Phase, Access] = {
    Phase.RUNNING: Access(AccessAction.FORWARD, may_wake=False, http_status=200),
    Phase.STANDBY: Access(AccessAction.WAIT, may_wake=True, http_status=200),
    Phase.ARCHIVED: Access(AccessAction.OFFER_RESTORE, may_wake=False, http_status=502),
    Phase.PENDING: Access(AccessAction.OFFER_START, may_wake=False, http_status=502),
    Phase.ERROR: Access(AccessAction.EXPLAIN_ERROR, may_wake=False, http_status=502),
    Phase.DELETED: Access(AccessAction.NOT_FOUND, may_wake=False, http_status=404),
}


_STARTING = Access(AccessAction.WAIT, may_wake=False, http_status=200)


def access_in_phase(phase: Phase) -> Access:
    """The access to a workspace that has reached this phase and wants to stay there."""
    return _BY_PHASE[phase]


def access_to(ws: Workspace) -> Access:
    if ws.desired_state is Desired.DELETED and ws.phase is not Phase.RUNNING and ws.phase is not Phase.ERROR:
        return _BY_PHASE[Phase.DELETED]
    if ws.container_is_ending:
        return Access(AccessAction.WAIT, may_wake=ws.desired_state is not Desired.DELETED, http_status=200)
    starting = ws.desired_state is Desired.RUNNING and ws.phase in (Phase.PENDING, Phase.ARCHIVED, Phase.STANDBY)
    return _STARTING if starting else _BY_PHASE[ws.phase]
