"""What the proxy does with a request in each phase."""

from itertools import product

import pytest

from codehub.domain.access import AccessAction, access_to
from codehub.domain.workspace import Desired, Operation, Phase
from tests.rows import workspace


@pytest.mark.parametrize(
    ("phase", "desired", "door", "status"),
    [
        (Phase.RUNNING, Desired.RUNNING, AccessAction.FORWARD, 200),
        (Phase.STANDBY, Desired.STANDBY, AccessAction.WAIT, 200),
        (Phase.ARCHIVED, Desired.ARCHIVED, AccessAction.OFFER_RESTORE, 502),
        (Phase.PENDING, Desired.PENDING, AccessAction.OFFER_START, 502),
        (Phase.ERROR, Desired.RUNNING, AccessAction.EXPLAIN_ERROR, 502),
        (Phase.ERROR, Desired.STANDBY, AccessAction.EXPLAIN_ERROR, 502),
        (Phase.DELETED, Desired.DELETED, AccessAction.NOT_FOUND, 404),
    ],
)
def test_the_page_of_each_phase(phase: Phase, desired: Desired, door: AccessAction, status: int) -> None:
    answer = access_to(workspace(phase=phase, desired_state=desired))
    assert (answer.action, answer.http_status) == (door, status)


def every() -> list[tuple[Phase, Desired, Operation]]:
    return list(product(Phase, Desired, Operation))


def test_only_a_running_workspace_that_is_not_stopping_is_reached() -> None:
    for phase, desired, operation in every():
        answer = access_to(workspace(phase=phase, desired_state=desired, operation=operation))
        reached = phase is Phase.RUNNING and operation is not Operation.STOPPING
        assert (answer.action is AccessAction.FORWARD) is reached, (phase, desired, operation)


def test_only_a_settled_standby_or_a_stopping_workspace_is_woken_by_a_visit() -> None:
    """An archived home is restored, and a new one made, only when somebody says so."""
    for phase, desired, operation in every():
        if access_to(workspace(phase=phase, desired_state=desired, operation=operation)).may_wake:
            assert phase is Phase.STANDBY or (phase is Phase.RUNNING and operation is Operation.STOPPING)


def test_what_comes_up_already_is_waited_for_and_not_woken_again() -> None:
    for phase in (Phase.PENDING, Phase.ARCHIVED, Phase.STANDBY):
        for operation in Operation:
            answer = access_to(workspace(phase=phase, desired_state=Desired.RUNNING, operation=operation))
            assert (answer.action, answer.may_wake) == (AccessAction.WAIT, False)


def test_a_visit_does_not_take_a_deletion_back() -> None:
    """An open tab must not wake what its owner has just deleted."""
    for phase, operation in product(Phase, Operation):
        row = workspace(phase=phase, desired_state=Desired.DELETED, operation=operation)
        assert not access_to(row).may_wake, (phase, operation)
