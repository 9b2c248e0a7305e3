"""The collector: what it finds and why, and that it sweeps only what was garbage all the time and still is."""

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from codehub.adapters.memory.runtime import Container, Volume
from codehub.coordinator.gc_runner import CollectionReport
from codehub.domain import naming
from codehub.domain.errors import Conflict, Stale, Unreachable
from codehub.domain.gc_rules import ResourceKind
from codehub.domain.gc_safety import GcLimits
from codehub.domain.judge import ArchiveState
from codehub.domain.workspace import Desired, HomeContext, Operation, Phase, Workspace
from codehub.ports.archives import StoredObject
from tests.coordinator.collection import (
    GRACE,
    NOBODY,
    OLD,
    OLDER,
    OLDEST,
    STRAY,
    TUNING,
    all_volumes,
    collect,
    collector,
    scan,
    stray,
)
from tests.coordinator.harness import ANSWER_LOST, FAILS, PERSON, CoordinatorHarness, began, in_virtual_time, now
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


def deleted(ago: timedelta, **changes: Any) -> Workspace:
    return archived(desired_state=Desired.DELETED, phase=Phase.DELETED, deleted_at=NOW - ago, **changes)


def names(report: CollectionReport, kind: str) -> set[str]:
    return {candidate.resource.name for candidate in report.candidates if candidate.resource.kind == kind}


def purged(harness: CoordinatorHarness, workspace_id: UUID = NOBODY) -> None:
    """Add the row of a purged workspace, which stays for ever and protects nothing."""
    row = workspace(id=workspace_id, slug="gone", name="gone", phase=Phase.DELETED, desired_state=Desired.DELETED)
    harness.states.database.rows[workspace_id] = replace(row, deleted_at=NOW, purged_at=NOW)


ARCHIVES: dict[str, tuple[Workspace, list[str], set[str]]] = {
    "the one in use, and the newest three": (archived(), [KEY, OTHER_KEY, OLD, OLDER, OLDEST], {OLDER, OLDEST}),
    "the one in use, however old": (archived(archive_key=OLDEST), [KEY, OTHER_KEY, OLD, OLDER, OLDEST], {OLDER}),
    "one that nobody recorded": (archived(), [KEY, STRAY], {STRAY}),
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
    harness = await CoordinatorHarness.open(TUNING)
    harness.place(row)
    for age, key in enumerate(objects):
        if key == STRAY:
            stray(harness)
        else:
            harness.keep(WORKSPACE_ID, key, (1,), age=float(age))
    report = await scan(harness)
    assert names(report, "object") == could_go
    assert (report.existing[ResourceKind.OBJECT], report.refusals) == (len(objects), ())
    assert set(harness.states.archives.objects) == set(objects)


VOLUMES: dict[str, tuple[Workspace, bool]] = {
    "the live home": (with_home(), False),
    "one an operation may use": (busy(with_home(home=HomeContext(incarnation=1)), Operation.PROVISIONING), False),
    "in ERROR": (broken(workspace(home_store_key=VOLUME)), False),
    "kept by a delete, inside the undo window": (
        deleted(timedelta(hours=1), home_store_key=VOLUME, home=HomeContext(incarnation=1, live=True)),
        False,
    ),
    "kept by a delete, after it": (
        deleted(timedelta(hours=3), home_store_key=VOLUME, home=HomeContext(incarnation=1, live=True)),
        True,
    ),
    "an old incarnation": (
        with_home(home_store_key=naming.volume_name(WORKSPACE_ID, 2), home=HomeContext(incarnation=2, live=True)),
        True,
    ),
    "a purged workspace's": (deleted(timedelta(hours=9), purged_at=NOW), True),
}


@pytest.mark.parametrize(("row", "could_go"), VOLUMES.values(), ids=VOLUMES.keys())
@in_virtual_time
async def test_which_volumes_could_go(row: Workspace, could_go: bool) -> None:
    harness = await CoordinatorHarness.open(TUNING)
    harness.place(row)
    harness.states.runtime.volumes[VOLUME] = Volume(WORKSPACE_ID)
    report = await scan(harness)
    assert names(report, "volume") == ({VOLUME} if could_go else set())
    assert report.existing[ResourceKind.VOLUME] == 1
    assert all(candidate.why for candidate in report.candidates)
    assert VOLUME in harness.states.runtime.volumes


@in_virtual_time
async def test_the_outside_is_listed_before_the_database_is_read() -> None:
    """What is made between the two is then known to the database, and kept."""
    harness = await CoordinatorHarness.open(TUNING)
    harness.place(with_home(), volume=(1,))
    harness.network.meanwhile["db.collector"] = lambda: harness.keep(WORKSPACE_ID, KEY, (1,))
    report = await scan(harness)
    assert report.candidates == ()
    assert harness.network.calls[-1] == "db.collector"


@in_virtual_time
async def test_a_stranger_s_object_is_neither_counted_nor_touched() -> None:
    harness = await CoordinatorHarness.open(TUNING)
    harness.place(archived(), archives={KEY: (1,)})
    for name in ("notes.txt", f"backup/{STRAY}", f"{NOBODY}/{OP_ID}/other.tar"):
        stray(harness, name)
    report = await collect(harness)
    assert (report.unrecognised, report.existing[ResourceKind.OBJECT], report.candidates) == (6, 1, ())
    assert len(harness.states.archives.objects) == 4


# ── mark, grace, sweep ───────────────────────────────────────────────────────────────────────────────────────────────


@in_virtual_time
async def test_nothing_goes_before_it_was_garbage_for_the_whole_grace() -> None:
    harness = await CoordinatorHarness.open(TUNING)
    harness.place(archived(), archives={KEY: (1,)})
    stray(harness)
    first = await collector(harness).run()
    [candidate] = first.candidates
    assert (first.swept, candidate.marked_at, candidate.may_go_at) == ((), now(), now() + timedelta(seconds=GRACE))
    await asyncio.sleep(GRACE - 1)
    assert (await collector(harness).run()).swept == ()
    await asyncio.sleep(1)
    assert [c.resource.name for c in (await collector(harness).run()).swept] == [STRAY]
    assert set(harness.states.archives.objects) == {KEY}
    assert (await collector(harness).run()).candidates == ()
    assert harness.states.database.collector.marks == {}


@in_virtual_time
async def test_a_mark_that_is_interrupted_begins_anew() -> None:
    harness = await CoordinatorHarness.open(TUNING)
    harness.place(archived(), archives={KEY: (1,), OTHER_KEY: (2,)})
    harness.states.database.points[WORKSPACE_ID].clear()
    harness.states.database.ledger.append(began(OTHER_KEY))
    await collector(harness).run()
    await asyncio.sleep(GRACE - 10)
    harness.change(restore_from=OTHER_KEY, restore_requested_at=now())()
    assert (await collector(harness).run()).candidates == ()
    harness.change(restore_handled_at=now())()
    await collector(harness).run()
    await asyncio.sleep(20)
    assert (await collector(harness).run()).swept == ()
    await asyncio.sleep(GRACE)
    assert [c.resource.name for c in (await collector(harness).run()).swept] == [OTHER_KEY]


@in_virtual_time
async def test_what_is_still_written_to_is_waited_for() -> None:
    harness = await CoordinatorHarness.open(TUNING)
    harness.place(archived(), archives={KEY: (1,)})
    stray(harness)
    await collector(harness).run()
    await asyncio.sleep(GRACE - 10)
    harness.change(restore_from=KEY, restore_requested_at=now())()
    stray(harness)
    await asyncio.sleep(20)
    assert (await collector(harness).run()).swept == ()
    await asyncio.sleep(GRACE)
    assert len((await collector(harness).run()).swept) == 1


@in_virtual_time
async def test_a_new_leader_goes_on_with_the_marks_of_the_old_one() -> None:
    harness = await CoordinatorHarness.open(TUNING)
    harness.place(archived(), archives={KEY: (1,)})
    stray(harness)
    await collector(harness).run()
    await harness.term.resign()
    await asyncio.sleep(GRACE)
    successor = CoordinatorHarness(TUNING, harness.states)
    await successor.become_leader()
    with pytest.raises(Stale):
        await collector(harness).run()
    assert STRAY in harness.states.archives.objects
    assert len((await collector(successor).run()).swept) == 1


@pytest.mark.parametrize("moment", ["db.remark", "db.give_up"])
@in_virtual_time
async def test_an_old_leader_sweeps_nothing(moment: str) -> None:
    """The term ends at the worst moment: everything was looked at, and nothing is written yet."""
    harness = await CoordinatorHarness.open(TUNING)
    harness.place(archived(), archives={KEY: (1,)})
    stray(harness)
    await collector(harness).run()
    await asyncio.sleep(GRACE)
    leadership = harness.states.database.leadership

    def deposed() -> None:
        leadership.free(leadership.epoch)
        leadership.take("rival", now())

    harness.network.meanwhile[moment] = deposed
    if moment == "db.remark":
        with pytest.raises(Unreachable):
            await collector(harness).run()
    else:
        assert (await collector(harness).run()).swept == ()
    assert STRAY in harness.states.archives.objects
    with pytest.raises(Stale):
        await collector(harness).run()


@in_virtual_time
async def test_nothing_is_deleted_by_a_leader_that_cannot_know_it_leads() -> None:
    harness = await CoordinatorHarness.open(TUNING)
    harness.place(archived(), archives={KEY: (1,)})
    stray(harness)
    await collector(harness).run()
    await asyncio.sleep(GRACE)
    harness.network.meanwhile["db.give_up"] = harness.term._over.set  # type: ignore[attr-defined]
    with pytest.raises(Stale, match="nothing is touched"):
        await collector(harness).run()
    assert STRAY in harness.states.archives.objects
    assert "archives.delete" not in harness.network.calls


@in_virtual_time
async def test_no_worker_acts_on_the_workspace_meanwhile() -> None:
    harness = await CoordinatorHarness.open(TUNING)
    harness.place(archived(), archives={KEY: (1,)})
    stray(harness, OTHER_KEY)
    await collector(harness).run()
    await asyncio.sleep(GRACE)
    harness.queue.add(WORKSPACE_ID)
    assert await harness.queue.get() == WORKSPACE_ID
    sweeping = asyncio.create_task(collector(harness).run())
    await asyncio.sleep(5)
    assert (sweeping.done(), OTHER_KEY in harness.states.archives.objects) == (False, True)
    harness.queue.done(WORKSPACE_ID)
    assert len((await sweeping).swept) == 1


# ── what goes ────────────────────────────────────────────────────────────────────────────────────────────────────────


@in_virtual_time
async def test_a_swept_restore_point_cannot_be_chosen_any_more() -> None:
    harness = await CoordinatorHarness.open(TUNING)
    harness.place(archived())
    for age, key in enumerate((KEY, OTHER_KEY, OLD, OLDER, OLDEST)):
        harness.keep(WORKSPACE_ID, key, (1,), age=float(age))
    report = await collect(harness)
    assert {c.resource.name for c in report.swept} == {OLDER, OLDEST}
    assert [p.key for p in harness.states.database.points[WORKSPACE_ID]] == [KEY, OTHER_KEY, OLD]


@in_virtual_time
async def test_what_uploads_leave_in_a_directory_goes() -> None:
    """What is beside a proven archive goes at once; the upload that is being written is not touched."""
    harness = await CoordinatorHarness.open(TUNING)
    harness.place(archived(archive_op_id=UUID(int=3)), archives={KEY: (1,)})
    for key in (f"{KEY}#1", f"{KEY}.meta#2", f"{OLDEST}#1", f"{STRAY}#1"):
        harness.states.archives.unfinished[key] = StoredObject(key, 5, now())
        harness.states.database.ledger.append(began(key))
    report = await collect(harness)
    assert {c.resource.name for c in report.swept} == {f"{KEY}#1", f"{KEY}.meta#2", f"{STRAY}#1"}
    assert set(harness.states.archives.unfinished) == {f"{OLDEST}#1"}
    assert set(harness.states.archives.objects) == {KEY}


@in_virtual_time
async def test_the_container_goes_before_the_volume() -> None:
    harness = await CoordinatorHarness.open(TUNING)
    harness.place(archived(), archives={KEY: (1,)})
    purged(harness)
    volume = naming.volume_name(NOBODY, 1)
    harness.states.runtime.volumes[volume] = Volume(NOBODY)
    harness.states.runtime.containers[NOBODY] = Container("c1", volume)
    stray(harness, naming.archive_key("", NOBODY, OP_ID))
    report = await collect(harness)
    assert [c.resource.kind for c in report.swept] == ["container", "volume", "object"]
    assert (harness.states.runtime.containers, harness.states.runtime.volumes) == ({}, {})


@in_virtual_time
async def test_a_volume_in_use_stays() -> None:
    """Whoever uses the volume has not been garbage for long enough, or is no garbage."""
    harness = await CoordinatorHarness.open(TUNING)
    second = HomeContext(incarnation=2, live=True)
    harness.place(with_home(home_store_key=naming.volume_name(WORKSPACE_ID, 2), home=second), volume=(1,))
    harness.states.runtime.volumes[VOLUME] = Volume(WORKSPACE_ID)
    harness.states.runtime.containers[WORKSPACE_ID] = Container("c1", VOLUME)
    report = await collect(harness)
    assert (report.swept, dict(report.left)) == ((), {VOLUME: "in use"})
    assert VOLUME in harness.states.runtime.volumes


@pytest.mark.parametrize(("state", "swept"), [(ArchiveState.READABLE, 1), (ArchiveState.CORRUPTED, 0)])
@in_virtual_time
async def test_a_volume_past_the_safe_point_goes_only_if_its_archive_can_be_read(
    state: ArchiveState, swept: int
) -> None:
    harness = await CoordinatorHarness.open(TUNING)
    leaving = HomeContext(incarnation=1, deleting_volume=True)
    harness.place(archived(home_store_key=VOLUME, home=leaving), volume=(1,), archives={KEY: (1,)})
    harness.lose_archive(KEY, state)
    report = await collect(harness)
    assert len(report.swept) == swept
    assert (VOLUME in harness.states.runtime.volumes) is not bool(swept)


@in_virtual_time
async def test_no_more_than_the_cap_goes_in_one_run_and_the_rest_in_the_next() -> None:
    harness = await CoordinatorHarness.open(replace(TUNING, gc_limits=GcLimits(per_run=2)))
    harness.place(archived(), archives={KEY: (1,)})
    for number in range(3):
        stray(harness, naming.archive_key("", WORKSPACE_ID, UUID(int=number)))
    first = await collect(harness)
    assert (len(first.swept), first.cap_reached) == (2, True)
    second = await collector(harness).run()
    assert (len(second.swept), second.cap_reached) == (1, False)


# ── judged again right before it goes ────────────────────────────────────────────────────────────────────────────────

AGAIN: dict[str, Callable[[CoordinatorHarness], object]] = {
    "chosen to be restored": lambda harness: harness.change(restore_from=OLDEST, restore_requested_at=now())(),
    "pointed at": lambda harness: harness.change(archive_key=OLDEST)(),
    "in ERROR": lambda harness: harness.states.database.put(harness.row, broken(harness.row), "somebody", "meanwhile"),
}


@pytest.mark.parametrize("meanwhile", AGAIN.values(), ids=AGAIN.keys())
@in_virtual_time
async def test_what_is_protected_since_the_look_stays(meanwhile: Callable[[CoordinatorHarness], object]) -> None:
    harness = await CoordinatorHarness.open(TUNING)
    harness.place(archived())
    for age, key in enumerate((KEY, OTHER_KEY, OLD, OLDEST)):
        harness.keep(WORKSPACE_ID, key, (1,), age=float(age))
    await collector(harness).run()
    await asyncio.sleep(GRACE)
    harness.network.meanwhile["db.give_up"] = lambda: meanwhile(harness)
    report = await collector(harness).run()
    assert (report.swept, dict(report.left)) == ((), {OLDEST: "protected again"})
    assert OLDEST in harness.states.archives.objects
    assert len(harness.states.database.points[WORKSPACE_ID]) == 4


def drop(harness: CoordinatorHarness) -> None:
    home = HomeContext(incarnation=1, live=True)
    harness.place(deleted(timedelta(hours=3), home_store_key=VOLUME, home=home), volume=(1,), archives={KEY: (1,)})


@in_virtual_time
async def test_a_deleted_workspace_is_purged_before_its_first_copy_goes() -> None:
    harness = await CoordinatorHarness.open(TUNING)
    drop(harness)
    await collector(harness).run()
    await asyncio.sleep(GRACE)
    harness.network.calls.clear()
    report = await collector(harness).run()
    assert {c.resource.name for c in report.swept} == {KEY, VOLUME}
    assert harness.network.calls.index("db.change") < min(map(harness.network.calls.index, harness.effects()))
    assert harness.row.purged_at == now()
    assert [entry.kind for entry in harness.states.database.ledger][-1] == "purged"
    with pytest.raises(Conflict, match="purged") as refused:
        await harness.commands.undelete(WORKSPACE_ID, PERSON)
    assert refused.value.code == "purged"


@in_virtual_time
async def test_an_undelete_that_comes_first_wins() -> None:
    harness = await CoordinatorHarness.open(TUNING)
    drop(harness)
    await collector(harness).run()
    await asyncio.sleep(GRACE)
    harness.network.meanwhile["db.change"] = harness.change(undelete_requested_at=now())
    report = await collector(harness).run()
    assert (report.swept, set(report.left.values())) == ((), {"wanted back"})
    assert (KEY in harness.states.archives.objects, VOLUME in harness.states.runtime.volumes) == (True, True)
    await harness.converge()
    assert (harness.row.deleted_at, harness.row.purged_at) == (None, None)
    assert (await collector(harness).run()).candidates == ()


@in_virtual_time
async def test_an_undelete_that_comes_later_is_refused_however_little_is_gone() -> None:
    harness = await CoordinatorHarness.open(TUNING)
    drop(harness)
    await collector(harness).run()
    await asyncio.sleep(GRACE)
    harness.network.faults["runtime.delete_volume"] = FAILS
    report = await collector(harness).run()
    assert report.swept == ()
    assert "backend-silent" in report.left
    with pytest.raises(Conflict, match="purged"):
        await harness.commands.undelete(WORKSPACE_ID, PERSON)
    harness.network.faults.clear()
    await asyncio.sleep(60)
    await collect(harness)
    assert (harness.states.archives.objects, harness.states.runtime.volumes) == ({}, {})


@in_virtual_time
async def test_an_upload_that_was_under_way_at_the_delete_is_never_taken_up_again() -> None:
    """The upload is not protected, so its name must not be used again after an undelete: a late delete would hit it."""
    harness = await CoordinatorHarness.open(TUNING)
    home = HomeContext(incarnation=1, live=True)
    harness.place(
        deleted(timedelta(hours=1), archive_key=None, archive_op_id=OP_ID, home_store_key=VOLUME, home=home),
        volume=(1,),
    )
    stray(harness, KEY)
    assert names(await scan(harness), "object") == {KEY}
    await harness.commands.undelete(WORKSPACE_ID, PERSON)
    await harness.converge()
    assert (harness.row.deleted_at, harness.row.archive_op_id) == (None, None)


# ── what does not answer ─────────────────────────────────────────────────────────────────────────────────────────────

LOOKS = ("runtime.identity", "archives.owner", "archives.objects", "runtime.volumes", "runtime.containers")


@pytest.mark.parametrize("call", LOOKS)
@in_virtual_time
async def test_a_backend_that_does_not_answer_sweeps_and_marks_nothing(call: str) -> None:
    harness = await CoordinatorHarness.open(TUNING)
    harness.place(archived(), archives={KEY: (1,)})
    stray(harness)
    await collector(harness).run()
    marks = dict(harness.states.database.collector.marks)
    await asyncio.sleep(GRACE)
    harness.network.faults[call] = FAILS
    for _ in range(2):
        with pytest.raises(Unreachable):
            await collector(harness).run()
    assert (set(harness.states.archives.objects), harness.states.database.collector.marks) == ({KEY, STRAY}, marks)
    assert [details["reason"] for _, details in harness.notifier.notices] == ["backend-silent"]
    assert harness.metrics.registry.get_sample_value("codehub_gc_runs_total", {"outcome": "unreachable"}) == 2
    harness.network.faults.clear()
    assert len((await collector(harness).run()).swept) == 1


WRITES = (
    "db.remark",
    "db.change",
    "db.give_up",
    "runtime.remove_container",
    "runtime.delete_volume",
    "archives.delete",
)


@pytest.mark.parametrize("fault", [FAILS, ANSWER_LOST], ids=["fails", "answer lost"])
@pytest.mark.parametrize("call", [*LOOKS, "db.collector", *WRITES])
@in_virtual_time
async def test_whatever_goes_wrong_at_any_call_only_garbage_goes_and_all_of_it_in_the_end(
    call: str, fault: Any
) -> None:
    harness = await CoordinatorHarness.open(TUNING)
    mine = archived(id=UUID(int=5), slug="mine", name="mine", archive_key=naming.archive_key("", UUID(int=5), OP_ID))
    harness.place(mine, archives={str(mine.archive_key): (5,)})
    drop(harness)
    harness.states.runtime.containers[WORKSPACE_ID] = Container("c1", VOLUME)
    stray(harness)
    await collector(harness).run()
    await asyncio.sleep(GRACE)
    harness.network.faults[call] = fault
    with contextlib.suppress(Unreachable):
        await collector(harness).run()
    harness.network.faults.clear()
    for _ in range(3):
        await asyncio.sleep(GRACE)
        await collector(harness).run()
    assert set(harness.states.archives.objects) == {mine.archive_key}
    assert (harness.states.runtime.volumes, harness.states.runtime.containers) == ({}, {})
    assert harness.states.database.collector.marks == {}


# ── on request ───────────────────────────────────────────────────────────────────────────────────────────────────────


@in_virtual_time
async def test_an_admin_s_request_is_done_by_the_leader_and_answered() -> None:
    harness = await CoordinatorHarness.open(TUNING)
    all_volumes(harness)
    await collector(harness).run()
    await asyncio.sleep(GRACE)
    view = harness.dependencies.collector
    assert await collector(harness).serve_request() is None
    timid, bold = await view.ask("admin", []), await view.ask("admin", ["too-many"])
    await collector(harness).serve_request()
    answer = await view.request(timid)
    assert answer is not None
    assert answer.report is not None
    assert [refusal["check"] for refusal in answer.report["refusals"]] == ["too-many"]
    await collector(harness).serve_request()
    answer = await view.request(bold)
    assert answer is not None
    assert answer.report is not None
    assert len(answer.report["swept"]) == 11
    assert await collector(harness).serve_request() is None


@in_virtual_time
async def test_a_request_that_fails_is_answered_too() -> None:
    harness = await CoordinatorHarness.open(TUNING)
    request = await harness.dependencies.collector.ask("admin", [])
    harness.network.faults["archives.objects"] = FAILS
    with pytest.raises(Unreachable):
        await collector(harness).serve_request()
    answer = await harness.dependencies.collector.request(request)
    assert answer is not None
    assert "connection refused" in (answer.report or {})["error"]


@in_virtual_time
async def test_a_term_serves_requests_and_runs_by_the_clock() -> None:
    harness = await CoordinatorHarness.open(TUNING)
    harness.place(archived(), archives={KEY: (1,)})
    stray(harness)
    request = await harness.dependencies.collector.ask("admin", [])
    ticking = asyncio.create_task(harness.term_runner._gc_ticks())
    await asyncio.sleep(6)
    answer = await harness.dependencies.collector.request(request)
    assert answer is not None
    assert answer.report is not None
    harness.network.faults["archives.objects"] = FAILS
    await asyncio.sleep(51)
    harness.network.faults.clear()
    assert STRAY in harness.states.archives.objects
    await asyncio.sleep(GRACE + 60)
    ticking.cancel()
    assert set(harness.states.archives.objects) == {KEY}


@in_virtual_time
async def test_it_runs_where_no_term_lasts_as_long_as_its_interval() -> None:
    """Marks outlive their leader, so many short terms do together what one long term does."""
    harness = await CoordinatorHarness.open(TUNING)
    harness.place(archived(), archives={KEY: (1,)})
    stray(harness)
    for _ in range(5):
        ticking = asyncio.create_task(harness.term_runner._gc_ticks())
        await asyncio.sleep(TUNING.gc_interval - 5)
        ticking.cancel()
        await asyncio.gather(ticking, return_exceptions=True)
        await harness.term.resign()
        await harness.become_leader()
    assert set(harness.states.archives.objects) == {KEY}


@in_virtual_time
async def test_a_new_term_has_a_few_minutes_of_peace_and_a_crash_does_not_begin_it_anew() -> None:
    harness = await CoordinatorHarness.open(replace(TUNING, gc_interval=14400))
    harness.place(archived(), archives={KEY: (1,)})
    for seconds, runs in ((290, 0), (20, 1), (14000, 1), (380, 1), (30, 2)):
        ticking = asyncio.create_task(harness.term_runner._gc_ticks())
        await asyncio.sleep(seconds)
        ticking.cancel()
        await asyncio.gather(ticking, return_exceptions=True)
        assert harness.network.calls.count("archives.objects") == runs
