"""When a workspace may be put to sleep."""

from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from codehub.domain.idle import (
    IdlePolicy,
    Keep,
    Sleep,
    Verdict,
    Warn,
    Warned,
    idle_deadline,
    idle_verdict,
    remember,
    warning_leads,
)
from codehub.domain.workspace import Desired, Operation, Phase, RecoverAction, Workspace
from tests.rows import LONG_AGO, NOW, with_home

POLICY = IdlePolicy(standby_ttl=3600, archive_ttl=7200, flush_seconds=30)


def seconds(count: float) -> timedelta:
    return timedelta(seconds=count)


def running(**changes: Any) -> Workspace:
    """A workspace that runs since NOW."""
    row = with_home(phase=Phase.RUNNING, desired_state=Desired.RUNNING, phase_changed_at=NOW)
    return replace(row, **changes)


def standing_by(**changes: Any) -> Workspace:
    row = with_home(desired_state=Desired.STANDBY, phase_changed_at=NOW)
    return replace(row, **changes)


def warned_long_ago(stops_at: datetime) -> Warned:
    return Warned(stops_at, LONG_AGO, LONG_AGO)


def verdict(
    row: Workspace,
    at: datetime,
    policy: IdlePolicy = POLICY,
    lease: datetime | None = None,
    *,
    warned: Warned | None = None,
) -> Verdict:
    return idle_verdict(row, lease, warned, policy, at)


def stops_at(row: Workspace, policy: IdlePolicy = POLICY, lease: datetime | None = None) -> datetime | None:
    """When the rules say that the run ends; at its very beginning nothing is due."""
    assert verdict(row, LONG_AGO, policy, lease) == Keep()
    return idle_deadline(row, lease, policy)[0]


# ── the two clocks ─────────────────────────────────────────────────────────────────────────────────────────────────


def test_standby_counts_from_the_later_of_access_and_phase() -> None:
    assert stops_at(running()) == NOW + seconds(3630)
    assert stops_at(running(last_access_at=NOW - seconds(900))) == NOW + seconds(3630)
    assert stops_at(running(last_access_at=NOW + seconds(900))) == NOW + seconds(4530)


def test_archive_counts_from_the_phase_alone() -> None:
    assert stops_at(standing_by(last_access_at=NOW + seconds(900))) == NOW + seconds(7230)


def test_running_becomes_standby_and_standby_archived() -> None:
    for row, ttl, becomes in ((running(), 3630, Desired.STANDBY), (standing_by(), 7230, Desired.ARCHIVED)):
        end = NOW + seconds(ttl)
        assert verdict(row, end, warned=warned_long_ago(end)) == Sleep(becomes, "idle")


def test_activity_may_be_one_flush_late() -> None:
    end = NOW + seconds(3630)
    early = verdict(running(), NOW + seconds(3629), warned=warned_long_ago(end))
    assert not isinstance(early, Sleep)


def test_each_workspace_may_have_its_own() -> None:
    assert stops_at(running(standby_ttl_seconds=60)) == NOW + seconds(90)
    assert stops_at(standing_by(archive_ttl_seconds=60)) == NOW + seconds(90)
    assert stops_at(running(archive_ttl_seconds=60)) == stops_at(running())
    assert stops_at(standing_by(standby_ttl_seconds=60)) == stops_at(standing_by())


@pytest.mark.parametrize(
    ("row", "policy"),
    [
        (running(standby_ttl_seconds=0), POLICY),
        (standing_by(archive_ttl_seconds=0), POLICY),
        (running(), replace(POLICY, standby_ttl=0)),
        (standing_by(), replace(POLICY, archive_ttl=0)),
    ],
)
def test_zero_is_never(row: Workspace, policy: IdlePolicy) -> None:
    assert verdict(row, NOW + timedelta(days=9999), policy) == Keep()


def test_an_override_wins_over_never() -> None:
    assert stops_at(running(standby_ttl_seconds=60), replace(POLICY, standby_ttl=0)) == NOW + seconds(90)


# ── who is left alone ──────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("phase", [Phase.PENDING, Phase.ARCHIVED, Phase.ERROR, Phase.DELETED])
def test_only_what_takes_room_is_put_to_sleep(phase: Phase) -> None:
    for desired in Desired:
        row = running(phase=phase, desired_state=desired)
        assert verdict(row, NOW + timedelta(days=999)) == Keep()


@pytest.mark.parametrize("operation", [operation for operation in Operation if operation is not Operation.NONE])
def test_nothing_is_put_to_sleep_during_an_operation(operation: Operation) -> None:
    assert verdict(running(operation=operation), NOW + timedelta(days=999)) == Keep()


@pytest.mark.parametrize("desired", [desired for desired in Desired if desired is not Desired.RUNNING])
def test_a_fresh_wish_is_not_overwritten(desired: Desired) -> None:
    assert verdict(running(desired_state=desired), NOW + timedelta(days=999)) == Keep()


@pytest.mark.parametrize(
    "wish",
    [
        {"recover_requested_at": NOW, "recover_action": RecoverAction.RETRY},
        {"restore_requested_at": NOW},
        {"undelete_requested_at": NOW},
    ],
)
def test_a_one_off_wish_comes_first(wish: dict[str, object]) -> None:
    assert verdict(running(**wish), NOW + timedelta(days=999)) == Keep()


# ── leases and the maximum lifetime ────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("row", [running(), standing_by()])
def test_a_lease_holds_both_clocks(row: Workspace) -> None:
    assert stops_at(row, lease=NOW + timedelta(days=2)) == NOW + timedelta(days=2)


def test_a_lease_never_shortens() -> None:
    assert stops_at(running(), lease=NOW + seconds(5)) == stops_at(running())


def test_when_a_lease_ends_the_reason_says_so() -> None:
    end = NOW + timedelta(days=2)
    assert verdict(running(), end, lease=end, warned=warned_long_ago(end)) == Sleep(Desired.STANDBY, "lease_ended")


def test_the_maximum_lifetime_bounds_activity_leases_and_never() -> None:
    policy = replace(POLICY, max_lifetime=86400)
    end = NOW + timedelta(days=1)
    for row in (running(last_access_at=end), running(standby_ttl_seconds=0), running()):
        assert stops_at(row, policy, lease=NOW + timedelta(days=9)) == end
    busy = running(last_access_at=end)
    assert verdict(busy, end, policy, warned=warned_long_ago(end)) == Sleep(Desired.STANDBY, "max_lifetime")


def test_the_maximum_lifetime_does_not_lengthen() -> None:
    assert stops_at(running(), replace(POLICY, max_lifetime=86400)) == stops_at(running())


def test_the_maximum_lifetime_is_of_running_alone() -> None:
    assert stops_at(standing_by(), replace(POLICY, max_lifetime=60)) == stops_at(standing_by())


# ── warnings ───────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("ttl", "first", "last"), [(10800, 600, 120), (1200, 600, 120), (600, 300, 120), (300, 150, 60), (100, 50, 20)]
)
def test_when_the_warnings_come(ttl: int, first: float, last: float) -> None:
    assert warning_leads(ttl) == (seconds(first), seconds(last))


def test_a_warning_names_what_happens_and_when() -> None:
    end = NOW + seconds(3630)
    assert verdict(running(), end - seconds(601)) == Keep()
    assert verdict(running(), end - seconds(600)) == Warn(end, end, Desired.STANDBY)


def test_a_warning_for_another_end_does_not_count() -> None:
    end = NOW + seconds(3630)
    assert isinstance(verdict(running(), end, warned=warned_long_ago(end - seconds(1))), Warn)


@dataclass(frozen=True, slots=True)
class Story:
    """A workspace's days as a timer sees them: every so often it looks, and users are active or hold leases in
    between."""

    standby_ttl: int
    archive_ttl: int
    max_lifetime: int
    own_ttl: int | None
    every: int
    starts_late: int
    accesses: tuple[int, ...]
    leases: tuple[tuple[int, int], ...]
    standby: bool


def stories() -> st.SearchStrategy[Story]:
    moment = st.integers(0, 6000)
    return st.builds(
        Story,
        standby_ttl=st.sampled_from((0, 150, 600, 1500)),
        archive_ttl=st.sampled_from((0, 150, 1800)),
        max_lifetime=st.sampled_from((0, 0, 600, 4000)),
        own_ttl=st.sampled_from((None, None, 0, 150, 1300)),
        every=st.sampled_from((10, 60, 333, 2000)),
        starts_late=st.sampled_from((0, 0, 5000)),
        accesses=st.lists(moment, max_size=5).map(tuple),
        leases=st.lists(st.tuples(moment, st.integers(1, 3000)), max_size=3).map(tuple),
        standby=st.booleans(),
    )


@dataclass(frozen=True, slots=True)
class Ending:
    at: datetime
    row: Workspace
    lease: datetime | None
    warnings: tuple[tuple[datetime, Warn], ...]
    verdict: Sleep


def live(story: Story) -> Ending | None:
    policy = IdlePolicy(story.standby_ttl, story.archive_ttl, story.max_lifetime, 30)
    ttls = {"standby_ttl_seconds": story.own_ttl, "archive_ttl_seconds": story.own_ttl}
    row = standing_by(**ttls) if story.standby else running(**ttls)
    warned: Warned | None = None
    warnings: list[tuple[datetime, Warn]] = []
    second = story.starts_late
    while second < 20_000:
        now = NOW + seconds(second)
        accessed = [NOW + seconds(a) for a in story.accesses if a <= second]
        row = replace(row, last_access_at=max(accessed, default=None))
        held = [NOW + seconds(begin + length) for begin, length in story.leases if begin <= second]
        lease = max((end for end in held if end > now), default=None)
        answer = idle_verdict(row, lease, warned, policy, now)
        if isinstance(answer, Sleep):
            return Ending(now, row, lease, tuple(warnings), answer)
        if isinstance(answer, Warn):
            warned = remember(warned, answer, now)
            warnings.append((now, answer))
        second += story.every
    return None


def ttl_of(story: Story) -> int:
    shared = story.archive_ttl if story.standby else story.standby_ttl
    return shared if story.own_ttl is None else story.own_ttl


@given(stories())
def test_nobody_is_stopped_without_a_warning_that_had_time_to_be_read(story: Story) -> None:
    end = live(story)
    if end is None:
        return
    lead = warning_leads(ttl_of(story))[1]
    assert end.warnings, "stopped without a warning"
    given_at, last = end.warnings[-1]
    assert end.at - given_at >= lead, "the last warning came too late to be read"
    assert last.becomes is end.verdict.becomes
    assert end.at >= last.stops_at, "stopped before the time that the warning named"
    quiet_since = max((NOW + seconds(a) for a in story.accesses if NOW + seconds(a) <= end.at), default=NOW)
    if end.verdict.reason == "idle" and not story.standby:
        assert given_at >= quiet_since, "the warning is older than the last activity"


@given(stories())
def test_nobody_is_stopped_before_the_ttl_is_over_or_during_a_lease(story: Story) -> None:
    end = live(story)
    if end is None or end.verdict.reason == "max_lifetime":
        return
    ttl = ttl_of(story)
    assert ttl > 0, "0 = never"
    access = end.row.last_access_at
    since = max(NOW, access) if access is not None and not story.standby else NOW
    assert end.at >= since + seconds(ttl + 30)
    assert end.lease is None or end.lease <= end.at


@given(stories())
def test_the_maximum_lifetime_stops_everyone_soon_after_it(story: Story) -> None:
    end = live(story)
    if story.max_lifetime and not story.standby:
        assert end is not None
        slack = seconds(120 + 3 * story.every)
        assert end.at <= NOW + seconds(max(story.max_lifetime, story.starts_late)) + slack


@given(stories())
def test_who_is_idle_long_enough_is_stopped_in_the_end(story: Story) -> None:
    if ttl_of(story) > 0:
        assert live(story) is not None


@given(stories())
def test_a_deadline_is_announced_at_most_twice(story: Story) -> None:
    """A lease that comes and goes moves the deadline there and back; each time it is news."""
    end = live(replace(story, leases=()))
    if end is not None:
        deadlines = [warn.deadline for _, warn in end.warnings]
        assert all(deadlines.count(deadline) <= 2 for deadline in deadlines)
