"""Why a workspace is up, when it stops, what keeps it from stopping, and why it stopped: as the TTL runner really
does.
"""

from datetime import datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest

from codehub.domain.idle import IdlePolicy, Sleep, Warn, idle_verdict, remember
from codehub.domain.ledger import LedgerEntry, LedgerKind
from codehub.domain.lifecycle import explain
from codehub.domain.workspace import Desired, Operation, Phase, RecoverAction, Workspace
from tests.rows import NOW, OP_ID, workspace

POLICY = IdlePolicy(standby_ttl=600, archive_ttl=1800, flush_seconds=30)


def ran(**changes: Any) -> Workspace:
    settled = {"phase": Phase.RUNNING, "desired_state": Desired.RUNNING, "phase_changed_at": NOW, "last_access_at": NOW}
    return workspace(**(settled | changes))


def entry(
    kind: LedgerKind, before: str | None, after: str | None, actor: str = "ann", reason: str = "asked"
) -> LedgerEntry:
    return LedgerEntry(NOW, uuid4(), actor, kind, before, after, reason, None, "")


def test_an_idle_one_says_when_it_stops_and_when_it_warns() -> None:
    told = explain(ran(), None, [], POLICY, NOW)
    assert (told.stops_at, told.becomes, told.stop_reason) == (NOW + timedelta(seconds=630), Desired.STANDBY, "idle")
    assert told.warnings == (NOW + timedelta(seconds=330), NOW + timedelta(seconds=510))
    assert told.blocked_by == ()
    assert told.last_activity_at == NOW


@pytest.mark.parametrize("ttl", [0, 200, 600, 2_000])
@pytest.mark.parametrize("lease", [None, 60, 5_000])
@pytest.mark.parametrize("lifetime", [0, 3_000])
@pytest.mark.parametrize("phase", [Phase.RUNNING, Phase.STANDBY])
def test_it_tells_when_the_runner_would_really_stop(ttl: int, lease: int | None, lifetime: int, phase: Phase) -> None:
    row = ran(phase=phase, desired_state=Desired(phase.value))
    policy = IdlePolicy(ttl, ttl, lifetime, 30)
    until = None if lease is None else NOW + timedelta(seconds=lease)
    told = explain(row, until, [], policy, NOW)
    assert told.stops_at == runner_stops(row, until, policy)


def runner_stops(row: Workspace, lease_until: datetime | None, policy: IdlePolicy) -> datetime | None:
    """When the TTL runner stops the workspace, asked second by second."""
    warned = None
    for second in range(9_000):
        now = NOW + timedelta(seconds=second)
        verdict = idle_verdict(row, lease_until, warned, policy, now)
        if isinstance(verdict, Warn):
            warned = remember(warned, verdict, now)
        if isinstance(verdict, Sleep):
            return now
    return None


@pytest.mark.parametrize("left", [600, 121, 120, 119, 60, 1, 0])
def test_what_is_told_does_not_move_while_the_stop_comes_near(left: int) -> None:
    deadline = NOW + timedelta(seconds=630)
    told = explain(ran(), None, [], POLICY, deadline - timedelta(seconds=left))
    assert told.stops_at == deadline


def test_a_stop_that_is_due_comes_any_moment() -> None:
    due = NOW + timedelta(seconds=635)
    assert explain(ran(), None, [], POLICY, due).stops_at == due


def test_a_past_deadline_still_leaves_time_to_read_the_warning() -> None:
    late = NOW + timedelta(hours=5)
    told = explain(ran(), None, [], POLICY, late)
    assert told.stops_at == late + timedelta(seconds=120)
    assert told.warnings == (late,)


@pytest.mark.parametrize(
    ("changes", "kinds"),
    [
        ({"standby_ttl_seconds": 0}, ["never"]),
        ({"operation": Operation.STOPPING, "op_id": OP_ID}, ["operation"]),
        ({"desired_state": Desired.STANDBY}, ["unsettled"]),
        ({"recover_action": RecoverAction.RETRY, "recover_requested_at": NOW}, ["wish"]),
        ({"phase": Phase.ERROR}, ["error"]),
        ({"phase": Phase.ARCHIVED, "desired_state": Desired.ARCHIVED}, ["nothing_to_stop"]),
        ({"phase": Phase.PENDING, "desired_state": Desired.PENDING}, ["nothing_to_stop"]),
    ],
)
def test_what_keeps_it_from_stopping_is_named(changes: dict[str, Any], kinds: list[str]) -> None:
    told = explain(ran(**changes), None, [], POLICY, NOW)
    assert [obstacle.kind for obstacle in told.blocked_by] == kinds
    assert (told.stops_at, told.becomes, told.warnings, told.stop_reason) == (None, None, (), None)


def test_a_lease_is_an_obstacle_with_an_end() -> None:
    until = NOW + timedelta(hours=1)
    told = explain(ran(), until, [], POLICY, NOW)
    assert [(o.kind, o.until) for o in told.blocked_by] == [("lease", until)]
    assert (told.stops_at, told.stop_reason) == (until, "lease_ended")
    assert explain(ran(), NOW - timedelta(hours=1), [], POLICY, NOW).blocked_by == ()


def test_why_it_is_up_is_the_last_wish_to_run() -> None:
    entries = [
        entry(LedgerKind.WISH, "STANDBY", "RUNNING", "bob"),
        entry(LedgerKind.WISH, "RUNNING", "STANDBY", "ttl", "idle"),
        entry(LedgerKind.CREATED, None, "RUNNING"),
    ]
    up = explain(ran(), None, entries, POLICY, NOW).why_up
    assert up is not None
    assert (up.actor, up.reason) == ("bob", "asked")
    asleep = ran(phase=Phase.STANDBY, desired_state=Desired.STANDBY)
    assert explain(asleep, None, entries, POLICY, NOW).why_up is None


def test_why_it_stopped_is_the_wish_behind_the_stop() -> None:
    entries = [
        entry(LedgerKind.WISH, "STANDBY", "ARCHIVED", "ann"),
        entry(LedgerKind.PHASE, "RUNNING", "STANDBY", "controller", ""),
        entry(LedgerKind.WISH, "RUNNING", "STANDBY", "ttl", "idle"),
        entry(LedgerKind.PHASE, "STANDBY", "RUNNING", "controller", ""),
    ]
    stop = explain(ran(), None, entries, POLICY, NOW).last_stop
    assert stop is not None
    assert (stop.actor, stop.reason) == ("ttl", "idle")


def test_a_container_that_ended_by_itself_has_no_wish_behind_it() -> None:
    entries = [
        entry(LedgerKind.PHASE, "RUNNING", "STANDBY", "controller", ""),
        entry(LedgerKind.PHASE, "STANDBY", "RUNNING", "controller", ""),
        entry(LedgerKind.WISH, "RUNNING", "STANDBY", "ann"),
    ]
    stop = explain(ran(), None, entries, POLICY, NOW).last_stop
    assert stop is not None
    assert (stop.actor, stop.reason) == ("controller", "container_ended")
    assert explain(ran(), None, [], POLICY, NOW).last_stop is None
