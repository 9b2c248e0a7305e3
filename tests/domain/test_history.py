"""The last day in steps: whatever happened is in the step in which it happened, and nothing is in two."""

from datetime import datetime, timedelta
from uuid import UUID, uuid4

from codehub.domain.history import SPAN, STEP, HistoryData, HistoryPoint, TrafficMinute, history
from codehub.domain.ledger import LedgerEntry, LedgerKind
from codehub.domain.workspace import Operation, Phase
from tests.rows import LONG_AGO

NOW = LONG_AGO


def ago(minutes: float) -> datetime:
    return NOW - timedelta(minutes=minutes)


def entry(minutes: float, key: UUID, kind: LedgerKind, before: str, after: str) -> LedgerEntry:
    return LedgerEntry(ago(minutes), key, "controller", kind, before, after, "", None, "")


def steps_of(**day: object) -> tuple[HistoryPoint, ...]:
    return history(HistoryData(**{"now": NOW, "running": 0, "entries": [], "archived": [], **day}))  # type: ignore[arg-type]


def test_a_day_without_anything_is_a_day_of_nothing() -> None:
    steps = steps_of()
    assert len(steps) == SPAN // STEP
    assert (steps[-1].at, steps[0].at) == (NOW, NOW - SPAN + STEP)
    assert {(one.running, one.starts, one.start_seconds_median, one.requests, one.sockets) for one in steps} == {
        (0, 0, None, 0, 0.0)
    }


def test_what_passed_the_doors_is_summed_and_sockets_are_averaged() -> None:
    minutes = [
        TrafficMinute(ago(20), 100, 0.0),
        TrafficMinute(ago(14), 7, 600.0),
        TrafficMinute(ago(1), 5, 300.0),
        TrafficMinute(ago(1441), 9, 9.0),
    ]
    *_, before, last = steps_of(traffic=minutes)
    assert (before.requests, before.sockets) == (100, 0.0)
    assert (last.requests, last.sockets) == (12, 1.0)
    assert sum(one.requests for one in steps_of(traffic=minutes)) == 112


def test_starts_are_timed_and_what_ran_is_counted_backwards() -> None:
    one, other = uuid4(), uuid4()
    told = [
        entry(40, one, LedgerKind.OPERATION_BEGAN, Operation.NONE, Operation.STARTING),
        entry(39, one, LedgerKind.PHASE, Phase.STANDBY, Phase.RUNNING),
        entry(22, other, LedgerKind.OPERATION_BEGAN, Operation.NONE, Operation.STARTING),
        entry(10, one, LedgerKind.PHASE, Phase.RUNNING, Phase.STANDBY),
        entry(9, other, LedgerKind.PHASE, Phase.STANDBY, Phase.RUNNING),
    ]
    *_, earlier, third, second, last = steps_of(running=1, entries=told)
    assert [step.running for step in (earlier, third, second, last)] == [0, 1, 1, 1]
    assert [step.starts for step in (earlier, third, second, last)] == [0, 1, 0, 1]
    assert (third.start_seconds_median, last.start_seconds_worst) == (60.0, 780.0)


def test_archives_are_summed_and_the_end_of_a_step_belongs_to_it() -> None:
    *_, before, last = steps_of(archived=[(ago(15), 1), (ago(15) + timedelta(seconds=1), 2), (ago(-1), 4)])
    assert (before.archives, before.archived_bytes) == (1, 1)
    assert (last.archives, last.archived_bytes) == (2, 6)
