"""The collector's report: what is kept, what could go and why, and when it refuses; it deletes nothing."""

from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from codehub.adapters.memory.archives import StoredArchive
from codehub.adapters.memory.runtime import Volume
from codehub.coordinator.gc_runner import CollectorReport
from codehub.domain import naming
from codehub.domain.workspace import Desired, HomeContext, Operation, Phase, Workspace
from tests.coordinator.workshop import Workshop, in_virtual_time
from tests.rows import (
    KEY,
    NOW,
    OP_ID,
    OTHER_KEY,
    VOLUME,
    WORKSPACE_ID,
    archived,
    broken,
    busy,
    with_home,
    workspace,
)

STRAY = naming.archive_key("", UUID(int=7), OP_ID)
OLD, OLDER, OLDEST = (naming.archive_key("", WORKSPACE_ID, UUID(int=number)) for number in (1, 2, 3))


def deleted(ago: timedelta, **changes: Any) -> Workspace:
    return archived(desired_state=Desired.DELETED, phase=Phase.DELETED, deleted_at=NOW - ago, **changes)


def names(report: CollectorReport, kind: str) -> set[str]:
    return {
        candidate.name.removesuffix(naming.META_SUFFIX) for candidate in report.candidates if candidate.kind == kind
    }


ARCHIVES: dict[str, tuple[Workspace, list[str], set[str]]] = {
    "the one in use, and the newest three": (archived(), [KEY, OTHER_KEY, OLD, OLDER, OLDEST], {OLDER, OLDEST}),
    "the one in use, however old": (archived(archive_key=OLDEST), [KEY, OTHER_KEY, OLD, OLDER, OLDEST], {OLDER}),
    "no workspace's": (archived(), [KEY, STRAY], {STRAY}),
    "one being written": (
        busy(with_home(archive_op_id=UUID(int=3)), Operation.ARCHIVING),
        [KEY, OTHER_KEY, OLD, OLDEST],
        set(),
    ),
    "in ERROR all is kept": (broken(with_home()), [KEY, OTHER_KEY, OLD, OLDER, OLDEST], set()),
    "one that somebody chose": (
        with_home(restore_from=OLDEST, restore_requested_at=NOW),
        [KEY, OTHER_KEY, OLD, OLDER, OLDEST],
        {OLDER},
    ),
    "deleted, inside the undo window": (deleted(timedelta(hours=1)), [KEY, OLDEST], set()),
    "deleted, after it": (deleted(timedelta(hours=3)), [KEY, OLDEST], {KEY, OLDEST}),
    "deleted, but wanted back": (deleted(timedelta(hours=3), undelete_requested_at=NOW), [KEY, OLDEST], set()),
}


@pytest.mark.parametrize(("row", "objects", "could_go"), ARCHIVES.values(), ids=ARCHIVES.keys())
@in_virtual_time
async def test_which_archives_could_go(row: Workspace, objects: list[str], could_go: set[str]) -> None:
    shop = await Workshop.open()
    shop.place(row)
    for age, key in enumerate(objects):
        if key == STRAY:
            shop.worlds.archives.objects[key] = StoredArchive((1,), NOW, committed=True)
        else:
            shop.keep(WORKSPACE_ID, key, (1,), age=float(age))
    report = await shop.reign._gc.report()
    assert names(report, "object") == could_go
    assert (report.objects, report.refusal) == (2 * len(objects), None)
    assert set(shop.worlds.archives.objects) == set(objects)


VOLUMES: dict[str, tuple[Workspace, bool]] = {
    "the live home": (with_home(), False),
    "one an operation may use": (busy(workspace(home_store_key=VOLUME), Operation.PROVISIONING), False),
    "in ERROR": (broken(workspace(home_store_key=VOLUME)), False),
    "kept by a delete, inside the undo window": (
        deleted(timedelta(hours=1), home_store_key=VOLUME, home=HomeContext(live=True)),
        False,
    ),
    "kept by a delete, after it": (
        deleted(timedelta(hours=3), home_store_key=VOLUME, home=HomeContext(live=True)),
        True,
    ),
    "an old incarnation": (with_home(home_store_key=naming.volume_name(WORKSPACE_ID, 2)), True),
    "no workspace's": (with_home(id=UUID(int=7), home_store_key="ws-other-home"), True),
}


@pytest.mark.parametrize(("row", "could_go"), VOLUMES.values(), ids=VOLUMES.keys())
@in_virtual_time
async def test_which_volumes_could_go(row: Workspace, could_go: bool) -> None:
    shop = await Workshop.open()
    shop.place(row)
    shop.worlds.runtime.volumes[VOLUME] = Volume(WORKSPACE_ID)
    report = await shop.reign._gc.report()
    assert names(report, "volume") == ({VOLUME} if could_go else set())
    assert report.volumes == 1
    assert all(candidate.why for candidate in report.candidates)
    assert VOLUME in shop.worlds.runtime.volumes


@pytest.mark.parametrize(
    ("rows", "strays", "age", "refusal"),
    [
        (1, 3, timedelta(0), None),
        (0, 3, timedelta(0), "database-empty"),
        (1, 30, timedelta(0), "too-many"),
        (1, 1, timedelta(hours=2), "ledger-behind"),
        (0, 0, timedelta(0), None),
    ],
    ids=["few", "an empty database", "too many", "a database from yesterday", "nothing at all"],
)
@in_virtual_time
async def test_it_refuses_to_be_catastrophic(rows: int, strays: int, age: timedelta, refusal: str | None) -> None:
    shop = await Workshop.open()
    if rows:
        shop.place(archived(), archives={KEY: (1,)})
    for number in range(strays):
        key = naming.archive_key("", UUID(int=99), UUID(int=number))
        shop.worlds.archives.objects[key] = StoredArchive((1,), NOW + age, committed=True)
    report = await shop.reign._gc.report()
    assert (report.refusal or "").split(":")[0] == (refusal or "")


@in_virtual_time
async def test_the_outside_is_listed_before_the_database_is_read() -> None:
    """What is made between the two is then known to the database, and kept."""
    shop = await Workshop.open()
    shop.place(with_home(), volume=(1,))
    shop.wire.meanwhile["db.collector"] = lambda: shop.keep(WORKSPACE_ID, KEY, (1,))
    report = await shop.reign._gc.report()
    assert report.candidates == ()
    assert shop.wire.calls[-1] == "db.collector"
