"""The table is the design's table (contract 5)."""

from itertools import product

import pytest

from codehub.domain.transitions import (
    GIVES_UP_VOLUME,
    MAY_RUN_IN_ERROR,
    OPERATIONS,
    REMOVES_CONTAINER,
    TABLE,
    Transition,
    transition,
)
from codehub.domain.workspace import LEVEL, Desired, Operation, Phase

SETTLED = (Phase.PENDING, Phase.ARCHIVED, Phase.STANDBY, Phase.RUNNING)
DESIGN = {
    ("PENDING", "STANDBY"): "PROVISIONING",
    ("PENDING", "RUNNING"): "PROVISIONING",
    ("PENDING", "ARCHIVED"): "CREATE_EMPTY_ARCHIVE",
    ("PENDING", "DELETED"): "DELETING",
    ("ARCHIVED", "STANDBY"): "RESTORING",
    ("ARCHIVED", "RUNNING"): "RESTORING",
    ("ARCHIVED", "PENDING"): "DISCARDING",
    ("ARCHIVED", "DELETED"): "DELETING",
    ("STANDBY", "RUNNING"): "STARTING",
    ("STANDBY", "ARCHIVED"): "ARCHIVING",
    ("STANDBY", "PENDING"): "ARCHIVING",
    ("STANDBY", "DELETED"): "ARCHIVING",
    ("RUNNING", "STANDBY"): "STOPPING",
    ("RUNNING", "ARCHIVED"): "STOPPING",
    ("RUNNING", "PENDING"): "STOPPING",
    ("RUNNING", "DELETED"): "STOPPING",
    ("ERROR", "DELETED"): "DELETING",
}
NEIGHBOURS = {
    "PENDING": {"ARCHIVED", "STANDBY", "DELETED"},
    "ARCHIVED": {"PENDING", "STANDBY", "DELETED"},
    "STANDBY": {"ARCHIVED", "RUNNING"},
    "RUNNING": {"STANDBY"},
    "ERROR": {"DELETED"},
}


def test_every_pair_has_the_answer_of_the_design() -> None:
    answers = {(p.value, d.value): row.operation.value for p, d in product(Phase, Desired) if (row := transition(p, d))}
    assert answers == DESIGN


def test_every_pair_that_differs_has_an_answer() -> None:
    for phase, desired in product(SETTLED, Desired):
        assert (transition(phase, desired) is None) is (phase.value == desired.value)


def test_no_pair_is_answered_twice() -> None:
    pairs = [(row.phase, wish) for row in TABLE for wish in row.desired]
    assert len(pairs) == len(set(pairs))


@pytest.mark.parametrize("row", TABLE, ids=lambda row: f"{row.phase}-{row.operation}")
def test_a_row_leads_to_a_neighbour_and_closer(row: Transition) -> None:
    assert row.leads_to.value in NEIGHBOURS[row.phase.value]
    if row.phase is not Phase.ERROR:
        for wish in row.desired:
            assert abs(LEVEL[wish] - LEVEL[row.leads_to]) < abs(LEVEL[wish] - LEVEL[row.phase])


def test_each_operation_has_a_rule_and_a_row() -> None:
    assert set(OPERATIONS) == set(Operation) - {Operation.NONE} == {row.operation for row in TABLE}


def test_deadlines_of_the_design() -> None:
    long = {Operation.RESTORING, Operation.ARCHIVING}
    for operation, rule in OPERATIONS.items():
        assert rule.deadline_seconds == (1800 if operation in long else 300)
        assert rule.progress_counts is (operation in long)
        assert rule.done_when


def test_levels() -> None:
    assert LEVEL == {"DELETED": -1, "PENDING": 0, "ARCHIVED": 5, "STANDBY": 10, "RUNNING": 20}


def test_the_sets_of_the_design() -> None:
    assert set(GIVES_UP_VOLUME) == {Desired.ARCHIVED, Desired.PENDING, Desired.DELETED}
    assert set(MAY_RUN_IN_ERROR) == {Operation.NONE, Operation.DELETING}
    assert {Operation.ARCHIVING, Operation.RESTORING, Operation.DELETING} <= set(REMOVES_CONTAINER)
