"""When the collector refuses to sweep at all, and which of its reasons a person may waive."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from codehub.domain.gc_rules import ResourceKind
from codehub.domain.gc_safety import (
    NEVER_WAIVED,
    WAIVABLE,
    GcLimits,
    LostRecords,
    ResourceCount,
    SafetyCheck,
    SafetyFacts,
    refusals,
)
from tests.rows import LONG_AGO, NOW

USUAL = SafetyFacts(
    counts={
        ResourceKind.OBJECT: ResourceCount(100, 5),
        ResourceKind.VOLUME: ResourceCount(50, 2),
        ResourceKind.CONTAINER: ResourceCount(10, 0),
    },
    newest_object_at=NOW,
    newest_ledger_at=NOW,
    oldest_workspace_at=LONG_AGO,
    oldest_object_at=LONG_AGO,
    install="this",
    owner="this",
)
EMPTY = {"newest_ledger_at": None, "oldest_workspace_at": None}
ALARMS: dict[SafetyCheck, dict[str, Any]] = {
    SafetyCheck.DATABASE_EMPTY: EMPTY,
    SafetyCheck.FOREIGN_INSTALL: {"owner": "that"},
    SafetyCheck.DATABASE_YOUNGER: {"oldest_object_at": LONG_AGO - timedelta(seconds=1)},
    SafetyCheck.LEDGER_BEHIND: {"newest_ledger_at": NOW - timedelta(hours=1, seconds=1)},
    SafetyCheck.DATABASE_OLDER: {"lost_records": LostRecords(unknown=("ws-x-home",))},
    SafetyCheck.RESTORED: {"backup_at": LONG_AGO, "newer_than_backup": 1},
    SafetyCheck.TOO_MANY: {"counts": {ResourceKind.OBJECT: ResourceCount(100, 21)}},
}


def alarms(waived: tuple[str, ...] = (), limits: GcLimits | None = None, **danger: Any) -> list[SafetyCheck]:
    return [refusal.check for refusal in refusals(replace(USUAL, **danger), limits or GcLimits(), waived)]


def test_an_ordinary_sweep_is_let_through() -> None:
    assert alarms() == []
    assert alarms(newest_ledger_at=NOW - timedelta(hours=1)) == []
    assert alarms(owner=None) == []
    assert alarms(backup_at=LONG_AGO) == []


@pytest.mark.parametrize("check", SafetyCheck)
def test_a_sweep_that_looks_catastrophic_is_refused_by_name(check: SafetyCheck) -> None:
    assert alarms(**ALARMS[check]) == [check]
    [refusal] = refusals(replace(USUAL, **ALARMS[check]), GcLimits())
    assert len(refusal.sentence.split()) > 8


@pytest.mark.parametrize("check", SafetyCheck)
def test_a_person_may_waive_a_check_by_its_name_alone(check: SafetyCheck) -> None:
    others = tuple(other for other in SafetyCheck if other is not check)
    assert alarms(others, **ALARMS[check]) == [check]
    assert alarms((check,), **ALARMS[check]) == ([check] if check in NEVER_WAIVED else [])
    assert (check in WAIVABLE) is (check not in NEVER_WAIVED)


def test_an_empty_database_and_a_foreign_store_are_never_waived() -> None:
    assert {SafetyCheck.DATABASE_EMPTY, SafetyCheck.FOREIGN_INSTALL} == NEVER_WAIVED


def test_all_reasons_are_named_at_once() -> None:
    assert set(alarms(owner="that", newest_ledger_at=NOW - timedelta(days=1))) == {
        SafetyCheck.FOREIGN_INSTALL,
        SafetyCheck.LEDGER_BEHIND,
    }


@pytest.mark.parametrize(
    ("existing", "unwanted", "refused"),
    [(100, 20, False), (100, 21, True), (10, 10, False), (11, 11, True), (20, 10, False), (1000, 201, True)],
)
@pytest.mark.parametrize("kind", ResourceKind)
def test_a_fifth_and_more_than_ten_of_one_kind_is_too_many(
    kind: ResourceKind, existing: int, unwanted: int, refused: bool
) -> None:
    """The loss of one kind is seen, however much there is of the other kinds."""
    others = {other: ResourceCount(10_000, 0) for other in ResourceKind if other is not kind}
    found = alarms(counts={**others, kind: ResourceCount(existing, unwanted)})
    assert found == ([SafetyCheck.TOO_MANY] if refused else [])


def test_clocks_that_differ_by_less_than_the_skew_alarm_nobody() -> None:
    tolerant = GcLimits(skew=timedelta(hours=2))
    assert alarms(limits=tolerant, oldest_object_at=LONG_AGO - timedelta(hours=2)) == []
    assert alarms(limits=tolerant, oldest_object_at=LONG_AGO - timedelta(hours=3)) == [SafetyCheck.DATABASE_YOUNGER]


@pytest.mark.parametrize("danger", [EMPTY, {"owner": "that"}])
def test_where_nothing_is_nothing_can_be_lost(danger: dict[str, Any]) -> None:
    assert alarms(counts={kind: ResourceCount() for kind in ResourceKind}, **danger) == []
