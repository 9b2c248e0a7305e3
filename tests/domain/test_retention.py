"""What the garbage collector may not touch (contract 9)."""

from datetime import datetime, timedelta
from uuid import UUID

import pytest

from codehub.domain import naming
from codehub.domain.gc_rules import (
    RestorePoint,
    Retention,
    protected_keys,
    protected_volumes,
)
from codehub.domain.workspace import HomeContext, Operation
from tests.rows import (
    KEY,
    LONG_AGO,
    NOW,
    OP_ID,
    OTHER_KEY,
    OTHER_OP_ID,
    VOLUME,
    WORKSPACE_ID,
    archived,
    broken,
    with_home,
)

RETENTION = Retention(restore_points=2, undo_seconds=7200)
WITHIN = NOW - timedelta(seconds=7199)
AFTER = NOW - timedelta(seconds=7200)


def point(number: int, released_at: datetime | None = None) -> RestorePoint:
    op_id = UUID(int=number)
    at = LONG_AGO + timedelta(hours=number)
    return RestorePoint(
        workspace_id=WORKSPACE_ID,
        op_id=op_id,
        key=naming.archive_key("", WORKSPACE_ID, op_id),
        bytes=1,
        files=1,
        sha256="",
        created_at=at,
        verified_at=at,
        released_at=released_at,
    )


POINTS = [point(number) for number in range(1, 6)]
ALL = {p.key for p in POINTS}


def test_a_live_workspace_keeps_its_archive_the_one_being_written_and_the_newest_points() -> None:
    row = archived(archive_key=KEY, archive_op_id=OTHER_OP_ID)
    assert protected_keys(row, POINTS, RETENTION, NOW) == {KEY, OTHER_KEY, POINTS[3].key, POINTS[4].key}


def test_a_workspace_in_error_keeps_everything() -> None:
    assert protected_keys(broken(archived()), POINTS, RETENTION, NOW) == ALL | {KEY}
    assert protected_volumes(broken(with_home(home=HomeContext(incarnation=1))), RETENTION, NOW) == {VOLUME}


def test_a_deleted_workspace_keeps_its_copies_for_the_undo_window_only() -> None:
    assert protected_keys(archived(deleted_at=WITHIN), POINTS, RETENTION, NOW) == ALL | {KEY}
    assert protected_keys(archived(deleted_at=AFTER), POINTS, RETENTION, NOW) == set()
    assert protected_volumes(with_home(deleted_at=WITHIN), RETENTION, NOW) == {VOLUME}
    assert protected_volumes(with_home(deleted_at=AFTER), RETENTION, NOW) == set()


def test_a_deleted_workspace_s_unfinished_archive_is_not_protected() -> None:
    row = archived(deleted_at=WITHIN, archive_key=None, archive_op_id=OP_ID)
    assert KEY not in protected_keys(row, [], RETENTION, NOW)


def test_deletion_outweighs_error() -> None:
    assert protected_keys(broken(archived(deleted_at=AFTER)), POINTS, RETENTION, NOW) == set()


def test_an_undelete_under_way_keeps_the_copies() -> None:
    row = archived(deleted_at=AFTER, undelete_requested_at=NOW)
    assert protected_keys(row, POINTS, RETENTION, NOW) == ALL | {KEY}


def test_what_was_discarded_can_be_undone_for_the_window() -> None:
    released = [point(1, released_at=WITHIN), point(2, released_at=AFTER)]
    assert protected_keys(with_home(), released, RETENTION, NOW) == {released[0].key}


def test_a_chosen_restore_point_is_kept_until_it_is_used() -> None:
    row = with_home(restore_from=POINTS[0].key, restore_requested_at=NOW)
    assert POINTS[0].key in protected_keys(row, POINTS, RETENTION, NOW)


def test_what_is_purged_is_nobody_s() -> None:
    row = with_home(archive_key=KEY, purged_at=NOW, deleted_at=WITHIN)
    assert protected_keys(row, POINTS, RETENTION, NOW) == protected_volumes(row, RETENTION, NOW) == set()


@pytest.mark.parametrize("operation", [op for op in Operation if op is not Operation.NONE])
def test_no_operation_loses_its_volume_under_its_feet(operation: Operation) -> None:
    row = with_home(home=HomeContext(incarnation=1), operation=operation)
    assert protected_volumes(row, RETENTION, NOW) == {VOLUME}
