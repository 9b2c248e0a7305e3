"""Which workspaces may run: exact limits, by one function for every way a workspace can come to run. Pure.

A slot is held while a container exists, is being started or is wanted, so that stopping, starting and creating all
count. Nobody comes to hold one without asking: a write that would is refused (`overtaken`).
"""

from collections.abc import Collection
from dataclasses import dataclass

from codehub.domain.errors import REASONS, LimitReached
from codehub.domain.workspace import Desired, Operation, Phase, Workspace


@dataclass(frozen=True, slots=True)
class RunningLimits:
    max_running_per_user: int = 2
    max_running_global: int = 100
    max_workspaces_per_user: int = 100
    """How many workspaces one person may have, running or not, deleted ones not counted; 0 = no limit."""


@dataclass(frozen=True, slots=True)
class Slots:
    """Who else holds a running slot. `mine`: the names of the same owner's workspaces that do; `total`: how many do in
    all. `my_limit`: the owner's own limit; None is the installation's. `owned`: how many other living workspaces the
    owner has, whether these hold a slot or not."""

    mine: Collection[str] = ()
    total: int = 0
    my_limit: int | None = None
    owned: int = 0


def holds_slot(ws: Workspace) -> bool:
    """Whether a workspace holds a running slot. In ERROR the desired state RUNNING holds none, unless the error may
    clear by itself or a recovery is on its way. A start holds one even when it is no longer wanted: its container may
    be there before it is seen."""
    if ws.deleted_at is not None:
        return False
    needs_a_person = ws.error_reason is not None and not REASONS[ws.error_reason].clears_itself
    waits_for_a_person = ws.phase is Phase.ERROR and needs_a_person and not ws.recover_pending
    wanted = ws.desired_state is Desired.RUNNING and not waits_for_a_person
    return ws.container_exists or ws.operation is Operation.STARTING or wanted


def overtaken(planned: Workspace, after: Workspace, now: Workspace) -> bool:
    """Whether a start is about to begin although the desired state has changed since it was planned: its slot may be
    another's by now."""
    begins = after.operation is Operation.STARTING and planned.operation is not Operation.STARTING
    return begins and now.desired_state is not planned.desired_state


def admit_another(others: Slots, limits: RunningLimits) -> None:
    """Raise LimitReached unless the owner may have one more workspace, running or not."""
    if 0 < limits.max_workspaces_per_user <= others.owned:
        message = (
            f"You have {others.owned} workspaces, and one person may have {limits.max_workspaces_per_user}. "
            "Delete one that you no longer need, or ask an administrator to raise MAX_WORKSPACES_PER_USER."
        )
        raise LimitReached(message, code="workspace_limit")


def admit(others: Slots, limits: RunningLimits) -> None:
    """Raise LimitReached unless one more may run. `others` does not count the workspace that asks."""
    limit = limits.max_running_per_user if others.my_limit is None else others.my_limit
    if limit == 0:
        raise LimitReached("You may not run any workspace. Ask an administrator to raise your limit.")
    if len(others.mine) >= limit:
        holders = sorted(others.mine)
        message = (
            f"You may run {limit} workspaces at once, and these hold the slots: {', '.join(holders)}. "
            "Stop one of them, then try again."
        )
        raise LimitReached(message, holders)
    if others.total >= limits.max_running_global:
        message = (
            f"All {limits.max_running_global} running slots of this installation are taken. "
            "Try again later, or ask an administrator to raise MAX_RUNNING_GLOBAL."
        )
        raise LimitReached(message)
