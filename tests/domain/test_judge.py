"""Observation becomes conditions, conditions become the phase (contract 1)."""

from dataclasses import replace
from datetime import timedelta
from itertools import product

import pytest

from codehub.domain.errors import ErrorReason
from codehub.domain.failures import settle_health
from codehub.domain.judge import NOTHING_KNOWN, ArchiveState, Facts, judge
from codehub.domain.plan import next_operation
from codehub.domain.workspace import NO_VOLUME, Conditions, Desired, HomeContext, Operation, Phase, Workspace
from tests.rows import (
    INSTANCE,
    KEY,
    LONG_AGO,
    NOW,
    OP_ID,
    VOLUME,
    archived,
    broken,
    busy,
    container,
    error_info,
    facts,
    with_home,
    workspace,
)

EXITED = container(running=False, answered=False, detail="exit 137")
SILENT = container(answered=False)


def seen(row: Workspace, look: Facts) -> Workspace:
    return settle_health(row, judge(row, look, NOW), NOW)


@pytest.mark.parametrize(
    ("row", "look", "phase"),
    [
        (workspace(), facts(), Phase.PENDING),
        (archived(), facts(), Phase.ARCHIVED),
        (with_home(), facts(VOLUME), Phase.STANDBY),
        (with_home(archive_key=KEY), facts(VOLUME), Phase.STANDBY),
        (with_home(), facts(VOLUME, container=container()), Phase.RUNNING),
        (with_home(), facts(VOLUME, container=SILENT), Phase.STANDBY),
        (with_home(), facts(VOLUME, container=EXITED), Phase.STANDBY),
        (workspace(deleted_at=NOW), facts(), Phase.DELETED),
        (broken(with_home(deleted_at=NOW)), facts(), Phase.DELETED),
    ],
)
def test_phase_follows_from_conditions(row: Workspace, look: Facts, phase: Phase) -> None:
    assert seen(row, look).phase is phase


def test_the_volume_seen_first_is_the_home_and_another_of_its_name_is_not() -> None:
    row = judge(busy(workspace(home_store_key=VOLUME), Operation.PROVISIONING), facts(VOLUME), NOW)
    assert (row.home.live, row.home.volume_instance) == (True, INSTANCE)
    replaced = seen(row, facts(volumes={VOLUME: "made again, empty"}))
    assert (replaced.phase, replaced.error_reason) == (Phase.ERROR, ErrorReason.DATA_LOST)
    assert "another volume" in replaced.conditions.volume_ready.message
    assert replaced.home.volume_instance == INSTANCE


def test_a_home_from_before_volumes_were_told_apart_is_the_one_that_is_there() -> None:
    old = with_home(home=HomeContext(incarnation=1, live=True))
    assert judge(old, facts(VOLUME), NOW).home.volume_instance == INSTANCE


def test_another_volume_of_the_name_is_not_the_one_that_is_being_restored() -> None:
    row = busy(archived(home_store_key=VOLUME, home=HomeContext(incarnation=1, restoring=KEY)), Operation.RESTORING)
    row = judge(row, facts(VOLUME), NOW)
    assert row.home.volume_instance == INSTANCE
    assert judge(row, facts(volumes={VOLUME: "another"}), NOW).conditions.volume_ready.reason == NO_VOLUME.reason


def test_another_volume_of_the_name_is_not_the_home_that_is_leaving() -> None:
    """A volume that was never live does not hold the home, should the archive be lost."""
    home = HomeContext(incarnation=1, deleting_volume=True, volume_instance=INSTANCE)
    row = with_home(home=home, archive_key=KEY, archive_op_id=OP_ID)
    look = facts(volumes={VOLUME: "another"}, archive=ArchiveState.NOT_FOUND)
    assert seen(row, look).error_reason is ErrorReason.ARCHIVE_ACCESS_ERROR


def test_a_volume_of_another_incarnation_is_not_the_home() -> None:
    row = workspace(home_store_key=f"{VOLUME}-2", home=HomeContext(incarnation=2))
    assert judge(row, facts(VOLUME), NOW).conditions.volume_ready.status is False


@pytest.mark.parametrize("state", [ArchiveState.NOT_FOUND, ArchiveState.CORRUPTED, ArchiveState.EXPIRED])
def test_only_a_definite_answer_makes_the_archive_unreadable(state: ArchiveState) -> None:
    row = seen(archived(), facts(archive=state))
    assert row.conditions.archive_ready.status is False
    assert row.conditions.archive_ready.reason == state.value
    assert (row.phase, row.error_reason) == (Phase.ERROR, ErrorReason.ARCHIVE_ACCESS_ERROR)


def test_no_answer_is_null_and_keeps_the_last_reason() -> None:
    row = judge(with_home(), facts(VOLUME, container=container()), NOW)
    blind = judge(row, NOTHING_KNOWN, NOW)
    assert blind.conditions.volume_ready.status is None
    assert blind.conditions.container_ready.status is None
    assert blind.conditions.container_ready.reason == row.conditions.container_ready.reason
    assert blind.phase is Phase.RUNNING


def test_without_archive_key_the_archive_is_false_without_asking() -> None:
    row = judge(workspace(), facts(archive=ArchiveState.UNKNOWN), NOW)
    assert (row.conditions.archive_ready.status, row.conditions.archive_ready.reason) == (False, "NoArchive")


def test_a_store_outage_does_not_keep_a_dead_container_from_being_seen() -> None:
    running = replace(with_home(archive_key=KEY), phase=Phase.RUNNING)
    assert seen(running, facts(VOLUME, container=EXITED, archive=ArchiveState.UNKNOWN)).phase is Phase.STANDBY


def test_a_store_outage_keeps_the_phase_that_it_would_decide() -> None:
    for phase in (Phase.ARCHIVED, Phase.PENDING):
        assert seen(archived(phase=phase), facts(archive=ArchiveState.UNKNOWN)).phase is phase


def test_an_outage_of_everything_moves_nothing() -> None:
    for row, phase in product((with_home(), archived(), workspace()), Phase):
        if phase not in (Phase.ERROR, Phase.DELETED):
            assert seen(replace(row, phase=phase), NOTHING_KNOWN).phase is phase


def test_an_outage_does_not_clear_an_error() -> None:
    row = broken(archived(), ErrorReason.ARCHIVE_ACCESS_ERROR)
    after = seen(row, NOTHING_KNOWN)
    assert (after.phase, after.error_info) == (Phase.ERROR, row.error_info)


# ── the container's latch ──────────────────────────────────────────────────────────────────────────────────────────


def test_a_container_is_ready_once_it_has_answered_and_stays_so_while_it_runs() -> None:
    row = judge(with_home(), facts(VOLUME, container=container()), NOW)
    assert row.home.ready_instance == "c1"
    busy_ide = judge(row, facts(VOLUME, container=SILENT), NOW)
    assert busy_ide.phase is Phase.RUNNING


@pytest.mark.parametrize("runtime", ["docker", "process"])
def test_the_reason_of_a_container_names_its_backend(runtime: str) -> None:
    row = with_home(runtime=runtime)
    old = replace(container(), volume="ws-old")
    looks = {"Running": container(), "Starting": SILENT, "Exited": EXITED, "OnOldVolume": old}
    for state, look in looks.items():
        judged = judge(row, facts(VOLUME, container=look), NOW)
        assert judged.conditions.container_ready.reason == f"{runtime}.{state}"
    assert judge(row, facts(VOLUME), NOW).conditions.container_ready.reason == "NoContainer"


def test_conditions_that_this_version_does_not_know_are_kept() -> None:
    later = {
        "network.policy_ready": {"status": True, "reason": "Enforced", "message": "", "last_transition_time": None}
    }
    row = with_home()
    row = replace(row, conditions=Conditions.from_json({**row.conditions.to_json(), **later}))
    judged = judge(row, facts(VOLUME, container=container()), NOW)
    assert judged.conditions != row.conditions
    assert judged.conditions.to_json().items() >= later.items()


def test_the_latch_belongs_to_one_incarnation() -> None:
    row = judge(with_home(), facts(VOLUME, container=container()), NOW)
    replaced = judge(row, facts(VOLUME, container=container(instance="c2", answered=False)), NOW)
    assert replaced.phase is Phase.STANDBY
    assert judge(replaced, facts(VOLUME, container=SILENT), NOW).phase is Phase.STANDBY


def test_an_exited_container_loses_the_latch() -> None:
    row = judge(with_home(), facts(VOLUME, container=container()), NOW)
    assert judge(row, facts(VOLUME, container=EXITED), NOW).home.ready_instance is None


def test_an_outage_keeps_the_latch() -> None:
    row = judge(with_home(), facts(VOLUME, container=container()), NOW)
    assert judge(row, NOTHING_KNOWN, NOW).home.ready_instance == "c1"


def test_a_container_on_an_old_volume_is_not_ready() -> None:
    old = replace(container(), volume="ws-old")
    row = judge(with_home(), facts(VOLUME, container=old), NOW)
    assert (row.phase, row.conditions.container_ready.status) == (Phase.STANDBY, False)


# ── the home ───────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_whole_volume_that_is_seen_becomes_live() -> None:
    made = busy(workspace(home_store_key=VOLUME, home=HomeContext(incarnation=1)), Operation.PROVISIONING)
    assert judge(made, facts(VOLUME), NOW).home.live
    marked = archived(home_store_key=VOLUME, home=HomeContext(incarnation=1, marker=(KEY, OP_ID)))
    assert judge(busy(marked, Operation.RESTORING), facts(VOLUME), NOW).home.live


def test_a_volume_that_a_stalled_leader_made_late_is_no_home() -> None:
    for row in (workspace(home_store_key=VOLUME), archived(home_store_key=VOLUME)):
        late = judge(row, facts(VOLUME), NOW)
        assert (late.phase, late.home.live) == (row.phase, False)


@pytest.mark.parametrize("home", [HomeContext(restoring=KEY), HomeContext(deleting_volume=True)])
def test_a_half_restored_or_leaving_volume_is_no_home(home: HomeContext) -> None:
    row = seen(archived(home_store_key=VOLUME, home=home), facts(VOLUME))
    assert row.phase is Phase.ARCHIVED
    assert not row.home.live


def test_a_live_home_that_is_gone_is_data_lost_and_nothing_else() -> None:
    for archive_key in (None, KEY):
        row = seen(with_home(archive_key=archive_key), facts())
        assert (row.phase, row.error_reason) == (Phase.ERROR, ErrorReason.DATA_LOST)


def test_a_home_that_was_given_up_may_be_gone() -> None:
    leaving = with_home(archive_key=KEY, archive_op_id=OP_ID, home=HomeContext(incarnation=1, deleting_volume=True))
    assert seen(busy(leaving, Operation.ARCHIVING), facts()).phase is Phase.ARCHIVED


# ── policy.healthy: the first match wins ───────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("row", "look", "reason"),
    [
        (with_home(), facts(container=container()), ErrorReason.CONTAINER_WITHOUT_VOLUME),
        (
            with_home(archive_key=KEY),
            facts(container=container(), archive=ArchiveState.NOT_FOUND),
            ErrorReason.CONTAINER_WITHOUT_VOLUME,
        ),
        (with_home(archive_key=KEY), facts(archive=ArchiveState.NOT_FOUND), ErrorReason.ARCHIVE_ACCESS_ERROR),
        (with_home(), facts(), ErrorReason.DATA_LOST),
        (broken(with_home(), ErrorReason.TIMEOUT), facts(), ErrorReason.DATA_LOST),
        (broken(with_home(), ErrorReason.TIMEOUT), facts(VOLUME), ErrorReason.TIMEOUT),
    ],
)
def test_reasons_in_order(row: Workspace, look: Facts, reason: ErrorReason) -> None:
    after = seen(row, look)
    assert (after.phase, after.conditions.healthy.reason) == (Phase.ERROR, reason.value)


@pytest.mark.parametrize("home", [HomeContext(restoring=KEY), HomeContext(deleting_volume=True)])
def test_a_container_beside_a_volume_that_is_no_home_is_a_leftover_that_is_ended(home: HomeContext) -> None:
    row = seen(archived(home_store_key=VOLUME, home=home), facts(VOLUME, container=container()))
    assert (row.phase, row.error_reason, next_operation(row)) == (Phase.ARCHIVED, None, Operation.STOPPING)


@pytest.mark.parametrize("operation", [Operation.ARCHIVING, Operation.RESTORING, Operation.DELETING])
def test_an_operation_that_removes_the_container_first_is_no_anomaly(operation: Operation) -> None:
    row = busy(archived(home_store_key=VOLUME), operation)
    assert seen(row, facts(container=container())).phase is Phase.ARCHIVED


def test_a_lost_container_is_not_named_when_nobody_looked() -> None:
    row = seen(with_home(), Facts(container_known=False, volumes={}))
    assert (row.phase, row.error_reason) == (Phase.ERROR, ErrorReason.DATA_LOST)


def test_why_a_container_is_unknown_is_said_and_the_phase_stays() -> None:
    row = with_home(phase=Phase.RUNNING)
    unknown = seen(
        row, Facts(container_known=False, volumes={VOLUME: INSTANCE}, container_unknown="its node is silent")
    )
    assert unknown.phase is Phase.RUNNING
    assert unknown.conditions.container_ready.status is None
    assert unknown.conditions.container_ready.message == "its node is silent"


@pytest.mark.parametrize(("running", "state"), [(True, "Unschedulable"), (False, "OOMKilled")])
def test_the_engine_s_own_word_for_a_state_is_the_reason(running: bool, state: str) -> None:
    found = replace(container(), running=running, answered=False, instance="another", state=state, detail="its words")
    row = seen(with_home(), facts(VOLUME, container=found))
    ready = row.conditions.container_ready
    assert (ready.status, ready.reason, ready.message) == (False, f"{row.runtime}.{state}", "its words")


def test_a_lost_archive_beside_a_living_volume_is_no_error() -> None:
    row = seen(with_home(archive_key=KEY), facts(VOLUME, archive=ArchiveState.NOT_FOUND))
    assert row.phase is Phase.STANDBY


def test_conditions_stay_true_in_error() -> None:
    row = seen(broken(with_home()), facts(VOLUME, container=container()))
    assert row.phase is Phase.ERROR
    assert row.conditions.volume_ready.status is True
    assert row.conditions.container_ready.status is True


def test_an_error_that_will_be_retried_is_healthy() -> None:
    info = error_info(ErrorReason.ACTION_FAILED)
    row = with_home(error_info=info, error_reason=info.reason, error_count=1)
    assert seen(row, facts(VOLUME)).phase is Phase.STANDBY


# ── entering and leaving ERROR ─────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("operation", Operation)
def test_entering_error_is_written_whole_whatever_runs(operation: Operation) -> None:
    before = with_home() if operation is Operation.NONE else busy(with_home(), operation)
    row = seen(before, facts())
    assert (row.phase, row.conditions.healthy.status) == (Phase.ERROR, False)
    assert row.operation in (Operation.NONE, Operation.DELETING)
    assert row.error_info is not None
    assert row.error_info.is_terminal
    assert row.error_info.previous_phase == "STANDBY"
    assert row.error_reason is row.error_info.reason is ErrorReason.DATA_LOST
    assert (row.op_id, row.archive_op_id) == (before.op_id, before.archive_op_id)


def test_errors_of_the_first_two_kinds_clear_themselves() -> None:
    lost = seen(archived(), facts(archive=ArchiveState.NOT_FOUND))
    back = seen(lost, facts())
    assert (back.phase, back.error_info, back.error_reason, back.error_count) == (Phase.ARCHIVED, None, None, 0)
    orphan = seen(with_home(), facts(container=container()))
    whole = seen(orphan, facts(VOLUME, container=container()))
    assert (whole.phase, whole.error_info) == (Phase.RUNNING, None)


@pytest.mark.parametrize(
    "reason", [ErrorReason.TIMEOUT, ErrorReason.RETRY_EXCEEDED, ErrorReason.DATA_LOST, ErrorReason.ARCHIVE_CORRUPTED]
)
def test_terminal_errors_do_not_clear_themselves(reason: ErrorReason) -> None:
    row = seen(broken(with_home(), reason), facts(VOLUME))
    assert (row.phase, row.error_reason) == (Phase.ERROR, reason)


def test_a_passing_error_does_not_wash_a_terminal_one_away() -> None:
    row = broken(archived(), ErrorReason.RETRY_EXCEEDED)
    during = seen(row, facts(archive=ArchiveState.NOT_FOUND))
    after = seen(during, facts())
    assert (after.phase, after.error_reason) == (Phase.ERROR, ErrorReason.RETRY_EXCEEDED)


def test_the_phase_before_the_error_is_remembered_through_renaming() -> None:
    lost = seen(with_home(archive_key=KEY), facts())
    renamed = seen(lost, facts(archive=ArchiveState.NOT_FOUND))
    assert renamed.error_info is not None
    assert renamed.error_info.previous_phase == "STANDBY"


# ── times ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_nothing_new_changes_nothing() -> None:
    row = judge(with_home(), facts(VOLUME), NOW)
    assert judge(row, facts(VOLUME), NOW + timedelta(hours=1)) is row


def test_times_move_only_with_what_they_time() -> None:
    later = NOW + timedelta(hours=1)
    row = judge(with_home(), facts(VOLUME, container=container()), NOW)
    assert (row.phase_changed_at, row.observed_at) == (NOW, NOW)
    assert row.conditions.container_ready.last_transition_time == NOW
    stopped = judge(row, facts(VOLUME, container=EXITED), later)
    assert stopped.phase_changed_at == later
    assert stopped.conditions.container_ready.last_transition_time == later
    assert stopped.conditions.volume_ready.last_transition_time == NOW
    removed = judge(stopped, facts(VOLUME), later + timedelta(hours=1))
    assert removed.conditions.container_ready.last_transition_time == later, "the status is the same: false"
    assert removed.phase_changed_at == later


def test_a_phase_that_stays_keeps_its_time() -> None:
    assert judge(with_home(), facts(VOLUME), NOW).phase_changed_at == LONG_AGO


EVICTED = replace(container(answered=False, detail="its node is drained"), evicted=True, state="Terminating")


def test_a_container_that_is_evicted_runs_until_it_has_ended_and_what_was_said_stays_until_the_next_answers() -> None:
    running = seen(with_home(desired_state=Desired.RUNNING), facts(VOLUME, container=container()))
    ending = seen(running, facts(VOLUME, container=EVICTED))
    assert (ending.phase, ending.home.evicted, ending.container_is_ending) == (Phase.RUNNING, EVICTED.detail, True)
    assert ending.conditions.container_ready.reason.endswith(".Terminating")
    gone = seen(ending, facts(VOLUME))
    assert (gone.phase, gone.home.evicted, gone.container_is_ending) == (Phase.STANDBY, EVICTED.detail, False)
    waiting = seen(gone, facts(VOLUME, container=container(answered=False, instance="c2")))
    assert waiting.home.evicted == EVICTED.detail
    again = seen(waiting, facts(VOLUME, container=container(instance="c2")))
    assert (again.phase, again.home.evicted, again.container_is_ending) == (Phase.RUNNING, None, False)


def test_one_that_was_evicted_and_has_ended_is_told_of_too() -> None:
    running = seen(with_home(desired_state=Desired.RUNNING), facts(VOLUME, container=container()))
    ended = replace(EXITED, evicted=True, state="Evicted", detail="evicted: low on memory")
    found = seen(running, facts(VOLUME, container=ended))
    assert (found.phase, found.home.evicted) == (Phase.STANDBY, "evicted: low on memory")


@pytest.mark.parametrize("operation", [Operation.STOPPING, Operation.ARCHIVING, Operation.DELETING])
def test_a_container_that_we_end_is_not_evicted(operation: Operation) -> None:
    running = seen(with_home(desired_state=Desired.RUNNING), facts(VOLUME, container=container()))
    assert seen(busy(running, operation), facts(VOLUME, container=EVICTED)).home.evicted is None


def test_what_was_said_of_an_eviction_is_forgotten_once_nobody_wants_it_to_run() -> None:
    row = with_home(home=HomeContext(incarnation=1, live=True, volume_instance=INSTANCE, evicted="drained"))
    assert seen(replace(row, desired_state=Desired.STANDBY), facts(VOLUME)).home.evicted is None
