"""The ledger explains every change (invariant 6)."""

import hashlib
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from codehub.domain import failures, operations
from codehub.domain.errors import ErrorReason
from codehub.domain.failures import Failure, Policy, settle_health
from codehub.domain.judge import judge
from codehub.domain.ledger import AUDITED_COMMAND, LedgerEntry, LedgerKind, command_details, entries
from codehub.domain.workspace import Desired, Operation, Phase, RecoverAction, Workspace
from tests.rows import KEY, NOW, OP_ID, OTHER_OP_ID, VOLUME, archived, broken, busy, facts, with_home, workspace


def told(before: Workspace | None, after: Workspace) -> list[tuple[LedgerKind, str | None, str | None]]:
    return [(entry.kind, entry.before, entry.after) for entry in entries(before, after, "ann", "because", NOW)]


def test_a_creation_is_told() -> None:
    (entry,) = entries(None, workspace(desired_state=Desired.RUNNING), "ann", "asked", NOW)
    assert (entry.kind, entry.after, entry.message) == (LedgerKind.CREATED, "RUNNING", "demo")
    assert (entry.actor, entry.reason, entry.at, entry.workspace_id) == ("ann", "asked", NOW, workspace().id)


def test_no_change_is_not_told() -> None:
    assert told(with_home(), with_home()) == []
    assert told(with_home(), replace(with_home(), last_access_at=NOW, observed_at=NOW)) == []


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"desired_state": Desired.RUNNING}, (LedgerKind.WISH, "PENDING", "RUNNING")),
        ({"phase": Phase.STANDBY}, (LedgerKind.PHASE, "PENDING", "STANDBY")),
        ({"archive_key": KEY}, (LedgerKind.ARCHIVE, None, KEY)),
        (
            {"recover_requested_at": NOW, "recover_action": RecoverAction.RETRY},
            (LedgerKind.RECOVER_ASKED, None, "retry"),
        ),
        ({"restore_requested_at": NOW, "restore_from": KEY}, (LedgerKind.RESTORE_ASKED, None, KEY)),
        ({"undelete_requested_at": NOW}, (LedgerKind.UNDELETE_ASKED, None, None)),
        ({"deleted_at": NOW}, (LedgerKind.DELETED, None, None)),
    ],
)
def test_each_change_is_told_once(
    changes: dict[str, object], expected: tuple[LedgerKind, str | None, str | None]
) -> None:
    assert told(workspace(), workspace(**changes)) == [expected]


def test_an_undeletion_is_told() -> None:
    assert told(workspace(deleted_at=NOW), workspace()) == [(LedgerKind.UNDELETED, None, None)]


def test_the_life_of_an_operation_is_told() -> None:
    row = with_home(desired_state=Desired.RUNNING)
    began = operations.begin(row, Operation.STARTING, OP_ID, NOW, ())
    assert told(row, began) == [(LedgerKind.OPERATION_BEGAN, "NONE", "STARTING")]
    ended = operations.complete(began)
    assert told(began, ended) == [(LedgerKind.OPERATION_ENDED, "STARTING", "NONE")]
    (entry,) = entries(row, began, "ann", "planned", NOW)
    assert entry.op_id == OP_ID


def test_one_operation_after_another_of_the_same_kind_is_told() -> None:
    first = busy(with_home(), Operation.STARTING)
    second = replace(first, op_id=OTHER_OP_ID)
    assert [kind for kind, _, _ in told(first, second)] == [LedgerKind.OPERATION_ENDED, LedgerKind.OPERATION_BEGAN]


def test_each_failed_try_is_told_and_the_last_is_an_error() -> None:
    row = busy(with_home(), Operation.STARTING)
    kinds = []
    for _ in range(3):
        after = failures.failed(row, Failure(ErrorReason.ACTION_FAILED, "no luck"), Policy(), 0.0, NOW)
        kinds.append([kind for kind, _, _ in told(row, after)])
        row = after
    assert kinds[:2] == [[LedgerKind.ATTEMPT_FAILED], [LedgerKind.ATTEMPT_FAILED]]
    assert kinds[2] == [LedgerKind.OPERATION_ENDED, LedgerKind.PHASE, LedgerKind.ERROR]


def test_an_error_is_told_with_its_reason_and_message() -> None:
    before = with_home()
    after = settle_health(before, judge(before, facts(), NOW), NOW)
    by_kind = {entry.kind: entry for entry in entries(before, after, "controller", "observed", NOW)}
    assert by_kind[LedgerKind.PHASE].reason == "DataLost"
    assert (by_kind[LedgerKind.ERROR].after, by_kind[LedgerKind.ERROR].reason) == ("DataLost", "DataLost")
    assert by_kind[LedgerKind.ERROR].message


ROWS = st.builds(
    workspace,
    phase=st.sampled_from(Phase),
    desired_state=st.sampled_from(Desired),
    operation=st.sampled_from(Operation),
    op_id=st.sampled_from((OP_ID, OTHER_OP_ID)),
    archive_key=st.sampled_from((None, KEY)),
    deleted_at=st.sampled_from((None, NOW)),
    undelete_requested_at=st.sampled_from((None, NOW)),
    recover_requested_at=st.sampled_from((None, NOW)),
    restore_requested_at=st.sampled_from((None, NOW)),
)


@given(ROWS, ROWS)
def test_no_change_that_matters_goes_unexplained(before: Workspace, after: Workspace) -> None:
    found: dict[LedgerKind, LedgerEntry] = {
        entry.kind: entry for entry in entries(before, after, "ann", "because", NOW)
    }
    watched = {
        LedgerKind.WISH: "desired_state",
        LedgerKind.PHASE: "phase",
        LedgerKind.ARCHIVE: "archive_key",
        LedgerKind.RECOVER_ASKED: "recover_requested_at",
        LedgerKind.RESTORE_ASKED: "restore_requested_at",
        LedgerKind.UNDELETE_ASKED: "undelete_requested_at",
    }
    for kind, field in watched.items():
        assert (kind in found) is (getattr(before, field) != getattr(after, field)), field
    assert (LedgerKind.DELETED in found or LedgerKind.UNDELETED in found) is (before.deleted_at != after.deleted_at)
    if before.operation is not after.operation:
        assert (LedgerKind.OPERATION_ENDED in found) is (before.operation is not Operation.NONE)
        assert (LedgerKind.OPERATION_BEGAN in found) is (after.operation is not Operation.NONE)
    assert all(entry.actor == "ann" and entry.reason for entry in found.values())


def test_leaving_error_is_told() -> None:
    before = broken(archived(), ErrorReason.ARCHIVE_ACCESS_ERROR)
    after = settle_health(before, judge(before, facts(VOLUME), NOW), NOW)
    assert told(before, after) == [(LedgerKind.PHASE, "ERROR", "ARCHIVED")]


def test_why_an_evicted_one_fell_is_told() -> None:
    before = with_home(phase=Phase.RUNNING, desired_state=Desired.RUNNING)
    after = replace(before, phase=Phase.STANDBY, home=replace(before.home, evicted="its node is drained"))
    (entry,) = entries(before, after, "coordinator", "planned", NOW)
    assert (entry.kind, entry.reason, entry.message) == (LedgerKind.PHASE, "evicted", "its node is drained")
    (back,) = entries(after, before, "coordinator", "observed", NOW)
    assert (back.reason, back.message) == ("observed", "")


def test_a_command_is_kept_on_one_printable_line() -> None:
    assert command_details("echo a\nrm -rf x\x1b[2J") == {"command": "echo a\ufffdrm -rf x\ufffd[2J"}


@pytest.mark.parametrize("filler", ["\n", " ", "x"])
def test_nothing_can_be_hidden_in_a_long_command(filler: str) -> None:
    command = "begin " + filler * 5_000 + " rm -rf x"
    kept = command_details(command)
    assert kept["command"].startswith("begin ")
    assert kept["command"].endswith(" rm -rf x")
    assert len(kept["command"]) <= AUDITED_COMMAND
    assert (kept["command_length"], kept["command_sha256"]) == (
        str(len(command)),
        hashlib.sha256(command.encode()).hexdigest(),
    )
