"""What each decision writes (contract 4): ids, incarnations, tries, errors, recovery."""

from dataclasses import replace
from datetime import datetime, timedelta
from uuid import UUID

import pytest

from codehub.domain import failures, naming, operations
from codehub.domain.errors import CONTEXT_FIELDS, ErrorReason, Unreachable
from codehub.domain.failures import Failure, Policy, settle_health
from codehub.domain.judge import ArchiveState, Facts, judge
from codehub.domain.plan import Complete, TimedOut, plan
from codehub.domain.workspace import Desired, HomeContext, Operation, Phase, Progress, RecoverAction, Workspace
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
NEW_OP = UUID("cccccccc-cccc-4ccc-8ccc-cccccccccccc")
LATER = NOW + timedelta(hours=1)
BUSY_OPERATIONS = [operation for operation in Operation if operation is not Operation.NONE]
NO_LUCK = Failure(ErrorReason.ACTION_FAILED, "no luck", {"action": "start"})


def begun(row: Workspace, operation: Operation, *volumes: str) -> Workspace:
    return operations.begin(row, operation, NEW_OP, NOW, volumes)


def fail(row: Workspace, failure: Failure = NO_LUCK) -> Workspace:
    return failures.failed(row, failure, POLICY, 0.0, LATER)


# ── begin ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("operation", BUSY_OPERATIONS)
def test_a_new_operation_has_its_own_id_and_a_fresh_clock(operation: Operation) -> None:
    tired = with_home(
        op_id=OP_ID, op_progress=Progress(bytes=9), op_excused_seconds=99.0, retry_at=NOW, archive_key=KEY
    )
    row = begun(tired, operation)
    assert (row.operation, row.op_id, row.op_started_at, row.op_progress_at) == (operation, NEW_OP, NOW, NOW)
    assert (row.op_progress, row.op_excused_seconds, row.retry_at) == (None, 0.0, None)


@pytest.mark.parametrize("operation", [Operation.PROVISIONING, Operation.RESTORING])
def test_a_new_home_takes_a_name_never_used_before(operation: Operation) -> None:
    names = []
    row = archived(home=HomeContext())
    for _ in range(4):
        row = begun(row, operation)
        names.append(row.home_store_key)
    assert names == [VOLUME, f"{VOLUME}-2", f"{VOLUME}-3", f"{VOLUME}-4"]


@pytest.mark.parametrize("operation", [Operation.PROVISIONING, Operation.RESTORING])
def test_a_new_home_is_numbered_above_all_that_were_seen(operation: Operation) -> None:
    """What stands under a number that this row never gave may hold newer work: it is passed over, and that is kept."""
    row = archived(home=HomeContext(incarnation=2))
    seen = (VOLUME, f"{VOLUME}-2", f"{VOLUME}-12", f"{VOLUME}-3", "ws-other-home-99", f"{VOLUME}-x")
    begins = begun(row, operation, *seen)
    assert (begins.home_store_key, begins.home.incarnation) == (f"{VOLUME}-13", 13)
    assert begins.home.passed_over == (3, 12)
    again = begun(begins, operation, *seen, f"{VOLUME}-13")
    assert (again.home.incarnation, again.home.passed_over) == (14, (3, 12))


@pytest.mark.parametrize("operation", [Operation.PROVISIONING, Operation.RESTORING])
def test_a_new_home_is_not_named_by_a_guess(operation: Operation) -> None:
    with pytest.raises(Unreachable, match="guess"):
        operations.begin(archived(), operation, NEW_OP, NOW, None)


def test_provisioning_makes_a_plain_home() -> None:
    row = begun(
        workspace(home=HomeContext(incarnation=3, marker=(KEY, OP_ID)), archive_op_id=OP_ID), Operation.PROVISIONING
    )
    assert row.home == HomeContext(incarnation=4)
    assert row.archive_op_id is None, "the old home's archive id must not name the new home's archive"


def test_restoring_marks_the_home_and_clears_the_marker() -> None:
    row = begun(archived(home=HomeContext(incarnation=1, marker=(KEY, OP_ID))), Operation.RESTORING)
    assert (row.home.restoring, row.home.marker, row.home.live) == (KEY, None, False)
    assert row.archive_op_id is None


def test_starting_clears_the_archive_id() -> None:
    assert begun(with_home(archive_op_id=OP_ID), Operation.STARTING).archive_op_id is None


def test_an_archive_id_does_not_outlive_a_run_that_nobody_recorded() -> None:
    """A container that a person or a stalled leader started: what was archived is not what is there now."""
    kept = with_home(archive_key=KEY, archive_op_id=OP_ID, desired_state=Desired.ARCHIVED)
    running = judge(kept, facts(VOLUME, container=container()), NOW)
    stopped = judge(begun(running, Operation.STOPPING), facts(VOLUME), NOW)
    again = operations.begin(operations.complete(stopped), Operation.ARCHIVING, OTHER_OP_ID, NOW, ())
    assert again.archive_op_id == OTHER_OP_ID


def test_an_archive_is_named_by_its_first_operation_and_kept_by_the_next() -> None:
    first = begun(with_home(), Operation.ARCHIVING)
    assert first.archive_op_id == NEW_OP
    again = operations.begin(operations.abandon(first), Operation.ARCHIVING, OTHER_OP_ID, LATER, ())
    assert (again.op_id, again.archive_op_id) == (OTHER_OP_ID, NEW_OP)


def test_an_empty_archive_is_never_an_old_one() -> None:
    forgotten = workspace(archive_op_id=OP_ID)
    assert begun(forgotten, Operation.CREATE_EMPTY_ARCHIVE).archive_op_id == NEW_OP


def test_beginning_touches_nothing_of_the_persons() -> None:
    for operation in BUSY_OPERATIONS:
        row = begun(archived(desired_state=Desired.RUNNING, restore_from=KEY), operation)
        assert (row.desired_state, row.restore_from, row.archive_key) == (Desired.RUNNING, KEY, KEY)


# ── complete, abandon ──────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("operation", BUSY_OPERATIONS)
def test_completion_clears_the_error_and_keeps_only_a_start_s_count(operation: Operation) -> None:
    """A container that dies right after its start was a failed attempt as well."""
    row = operations.complete(fail(busy(with_home(), operation)))
    assert (row.operation, row.error_reason, row.error_info, row.retry_at) == (Operation.NONE, None, None, None)
    assert row.error_count == (1 if operation is Operation.STARTING else 0)
    assert row.op_id == OP_ID


def test_a_home_that_was_archived_is_no_longer_live() -> None:
    leaving = with_home(home=HomeContext(incarnation=2, live=True, deleting_volume=True, marker=(KEY, OP_ID)))
    row = operations.complete(busy(leaving, Operation.ARCHIVING))
    assert row.home == HomeContext(incarnation=2)


def test_a_volume_that_was_given_up_is_never_a_home_again() -> None:
    """A list that still shows it, or a delete that half failed, must not bring it back."""
    leaving = with_home(archive_key=KEY, archive_op_id=OP_ID, home=HomeContext(incarnation=1, deleting_volume=True))
    done = operations.complete(judge(busy(leaving, Operation.ARCHIVING), facts(), NOW))
    assert judge(done, facts(VOLUME), NOW).phase is Phase.ARCHIVED


def test_giving_up_a_restore_keeps_the_volume_marked() -> None:
    row = operations.abandon(begun(archived(), Operation.RESTORING))
    assert (row.operation, row.home.restoring) == (Operation.NONE, KEY)


# ── progress and excuses ───────────────────────────────────────────────────────────────────────────────────────────


def test_progress_moves_its_time_only_when_it_moves() -> None:
    row = busy(with_home(), Operation.ARCHIVING, op_excused_seconds=7.0)
    moved = operations.progressed(row, Progress(bytes=1), LATER)
    assert (moved.op_progress_at, moved.op_excused_seconds) == (LATER, 0.0)
    assert operations.progressed(moved, Progress(bytes=1), LATER + timedelta(hours=1)) is moved


def test_progress_takes_no_excuse_back_where_the_deadline_counts_from_the_start() -> None:
    """The image was pulled for 400 s; a word of progress afterwards must not count them."""
    row = operations.excused(busy(with_home(desired_state=Desired.RUNNING), Operation.STARTING), 400.0)
    row = operations.progressed(row, Progress(step="created"), NOW + timedelta(seconds=401))
    decision = plan(row, judge(row, facts(VOLUME), NOW), facts(VOLUME), POLICY, NOW + timedelta(seconds=450))
    assert not isinstance(decision, TimedOut)


# ── outages ────────────────────────────────────────────────────────────────────────────────────────────────────────

SILENCE = Failure(ErrorReason.UNREACHABLE, "broken pipe", {"endpoint": "runtime"})


@pytest.mark.parametrize("operation", BUSY_OPERATIONS)
def test_an_outage_uses_up_neither_tries_nor_time(operation: Operation) -> None:
    row = before = busy(with_home(error_count=2), operation)
    now = NOW
    for _ in range(50):
        row = failures.failed(operations.excused(row, 1.0), SILENCE, POLICY, 0.0, now)
        assert row.retry_at is not None
        now = row.retry_at + timedelta(seconds=1)
    assert (row.phase, row.operation, row.op_id, row.error_count) == (before.phase, operation, OP_ID, 2)
    assert (row.error_reason, row.error_info and row.error_info.is_terminal) == (ErrorReason.UNREACHABLE, False)
    assert now - timedelta(seconds=row.op_excused_seconds) == NOW, "the deadline stood still"


def test_the_longer_an_outage_lasts_the_more_rarely_it_is_tried_again() -> None:
    row, now, pauses = busy(with_home(), Operation.STOPPING), NOW, []
    for _ in range(12):
        row = failures.failed(row, SILENCE, POLICY, 0.0, now)
        assert row.retry_at is not None
        pauses.append((row.retry_at - now).total_seconds())
        now = row.retry_at
    assert pauses == sorted(pauses)
    assert (pauses[0], pauses[-1]) == (1.0, 15.0)
    assert row.error_info is not None
    assert row.error_info.occurred_at == NOW, "since when"


def test_an_outage_in_error_leaves_the_error_as_it_is() -> None:
    row = busy(broken(with_home(desired_state=Desired.DELETED)), Operation.DELETING)
    after = failures.failed(row, SILENCE, POLICY, 0.0, LATER)
    assert (after.error_info, after.error_reason, after.error_count) == (row.error_info, row.error_reason, 3)
    assert after.retry_at == LATER + timedelta(seconds=1)


# ── failures ───────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("operation", BUSY_OPERATIONS)
def test_a_failed_try_keeps_the_operation_and_its_id(operation: Operation) -> None:
    before = busy(with_home(archive_op_id=OTHER_OP_ID), operation)
    row = fail(before)
    assert (row.operation, row.op_id, row.archive_op_id) == (operation, OP_ID, OTHER_OP_ID)
    assert (row.op_started_at, row.home, row.phase) == (before.op_started_at, before.home, Phase.STANDBY)
    assert (row.error_count, row.error_reason, row.retry_at) == (1, NO_LUCK.reason, LATER + timedelta(seconds=1))
    assert row.error_info is not None
    assert not row.error_info.is_terminal
    assert (row.error_info.operation, row.error_info.occurred_at) == (operation.value, LATER)


def test_tries_are_spaced_and_then_end() -> None:
    row = busy(with_home(), Operation.STARTING)
    first, second, third = (row := fail(row)), (row := fail(row)), fail(row)
    assert [first.retry_at, second.retry_at] == [LATER + timedelta(seconds=s) for s in (1, 2)]
    assert (third.phase, third.operation, third.error_reason) == (
        Phase.ERROR,
        Operation.NONE,
        ErrorReason.RETRY_EXCEEDED,
    )
    assert third.error_info is not None
    assert third.error_info.context["last_error"] == "no luck"
    assert third.error_info.context["max_retries"] == 3
    assert third.error_info.context["last_reason"] == "ActionFailed"
    assert third.error_info.operation == "STARTING"


def test_each_operation_has_tries_of_its_own() -> None:
    row = fail(fail(begun(archived(desired_state=Desired.RUNNING), Operation.RESTORING)))
    assert row.error_count == 2
    row = fail(begun(operations.complete(row), Operation.STARTING))
    assert (row.phase, row.error_count, row.error_reason) == (Phase.ARCHIVED, 1, NO_LUCK.reason)


def test_an_operation_given_up_between_tries_hands_nothing_on_to_another() -> None:
    row = operations.abandon(fail(fail(busy(with_home(), Operation.ARCHIVING))))
    again, other = begun(row, Operation.ARCHIVING), begun(row, Operation.STARTING)
    assert (again.error_count, again.error_info) == (2, row.error_info)
    assert (other.error_count, other.error_info, other.error_reason) == (0, None, None)


def test_a_delete_in_error_counts_its_own_tries_and_keeps_the_error() -> None:
    row = begun(broken(with_home(desired_state=Desired.DELETED)), Operation.DELETING)
    assert (row.error_count, row.error_reason) == (0, ErrorReason.RETRY_EXCEEDED)
    assert row.error_info is not None


def assert_error_is_whole(row: Workspace, reason: ErrorReason, before: Workspace) -> None:
    assert (row.phase, row.operation, row.op_started_at) == (Phase.ERROR, Operation.NONE, None)
    assert (row.conditions.healthy.status, row.conditions.healthy.reason) == (False, reason.value)
    assert row.error_info is not None
    assert row.error_info.is_terminal
    assert row.error_info.reason is row.error_reason is reason
    assert row.error_info.error_count == row.error_count > 0
    assert row.error_info.previous_phase == before.phase.value
    assert row.error_info.message == row.conditions.healthy.message
    assert (row.op_id, row.archive_op_id, row.archive_key) == (before.op_id, before.archive_op_id, before.archive_key)
    assert row.home == before.home


@pytest.mark.parametrize(
    "reason", [ErrorReason.IMAGE_PULL_FAILED, ErrorReason.ARCHIVE_CORRUPTED, ErrorReason.DATA_LOST]
)
def test_some_failures_end_at_once(reason: ErrorReason) -> None:
    before = busy(with_home(archive_op_id=OTHER_OP_ID, archive_key=KEY), Operation.STARTING)
    assert_error_is_whole(fail(before, Failure(reason, "never")), reason, before)


@pytest.mark.parametrize("operation", [op for op in BUSY_OPERATIONS if op is not Operation.DELETING])
def test_a_timeout_is_written_whole(operation: Operation) -> None:
    before = busy(with_home(archive_op_id=OTHER_OP_ID, archive_key=KEY), operation)
    row = failures.timed_out(before, 1801.2, 1800.0, LATER)
    assert_error_is_whole(row, ErrorReason.TIMEOUT, before)
    assert row.error_info is not None
    assert row.error_info.context == {
        "operation": operation.value,
        "elapsed_seconds": 1801,
        "limit_seconds": 1800,
    }


def test_a_wish_to_delete_is_never_given_up() -> None:
    row = busy(archived(desired_state=Desired.DELETED), Operation.DELETING, error_count=2)
    row = fail(row)
    assert (row.phase, row.operation) == (Phase.ERROR, Operation.NONE)
    assert row.retry_at is not None
    assert row.retry_at > LATER


def test_a_relapse_counts_as_a_failed_start() -> None:
    before = with_home(phase=Phase.RUNNING, phase_changed_at=NOW, desired_state=Desired.RUNNING)
    seen = judge(before, facts(VOLUME, container=container(running=False, answered=False, detail="exit 1")), LATER)
    row = failures.crashed_after_start(before, seen, POLICY, 0.0, LATER)
    assert (row.error_count, row.operation, row.retry_at) == (1, Operation.NONE, LATER + timedelta(seconds=1))
    assert row.error_info is not None
    assert "exit 1" in row.error_info.message
    assert row.error_info.operation == "STARTING"


def test_a_relapse_is_not_charged_with_the_tries_of_a_stop_that_was_given_up() -> None:
    before = with_home(phase=Phase.RUNNING, phase_changed_at=NOW, desired_state=Desired.RUNNING)
    before = operations.abandon(fail(busy(before, Operation.STOPPING)))
    seen = judge(before, facts(VOLUME, container=container(running=False, answered=False)), LATER)
    row = failures.crashed_after_start(before, seen, POLICY, 0.0, LATER)
    assert row.error_count == 1
    assert failures.crashed_after_start(before, row, POLICY, 0.0, LATER).error_count == 2


def test_forgiveness_clears_all_of_the_error() -> None:
    row = failures.failures_reset(operations.abandon(fail(busy(with_home(), Operation.STARTING))))
    assert (row.error_count, row.error_reason, row.error_info, row.retry_at) == (0, None, None, None)


# ── restore points ─────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_restore_point_is_taken_once() -> None:
    row = archived(restore_from=OTHER_KEY, restore_requested_at=NOW)
    taken = operations.take_restore_point(row)
    assert (taken.archive_key, taken.archive_op_id, taken.restore_pending) == (OTHER_KEY, None, False)


def test_a_half_restored_volume_does_not_become_whole_by_choosing_another_archive() -> None:
    given_up = operations.abandon(begun(archived(), Operation.RESTORING))
    assert given_up.home_store_key is not None
    asked = replace(given_up, restore_from=OTHER_KEY, restore_requested_at=NOW)
    taken = judge(operations.take_restore_point(asked), facts(given_up.home_store_key), NOW)
    assert (taken.phase, taken.home.live) == (Phase.ARCHIVED, False)


@pytest.mark.parametrize("newest", [None, OTHER_KEY])
def test_repointing_makes_the_volume_the_home_again(newest: str | None) -> None:
    leaving = with_home(archive_key=KEY, archive_op_id=OP_ID, home=HomeContext(incarnation=1, deleting_volume=True))
    row = operations.lost_archive_replaced(busy(leaving, Operation.ARCHIVING), newest)
    assert (row.operation, row.archive_key, row.archive_op_id) == (Operation.NONE, newest, None)
    seen = judge(row, facts(VOLUME), NOW)
    assert (seen.phase, seen.home.live) == (Phase.STANDBY, True)


@pytest.mark.parametrize("newest", [None, OTHER_KEY])
def test_repointing_does_not_undo_a_restore_that_has_succeeded(newest: str | None) -> None:
    """The restore would otherwise be run again, from an older archive, into the home that is whole and live."""
    home = HomeContext(incarnation=1, marker=(KEY, OP_ID))
    before = busy(archived(home_store_key=VOLUME, home=home, desired_state=Desired.RUNNING), Operation.RESTORING)
    lost = facts(VOLUME, archive=ArchiveState.NOT_FOUND)
    judged = judge(before, lost, NOW)
    decision = plan(before, judged, lost, POLICY, NOW)
    row = operations.complete(judged) if decision == Complete() else operations.lost_archive_replaced(judged, newest)
    look = facts(VOLUME)
    after = judge(row, look, NOW)
    ended = after.operation is Operation.NONE or plan(row, after, look, POLICY, NOW) == Complete()
    assert (after.phase, ended) == (Phase.STANDBY, True)


# ── recover ────────────────────────────────────────────────────────────────────────────────────────────────────────


def recover(row: Workspace, action: RecoverAction, look: Facts, newest: str | None = None) -> Workspace:
    """The row after the action, judged again by the same look."""
    asked = replace(row, recover_action=action, recover_requested_at=NOW)
    judged = failures.settle_health(asked, judge(asked, look, NOW), NOW)
    written = failures.recovered(judged, newest, NOW)
    assert not written.recover_pending
    return failures.settle_health(written, judge(written, look, NOW), NOW)


@pytest.mark.parametrize("action", RecoverAction)
def test_a_recovery_forgets_the_error(action: RecoverAction) -> None:
    row = recover(broken(with_home()), action, facts(VOLUME))
    assert (row.phase, row.error_info, row.error_reason, row.error_count) == (Phase.STANDBY, None, None, 0)


@pytest.mark.parametrize("action", RecoverAction)
def test_no_recovery_gives_up_a_live_volume_that_is_there(action: RecoverAction) -> None:
    before = broken(with_home(archive_key=KEY))
    row = recover(before, action, facts(VOLUME), OTHER_KEY)
    assert (row.home_store_key, row.home, row.phase) == (VOLUME, before.home, Phase.STANDBY)


@pytest.mark.parametrize("action", [RecoverAction.USE_ARCHIVE, RecoverAction.EMPTY_HOME, RecoverAction.FORGET_ARCHIVE])
def test_no_recovery_gives_up_a_leaving_volume_whose_archive_is_lost(action: RecoverAction) -> None:
    leaving = with_home(archive_key=KEY, archive_op_id=OP_ID, home=HomeContext(incarnation=1, deleting_volume=True))
    row = recover(broken(leaving), action, facts(VOLUME, archive=ArchiveState.NOT_FOUND))
    assert (row.home_store_key, row.phase) == (VOLUME, Phase.STANDBY), "it is the home again"


def test_use_archive_of_a_lost_home_takes_the_newest_or_the_chosen() -> None:
    lost = broken(with_home(), ErrorReason.DATA_LOST)
    newest = recover(lost, RecoverAction.USE_ARCHIVE, facts(), KEY)
    assert (newest.phase, newest.archive_key, newest.home.live) == (Phase.ARCHIVED, KEY, False)
    chosen = replace(lost, restore_from=OTHER_KEY, restore_requested_at=NOW)
    row = recover(chosen, RecoverAction.USE_ARCHIVE, facts(), KEY)
    assert (row.archive_key, row.restore_pending) == (OTHER_KEY, False)


def test_use_archive_without_an_archive_is_not_an_empty_home() -> None:
    """Only empty_home may lead to an empty home; and an archive that may return is not forgotten."""
    row = recover(broken(with_home(), ErrorReason.DATA_LOST), RecoverAction.USE_ARCHIVE, facts())
    assert (row.phase, row.error_reason) == (Phase.ERROR, ErrorReason.DATA_LOST)
    unreadable = broken(archived(), ErrorReason.ARCHIVE_ACCESS_ERROR)
    kept = recover(unreadable, RecoverAction.USE_ARCHIVE, facts(archive=ArchiveState.NOT_FOUND))
    assert kept.archive_key == KEY


def test_an_empty_home_is_begun_only_by_name() -> None:
    lost = broken(with_home(archive_key=KEY), ErrorReason.DATA_LOST)
    row = recover(lost, RecoverAction.EMPTY_HOME, facts())
    assert (row.phase, row.archive_key, row.home_store_key, row.home.live) == (Phase.PENDING, None, None, False)


@pytest.mark.parametrize("action", [RecoverAction.RETRY, RecoverAction.REMOVE_CONTAINER, RecoverAction.FORGET_ARCHIVE])
def test_a_lost_home_stays_lost_under_the_other_actions(action: RecoverAction) -> None:
    row = recover(broken(with_home(), ErrorReason.DATA_LOST), action, facts())
    assert (row.phase, row.error_reason) == (Phase.ERROR, ErrorReason.DATA_LOST)


def test_an_error_that_returns_remembers_the_phase_before_it() -> None:
    row = recover(broken(with_home(), ErrorReason.DATA_LOST), RecoverAction.RETRY, facts())
    assert row.error_info is not None
    assert row.error_info.previous_phase == "STANDBY"


DAMAGED = Failure(ErrorReason.ARCHIVE_CORRUPTED, "the checksum is wrong")


def found_damaged() -> Workspace:
    """A row in ERROR, since a restore has read KEY and found its checksum wrong."""
    row = fail(begun(archived(desired_state=Desired.RUNNING), Operation.RESTORING), DAMAGED)
    assert (row.phase, row.error_reason) == (Phase.ERROR, ErrorReason.ARCHIVE_CORRUPTED)
    return row


def test_an_archive_that_a_restore_found_damaged_is_not_readable_whatever_it_looks_like() -> None:
    row = found_damaged()
    for _ in range(2):
        ready = row.conditions.archive_ready
        assert (ready.status, ready.reason) == (False, "ArchiveCorrupted")
        row = settle_health(row, judge(row, facts(), LATER), LATER)
    assert row.error_reason is ErrorReason.ARCHIVE_CORRUPTED
    another = replace(row, archive_key=OTHER_KEY)
    assert judge(another, facts(), LATER).conditions.archive_ready.status is True, "only this one"


@pytest.mark.parametrize("ask", ["retry", "by its name"])
def test_a_damaged_archive_is_read_again_when_a_person_says_so(ask: str) -> None:
    row = found_damaged()
    if ask == "by its name":
        row = replace(row, restore_from=KEY, restore_requested_at=NOW)
    action = RecoverAction.RETRY if ask == "retry" else RecoverAction.USE_ARCHIVE
    row = recover(row, action, facts())
    assert (row.phase, row.archive_key, row.home.corrupted) == (Phase.ARCHIVED, KEY, ())


def test_what_was_damaged_is_remembered_through_the_next_home() -> None:
    row = begun(recover(found_damaged(), RecoverAction.USE_ARCHIVE, facts(), newest=OTHER_KEY), Operation.RESTORING)
    assert (row.archive_key, row.home.corrupted) == (OTHER_KEY, (KEY,))


def test_volumes_that_were_half_restored_are_remembered_with_their_archive() -> None:
    row = operations.abandon(begun(archived(), Operation.RESTORING))
    row = begun(row, Operation.RESTORING, VOLUME)
    assert row.home.half_restored == ((2, KEY),)
    row = begun(operations.abandon(row), Operation.RESTORING, VOLUME)
    assert row.home.half_restored == ((2, KEY), (3, KEY))
    gone = operations.without_leftovers(row, [naming.volume_name(row.id, 3)])
    assert gone.home.half_restored == ((3, KEY),)


def test_forget_archive_frees_from_a_lost_one() -> None:
    lost = broken(archived(), ErrorReason.ARCHIVE_ACCESS_ERROR)
    row = recover(lost, RecoverAction.FORGET_ARCHIVE, facts(archive=ArchiveState.NOT_FOUND))
    assert (row.phase, row.archive_key, row.archive_op_id) == (Phase.PENDING, None, None)


def test_retry_keeps_everything_but_the_error() -> None:
    before = broken(archived())
    row = recover(before, RecoverAction.RETRY, facts())
    assert (row.archive_key, row.archive_op_id, row.home) == (before.archive_key, before.archive_op_id, before.home)
    assert row.phase is Phase.ARCHIVED


def test_the_archive_of_an_operation_is_told_by_its_id() -> None:
    assert naming.is_archive_of(KEY, workspace().id, OP_ID)
    assert not naming.is_archive_of(KEY, workspace().id, OTHER_OP_ID)
    assert not naming.is_archive_of(KEY, workspace().id, None)


@pytest.mark.parametrize("reason", list(ErrorReason))
def test_the_context_of_an_error_holds_the_fields_of_its_reason(reason: ErrorReason) -> None:
    """The fields are those that the specification lists, whatever the failure itself knew."""
    row = busy(with_home(archive_key=KEY, image_ref="tools:1"), Operation.STARTING)
    known = {"exit_code": 137}
    info = fail(row, Failure(reason, "it ended", dict(known))).error_info
    assert info is not None
    assert {*CONTEXT_FIELDS[reason], *known} <= info.context.keys()
    assert info.context["exit_code"] == 137
    expected = {"action": "start", "error": "it ended", "archive_key": KEY, "image": "tools:1"}
    assert {name: info.context[name] for name in expected if name in CONTEXT_FIELDS[reason]} == {
        name: value for name, value in expected.items() if name in CONTEXT_FIELDS[reason]
    }


@pytest.mark.parametrize(
    ("operation", "action"),
    [
        (Operation.PROVISIONING, "provision"),
        (Operation.RESTORING, "restore"),
        (Operation.STARTING, "start"),
        (Operation.STOPPING, "delete"),
        (Operation.ARCHIVING, "archive"),
        (Operation.DELETING, "delete_volume"),
    ],
)
def test_a_failed_action_is_named_as_the_specification_names_it(operation: Operation, action: str) -> None:
    info = fail(busy(with_home(), operation), Failure(ErrorReason.ACTION_FAILED, "no")).error_info
    assert info is not None
    assert info.context == {"action": action, "exit_code": None, "stderr": None}


def test_a_recovered_phase_is_as_old_as_the_recovery() -> None:
    """What was in ERROR for a day is not put away for its age two minutes after somebody recovered it."""
    failed = enter_at(NOW)
    asked = replace(failed, recover_action=RecoverAction.RETRY, recover_requested_at=LATER)
    row = failures.recovered(asked, None, LATER)
    row = settle_health(row, judge(row, facts(VOLUME), LATER), LATER)
    assert (row.phase, row.phase_changed_at) == (Phase.STANDBY, LATER)
    assert row.conditions.healthy.last_transition_time == LATER


def enter_at(now: datetime) -> Workspace:
    row = busy(with_home(), Operation.ARCHIVING)
    return failures.timed_out(row, 1900, 1800, now)
