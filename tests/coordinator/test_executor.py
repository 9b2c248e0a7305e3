"""The executor: the order of its steps is what keeps homes safe."""

import asyncio
import contextlib
from datetime import timedelta
from uuid import UUID

import pytest

from codehub.adapters.memory.runtime import Container
from codehub.coordinator.tuning import Tuning
from codehub.domain.errors import ErrorReason, Stale, Unreachable
from codehub.domain.judge import ArchiveState
from codehub.domain.plan import Policy
from codehub.domain.workspace import Desired, HomeContext, Operation, Phase, Workspace
from codehub.ports.jobs import JobKind, JobSpec
from tests.coordinator.workshop import ANSWER_LOST, FAILS, PERSON, Workshop, in_virtual_time
from tests.rows import (
    KEY,
    NOW,
    OP_ID,
    OTHER_KEY,
    OTHER_OP_ID,
    VOLUME,
    WORKSPACE_ID,
    archived,
    broken,
    busy,
    with_home,
    workspace,
)

HOME = (1, 2, 3)


def content(shop: Workshop) -> tuple[int, ...]:
    return shop.worlds.runtime.volumes[shop.row.home_store_key or ""].content


def wake(shop: Workshop) -> None:
    shop.change(desired_state=Desired.RUNNING)()


# ── the safe point of ARCHIVING ──────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "call",
    ["db.record", "jobs.start", "jobs.find", "db.pass_safe_point"],
    ids=["as it begins", "as the job starts", "while it runs", "just before the safe point"],
)
@in_virtual_time
async def test_a_wake_before_the_safe_point_keeps_the_volume(call: str) -> None:
    shop = await Workshop.open()
    shop.worlds.jobs.step_seconds = 1.0
    shop.place(with_home(desired_state=Desired.ARCHIVED), volume=HOME)
    shop.network.meanwhile[call] = lambda: wake(shop)
    await shop.converge()
    assert shop.row.phase is Phase.RUNNING
    assert (shop.row.home_store_key, content(shop)) == (VOLUME, HOME)
    assert "runtime.delete_volume" not in shop.network.calls
    assert shop.worlds.jobs.jobs == {}


@in_virtual_time
async def test_a_finished_archive_that_yielded_is_one_more_restore_point() -> None:
    shop = await Workshop.open()
    shop.place(with_home(desired_state=Desired.ARCHIVED), volume=HOME)
    shop.network.meanwhile["db.pass_safe_point"] = lambda: wake(shop)
    await shop.converge()
    (point,) = shop.worlds.database.points[WORKSPACE_ID]
    assert shop.worlds.archives.objects[point.key].content == HOME
    shop.worlds.runtime.write(WORKSPACE_ID, 4)
    await shop.wishes.want(WORKSPACE_ID, Desired.ARCHIVED, PERSON)
    await shop.converge()
    assert shop.row.archive_key != point.key
    assert shop.worlds.archives.objects[shop.row.archive_key or ""].content == (1, 2, 3, 4)


@pytest.mark.parametrize("call", ["archives.look", "runtime.delete_volume"])
@in_virtual_time
async def test_a_wake_after_the_safe_point_comes_from_the_archive(call: str) -> None:
    """Nobody yields any more: the delete is finished, and the home restored."""
    shop = await Workshop.open()
    shop.place(with_home(desired_state=Desired.ARCHIVED), volume=HOME)

    def passed() -> None:
        shop.network.meanwhile[call] = lambda: wake(shop)

    shop.network.meanwhile["db.pass_safe_point"] = passed
    await shop.converge()
    assert shop.row.phase is Phase.RUNNING
    assert (shop.row.home_store_key, content(shop)) == (f"{VOLUME}-2", HOME)
    assert VOLUME not in shop.worlds.runtime.volumes


@pytest.mark.parametrize("state", [ArchiveState.CORRUPTED, ArchiveState.NOT_FOUND])
@in_virtual_time
async def test_an_archive_lost_after_the_safe_point_keeps_the_volume(state: ArchiveState) -> None:
    shop = await Workshop.open()
    shop.place(with_home(desired_state=Desired.ARCHIVED), volume=HOME)

    def passed() -> None:
        shop.network.meanwhile["archives.look"] = lambda: shop.lose_archive(shop.row.archive_key or "", state)

    shop.network.meanwhile["db.pass_safe_point"] = passed
    for _ in range(4):
        await asyncio.sleep(await shop.reconcile() or 1.0)
    assert shop.worlds.runtime.volumes[VOLUME].content == HOME
    await shop.converge()
    assert shop.row.phase is Phase.ARCHIVED
    assert shop.worlds.archives.objects[shop.row.archive_key or ""].content == HOME


@in_virtual_time
async def test_the_volume_is_deleted_only_after_the_archive_is_in_the_row() -> None:
    shop = await Workshop.open()
    shop.place(with_home(desired_state=Desired.ARCHIVED), volume=HOME)
    seen: list[tuple[str | None, bool]] = []

    def look() -> None:
        seen.append((shop.row.archive_key, shop.row.home.deleting_volume))

    shop.network.meanwhile["runtime.delete_volume"] = look
    await shop.converge()
    assert seen == [(shop.row.archive_key, True)]
    assert [point.key for point in shop.worlds.database.points[WORKSPACE_ID]] == [shop.row.archive_key]


# ── jobs ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("row", "volume", "effect"),
    [
        (with_home(desired_state=Desired.RUNNING), HOME, "runtime.start_container"),
        (with_home(desired_state=Desired.ARCHIVED), HOME, "jobs.start"),
        (archived(desired_state=Desired.STANDBY, home_store_key=VOLUME), None, "runtime.create_volume"),
    ],
    ids=["STARTING", "ARCHIVING", "RESTORING"],
)
@in_virtual_time
async def test_a_job_of_another_operation_is_ended_before_anything_uses_the_volume(
    row: Workspace, volume: tuple[int, ...] | None, effect: str
) -> None:
    shop = await Workshop.open()
    shop.place(row, volume=volume, archives={KEY: HOME})
    shop.worlds.jobs.step_seconds = 1000.0
    await shop.outside.jobs.start(JobSpec(WORKSPACE_ID, OTHER_OP_ID, JobKind.ARCHIVE, VOLUME, OTHER_KEY))
    ours: list[bool] = []
    shop.network.meanwhile[effect] = lambda: ours.append(WORKSPACE_ID not in shop.worlds.jobs.jobs)
    await shop.reconcile(3)
    assert ours == [True]


@in_virtual_time
async def test_a_running_job_is_found_again_and_watched() -> None:
    """By whoever leads next: it is not started twice, and its progress is what the deadline counts from."""
    shop = await Workshop.open(Tuning(policy=Policy(deadlines={Operation.RESTORING: 8})))
    shop.worlds.jobs.step_seconds = 5.0
    shop.place(
        busy(
            archived(
                desired_state=Desired.STANDBY,
                home_store_key=VOLUME,
                home=HomeContext(incarnation=1, restoring=KEY),
            ),
            Operation.RESTORING,
        ),
        volume=(),
        archives={KEY: HOME},
    )
    await shop.outside.jobs.start(JobSpec(WORKSPACE_ID, OP_ID, JobKind.RESTORE, VOLUME, KEY))
    await shop.converge()
    assert shop.network.calls.count("jobs.start") == 1
    assert (shop.row.phase, content(shop)) == (Phase.STANDBY, HOME)
    assert shop.row.home.marker == (KEY, OP_ID)
    assert asyncio.get_running_loop().time() >= 20


@in_virtual_time
async def test_a_failed_job_is_cleared_and_tried_afresh() -> None:
    shop = await Workshop.open()
    shop.place(with_home(desired_state=Desired.ARCHIVED), volume=HOME)
    shop.worlds.jobs.failing[WORKSPACE_ID] = ErrorReason.ACTION_FAILED
    while shop.row.error_count == 0:
        await asyncio.sleep(await shop.reconcile() or 1.0)
    first = shop.row.op_id, shop.row.archive_op_id
    shop.worlds.jobs.failing.clear()
    await shop.converge()
    assert shop.row.phase is Phase.ARCHIVED
    assert (shop.row.op_id, shop.row.archive_op_id) == first
    assert shop.network.calls.count("jobs.start") == 2


@in_virtual_time
async def test_a_corrupted_restore_goes_to_error_at_once() -> None:
    shop = await Workshop.open()
    shop.place(archived(desired_state=Desired.RUNNING), archives={KEY: HOME})
    shop.worlds.jobs.failing[WORKSPACE_ID] = ErrorReason.ARCHIVE_CORRUPTED
    await shop.converge()
    assert (shop.row.phase, shop.row.error_reason) == (Phase.ERROR, "ArchiveCorrupted")
    assert "runtime.start_container" not in shop.network.calls


# ── volumes ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@in_virtual_time
async def test_what_took_the_volume_meanwhile_is_ended_before_it_is_deleted() -> None:
    shop = await Workshop.open()
    shop.place(with_home(desired_state=Desired.ARCHIVED), volume=HOME)

    def somebody_starts_it() -> None:
        shop.worlds.runtime.containers[WORKSPACE_ID] = Container("by hand", VOLUME)

    shop.network.meanwhile["runtime.delete_volume"] = somebody_starts_it
    await shop.converge()
    assert (shop.row.phase, shop.row.error_count) == (Phase.ARCHIVED, 0)
    assert shop.worlds.runtime.volumes == {}
    assert shop.worlds.runtime.containers == {}


@pytest.mark.parametrize("running", [True, False], ids=["runs", "has ended"])
@pytest.mark.parametrize(
    "moment", ["jobs.find", "jobs.clear", "db.pass_safe_point", "archives.look", "runtime.delete_volume"]
)
@in_virtual_time
async def test_what_a_container_that_came_late_has_written_is_in_the_archive(moment: str, running: bool) -> None:
    """A leader that stalled before its call starts it whenever it wakes up; a program inside writes at once."""
    shop = await Workshop.open()
    shop.place(with_home(desired_state=Desired.ARCHIVED), volume=HOME)

    def starts_late_and_writes() -> None:
        shop.worlds.runtime.containers[WORKSPACE_ID] = Container("late", VOLUME)
        shop.worlds.runtime.write(WORKSPACE_ID, 4)
        shop.worlds.runtime.containers[WORKSPACE_ID].running = running

    def when_archived() -> None:
        if any(archive.committed for archive in shop.worlds.archives.objects.values()):
            starts_late_and_writes()
        else:
            shop.network.meanwhile[moment] = when_archived

    shop.network.meanwhile[moment] = when_archived
    await shop.converge()
    assert shop.row.phase is Phase.ARCHIVED
    assert shop.worlds.archives.objects[shop.row.archive_key or ""].content == (*HOME, 4)
    assert shop.worlds.runtime.volumes == {}
    assert shop.worlds.runtime.containers == {}


@pytest.mark.parametrize(
    "row",
    [
        with_home(desired_state=Desired.ARCHIVED),
        broken(workspace(desired_state=Desired.DELETED, home_store_key=VOLUME, home=HomeContext(restoring=KEY))),
    ],
    ids=["archiving", "deleting in ERROR"],
)
@in_virtual_time
async def test_a_volume_that_somebody_else_has_fails_the_try_and_is_not_asked_for_without_pause(row: Workspace) -> None:
    """A container that an operator started with it, to look or to copy, even one that has ended."""
    shop = await Workshop.open()
    shop.place(row, volume=HOME, archives={KEY: HOME})

    def foreign_holder() -> None:
        shop.worlds.runtime.volumes[VOLUME].held = True

    shop.network.meanwhile["runtime.delete_volume"] = foreign_holder
    for _ in range(200):
        await asyncio.sleep(await shop.reconcile() or 1.0)
        if shop.row.error_count > row.error_count:
            break
    assert (shop.row.error_count, shop.row.retry_at is not None) == (row.error_count + 1, True)
    assert shop.worlds.runtime.volumes[VOLUME].content == HOME
    shop.worlds.runtime.volumes[VOLUME].held = False
    await shop.converge()
    assert VOLUME not in shop.worlds.runtime.volumes


@pytest.mark.parametrize(
    ("row", "kept"),
    [
        (broken(with_home(desired_state=Desired.DELETED)), True),
        (
            broken(archived(desired_state=Desired.DELETED, home_store_key=VOLUME), ErrorReason.ARCHIVE_CORRUPTED),
            False,
        ),
    ],
    ids=["a live volume", "a half-made one"],
)
@in_virtual_time
async def test_delete_from_error_destroys_only_what_is_no_home(row: Workspace, kept: bool) -> None:
    shop = await Workshop.open()
    shop.place(row, volume=HOME, container=kept, archives={KEY: HOME})
    await shop.converge()
    assert shop.row.phase is Phase.DELETED
    assert (VOLUME in shop.worlds.runtime.volumes) is kept
    assert shop.worlds.runtime.containers == {}
    assert KEY in shop.worlds.archives.objects


@in_virtual_time
async def test_a_delete_that_was_withdrawn_is_given_up() -> None:
    shop = await Workshop.open()
    shop.place(archived(desired_state=Desired.DELETED), archives={KEY: HOME})
    shop.network.meanwhile["db.change"] = shop.change(desired_state=Desired.ARCHIVED)
    await shop.converge()
    assert (shop.row.phase, shop.row.deleted_at) == (Phase.ARCHIVED, None)
    assert "delete_withdrawn" in shop.reasons()


@in_virtual_time
async def test_every_home_is_a_new_incarnation() -> None:
    shop = await Workshop.open()
    shop.place(workspace(desired_state=Desired.STANDBY))
    names = []
    for wish in (Desired.STANDBY, Desired.ARCHIVED, Desired.STANDBY, Desired.ARCHIVED, Desired.STANDBY):
        await shop.wishes.want(WORKSPACE_ID, wish, PERSON)
        await shop.converge()
        names += [name for name in shop.worlds.runtime.volumes if name not in names]
    assert names == [VOLUME, f"{VOLUME}-2", f"{VOLUME}-3"]


@in_virtual_time
async def test_a_container_on_an_old_volume_is_replaced() -> None:
    shop = await Workshop.open()
    shop.place(with_home(desired_state=Desired.RUNNING), volume=HOME)
    shop.worlds.runtime.containers[WORKSPACE_ID] = Container("old", "ws-old-home")
    await shop.converge()
    assert shop.row.phase is Phase.RUNNING
    assert shop.worlds.runtime.containers[WORKSPACE_ID].volume == VOLUME


# ── starting, discarding, empty archives ─────────────────────────────────────────────────────────────────────────────


@in_virtual_time
async def test_an_image_on_its_way_is_not_counted_against_the_deadline() -> None:
    shop = await Workshop.open(Tuning(policy=Policy(deadlines={Operation.STARTING: 60})))
    shop.place(with_home(desired_state=Desired.RUNNING, image_ref="big"), volume=HOME)
    shop.worlds.runtime.pulling.add("big")
    while asyncio.get_running_loop().time() < 150:
        await asyncio.sleep(await shop.reconcile() or 1.0)
    assert (shop.row.operation, shop.row.error_count) == (Operation.STARTING, 0)
    assert shop.row.op_progress is not None
    assert "pulling" in shop.row.op_progress.step
    shop.worlds.runtime.pulling.clear()
    shop.worlds.runtime.boot_seconds = 50
    await shop.converge(rounds=600)
    assert shop.row.phase is Phase.RUNNING


@in_virtual_time
async def test_while_nothing_may_start_no_try_is_used_up_and_people_see_why() -> None:
    shop = await Workshop.open(Tuning(policy=Policy(deadlines={Operation.STARTING: 60})))
    shop.place(with_home(desired_state=Desired.RUNNING), volume=HOME)
    shop.worlds.runtime.not_isolated = "the rules cannot be put up"
    while asyncio.get_running_loop().time() < 150:
        await asyncio.sleep(await shop.reconcile() or 1.0)
    assert (shop.row.operation, shop.row.error_count, shop.row.error_info) == (Operation.STARTING, 0, None)
    assert shop.row.op_progress is not None
    assert shop.row.op_progress.step == "the rules cannot be put up"
    assert shop.worlds.runtime.containers == {}
    shop.worlds.runtime.not_isolated = ""
    await shop.converge()
    assert shop.row.phase is Phase.RUNNING


@pytest.mark.parametrize("held_by", ["a registry that is away", "rules that are not up"])
@pytest.mark.parametrize("wish", [Desired.STANDBY, Desired.ARCHIVED, Desired.DELETED])
@in_virtual_time
async def test_who_no_longer_wants_it_need_not_wait_for_what_holds_it_up(held_by: str, wish: Desired) -> None:
    shop = await Workshop.open()
    shop.place(with_home(desired_state=Desired.RUNNING, image_ref="big"), volume=HOME)
    if held_by == "a registry that is away":
        shop.worlds.runtime.pulling.add("big")
    else:
        shop.worlds.runtime.not_isolated = held_by
    await shop.reconcile()
    assert shop.row.operation is Operation.STARTING
    shop.change(desired_state=wish)()
    await shop.converge()
    assert shop.row.phase.value == wish.value


@pytest.mark.parametrize("long_work", ["pull", "archive"])
@in_virtual_time
async def test_long_work_is_looked_at_now_and_then(long_work: str) -> None:
    """Not in a hurry: every look is a call to the engine, and every progress a write and a notice to browsers."""
    shop = await Workshop.open()
    shop.worlds.jobs.steps, shop.worlds.jobs.step_seconds = 3000, 0.03
    shop.worlds.runtime.pulling.add("big")
    wish = Desired.RUNNING if long_work == "pull" else Desired.ARCHIVED
    shop.place(with_home(desired_state=wish, image_ref="big"), volume=HOME)
    await shop.reconcile()
    shop.network.calls.clear()
    while asyncio.get_running_loop().time() < 30:
        await asyncio.sleep(await shop.reconcile() or 1.0)
    assert shop.row.op_progress is not None
    assert shop.network.calls.count("jobs.find") <= 4 * 30
    assert shop.network.calls.count("db.record") <= 4 * 30


@in_virtual_time
async def test_an_image_that_is_not_to_be_had_goes_to_error_at_once() -> None:
    shop = await Workshop.open()
    shop.place(with_home(desired_state=Desired.RUNNING, image_ref="typo"), volume=HOME)
    shop.worlds.runtime.bad_images.add("typo")
    await shop.converge()
    assert (shop.row.phase, shop.row.error_reason) == (Phase.ERROR, "ImagePullFailed")
    assert shop.network.calls.count("runtime.start_container") == 1


@in_virtual_time
async def test_starting_forgets_the_archives_id() -> None:
    shop = await Workshop.open()
    shop.place(with_home(desired_state=Desired.RUNNING, archive_op_id=OTHER_OP_ID), volume=HOME)
    await shop.reconcile()
    assert (shop.row.operation, shop.row.archive_op_id) == (Operation.STARTING, None)


@pytest.mark.parametrize("call", ["db.release_restore_points", "db.record"])
@in_virtual_time
async def test_discarding_releases_the_points_and_keeps_the_bytes(call: str) -> None:
    shop = await Workshop.open()
    discarding = busy(archived(desired_state=Desired.PENDING), Operation.DISCARDING)
    shop.place(discarding, archives={KEY: HOME, OTHER_KEY: (1,)})
    shop.network.faults[call] = ANSWER_LOST
    with contextlib.suppress(Unreachable):
        await shop.reconcile()
    shop.network.faults.clear()
    await asyncio.sleep(2)
    await shop.converge()
    assert (shop.row.phase, shop.row.archive_key) == (Phase.PENDING, None)
    points = shop.worlds.database.points[WORKSPACE_ID]
    assert all(point.released_at is not None for point in points)
    assert set(shop.worlds.archives.objects) == {KEY, OTHER_KEY}


@in_virtual_time
async def test_an_empty_archive_is_made_once_under_one_id() -> None:
    shop = await Workshop.open()
    shop.place(workspace(desired_state=Desired.ARCHIVED))
    shop.network.faults["archives.create_empty"] = ANSWER_LOST
    await shop.reconcile()
    assert (shop.row.error_count, shop.row.error_reason) == (0, "Unreachable")
    shop.network.faults.clear()
    await shop.converge()
    assert shop.row.phase is Phase.ARCHIVED
    assert list(shop.worlds.archives.objects) == [shop.row.archive_key]
    assert len(shop.worlds.database.points[WORKSPACE_ID]) == 1


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        (busy(with_home(desired_state=Desired.ARCHIVED, archive_op_id=OP_ID), Operation.ARCHIVING), "jobs.start"),
        (
            busy(
                archived(
                    desired_state=Desired.STANDBY,
                    home_store_key=VOLUME,
                    home=HomeContext(incarnation=1, restoring=KEY),
                ),
                Operation.RESTORING,
            ),
            "jobs.start",
        ),
        (busy(archived(desired_state=Desired.DELETED, home_store_key=VOLUME), Operation.DELETING), "db.change"),
    ],
    ids=["ARCHIVING", "RESTORING", "DELETING"],
)
@in_virtual_time
async def test_any_container_is_removed_first(row: Workspace, expected: str) -> None:
    shop = await Workshop.open()
    shop.place(row, volume=HOME, container=True, archives={KEY: HOME})
    await shop.reconcile(4)
    assert shop.network.calls.index("runtime.remove_container") < shop.network.calls.index(expected)


@in_virtual_time
async def test_a_late_try_of_an_ended_operation_is_dropped() -> None:
    shop = await Workshop.open()
    shop.place(busy(with_home(desired_state=Desired.ARCHIVED, archive_op_id=OP_ID), Operation.ARCHIVING), volume=HOME)
    shop.network.faults["jobs.start"] = FAILS
    shop.network.meanwhile["jobs.start"] = shop.change(op_id=UUID(int=9), op_started_at=NOW + timedelta(seconds=1))
    with pytest.raises(Stale):
        await shop.reconcile()
    assert shop.row.error_count == 0
