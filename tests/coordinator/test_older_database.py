"""A database that is older than its backends: a backup brought back, a recovery to an earlier time, a replica that
lagged. What was made since is neither written over nor swept, however much the database goes on.
"""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from uuid import UUID

import pytest

from codehub.adapters.memory.archives import StoredArchive
from codehub.adapters.memory.runtime import Container, Volume
from codehub.coordinator.context import Tuning
from codehub.coordinator.gc_runner import CollectionReport
from codehub.coordinator.retention_runner import RecordAges
from codehub.domain import naming
from codehub.domain.gc_rules import Retention
from codehub.domain.workspace import Desired, HomeContext, Phase, Workspace
from codehub.ports.collector import RestoredDatabase
from tests.coordinator.collection import checks
from tests.coordinator.harness import CoordinatorHarness, began, in_virtual_time
from tests.rows import (
    KEY,
    NOW,
    OTHER_KEY,
    OTHER_OP_ID,
    VOLUME,
    WORKSPACE_ID,
    archived,
    broken,
    with_home,
    workspace,
)

GRACE = 100
TUNING = Tuning(retention=Retention(grace_seconds=GRACE))
NEWER = naming.volume_name(WORKSPACE_ID, 2)
NEWEST_WORK = (1, 2, 3, 4)
NOBODY = UUID(int=7)


def newer_home(harness: CoordinatorHarness) -> None:
    """Add a home that was since restored from the same archive, and worked in."""
    harness.states.runtime.volumes[NEWER] = Volume(
        WORKSPACE_ID, NEWEST_WORK, stamp=(KEY, OTHER_OP_ID), instance="volume-77"
    )


async def run(harness: CoordinatorHarness, *waived: str) -> CollectionReport:
    return await harness.term_runner.gc.run(waived)


ROWS = {
    "archived": archived(home_store_key=VOLUME),
    "never opened": workspace(),
    "told to use its archive": archived(home_store_key=None),
}


@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS.keys())
@in_virtual_time
async def test_a_home_that_the_database_forgot_is_not_written_over(row: Workspace) -> None:
    harness = await CoordinatorHarness.open()
    harness.place(row, archives={KEY: (1, 2)} if row.archive_key else None)
    newer_home(harness)
    harness.change(desired_state=Desired.RUNNING)()
    await harness.converge()
    third = naming.volume_name(WORKSPACE_ID, 3)
    assert (harness.row.phase, harness.row.home_store_key, harness.row.home.passed_over) == (Phase.RUNNING, third, (2,))
    assert harness.states.runtime.volumes[NEWER].content == NEWEST_WORK
    assert harness.states.runtime.volumes[third].content == ((1, 2) if row.archive_key else ())
    [(subject, details)] = harness.notifier.notices
    assert subject == "a home newer than the database was found"
    assert (details["kept"], details["opened"]) == ([NEWER], third)


@in_virtual_time
async def test_it_is_not_swept_either_before_or_after_the_next_home_is_made() -> None:
    harness = await CoordinatorHarness.open(TUNING)
    harness.place(archived(home_store_key=VOLUME), archives={KEY: (1, 2)})
    newer_home(harness)
    for desired in (Desired.ARCHIVED, Desired.RUNNING, Desired.ARCHIVED, Desired.STANDBY):
        harness.change(desired_state=desired)()
        await harness.converge()
        for _ in range(2):
            assert checks(await run(harness)) == ["database-older"]
            await asyncio.sleep(GRACE + 1)
    assert harness.row.home.incarnation == 4
    assert harness.states.runtime.volumes[NEWER].content == NEWEST_WORK


FORGETFUL: dict[str, Workspace] = {
    "archived": archived(home_store_key=VOLUME),
    "with a home": with_home(),
    "in ERROR": broken(with_home()),
    "deleted": archived(phase=Phase.DELETED, desired_state=Desired.DELETED, deleted_at=NOW - timedelta(hours=3)),
    "since opened": with_home(
        home_store_key=f"{VOLUME}-3", home=HomeContext(incarnation=3, live=True, passed_over=(2,))
    ),
}


@pytest.mark.parametrize("row", FORGETFUL.values(), ids=FORGETFUL.keys())
@in_virtual_time
async def test_a_home_newer_than_its_row_stops_the_collector_whatever_the_row_says(row: Workspace) -> None:
    harness = await CoordinatorHarness.open(TUNING)
    harness.place(row)
    newer_home(harness)
    for _ in range(2):
        [refusal] = (await run(harness)).refusals
        assert refusal.check == "database-older"
        assert NEWER in refusal.sentence
        await asyncio.sleep(GRACE + 1)
    assert NEWER in harness.states.runtime.volumes
    assert harness.states.database.collector.marks == {}


@in_virtual_time
async def test_a_person_who_has_looked_may_let_it_go_but_not_of_a_workspace_in_error() -> None:
    for row in (archived(), broken(archived())):
        harness = await CoordinatorHarness.open(TUNING)
        harness.place(row, archives={KEY: (1, 2)})
        newer_home(harness)
        await run(harness, "database-older")
        await asyncio.sleep(GRACE + 1)
        await run(harness, "database-older")
        assert (NEWER in harness.states.runtime.volumes) is (row.phase is Phase.ERROR)


def since_the_snapshot(harness: CoordinatorHarness) -> None:
    harness.states.runtime.volumes[naming.volume_name(NOBODY, 1)] = Volume(NOBODY, NEWEST_WORK)


MADE_SINCE: dict[str, Callable[[CoordinatorHarness], None]] = {
    "a home": since_the_snapshot,
    "a container": lambda harness: harness.states.runtime.containers.update({NOBODY: Container("c1", "")}),
    "an archive": lambda harness: harness.states.archives.objects.update(
        {naming.archive_key("", NOBODY, OTHER_OP_ID): StoredArchive((1,), NOW, committed=True)}
    ),
}


@pytest.mark.parametrize("made", MADE_SINCE.values(), ids=MADE_SINCE.keys())
@in_virtual_time
async def test_what_belongs_to_a_workspace_that_nobody_knows_stops_the_collector(
    made: Callable[[CoordinatorHarness], None],
) -> None:
    """Rows are never removed, so the database has lost one. No mark tells of a restore, and the ledger has gone on."""
    harness = await CoordinatorHarness.open(TUNING)
    harness.place(archived(), archives={KEY: (1, 2)})
    made(harness)
    before = (
        dict(harness.states.runtime.volumes),
        set(harness.states.archives.objects),
        set(harness.states.runtime.containers),
    )
    for _ in range(3):
        report = await run(harness)
        assert checks(report) == ["database-older"]
        assert f"does not know: 1, such as {report.candidates[0].resource.name}" in report.refusals[0].sentence
        await asyncio.sleep(GRACE + 1)
    states = harness.states
    assert before == (dict(states.runtime.volumes), set(states.archives.objects), set(states.runtime.containers))


def archive_made_since(harness: CoordinatorHarness) -> None:
    harness.states.archives.objects[OTHER_KEY] = StoredArchive((1, 2, 3), NOW, committed=True)


@in_virtual_time
async def test_an_archive_whose_making_was_not_recorded_stops_the_collector() -> None:
    """The workspace is known. The operation that makes an archive is in the ledger before its first byte is stored."""
    for row in (archived(), broken(archived())):
        harness = await CoordinatorHarness.open(TUNING)
        harness.place(row, archives={KEY: (1, 2)})
        archive_made_since(harness)
        for _ in range(2):
            [refusal] = (await run(harness)).refusals
            assert refusal.check == "database-older"
            assert f"did not record: 1, such as {OTHER_KEY}" in refusal.sentence
            await asyncio.sleep(GRACE + 1)
        assert OTHER_KEY in harness.states.archives.objects


@in_virtual_time
async def test_one_that_was_recorded_or_is_older_than_the_ledger_is_garbage_like_any_other() -> None:
    for seconds, recorded in ((0.0, True), (3600.0, False)):
        harness = await CoordinatorHarness.open(replace(TUNING, ages=RecordAges(ledger=seconds)))
        harness.place(archived(), archives={KEY: (1, 2)})
        archive_made_since(harness)
        if recorded:
            harness.states.database.ledger.append(began(OTHER_KEY))
        else:
            harness.states.archives.objects[OTHER_KEY].modified_at = NOW - timedelta(hours=1)
        assert checks(await run(harness)) == []
        await asyncio.sleep(GRACE + 1)
        assert [c.resource.name for c in (await run(harness)).swept] == [OTHER_KEY]


@in_virtual_time
async def test_what_a_purged_workspace_left_is_no_such_sign() -> None:
    harness = await CoordinatorHarness.open(TUNING)
    harness.place(archived(), archives={KEY: (1, 2)})
    gone = workspace(id=NOBODY, slug="gone", name="gone", phase=Phase.DELETED, desired_state=Desired.DELETED)
    harness.states.database.rows[NOBODY] = replace(gone, deleted_at=NOW, purged_at=NOW)
    since_the_snapshot(harness)
    assert checks(await run(harness)) == []
    await asyncio.sleep(GRACE + 1)
    assert len((await run(harness)).swept) == 1


@in_virtual_time
async def test_each_doubt_has_one_name() -> None:
    """What an unknown workspace has is not counted among what is newer than the backup: it is waived once."""
    harness = await CoordinatorHarness.open(TUNING)
    harness.place(archived(), archives={KEY: (1, 2)})
    harness.states.database.collector.restored = RestoredDatabase(NOW - timedelta(days=1), NOW)
    MADE_SINCE["an archive"](harness)
    assert checks(await run(harness)) == ["database-older"]
    archive_made_since(harness)
    assert sorted(checks(await run(harness))) == ["database-older", "restored"]
