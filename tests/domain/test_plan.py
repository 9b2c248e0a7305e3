"""One decision per judged row: deadlines, tries, wishes, recovery (contract 10)."""

from dataclasses import replace
from datetime import timedelta
from itertools import product
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from codehub.domain import failures, operations
from codehub.domain.errors import ErrorReason
from codehub.domain.failures import Failure, Policy, backoff, settle_health, terminal_reason
from codehub.domain.judge import NOTHING_KNOWN, ArchiveState, Facts, judge
from codehub.domain.plan import (
    Abandon,
    Begin,
    Complete,
    Continue,
    CrashedAfterStart,
    Decision,
    Recover,
    ReplaceLostArchive,
    ResetFailures,
    Settled,
    TakeRestorePoint,
    TimedOut,
    Undelete,
    Wait,
    plan,
)
from codehub.domain.workspace import Desired, HomeContext, Operation, Phase, RecoverAction, Workspace
from tests.rows import (
    KEY,
    NOW,
    OP_ID,
    OTHER_KEY,
    OTHER_OP_ID,
    VOLUME,
    archived,
    broken,
    busy,
    container,
    facts,
    with_home,
    workspace,
)

POLICY = Policy()
SECOND = timedelta(seconds=1)
EXITED = container(running=False, answered=False)


def decide(row: Workspace, look: Facts, after: timedelta = SECOND, policy: Policy = POLICY) -> Decision:
    now = NOW + after
    return plan(row, settle_health(row, judge(row, look, now), now), look, policy, now)


# ── what begins ────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_settled_row_is_left_alone() -> None:
    assert decide(with_home(desired_state=Desired.STANDBY), facts(VOLUME)) == Settled()


@pytest.mark.parametrize("desired", [Desired.STANDBY, Desired.ARCHIVED, Desired.PENDING, Desired.DELETED])
def test_an_exited_container_is_removed_before_anything_else(desired: Desired) -> None:
    row = with_home(desired_state=desired)
    assert decide(row, facts(VOLUME, container=EXITED)) == Begin(Operation.STOPPING)


@pytest.mark.parametrize("row", [workspace(), archived(desired_state=Desired.ARCHIVED)])
def test_a_container_left_beside_no_volume_is_removed(row: Workspace) -> None:
    assert decide(row, facts(container=EXITED)) == Begin(Operation.STOPPING)


def test_a_store_outage_does_not_keep_a_container_from_starting() -> None:
    row = with_home(archive_key=KEY, desired_state=Desired.RUNNING)
    assert decide(row, facts(VOLUME, archive=ArchiveState.UNKNOWN)) == Begin(Operation.STARTING)


@pytest.mark.parametrize(
    ("row", "look"),
    [
        (archived(desired_state=Desired.RUNNING), facts(archive=ArchiveState.UNKNOWN)),
        (archived(desired_state=Desired.PENDING), facts(archive=ArchiveState.UNKNOWN)),
        (with_home(archive_key=KEY, desired_state=Desired.ARCHIVED), facts(VOLUME, archive=ArchiveState.UNKNOWN)),
        (with_home(desired_state=Desired.RUNNING), NOTHING_KNOWN),
        (workspace(desired_state=Desired.RUNNING), NOTHING_KNOWN),
        (broken(workspace(desired_state=Desired.DELETED)), NOTHING_KNOWN),
    ],
)
def test_unknown_begins_nothing(row: Workspace, look: Facts) -> None:
    assert isinstance(decide(row, look), Wait)


@pytest.mark.parametrize("desired", Desired)
def test_error_acts_only_to_delete(desired: Desired) -> None:
    decision = decide(broken(with_home(desired_state=desired)), facts(VOLUME))
    assert decision == (Begin(Operation.DELETING) if desired is Desired.DELETED else Settled())


def test_a_deleted_row_rests_until_it_is_wanted_back() -> None:
    row = workspace(phase=Phase.DELETED, deleted_at=NOW, desired_state=Desired.DELETED)
    assert decide(row, facts()) == Settled()
    assert decide(busy(row, Operation.DELETING), facts()) == Complete()
    assert decide(replace(row, undelete_requested_at=NOW), facts()) == Undelete()
    assert decide(replace(row, undelete_requested_at=NOW, undelete_handled_at=NOW), facts()) == Settled()


# ── done is what is observed ───────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("row", "look", "done"),
    [
        (busy(workspace(home_store_key=VOLUME), Operation.PROVISIONING), facts(VOLUME), True),
        (busy(workspace(home_store_key=VOLUME), Operation.PROVISIONING), facts(), False),
        (busy(archived(phase=Phase.PENDING), Operation.CREATE_EMPTY_ARCHIVE), facts(), True),
        (busy(archived(archive_key=OTHER_KEY), Operation.CREATE_EMPTY_ARCHIVE), facts(), False),
        (busy(with_home(), Operation.STARTING), facts(VOLUME, container=container()), True),
        (busy(with_home(), Operation.STARTING), facts(VOLUME, container=container(answered=False)), False),
        (busy(with_home(), Operation.STOPPING), facts(VOLUME), True),
        (busy(with_home(), Operation.STOPPING), facts(VOLUME, container=EXITED), False),
        (busy(workspace(), Operation.DISCARDING), facts(), True),
        (busy(archived(), Operation.DISCARDING), facts(), False),
        (busy(archived(), Operation.DELETING), facts(), False),
    ],
)
def test_done_when(row: Workspace, look: Facts, done: bool) -> None:
    assert isinstance(decide(row, look), Complete) is done


@pytest.mark.parametrize(
    ("marker", "restoring", "done"),
    [
        ((KEY, OP_ID), None, True),
        ((OTHER_KEY, OP_ID), None, False),
        ((KEY, OTHER_OP_ID), None, False),
        (None, None, False),
        (None, KEY, False),
        ((KEY, OP_ID), KEY, False),
    ],
)
def test_restoring_is_done_by_its_own_marker_alone(
    marker: tuple[str, UUID] | None, restoring: str | None, done: bool
) -> None:
    home = HomeContext(incarnation=1, marker=marker, restoring=restoring)
    row = busy(archived(home_store_key=VOLUME, home=home, desired_state=Desired.RUNNING), Operation.RESTORING)
    assert isinstance(decide(row, facts(VOLUME)), Complete) is done


@pytest.mark.parametrize(("key", "volumes", "done"), [(KEY, (), True), (KEY, (VOLUME,), False), (OTHER_KEY, (), False)])
def test_archiving_is_done_when_the_volume_is_gone_and_the_archive_is_its_own(
    key: str, volumes: tuple[str, ...], done: bool
) -> None:
    home = HomeContext(incarnation=1, deleting_volume=True)
    row = with_home(archive_key=key, archive_op_id=OP_ID, home=home, desired_state=Desired.ARCHIVED)
    assert isinstance(decide(busy(row, Operation.ARCHIVING), facts(*volumes)), Complete) is done


# ── deadlines ──────────────────────────────────────────────────────────────────────────────────────────────────────

RUNNING_OPERATIONS = {
    Operation.PROVISIONING: (busy(workspace(home_store_key=VOLUME), Operation.PROVISIONING), facts(), 300),
    Operation.CREATE_EMPTY_ARCHIVE: (
        busy(workspace(archive_op_id=OP_ID), Operation.CREATE_EMPTY_ARCHIVE),
        facts(),
        300,
    ),
    Operation.RESTORING: (busy(archived(), Operation.RESTORING), facts(), 1800),
    Operation.STARTING: (busy(with_home(), Operation.STARTING), facts(VOLUME), 300),
    Operation.STOPPING: (
        busy(with_home(phase=Phase.RUNNING), Operation.STOPPING),
        facts(VOLUME, container=container()),
        300,
    ),
    Operation.ARCHIVING: (busy(with_home(archive_op_id=OP_ID), Operation.ARCHIVING), facts(VOLUME), 1800),
    Operation.DISCARDING: (busy(archived(), Operation.DISCARDING), facts(), 300),
    Operation.DELETING: (busy(archived(desired_state=Desired.DELETED), Operation.DELETING), facts(), 300),
}


def test_every_operation_is_tested_for_its_deadline() -> None:
    assert set(RUNNING_OPERATIONS) == set(Operation) - {Operation.NONE}


@pytest.mark.parametrize("operation", RUNNING_OPERATIONS)
def test_the_deadline_of_the_table(operation: Operation) -> None:
    row, look, seconds = RUNNING_OPERATIONS[operation]
    assert decide(row, look, timedelta(seconds=seconds)) == Continue()
    late = decide(row, look, timedelta(seconds=seconds + 1))
    assert late == TimedOut(elapsed_seconds=seconds + 1, limit_seconds=seconds)


@pytest.mark.parametrize("operation", RUNNING_OPERATIONS)
def test_the_deadline_can_be_set(operation: Operation) -> None:
    row, look, _ = RUNNING_OPERATIONS[operation]
    policy = Policy(deadlines={operation: 7})
    assert decide(row, look, timedelta(seconds=7), policy) == Continue()
    assert isinstance(decide(row, look, timedelta(seconds=8), policy), TimedOut)


@pytest.mark.parametrize("operation", RUNNING_OPERATIONS)
def test_excused_seconds_do_not_count(operation: Operation) -> None:
    row, look, seconds = RUNNING_OPERATIONS[operation]
    row = operations.excused(operations.excused(row, 1000.0), 500.0)
    assert decide(row, look, timedelta(seconds=seconds + 1500)) == Continue()
    assert isinstance(decide(row, look, timedelta(seconds=seconds + 1501)), TimedOut)


@pytest.mark.parametrize("operation", RUNNING_OPERATIONS)
def test_a_deadline_stands_still_while_the_runtime_is_silent(operation: Operation) -> None:
    row, _, _ = RUNNING_OPERATIONS[operation]
    decision = decide(row, NOTHING_KNOWN, timedelta(days=3))
    assert isinstance(decision, Wait)
    assert decision.excused


@pytest.mark.parametrize("operation", [Operation.RESTORING, Operation.ARCHIVING, Operation.CREATE_EMPTY_ARCHIVE])
def test_nobody_is_sent_to_error_for_an_outage_of_the_store(operation: Operation) -> None:
    row, look, _ = RUNNING_OPERATIONS[operation]
    row = replace(row, archive_key=KEY, desired_state=Desired.ARCHIVED)
    decision = decide(row, replace(look, archive=ArchiveState.UNKNOWN), timedelta(days=1))
    assert isinstance(decision, Wait)
    assert decision.excused, "or it times out as soon as the store answers again"


def test_an_outage_of_the_store_does_not_keep_a_volume_from_its_user() -> None:
    """The wish is read at each step: before the safe point, an archive that cannot be made gives way."""
    wanted = with_home(archive_key=OTHER_KEY, archive_op_id=OP_ID, desired_state=Desired.RUNNING)
    row = busy(wanted, Operation.ARCHIVING)
    for after in (SECOND, timedelta(days=1)):
        assert decide(row, facts(VOLUME, archive=ArchiveState.UNKNOWN), after) in (Continue(), Abandon())


@pytest.mark.parametrize("operation", [Operation.RESTORING, Operation.ARCHIVING])
def test_progress_moves_the_deadline_of_long_work(operation: Operation) -> None:
    row, look, seconds = RUNNING_OPERATIONS[operation]
    row = replace(row, op_progress_at=NOW + timedelta(hours=3))
    assert decide(row, look, timedelta(hours=3, seconds=seconds)) == Continue()
    assert isinstance(decide(row, look, timedelta(hours=3, seconds=seconds + 1)), TimedOut)


def test_progress_does_not_move_the_deadline_of_short_work() -> None:
    row, look, _ = RUNNING_OPERATIONS[Operation.STARTING]
    row = replace(row, op_progress_at=NOW + timedelta(minutes=4))
    assert isinstance(decide(row, look, timedelta(seconds=301)), TimedOut)


def test_done_wins_over_late() -> None:
    row, _, _ = RUNNING_OPERATIONS[Operation.STARTING]
    assert decide(row, facts(VOLUME, container=container()), timedelta(hours=1)) == Complete()


# ── tries ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_back_off_table() -> None:
    table = [backoff(k, POLICY, 0.0).total_seconds() for k in range(1, 12)]
    assert table == [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300]


@given(st.integers(1, 10_000), st.floats(-1, 1))
def test_back_off_is_bounded_and_jitter_is_small(count: int, jitter: float) -> None:
    plain, shaken = backoff(count, POLICY, 0.0), backoff(count, POLICY, jitter)
    assert SECOND <= plain <= timedelta(minutes=5)
    assert abs(shaken - plain) <= plain * 0.1001


AT_ONCE = {
    ErrorReason.TIMEOUT,
    ErrorReason.DATA_LOST,
    ErrorReason.IMAGE_PULL_FAILED,
    ErrorReason.CONTAINER_WITHOUT_VOLUME,
    ErrorReason.ARCHIVE_CORRUPTED,
    ErrorReason.RETRY_EXCEEDED,
    ErrorReason.ARCHIVE_ACCESS_ERROR,
}


@pytest.mark.parametrize("reason", ErrorReason)
def test_what_ends_at_once_and_what_is_tried_three_times(reason: ErrorReason) -> None:
    tries = [terminal_reason(reason, count, POLICY) for count in (1, 2, 3, 4)]
    exceeded = ErrorReason.RETRY_EXCEEDED
    if reason is ErrorReason.UNREACHABLE:
        assert tries == [None] * 4, "nobody is sent to ERROR for an outage"
    else:
        assert tries == ([reason] * 4 if reason in AT_ONCE else [None, None, exceeded, exceeded])


def test_the_number_of_tries_can_be_set() -> None:
    assert terminal_reason(ErrorReason.ACTION_FAILED, 4, Policy(max_retries=5)) is None
    assert terminal_reason(ErrorReason.ACTION_FAILED, 5, Policy(max_retries=5)) is ErrorReason.RETRY_EXCEEDED


def test_the_next_try_waits_for_its_time() -> None:
    row, look, _ = RUNNING_OPERATIONS[Operation.STARTING]
    row = replace(row, desired_state=Desired.RUNNING, retry_at=NOW + timedelta(seconds=30), error_count=1)
    assert decide(row, look, timedelta(seconds=29)) == Wait("the next try is not due", until=row.retry_at)
    assert decide(row, look, timedelta(seconds=30)) == Continue()


@pytest.mark.parametrize("operation", RUNNING_OPERATIONS)
def test_a_wish_that_changed_between_tries_gives_the_operation_up(operation: Operation) -> None:
    row, look, _ = RUNNING_OPERATIONS[operation]
    kept: list[Desired] = []
    given_up: list[Desired] = []
    for desired in Desired:
        waiting = replace(row, desired_state=desired, retry_at=NOW + timedelta(hours=1), error_count=1)
        (given_up if decide(waiting, look) == Abandon() else kept).append(desired)
    assert (
        kept
        == {
            Operation.PROVISIONING: [Desired.STANDBY, Desired.RUNNING],
            Operation.CREATE_EMPTY_ARCHIVE: [Desired.ARCHIVED],
            Operation.RESTORING: [Desired.STANDBY, Desired.RUNNING],
            Operation.STARTING: [Desired.RUNNING],
            Operation.STOPPING: [Desired.DELETED, Desired.PENDING, Desired.ARCHIVED, Desired.STANDBY],
            Operation.ARCHIVING: [Desired.DELETED, Desired.PENDING, Desired.ARCHIVED],
            Operation.DISCARDING: [Desired.PENDING],
            Operation.DELETING: [Desired.DELETED],
        }[operation]
    )
    assert given_up


@pytest.mark.parametrize("operation", RUNNING_OPERATIONS)
def test_a_running_operation_finishes_whatever_is_wished(operation: Operation) -> None:
    row, look, _ = RUNNING_OPERATIONS[operation]
    for desired in Desired:
        assert decide(replace(row, desired_state=desired), look) == Continue()


@pytest.mark.parametrize("desired", Desired)
def test_past_the_safe_point_nobody_yields(desired: Desired) -> None:
    home = HomeContext(incarnation=1, deleting_volume=True)
    row = with_home(archive_key=KEY, archive_op_id=OP_ID, home=home, desired_state=desired)
    row = busy(row, Operation.ARCHIVING, retry_at=NOW, error_count=1)
    assert decide(row, facts(VOLUME)) == Continue()


def test_an_archive_of_a_home_that_was_written_meanwhile_is_begun_anew() -> None:
    """A container that appears before the safe point: what was uploaded is not the home, and has no id any more."""
    row = busy(with_home(archive_op_id=OP_ID, desired_state=Desired.ARCHIVED), Operation.ARCHIVING)
    seen = judge(row, facts(VOLUME, container=container()), NOW)
    assert seen.archive_op_id != OP_ID
    assert seen.archive_op_id is not None or decide(seen, facts(VOLUME)) == Abandon()


@pytest.mark.parametrize("running", [True, False])
def test_past_the_safe_point_a_home_that_was_written_meanwhile_is_archived_once_more(running: bool) -> None:
    """The observation alone notes it: the container may be gone by the next try."""
    home = HomeContext(incarnation=1, deleting_volume=True)
    row = with_home(archive_key=KEY, archive_op_id=OP_ID, home=home, desired_state=Desired.ARCHIVED)
    row = busy(row, Operation.ARCHIVING)
    seen = judge(row, facts(VOLUME, container=container(running=running)), NOW)
    assert seen.archive_op_id not in {None, OP_ID}
    assert judge(seen, facts(VOLUME), NOW).archive_op_id == seen.archive_op_id
    assert decide(seen, facts(VOLUME)) == Continue()
    elsewhere = replace(container(), volume="ws-of-another")
    assert judge(row, facts(VOLUME, container=elsewhere), NOW).archive_op_id == OP_ID


# ── relapse and forgiveness ────────────────────────────────────────────────────────────────────────────────────────


def ran_for(seconds: int, **changes: object) -> Workspace:
    changed_at = NOW + SECOND - timedelta(seconds=seconds)
    return with_home(phase=Phase.RUNNING, phase_changed_at=changed_at, desired_state=Desired.RUNNING, **changes)


def test_a_container_that_dies_right_after_its_start_is_a_failed_try() -> None:
    assert decide(ran_for(59), facts(VOLUME, container=EXITED)) == CrashedAfterStart()
    assert decide(ran_for(59), facts(VOLUME)) == CrashedAfterStart()


def test_one_that_dies_later_is_started_again() -> None:
    assert decide(ran_for(60), facts(VOLUME, container=EXITED)) == Begin(Operation.STARTING)


def test_stopping_it_on_purpose_is_no_relapse() -> None:
    stopped = replace(ran_for(5), desired_state=Desired.STANDBY)
    assert decide(stopped, facts(VOLUME)) == Settled()
    assert decide(busy(stopped, Operation.STOPPING), facts(VOLUME)) == Complete()


def test_a_container_that_dies_each_time_ends_in_error() -> None:
    row, now = ran_for(5), NOW
    for _ in range(3):
        now += timedelta(minutes=1)
        row = replace(row, phase=Phase.RUNNING, phase_changed_at=now - SECOND, retry_at=None)
        judged = judge(row, facts(VOLUME, container=EXITED), now)
        assert plan(row, judged, facts(VOLUME, container=EXITED), POLICY, now) == CrashedAfterStart()
        row = failures.crashed_after_start(row, judged, POLICY, 0.0, now)
    assert (row.phase, row.error_reason, row.error_count) == (Phase.ERROR, ErrorReason.RETRY_EXCEEDED, 3)


def test_failures_are_forgiven_once_the_phase_has_held() -> None:
    look = facts(VOLUME, container=container())
    young, old = ran_for(59, error_count=2), ran_for(60, error_count=2)
    assert decide(young, look) == Settled()
    assert decide(old, look) == ResetFailures()
    assert decide(replace(old, error_count=0), look) == Settled()


def test_failures_are_not_forgiven_on_the_way() -> None:
    row = with_home(desired_state=Desired.RUNNING, error_count=2)
    assert decide(row, facts(VOLUME)) == Begin(Operation.STARTING)


# ── one-off wishes ─────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("phase", [Phase.STANDBY, Phase.RUNNING])
def test_a_restore_sends_a_present_home_through_archived_first(phase: Phase) -> None:
    row = with_home(phase=phase, desired_state=Desired.RUNNING, restore_from=OTHER_KEY, restore_requested_at=NOW)
    look = facts(VOLUME, container=container() if phase is Phase.RUNNING else None)
    assert decide(row, look) == Begin(Operation.STOPPING if phase is Phase.RUNNING else Operation.ARCHIVING)


def test_a_restore_point_is_taken_when_the_home_is_safe() -> None:
    row = archived(desired_state=Desired.RUNNING, restore_from=OTHER_KEY, restore_requested_at=NOW)
    assert decide(row, facts()) == TakeRestorePoint()
    handled = replace(row, restore_handled_at=NOW)
    assert decide(handled, facts()) == Begin(Operation.RESTORING)


def test_a_restore_waits_in_error() -> None:
    row = broken(with_home(restore_from=OTHER_KEY, restore_requested_at=NOW))
    assert decide(row, facts(VOLUME)) == Settled()


def test_deletion_wins_over_a_restore() -> None:
    row = with_home(desired_state=Desired.DELETED, restore_from=OTHER_KEY, restore_requested_at=NOW)
    assert decide(row, facts(VOLUME)) == Begin(Operation.ARCHIVING)


def test_an_archive_lost_beside_a_living_volume_is_repointed_and_runs_on() -> None:
    row = with_home(archive_key=KEY, desired_state=Desired.STANDBY)
    assert decide(row, facts(VOLUME, archive=ArchiveState.NOT_FOUND)) == ReplaceLostArchive()


def test_an_archive_lost_before_the_volume_is_deleted_stops_the_delete() -> None:
    home = HomeContext(incarnation=1, deleting_volume=True)
    row = with_home(archive_key=KEY, archive_op_id=OP_ID, home=home, desired_state=Desired.ARCHIVED)
    assert decide(busy(row, Operation.ARCHIVING), facts(VOLUME, archive=ArchiveState.NOT_FOUND)) == ReplaceLostArchive()


def asked(row: Workspace, action: RecoverAction) -> Workspace:
    return replace(row, recover_action=action, recover_requested_at=NOW)


def test_recover_after_the_safe_point_waits_for_the_store_unless_the_archive_is_given_up() -> None:
    """The delete of the volume may still be on its way; it must not meet a home that lives again."""
    leaving = with_home(archive_key=KEY, home=HomeContext(incarnation=1, live=False, deleting_volume=True))
    row = asked(broken(leaving), RecoverAction.RETRY)
    silent = facts(VOLUME, archive=ArchiveState.UNKNOWN)
    assert isinstance(decide(row, silent), Wait)
    assert isinstance(decide(row, facts(VOLUME, archive=ArchiveState.READABLE)), Recover)
    assert isinstance(decide(row, facts(VOLUME, archive=ArchiveState.NOT_FOUND)), Recover)
    assert isinstance(decide(replace(row, recover_action=RecoverAction.FORGET_ARCHIVE), silent), Recover)


def test_recover_waits_for_the_runtime() -> None:
    row = asked(broken(with_home()), RecoverAction.RETRY)
    assert isinstance(decide(row, NOTHING_KNOWN), Wait)
    assert decide(row, facts(VOLUME)) == Recover()


@pytest.mark.parametrize("look", [facts(archive=ArchiveState.UNKNOWN), NOTHING_KNOWN])
def test_a_recovery_is_not_taken_back_by_an_outage(look: Facts) -> None:
    """Either it waits for the answer, or the row that it wrote does not fall back into the error it was freed of."""
    row = asked(broken(archived(desired_state=Desired.RUNNING)), RecoverAction.RETRY)
    if decide(row, look) == Recover():
        row = failures.recovered(judge(row, look, NOW), None, NOW)
    else:
        row = failures.recovered(judge(row, facts(), NOW), None, NOW)
    after = settle_health(row, judge(row, look, NOW), NOW)
    assert after.error_info is None


def test_an_attempt_to_delete_that_fails_does_not_free_a_workspace_from_error() -> None:
    row = busy(broken(with_home(desired_state=Desired.DELETED), ErrorReason.TIMEOUT), Operation.DELETING)
    row = replace(row, error_count=1)
    failed = failures.failed(row, Failure(ErrorReason.ACTION_FAILED, "busy"), POLICY, 0.0, NOW)
    assert settle_health(failed, judge(failed, facts(VOLUME), NOW), NOW).phase is Phase.ERROR


def test_a_recovery_asked_for_in_error_waits_for_the_operation_that_began_meanwhile() -> None:
    """The error cleared itself and a restore began, which may fail again: the wish is kept for that."""
    row = asked(busy(archived(desired_state=Desired.STANDBY), Operation.RESTORING), RecoverAction.USE_ARCHIVE)
    assert decide(row, facts()) == Continue()
    assert decide(broken(replace(row, operation=Operation.NONE)), facts()) == Recover()


def test_recovering_a_healthy_workspace_only_consumes_the_wish() -> None:
    for action, look in product(RecoverAction, (facts(VOLUME), facts(VOLUME, container=container()))):
        row = asked(judge(with_home(), look, NOW), action)
        assert decide(row, look) == Recover()
        assert failures.recovered(row, None, NOW) == replace(row, recover_handled_at=NOW)
