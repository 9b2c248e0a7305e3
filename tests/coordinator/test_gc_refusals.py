"""The collector's safety checks: it refuses a collection that would be a catastrophe, and who may waive a refusal."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from uuid import UUID

import pytest

from codehub.adapters.memory.archives import StoredArchive
from codehub.adapters.memory.runtime import Volume
from codehub.domain import naming
from codehub.domain.errors import Unreachable
from codehub.domain.naming import Backend
from codehub.domain.workspace import Operation
from codehub.ports.archives import StoredObject
from codehub.ports.collector import RestoredDatabase
from codehub.ports.stores import BackendRecord
from tests.coordinator.collection import (
    GRACE,
    NOBODY,
    OLDEST,
    STRAY,
    TUNING,
    all_volumes,
    checks,
    collector,
    scan,
    stray,
)
from tests.coordinator.harness import CoordinatorHarness, in_virtual_time, now
from tests.rows import KEY, NOW, OP_ID, OTHER_KEY, WORKSPACE_ID, archived, busy, with_home


def empty_database(harness: CoordinatorHarness) -> None:
    stray(harness)
    harness.states.database.ledger.clear()


def new_database(harness: CoordinatorHarness) -> None:
    harness.place(archived(created_at=now() - timedelta(hours=1)), archives={KEY: (1,)})
    stray(harness, age=timedelta(days=3))


def old_database(harness: CoordinatorHarness) -> None:
    harness.place(archived(), archives={KEY: (1,)})
    stray(harness, age=timedelta(hours=-1, seconds=-1))


def owned_by(harness: CoordinatorHarness, owner: str) -> None:
    """The store belongs to this installation, and was adopted so."""
    harness.states.archives.owner = owner
    harness.states.database.backend_identities[Backend.ARCHIVES] = BackendRecord(owner, now())


def another_s_store(harness: CoordinatorHarness) -> None:
    harness.place(archived(), archives={KEY: (1,)})
    owned_by(harness, "that")
    stray(harness)


def restored_database(harness: CoordinatorHarness) -> None:
    """The ledger has gone on since the restore; an archive that was made after the backup is known to nobody."""
    harness.place(archived(), archives={KEY: (1,)})
    harness.states.database.collector.restored = RestoredDatabase(NOW - timedelta(days=1), NOW)
    stray(harness)


def recovered_database(harness: CoordinatorHarness) -> None:
    """The database was recovered by its own means: nothing says so, but that a home of an unknown workspace is here."""
    harness.place(archived(), archives={KEY: (1,)})
    harness.states.runtime.volumes[naming.volume_name(NOBODY, 1)] = Volume(NOBODY)


ALARMS: dict[str, Callable[[CoordinatorHarness], None]] = {
    "database-empty": empty_database,
    "database-younger": new_database,
    "ledger-behind": old_database,
    "foreign-install": another_s_store,
    "database-older": recovered_database,
    "restored": restored_database,
    "too-many": all_volumes,
}


def contents(harness: CoordinatorHarness) -> list[object]:
    states = harness.states
    return [dict(states.archives.objects), dict(states.runtime.volumes), dict(states.runtime.containers)]


@pytest.mark.parametrize("check", ALARMS)
@in_virtual_time
async def test_it_refuses_to_be_catastrophic(check: str) -> None:
    harness = await CoordinatorHarness.open(TUNING)
    ALARMS[check](harness)
    before = contents(harness)
    assert checks(await scan(harness)) == [check]
    for _ in range(3):
        assert checks(await collector(harness).run()) == [check]
        await asyncio.sleep(GRACE)
    assert contents(harness) == before
    assert bool(harness.states.database.collector.marks) is (check == "too-many")
    assert [(subject, details["reason"]) for subject, details in harness.notifier.notices] == [
        ("garbage collection stopped", check)
    ]
    assert harness.metrics.registry.get_sample_value("codehub_gc_refusals_total", {"check": check}) == 3


@pytest.mark.parametrize("check", ALARMS)
@in_virtual_time
async def test_a_person_may_insist_but_not_on_everything(check: str) -> None:
    harness = await CoordinatorHarness.open(TUNING)
    ALARMS[check](harness)
    await collector(harness).run([check])
    await asyncio.sleep(GRACE + 3602)
    report = await collector(harness).run([check])
    assert bool(report.swept) is (check not in ("database-empty", "foreign-install"))


@in_virtual_time
async def test_after_a_restore_what_is_known_to_be_older_or_later_still_goes() -> None:
    harness = await CoordinatorHarness.open(TUNING)
    harness.place(archived(), archives={KEY: (1,)})
    before, after = NOW - timedelta(days=2), NOW - timedelta(days=1)
    harness.states.database.collector.restored = RestoredDatabase(before, after)
    for key, at in ((STRAY, before - timedelta(hours=3)), (OLDEST, NOW)):
        stray(harness, key)
        harness.states.archives.objects[key].modified_at = at
    harness.states.database.rows[WORKSPACE_ID] = replace(harness.row, created_at=NOW - timedelta(days=9))
    assert checks(await scan(harness)) == []
    in_between = naming.archive_key("", WORKSPACE_ID, UUID(int=4))
    harness.states.archives.objects[in_between] = StoredArchive((1,), before + timedelta(hours=1), committed=True)
    assert checks(await scan(harness)) == ["restored"]


@in_virtual_time
async def test_a_reason_that_is_gone_and_comes_back_is_told_again() -> None:
    harness = await CoordinatorHarness.open(TUNING)
    another_s_store(harness)
    for owner in ("that", "this", "that"):
        owned_by(harness, owner)
        await collector(harness).run()
    assert len(harness.notifier.notices) == 2


@in_virtual_time
async def test_an_archive_that_is_being_written_does_not_alarm() -> None:
    """An upload of hours makes no ledger entry."""
    harness = await CoordinatorHarness.open(TUNING)
    harness.place(busy(with_home(archive_op_id=OP_ID), Operation.ARCHIVING), volume=(1,))
    await asyncio.sleep(3700)
    harness.states.archives.unfinished[f"{KEY}#1"] = StoredObject(f"{KEY}#1", 5, now())
    assert checks(await scan(harness)) == []
    stray(harness, OTHER_KEY)
    assert checks(await scan(harness)) == ["ledger-behind"]


@in_virtual_time
async def test_a_store_without_its_mark_is_neither_swept_nor_claimed_again() -> None:
    harness = await CoordinatorHarness.open(TUNING)
    assert harness.states.archives.owner == "this"
    harness.states.archives.owner = None
    with pytest.raises(Unreachable, match="without the mark codehub-owner"):
        await collector(harness).run()
    assert harness.states.archives.owner is None
