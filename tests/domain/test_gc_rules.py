"""Protection over generated histories: what is pointed at, recent or in doubt is kept, and the rest is let go."""

from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from codehub.domain import naming
from codehub.domain.gc_rules import (
    BackendResource,
    GarbageReason,
    ResourceKind,
    RestorePoint,
    Retention,
    garbage,
    protected_keys,
    protected_volumes,
    undo_until,
)
from codehub.domain.workspace import HomeContext, Operation, Phase, Workspace
from tests.rows import LONG_AGO, NOW, OP_ID, VOLUME, WORKSPACE_ID, with_home, workspace

WINDOW = timedelta(hours=2)
RETENTION = Retention(restore_points=3, undo_seconds=7200)


def point(number: int, released_at: datetime | None) -> RestorePoint:
    op_id, at = UUID(int=number), LONG_AGO + timedelta(minutes=number)
    key = naming.archive_key("", WORKSPACE_ID, op_id)
    return RestorePoint(WORKSPACE_ID, op_id, key, 1, 1, "", at, at, released_at)


@dataclass(frozen=True, slots=True)
class History:
    """A workspace's history: its restore points in any order, of which some were discarded at some time."""

    points: tuple[RestorePoint, ...]
    row: Workspace

    def keys(self) -> frozenset[str]:
        return protected_keys(self.row, self.points, RETENTION, NOW)

    def pointed_at(self) -> set[str]:
        row = self.row
        making = naming.archive_key("", row.id, row.archive_op_id) if row.archive_op_id else None
        chosen = row.restore_from if row.restore_requested_at else None
        return {key for key in (row.archive_key, making, chosen) if key}

    def held(self) -> list[str]:
        """The restore points that are still held, oldest first."""
        return [p.key for p in sorted(self.points, key=lambda p: p.created_at) if p.released_at is None]

    def discarded(self, *, recently: bool) -> set[str]:
        return {p.key for p in self.points if p.released_at and (NOW - p.released_at < WINDOW) is recently}


@st.composite
def histories(draw: st.DrawFn) -> History:
    moments = st.sampled_from((None, NOW - timedelta(days=1), NOW - timedelta(hours=1)))
    points = tuple(point(number, draw(moments)) for number in range(1, draw(st.integers(1, 9))))
    keys = [p.key for p in points]
    row = workspace(
        phase=draw(st.sampled_from((Phase.PENDING, Phase.ARCHIVED, Phase.STANDBY, Phase.RUNNING, Phase.ERROR))),
        archive_key=draw(st.sampled_from((None, *keys))),
        archive_op_id=draw(st.sampled_from((None, OP_ID, *(p.op_id for p in points)))),
        restore_from=draw(st.sampled_from((None, *keys))),
        restore_requested_at=draw(st.sampled_from((None, NOW))),
        deleted_at=draw(moments),
        undelete_requested_at=draw(st.sampled_from((None, None, NOW))),
        home_store_key=VOLUME,
        home=draw(st.sampled_from((HomeContext(), HomeContext(live=True), HomeContext(restoring="k")))),
        operation=draw(st.sampled_from(Operation)),
    )
    return History(tuple(draw(st.permutations(points))), row)


LIVING = histories().filter(lambda history: history.row.deleted_at is None)


@given(LIVING)
def test_a_living_workspace_keeps_what_it_points_at_and_its_last_points(history: History) -> None:
    assert history.pointed_at() | set(history.held()[-3:]) <= history.keys()


@given(LIVING)
def test_what_was_discarded_can_be_brought_back_for_the_undo_window(history: History) -> None:
    assert history.discarded(recently=True) <= history.keys()


@given(LIVING)
def test_error_keeps_everything_and_health_does_not(history: History) -> None:
    """The other half matters too: what is old or long discarded is let go, or disks fill up."""
    let_go = (set(history.held()[:-3]) | history.discarded(recently=False)) - history.pointed_at()
    if history.row.phase is Phase.ERROR:
        assert {p.key for p in history.points} <= history.keys()
        assert protected_volumes(history.row, RETENTION, NOW) == {VOLUME}
    else:
        assert not let_go & history.keys()


@given(histories())
def test_a_deleted_workspace_keeps_all_proven_copies_for_the_undo_window(history: History) -> None:
    deleted_at = history.row.deleted_at or LONG_AGO
    row = replace(history.row, deleted_at=deleted_at)
    proven = {p.key for p in history.points} | ({row.archive_key} if row.archive_key else set())
    inside = NOW - deleted_at < WINDOW or row.undelete_requested_at is not None
    assert protected_keys(row, history.points, RETENTION, NOW) == (proven if inside else set())
    assert protected_volumes(row, RETENTION, NOW) == ({VOLUME} if inside else set())


def test_the_prefix_is_part_of_the_key() -> None:
    kept = protected_keys(workspace(archive_op_id=OP_ID), (), Retention(prefix="team/"), NOW)
    assert kept == {naming.archive_key("team/", WORKSPACE_ID, OP_ID)}


# ── volumes ────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("phase", Phase)
def test_a_live_volume_is_kept_whatever_the_phase(phase: Phase) -> None:
    assert protected_volumes(with_home(phase=phase), RETENTION, NOW) == {VOLUME}


def test_an_old_half_restored_volume_is_let_go() -> None:
    row = workspace(phase=Phase.ARCHIVED, home_store_key=VOLUME, home=HomeContext(incarnation=1, restoring="k"))
    assert protected_volumes(row, RETENTION, NOW) == frozenset()


def test_a_leaving_volume_is_kept_while_its_archive_is_not_known_to_be_readable() -> None:
    """After a recovery the delete stopped half-way, and the archive is now lost."""
    home = HomeContext(incarnation=1, deleting_volume=True)
    row = workspace(phase=Phase.PENDING, home_store_key=VOLUME, home=home, archive_key="k")
    assert protected_volumes(row, RETENTION, NOW) == {VOLUME}


def test_what_a_person_gave_up_is_kept_for_a_week_and_what_nobody_can_want_for_two_hours() -> None:
    ordinary = Retention()
    assert (ordinary.undo, ordinary.grace) == (timedelta(days=7), timedelta(hours=2))
    for days, is_kept in ((6.9, True), (7.1, False)):
        then = NOW - timedelta(days=days)
        given_up = point(1, released_at=then)
        emptied = workspace(phase=Phase.PENDING)
        assert (given_up.key in protected_keys(emptied, [given_up], ordinary, NOW)) is is_kept
        deleted = workspace(phase=Phase.DELETED, deleted_at=then, archive_key=given_up.key, home_store_key=VOLUME)
        assert (given_up.key in protected_keys(deleted, [given_up], ordinary, NOW)) is is_kept
        assert (VOLUME in protected_volumes(deleted, ordinary, NOW)) is is_kept
        until = undo_until(deleted, ordinary.undo)
        assert until is not None
        assert (until > NOW) is is_kept
    upload = BackendResource(ResourceKind.OBJECT, naming.archive_key("", WORKSPACE_ID, UUID(int=9)), WORKSPACE_ID)
    assert garbage(upload, ordinary, workspace(), [], NOW) is GarbageReason.UNFINISHED


def test_what_lives_or_is_gone_for_good_has_no_deadline() -> None:
    assert undo_until(workspace(), WINDOW) is None
    assert undo_until(workspace(phase=Phase.DELETED, deleted_at=NOW, purged_at=NOW), WINDOW) is None
