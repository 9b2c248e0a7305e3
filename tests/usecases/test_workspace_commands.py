"""One-off wishes are told apart by their times alone, so a clock that is put back must not make a new one look old."""

from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import timedelta

import pytest

from codehub.domain.workspace import Desired, RecoverAction, Workspace
from codehub.usecases.workspace_commands import WorkspaceCommands
from tests.coordinator.harness import PERSON, CoordinatorHarness, in_virtual_time, now
from tests.rows import KEY, NOW, WORKSPACE_ID, archived, broken, with_home

Wish = Callable[[WorkspaceCommands], Awaitable[Workspace]]

WISHES: dict[str, tuple[Workspace, Wish, str]] = {
    "recover": (
        broken(with_home(desired_state=Desired.STANDBY)),
        lambda commands: commands.recover(WORKSPACE_ID, RecoverAction.RETRY, PERSON),
        "recover",
    ),
    "recover with an archive": (
        broken(with_home(desired_state=Desired.STANDBY)),
        lambda commands: commands.recover(WORKSPACE_ID, RecoverAction.USE_ARCHIVE, PERSON, KEY),
        "restore",
    ),
    "restore": (archived(), lambda commands: commands.restore(WORKSPACE_ID, KEY, PERSON), "restore"),
    "undelete": (
        archived(desired_state=Desired.DELETED, deleted_at=NOW),
        lambda commands: commands.undelete(WORKSPACE_ID, PERSON),
        "undelete",
    ),
}


@pytest.mark.parametrize(("row", "wish", "kind"), WISHES.values(), ids=WISHES.keys())
@pytest.mark.parametrize("handled", [True, False], ids=["after the last was handled", "while it is being handled"])
@in_virtual_time
async def test_a_wish_counts_although_the_clock_was_put_back(
    row: Workspace, wish: Wish, kind: str, handled: bool
) -> None:
    harness = await CoordinatorHarness.open()
    harness.place(row)
    last = getattr(await wish(harness.commands), f"{kind}_requested_at")
    as_handled = {f"{kind}_handled_at": last}
    if handled:
        harness.change(**as_handled)()
    harness.states.database.now = lambda: now() - timedelta(seconds=5)
    wished = await wish(harness.commands)
    assert getattr(replace(wished, **as_handled), f"{kind}_pending")
