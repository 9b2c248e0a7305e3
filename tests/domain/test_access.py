"""What the front door does in each phase."""

from itertools import product

import pytest

from codehub.domain.access import Door, doorway
from codehub.domain.workspace import Desired, Operation, Phase
from tests.rows import workspace


@pytest.mark.parametrize(
    ("phase", "desired", "door", "status"),
    [
        (Phase.RUNNING, Desired.RUNNING, Door.FORWARD, 200),
        (Phase.STANDBY, Desired.STANDBY, Door.WAIT, 200),
        (Phase.ARCHIVED, Desired.ARCHIVED, Door.OFFER_RESTORE, 502),
        (Phase.PENDING, Desired.PENDING, Door.OFFER_START, 502),
        (Phase.ERROR, Desired.RUNNING, Door.EXPLAIN_ERROR, 502),
        (Phase.ERROR, Desired.STANDBY, Door.EXPLAIN_ERROR, 502),
        (Phase.DELETED, Desired.DELETED, Door.NOT_FOUND, 404),
    ],
)
def test_the_page_of_each_phase(phase: Phase, desired: Desired, door: Door, status: int) -> None:
    answer = doorway(workspace(phase=phase, desired_state=desired))
    assert (answer.door, answer.http_status) == (door, status)


def every() -> list[tuple[Phase, Desired, Operation]]:
    return list(product(Phase, Desired, Operation))


def test_only_a_running_workspace_that_is_not_stopping_is_reached() -> None:
    for phase, desired, operation in every():
        answer = doorway(workspace(phase=phase, desired_state=desired, operation=operation))
        reached = phase is Phase.RUNNING and operation is not Operation.STOPPING
        assert (answer.door is Door.FORWARD) is reached, (phase, desired, operation)


def test_only_a_settled_standby_or_a_stopping_workspace_is_woken_by_a_visit() -> None:
    """An archived home is restored, and a new one made, only when somebody says so."""
    for phase, desired, operation in every():
        if doorway(workspace(phase=phase, desired_state=desired, operation=operation)).may_wake:
            assert phase is Phase.STANDBY or (phase is Phase.RUNNING and operation is Operation.STOPPING)


def test_what_comes_up_already_is_waited_for_and_not_woken_again() -> None:
    for phase in (Phase.PENDING, Phase.ARCHIVED, Phase.STANDBY):
        for operation in Operation:
            answer = doorway(workspace(phase=phase, desired_state=Desired.RUNNING, operation=operation))
            assert (answer.door, answer.may_wake) == (Door.WAIT, False)


def test_a_visit_does_not_take_a_deletion_back() -> None:
    """An open tab must not wake what its owner has just deleted."""
    for phase, operation in product(Phase, Operation):
        row = workspace(phase=phase, desired_state=Desired.DELETED, operation=operation)
        assert not doorway(row).may_wake, (phase, operation)
