"""Limits are exact, and one rule says who holds a slot."""

from dataclasses import replace

import pytest

from codehub.domain.admission import RunningLimits, Slots, admit, holds_slot
from codehub.domain.errors import ErrorReason, LimitReached
from codehub.domain.judge import NOTHING_KNOWN, judge
from codehub.domain.workspace import Desired, Operation, Phase, Workspace
from tests.rows import NOW, VOLUME, archived, broken, busy, container, facts, with_home, workspace

RUNNING = judge(with_home(desired_state=Desired.RUNNING), facts(VOLUME, container=container()), NOW)
EXITED = container(running=False, answered=False)


@pytest.mark.parametrize("row", [workspace(), with_home(), archived()])
def test_whoever_is_wanted_running_holds_a_slot_before_anything_exists(row: Workspace) -> None:
    assert holds_slot(replace(row, desired_state=Desired.RUNNING))


@pytest.mark.parametrize("desired", [desired for desired in Desired if desired is not Desired.RUNNING])
def test_a_wish_for_less_holds_none_once_the_container_is_gone(desired: Desired) -> None:
    for row in (workspace(), with_home(), archived()):
        assert not holds_slot(replace(row, desired_state=desired))


@pytest.mark.parametrize("desired", Desired)
def test_a_container_holds_its_slot_until_it_is_gone(desired: Desired) -> None:
    assert holds_slot(replace(RUNNING, desired_state=desired))
    for seen in (EXITED, container(answered=False)):
        still_there = judge(RUNNING, facts(VOLUME, container=seen), NOW)
        assert holds_slot(replace(still_there, desired_state=desired))
    gone = judge(RUNNING, facts(VOLUME), NOW)
    assert holds_slot(replace(gone, desired_state=desired)) is (desired is Desired.RUNNING)


@pytest.mark.parametrize("desired", Desired)
def test_a_start_holds_its_slot_before_its_container_is_seen(desired: Desired) -> None:
    assert holds_slot(busy(with_home(desired_state=desired), Operation.STARTING))


def test_an_outage_frees_no_slot() -> None:
    blind = judge(replace(RUNNING, desired_state=Desired.STANDBY), NOTHING_KNOWN, NOW)
    assert holds_slot(blind)


def test_in_error_only_a_container_holds_a_slot() -> None:
    without = broken(with_home(desired_state=Desired.RUNNING))
    assert not holds_slot(without)
    assert holds_slot(broken(RUNNING))


def test_an_error_that_may_end_without_being_asked_keeps_its_slot() -> None:
    """A workspace would otherwise come back beyond the limit."""
    passing = broken(archived(desired_state=Desired.RUNNING), ErrorReason.ARCHIVE_ACCESS_ERROR)
    assert holds_slot(passing)
    recovering = replace(broken(archived(desired_state=Desired.RUNNING)), recover_requested_at=NOW)
    assert holds_slot(recovering)


def test_a_deleted_workspace_holds_none() -> None:
    assert not holds_slot(replace(RUNNING, deleted_at=NOW, phase=Phase.DELETED))


def test_the_last_slot_may_be_taken_and_no_more() -> None:
    limits = RunningLimits(max_running_per_user=2, max_running_global=5)
    admit(Slots(mine=("a",), total=4), limits)
    with pytest.raises(LimitReached, match=r"You may run 2 .*: a, b\."):
        admit(Slots(mine=("b", "a"), total=2), limits)
    with pytest.raises(LimitReached, match="All 5 running slots"):
        admit(Slots(mine=("a",), total=5), limits)


def test_the_defaults_of_the_seeds() -> None:
    assert (RunningLimits().max_running_per_user, RunningLimits().max_running_global) == (2, 100)
    assert RunningLimits().max_workspaces_per_user == 100
