"""The executor: the order of its steps is what keeps homes safe."""

import asyncio
import contextlib
from datetime import timedelta
from uuid import UUID

import pytest

from codehub.adapters.memory.runtime import Container
from codehub.coordinator.context import Tuning
from codehub.domain.errors import ErrorReason, Stale, Unreachable
from codehub.domain.failures import Policy
from codehub.domain.judge import ArchiveState
from codehub.domain.workspace import Desired, HomeContext, Operation, Phase, Workspace
from codehub.ports.jobs import JobKind, JobSpec
from tests.coordinator.harness import ANSWER_LOST, FAILS, PERSON, CoordinatorHarness, in_virtual_time
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


def content(harness: CoordinatorHarness) -> tuple[int, ...]:
    return harness.states.runtime.volumes[harness.row.home_store_key or ""].content


def wake(harness: CoordinatorHarness) -> None:
    harness.change(desired_state=Desired.RUNNING)()


# ── the safe point of ARCHIVING ──────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "call",
    ["db.record", "jobs.start", "jobs.find", "db.pass_safe_point"],
    ids=["as it begins", "as the job starts", "while it runs", "just before the safe point"],
)
@in_virtual_time
async def test_a_wake_before_the_safe_point_keeps_the_volume(call: str) -> None:
    harness = await CoordinatorHarness.open()
    harness.states.jobs.step_seconds = 1.0
    harness.place(with_home(desired_state=Desired.ARCHIVED), volume=HOME)
    harness.network.meanwhile[call] = lambda: wake(harness)
    await harness.converge()
    assert harness.row.phase is Phase.RUNNING
    assert (harness.row.home_store_key, content(harness)) == (VOLUME, HOME)
    assert "runtime.delete_volume" not in harness.network.calls
    assert harness.states.jobs.jobs == {}


@in_virtual_time
async def test_a_finished_archive_that_yielded_is_one_more_restore_point() -> None:
    harness = await CoordinatorHarness.open()
    harness.place(with_home(desired_state=Desired.ARCHIVED), volume=HOME)
    harness.network.meanwhile["db.pass_safe_point"] = lambda: wake(harness)
    await harness.converge()
    (point,) = harness.states.database.points[WORKSPACE_ID]
    assert harness.states.archives.objects[point.key].content == HOME
    harness.states.runtime.write(WORKSPACE_ID, 4)
    await harness.commands.want(WORKSPACE_ID, Desired.ARCHIVED, PERSON)
    await harness.converge()
    assert harness.row.archive_key != point.key
    assert harness.states.archives.objects[harness.row.archive_key or ""].content == (1, 2, 3, 4)


@pytest.mark.parametrize("call", ["archives.look", "runtime.delete_volume"])
@in_virtual_time
async def test_a_wake_after_the_safe_point_comes_from_the_archive(call: str) -> None:
    """Past the safe point nothing is given back: the delete is finished, and the home restored."""
    harness = await CoordinatorHarness.open()
    harness.place(with_home(desired_state=Desired.ARCHIVED), volume=HOME)

    def passed() -> None:
        harness.network.meanwhile[call] = lambda: wake(harness)

    harness.network.meanwhile["db.pass_safe_point"] = passed
    await harness.converge()
    assert harness.row.phase is Phase.RUNNING
    assert (harness.row.home_store_key, content(harness)) == (f"{VOLUME}-2", HOME)
    assert VOLUME not in harness.states.runtime.volumes


@pytest.mark.parametrize("state", [ArchiveState.CORRUPTED, ArchiveState.NOT_FOUND])
@in_virtual_time
async def test_an_archive_lost_after_the_safe_point_keeps_the_volume(state: ArchiveState) -> None:
    harness = await CoordinatorHarness.open()
    harness.place(with_home(desired_state=Desired.ARCHIVED), volume=HOME)

    def passed() -> None:
        harness.network.meanwhile["archives.look"] = lambda: harness.lose_archive(harness.row.archive_key or "", state)

    harness.network.meanwhile["db.pass_safe_point"] = passed
    for _ in range(4):
        await asyncio.sleep(await harness.reconcile() or 1.0)
    assert harness.states.runtime.volumes[VOLUME].content == HOME
    await harness.converge()
    assert harness.row.phase is Phase.ARCHIVED
    assert harness.states.archives.objects[harness.row.archive_key or ""].content == HOME


@in_virtual_time
async def test_the_volume_is_deleted_only_after_the_archive_is_in_the_row() -> None:
    harness = await CoordinatorHarness.open()
    harness.place(with_home(desired_state=Desired.ARCHIVED), volume=HOME)
    seen: list[tuple[str | None, bool]] = []

    def look() -> None:
        seen.append((harness.row.archive_key, harness.row.home.deleting_volume))

    harness.network.meanwhile["runtime.delete_volume"] = look
    await harness.converge()
    assert seen == [(harness.row.archive_key, True)]
    assert [point.key for point in harness.states.database.points[WORKSPACE_ID]] == [harness.row.archive_key]


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
    harness = await CoordinatorHarness.open()
    harness.place(row, volume=volume, archives={KEY: HOME})
    harness.states.jobs.step_seconds = 1000.0
    await harness.dependencies.jobs.start(JobSpec(WORKSPACE_ID, OTHER_OP_ID, JobKind.ARCHIVE, VOLUME, OTHER_KEY))
    ours: list[bool] = []
    harness.network.meanwhile[effect] = lambda: ours.append(WORKSPACE_ID not in harness.states.jobs.jobs)
    await harness.reconcile(3)
    assert ours == [True]


@in_virtual_time
async def test_a_running_job_is_found_again_and_watched() -> None:
    """The next leader finds the job: it is not started twice, and its progress is what the deadline counts from."""
    harness = await CoordinatorHarness.open(Tuning(policy=Policy(deadlines={Operation.RESTORING: 8})))
    harness.states.jobs.step_seconds = 5.0
    harness.place(
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
    await harness.dependencies.jobs.start(JobSpec(WORKSPACE_ID, OP_ID, JobKind.RESTORE, VOLUME, KEY))
    await harness.converge()
    assert harness.network.calls.count("jobs.start") == 1
    assert (harness.row.phase, content(harness)) == (Phase.STANDBY, HOME)
    assert harness.row.home.marker == (KEY, OP_ID)
    assert asyncio.get_running_loop().time() >= 20


@in_virtual_time
async def test_a_failed_job_is_cleared_and_tried_afresh() -> None:
    harness = await CoordinatorHarness.open()
    harness.place(with_home(desired_state=Desired.ARCHIVED), volume=HOME)
    harness.states.jobs.failing[WORKSPACE_ID] = ErrorReason.ACTION_FAILED
    while harness.row.error_count == 0:
        await asyncio.sleep(await harness.reconcile() or 1.0)
    first = harness.row.op_id, harness.row.archive_op_id
    harness.states.jobs.failing.clear()
    await harness.converge()
    assert harness.row.phase is Phase.ARCHIVED
    assert (harness.row.op_id, harness.row.archive_op_id) == first
    assert harness.network.calls.count("jobs.start") == 2


@in_virtual_time
async def test_a_corrupted_restore_goes_to_error_at_once() -> None:
    harness = await CoordinatorHarness.open()
    harness.place(archived(desired_state=Desired.RUNNING), archives={KEY: HOME})
    harness.states.jobs.failing[WORKSPACE_ID] = ErrorReason.ARCHIVE_CORRUPTED
    await harness.converge()
    assert (harness.row.phase, harness.row.error_reason) == (Phase.ERROR, "ArchiveCorrupted")
    assert "runtime.start_container" not in harness.network.calls


# ── volumes ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@in_virtual_time
async def test_what_took_the_volume_meanwhile_is_ended_before_it_is_deleted() -> None:
    harness = await CoordinatorHarness.open()
    harness.place(with_home(desired_state=Desired.ARCHIVED), volume=HOME)

    def somebody_starts_it() -> None:
        harness.states.runtime.containers[WORKSPACE_ID] = Container("by hand", VOLUME)

    harness.network.meanwhile["runtime.delete_volume"] = somebody_starts_it
    await harness.converge()
    assert (harness.row.phase, harness.row.error_count) == (Phase.ARCHIVED, 0)
    assert harness.states.runtime.volumes == {}
    assert harness.states.runtime.containers == {}


@pytest.mark.parametrize("running", [True, False], ids=["runs", "has ended"])
@pytest.mark.parametrize(
    "moment", ["jobs.find", "jobs.clear", "db.pass_safe_point", "archives.look", "runtime.delete_volume"]
)
@in_virtual_time
async def test_what_a_container_that_came_late_has_written_is_in_the_archive(moment: str, running: bool) -> None:
    """A leader that stalled before its call starts it whenever it wakes up; a program inside writes at once."""
    harness = await CoordinatorHarness.open()
    harness.place(with_home(desired_state=Desired.ARCHIVED), volume=HOME)

    def starts_late_and_writes() -> None:
        harness.states.runtime.containers[WORKSPACE_ID] = Container("late", VOLUME)
        harness.states.runtime.write(WORKSPACE_ID, 4)
        harness.states.runtime.containers[WORKSPACE_ID].running = running

    def when_archived() -> None:
        if any(archive.committed for archive in harness.states.archives.objects.values()):
            starts_late_and_writes()
        else:
            harness.network.meanwhile[moment] = when_archived

    harness.network.meanwhile[moment] = when_archived
    await harness.converge()
    assert harness.row.phase is Phase.ARCHIVED
    assert harness.states.archives.objects[harness.row.archive_key or ""].content == (*HOME, 4)
    assert harness.states.runtime.volumes == {}
    assert harness.states.runtime.containers == {}


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
    """An operator started a container with it, to look or to copy, even one that has ended."""
    harness = await CoordinatorHarness.open()
    harness.place(row, volume=HOME, archives={KEY: HOME})

    def foreign_holder() -> None:
        harness.states.runtime.volumes[VOLUME].held = True

    harness.network.meanwhile["runtime.delete_volume"] = foreign_holder
    for _ in range(200):
        await asyncio.sleep(await harness.reconcile() or 1.0)
        if harness.row.error_count > row.error_count:
            break
    assert (harness.row.error_count, harness.row.retry_at is not None) == (row.error_count + 1, True)
    assert harness.states.runtime.volumes[VOLUME].content == HOME
    harness.states.runtime.volumes[VOLUME].held = False
    await harness.converge()
    assert VOLUME not in harness.states.runtime.volumes


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
    harness = await CoordinatorHarness.open()
    harness.place(row, volume=HOME, container=kept, archives={KEY: HOME})
    await harness.converge()
    assert harness.row.phase is Phase.DELETED
    assert (VOLUME in harness.states.runtime.volumes) is kept
    assert harness.states.runtime.containers == {}
    assert KEY in harness.states.archives.objects


@in_virtual_time
async def test_a_delete_that_was_withdrawn_is_given_up() -> None:
    harness = await CoordinatorHarness.open()
    harness.place(archived(desired_state=Desired.DELETED), archives={KEY: HOME})
    harness.network.meanwhile["db.change"] = harness.change(desired_state=Desired.ARCHIVED)
    await harness.converge()
    assert (harness.row.phase, harness.row.deleted_at) == (Phase.ARCHIVED, None)
    assert "delete_withdrawn" in harness.reasons()


@in_virtual_time
async def test_every_home_is_a_new_incarnation() -> None:
    harness = await CoordinatorHarness.open()
    harness.place(workspace(desired_state=Desired.STANDBY))
    names = []
    for wish in (Desired.STANDBY, Desired.ARCHIVED, Desired.STANDBY, Desired.ARCHIVED, Desired.STANDBY):
        await harness.commands.want(WORKSPACE_ID, wish, PERSON)
        await harness.converge()
        names += [name for name in harness.states.runtime.volumes if name not in names]
    assert names == [VOLUME, f"{VOLUME}-2", f"{VOLUME}-3"]


@in_virtual_time
async def test_a_container_on_an_old_volume_is_replaced() -> None:
    harness = await CoordinatorHarness.open()
    harness.place(with_home(desired_state=Desired.RUNNING), volume=HOME)
    harness.states.runtime.containers[WORKSPACE_ID] = Container("old", "ws-old-home")
    await harness.converge()
    assert harness.row.phase is Phase.RUNNING
    assert harness.states.runtime.containers[WORKSPACE_ID].volume == VOLUME


# ── starting, discarding, empty archives ─────────────────────────────────────────────────────────────────────────────


@in_virtual_time
async def test_an_image_on_its_way_is_not_counted_against_the_deadline() -> None:
    harness = await CoordinatorHarness.open(Tuning(policy=Policy(deadlines={Operation.STARTING: 60})))
    harness.place(with_home(desired_state=Desired.RUNNING, image_ref="big"), volume=HOME)
    harness.states.runtime.pulling.add("big")
    while asyncio.get_running_loop().time() < 150:
        await asyncio.sleep(await harness.reconcile() or 1.0)
    assert (harness.row.operation, harness.row.error_count) == (Operation.STARTING, 0)
    assert harness.row.op_progress is not None
    assert "pulling" in harness.row.op_progress.step
    harness.states.runtime.pulling.clear()
    harness.states.runtime.boot_seconds = 50
    await harness.converge(rounds=600)
    assert harness.row.phase is Phase.RUNNING


@in_virtual_time
async def test_while_nothing_may_start_no_try_is_used_up_and_people_see_why() -> None:
    harness = await CoordinatorHarness.open(Tuning(policy=Policy(deadlines={Operation.STARTING: 60})))
    harness.place(with_home(desired_state=Desired.RUNNING), volume=HOME)
    harness.states.runtime.not_isolated = "the rules cannot be put up"
    while asyncio.get_running_loop().time() < 150:
        await asyncio.sleep(await harness.reconcile() or 1.0)
    assert (harness.row.operation, harness.row.error_count, harness.row.error_info) == (Operation.STARTING, 0, None)
    assert harness.row.op_progress is not None
    assert harness.row.op_progress.step == "the rules cannot be put up"
    assert harness.states.runtime.containers == {}
    harness.states.runtime.not_isolated = ""
    await harness.converge()
    assert harness.row.phase is Phase.RUNNING


@pytest.mark.parametrize("held_by", ["a registry that is away", "rules that are not up"])
@pytest.mark.parametrize("wish", [Desired.STANDBY, Desired.ARCHIVED, Desired.DELETED])
@in_virtual_time
async def test_who_no_longer_wants_it_need_not_wait_for_what_holds_it_up(held_by: str, wish: Desired) -> None:
    harness = await CoordinatorHarness.open()
    harness.place(with_home(desired_state=Desired.RUNNING, image_ref="big"), volume=HOME)
    if held_by == "a registry that is away":
        harness.states.runtime.pulling.add("big")
    else:
        harness.states.runtime.not_isolated = held_by
    await harness.reconcile()
    assert harness.row.operation is Operation.STARTING
    harness.change(desired_state=wish)()
    await harness.converge()
    assert harness.row.phase.value == wish.value


@pytest.mark.parametrize("long_work", ["pull", "archive"])
@in_virtual_time
async def test_long_work_is_looked_at_now_and_then(long_work: str) -> None:
    """Every look is a call to the engine, and every progress a write and a notice to browsers, so there are few."""
    harness = await CoordinatorHarness.open()
    harness.states.jobs.steps, harness.states.jobs.step_seconds = 3000, 0.03
    harness.states.runtime.pulling.add("big")
    wish = Desired.RUNNING if long_work == "pull" else Desired.ARCHIVED
    harness.place(with_home(desired_state=wish, image_ref="big"), volume=HOME)
    await harness.reconcile()
    harness.network.calls.clear()
    while asyncio.get_running_loop().time() < 30:
        await asyncio.sleep(await harness.reconcile() or 1.0)
    assert harness.row.op_progress is not None
    assert harness.network.calls.count("jobs.find") <= 4 * 30
    assert harness.network.calls.count("db.record") <= 4 * 30


@in_virtual_time
async def test_an_image_that_is_not_to_be_had_goes_to_error_at_once() -> None:
    harness = await CoordinatorHarness.open()
    harness.place(with_home(desired_state=Desired.RUNNING, image_ref="typo"), volume=HOME)
    harness.states.runtime.bad_images.add("typo")
    await harness.converge()
    assert (harness.row.phase, harness.row.error_reason) == (Phase.ERROR, "ImagePullFailed")
    assert harness.network.calls.count("runtime.start_container") == 1


@in_virtual_time
async def test_starting_forgets_the_archives_id() -> None:
    harness = await CoordinatorHarness.open()
    harness.place(with_home(desired_state=Desired.RUNNING, archive_op_id=OTHER_OP_ID), volume=HOME)
    await harness.reconcile()
    assert (harness.row.operation, harness.row.archive_op_id) == (Operation.STARTING, None)


@pytest.mark.parametrize("call", ["db.release_restore_points", "db.record"])
@in_virtual_time
async def test_discarding_releases_the_points_and_keeps_the_bytes(call: str) -> None:
    harness = await CoordinatorHarness.open()
    discarding = busy(archived(desired_state=Desired.PENDING), Operation.DISCARDING)
    harness.place(discarding, archives={KEY: HOME, OTHER_KEY: (1,)})
    harness.network.faults[call] = ANSWER_LOST
    with contextlib.suppress(Unreachable):
        await harness.reconcile()
    harness.network.faults.clear()
    await asyncio.sleep(2)
    await harness.converge()
    assert (harness.row.phase, harness.row.archive_key) == (Phase.PENDING, None)
    points = harness.states.database.points[WORKSPACE_ID]
    assert all(point.released_at is not None for point in points)
    assert set(harness.states.archives.objects) == {KEY, OTHER_KEY}


@in_virtual_time
async def test_an_empty_archive_is_made_once_under_one_id() -> None:
    harness = await CoordinatorHarness.open()
    harness.place(workspace(desired_state=Desired.ARCHIVED))
    harness.network.faults["archives.create_empty"] = ANSWER_LOST
    await harness.reconcile()
    assert (harness.row.error_count, harness.row.error_reason) == (0, "Unreachable")
    harness.network.faults.clear()
    await harness.converge()
    assert harness.row.phase is Phase.ARCHIVED
    assert list(harness.states.archives.objects) == [harness.row.archive_key]
    assert len(harness.states.database.points[WORKSPACE_ID]) == 1


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
    harness = await CoordinatorHarness.open()
    harness.place(row, volume=HOME, container=True, archives={KEY: HOME})
    await harness.reconcile(4)
    assert harness.network.calls.index("runtime.remove_container") < harness.network.calls.index(expected)


@in_virtual_time
async def test_a_late_try_of_an_ended_operation_is_dropped() -> None:
    harness = await CoordinatorHarness.open()
    harness.place(
        busy(with_home(desired_state=Desired.ARCHIVED, archive_op_id=OP_ID), Operation.ARCHIVING), volume=HOME
    )
    harness.network.faults["jobs.start"] = FAILS
    harness.network.meanwhile["jobs.start"] = harness.change(
        op_id=UUID(int=9), op_started_at=NOW + timedelta(seconds=1)
    )
    with pytest.raises(Stale):
        await harness.reconcile()
    assert harness.row.error_count == 0
