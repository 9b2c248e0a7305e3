"""Who may run: exact limits, one function for every way a workspace can come to run. Pure.

A slot is held while a container exists or one is wanted, so that stopping, starting and creating all count.
"""

from collections.abc import Collection
from dataclasses import dataclass

from codehub.domain.errors import REASONS, LimitReached
from codehub.domain.workspace import Desired, Phase, Workspace


@dataclass(frozen=True, slots=True)
class Limits:
    max_running_per_user: int = 2
    max_running_global: int = 100


@dataclass(frozen=True, slots=True)
class Slots:
    """Who else holds a slot: names of the same owner's workspaces, and how many there are in all. `my_limit`: the
    owner's own limit, read with the rest; None = the installation's."""

    mine: Collection[str] = ()
    total: int = 0
    my_limit: int | None = None


def holds_slot(ws: Workspace) -> bool:
    """In ERROR a wish to run holds no slot, unless the error may clear by itself or a recovery is on its way."""
    if ws.deleted_at is not None:
        return False
    needs_a_person = ws.error_reason is not None and not REASONS[ws.error_reason].clears_itself
    waits_for_a_person = ws.phase is Phase.ERROR and needs_a_person and not ws.recover_pending
    return ws.container_exists or (ws.desired_state is Desired.RUNNING and not waits_for_a_person)


def admit(others: Slots, limits: Limits) -> None:
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
