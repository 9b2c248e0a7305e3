"""The last day in steps, from the ledger alone."""

from datetime import datetime, timedelta
from uuid import UUID, uuid4

from codehub.domain.history import SPAN, STEP, Day, Step, history
from codehub.domain.ledger import Entry, Kind
from codehub.domain.workspace import Operation, Phase
from tests.rows import NOW


def entry(key: UUID, at: datetime, kind: Kind, before: str, after: str) -> Entry:
    return Entry(at, key, "controller", kind, before, after, "", None, "")


def started(key: UUID, at: datetime, seconds: float) -> list[Entry]:
    return [
        entry(key, at - timedelta(seconds=seconds), Kind.OPERATION_BEGAN, Operation.NONE, Operation.STARTING),
        entry(key, at, Kind.PHASE, Phase.STANDBY, Phase.RUNNING),
    ]


def stopped(key: UUID, at: datetime) -> Entry:
    return entry(key, at, Kind.PHASE, Phase.RUNNING, Phase.STANDBY)


def ago(**span: float) -> datetime:
    return NOW - timedelta(**span)


def test_a_quiet_day_is_a_flat_line() -> None:
    steps = history(Day(NOW, 3, [], []))
    assert len(steps) == SPAN // STEP
    assert [steps[0].at, steps[-1].at] == [NOW - SPAN + STEP, NOW]
    assert set(steps) == {Step(step.at, 3, 0, None, None, 0, 0) for step in steps}


def test_what_ran_is_told_backwards_from_what_runs() -> None:
    one, other = uuid4(), uuid4()
    happenings = [*started(one, ago(hours=5), 2), stopped(one, ago(hours=3)), *started(other, ago(hours=1), 4)]
    steps = history(Day(NOW, 1, happenings, []))
    by_end = {step.at: step.running for step in steps}
    assert [by_end[ago(hours=hours)] for hours in (6, 4, 2, 0)] == [0, 1, 0, 1]


def test_starts_are_counted_where_they_ended_with_how_long_they_took() -> None:
    happenings = sorted(
        (found for seconds in (2, 9, 4) for found in started(uuid4(), ago(minutes=20), seconds)), key=lambda e: e.at
    )
    [told] = [step for step in history(Day(NOW, 3, happenings, [])) if step.starts]
    assert told.at == ago(minutes=15)
    assert (told.starts, told.start_seconds_median, told.start_seconds_worst) == (3, 4, 9)


def test_a_start_that_came_to_nothing_is_none() -> None:
    begun = entry(uuid4(), ago(minutes=5), Kind.OPERATION_BEGAN, Operation.NONE, Operation.STARTING)
    assert sum(step.starts for step in history(Day(NOW, 0, [begun], []))) == 0


def test_archives_are_summed_and_the_edges_belong_somewhere() -> None:
    archived = [(NOW, 5), (ago(minutes=15), 7), (NOW - SPAN + timedelta(seconds=1), 11), (NOW - SPAN, 13)]
    steps = history(Day(NOW, 0, [], archived))
    assert [(step.at, step.archives, step.archived_bytes) for step in steps if step.archives] == [
        (NOW - SPAN + STEP, 1, 11),
        (ago(minutes=15), 1, 7),
        (NOW, 1, 5),
    ]
