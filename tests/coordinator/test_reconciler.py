"""Reconcile, decision by decision: what is recorded, why, and when it is looked at again."""

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any

import pytest

from codehub.domain.errors import BackendError, ErrorReason, Stale, Unreachable
from codehub.domain.judge import ArchiveState
from codehub.domain.workspace import Desired, Operation, Phase, RecoverAction, Workspace
from tests.coordinator.harness import FAILS, PERSON, REFUSES, CoordinatorHarness, in_virtual_time
from tests.rows import (
    KEY,
    NOW,
    OTHER_KEY,
    VOLUME,
    WORKSPACE_ID,
    archived,
    broken,
    busy,
    error_info,
    with_home,
    workspace,
)

HOME = (1, 2, 3)


@dataclass
class Case:
    """A row and its backends; then `happens`; then one reconcile, and these fields of the row and this reason."""

    row: Workspace
    then: dict[str, Any]
    reason: str | None = None
    volume: tuple[int, ...] | None = None
    container: bool = False
    archives: dict[str, tuple[int, ...]] = field(default_factory=dict)
    happens: Callable[[CoordinatorHarness], object] = lambda _harness: None
    again: bool = True


def running(**changes: Any) -> Workspace:
    wanted: dict[str, Any] = {"phase": Phase.RUNNING, "desired_state": Desired.RUNNING}
    return with_home(**(wanted | changes))


def asked(row: Workspace, action: RecoverAction) -> Workspace:
    return replace(row, recover_action=action, recover_requested_at=NOW)


def restoring(row: Workspace, key: str) -> Workspace:
    return replace(row, restore_from=key, restore_requested_at=NOW)


def kill_container(harness: CoordinatorHarness) -> None:
    harness.states.runtime.kill(WORKSPACE_ID)


def silence_runtime(harness: CoordinatorHarness) -> None:
    harness.network.faults["runtime"] = FAILS


CASES = {
    "settled": Case(with_home(desired_state=Desired.STANDBY), {"operation": "NONE"}, volume=HOME, again=False),
    "begin": Case(with_home(desired_state=Desired.RUNNING), {"operation": "STARTING"}, "planned", volume=HOME),
    "begin waits for the runtime": Case(
        with_home(desired_state=Desired.RUNNING),
        {"operation": "NONE", "phase": "STANDBY"},
        volume=HOME,
        happens=silence_runtime,
        again=False,
    ),
    "begin waits for the object store": Case(
        archived(desired_state=Desired.RUNNING),
        {"operation": "NONE", "phase": "ARCHIVED"},
        archives={KEY: HOME},
        happens=lambda harness: harness.network.faults.update(archives=FAILS),
        again=False,
    ),
    "continue": Case(
        busy(with_home(desired_state=Desired.RUNNING), Operation.STARTING), {"operation": "STARTING"}, volume=HOME
    ),
    "complete": Case(
        busy(with_home(desired_state=Desired.RUNNING), Operation.STARTING),
        {"operation": "NONE", "phase": "RUNNING"},
        "observed",
        volume=HOME,
        container=True,
    ),
    "timed out": Case(
        busy(with_home(desired_state=Desired.RUNNING), Operation.STARTING, op_started_at=NOW - timedelta(hours=1)),
        {"operation": "NONE", "phase": "ERROR", "error_reason": "Timeout"},
        "timeout",
        volume=HOME,
    ),
    "the next try is not due": Case(
        busy(with_home(desired_state=Desired.RUNNING), Operation.STARTING, retry_at=NOW + timedelta(seconds=9)),
        {"operation": "STARTING"},
        volume=HOME,
    ),
    "the wish changed between tries": Case(
        busy(with_home(desired_state=Desired.STANDBY), Operation.STARTING, retry_at=NOW + timedelta(seconds=9)),
        {"operation": "NONE"},
        "desired_state_changed",
        volume=HOME,
    ),
    "relapse": Case(
        running(phase_changed_at=NOW - timedelta(seconds=5)),
        {"phase": "STANDBY", "error_count": 1, "error_reason": "ActionFailed"},
        "relapsed",
        volume=HOME,
        container=True,
        happens=kill_container,
    ),
    "a late death is no relapse": Case(
        running(),
        {"phase": "STANDBY", "operation": "STARTING", "error_count": 0},
        "planned",
        volume=HOME,
        container=True,
        happens=kill_container,
    ),
    "forgive": Case(
        running(error_count=2, error_info=error_info(), error_reason=ErrorReason.ACTION_FAILED),
        {"error_count": 0, "error_info": None, "error_reason": None},
        volume=HOME,
        container=True,
    ),
    "DataLost": Case(
        with_home(desired_state=Desired.STANDBY),
        {"phase": "ERROR", "error_reason": "DataLost", "operation": "NONE"},
        volume=HOME,
        happens=lambda harness: harness.states.runtime.volumes.clear(),
        again=False,
    ),
    "ContainerWithoutVolume": Case(
        running(),
        {"phase": "ERROR", "error_reason": "ContainerWithoutVolume"},
        volume=HOME,
        container=True,
        happens=lambda harness: harness.states.runtime.volumes.clear(),
        again=False,
    ),
    "ArchiveAccessError": Case(
        archived(desired_state=Desired.ARCHIVED),
        {"phase": "ERROR", "error_reason": "ArchiveAccessError"},
        archives={KEY: HOME},
        happens=lambda harness: harness.lose_archive(KEY, ArchiveState.EXPIRED),
        again=False,
    ),
    "repoint to the newest readable": Case(
        with_home(desired_state=Desired.STANDBY, archive_key=KEY),
        {"phase": "STANDBY", "archive_key": OTHER_KEY},
        "archive_lost",
        volume=HOME,
        archives={KEY: HOME, OTHER_KEY: HOME},
        happens=lambda harness: harness.lose_archive(KEY),
    ),
    "repoint to none": Case(
        with_home(desired_state=Desired.STANDBY, archive_key=KEY),
        {"phase": "STANDBY", "archive_key": None},
        "archive_lost",
        volume=HOME,
        archives={KEY: HOME},
        happens=lambda harness: harness.lose_archive(KEY, ArchiveState.CORRUPTED),
    ),
    "recover: retry": Case(
        asked(broken(with_home(desired_state=Desired.STANDBY)), RecoverAction.RETRY),
        {"phase": "STANDBY", "error_info": None, "error_count": 0, "recover_handled_at": NOW},
        "recover:retry",
        volume=HOME,
    ),
    "recover: use_archive": Case(
        asked(broken(with_home(desired_state=Desired.ARCHIVED), ErrorReason.DATA_LOST), RecoverAction.USE_ARCHIVE),
        {"phase": "ARCHIVED", "archive_key": KEY, "home_store_key": None, "error_info": None},
        "recover:use_archive",
        archives={KEY: HOME},
    ),
    "recover: a chosen archive": Case(
        restoring(
            asked(broken(with_home(desired_state=Desired.ARCHIVED), ErrorReason.DATA_LOST), RecoverAction.USE_ARCHIVE),
            OTHER_KEY,
        ),
        {"phase": "ARCHIVED", "archive_key": OTHER_KEY, "restore_handled_at": NOW},
        "recover:use_archive",
        archives={KEY: HOME, OTHER_KEY: HOME},
    ),
    "recover: use_archive keeps a volume that is there": Case(
        asked(broken(with_home(desired_state=Desired.STANDBY)), RecoverAction.USE_ARCHIVE),
        {"phase": "STANDBY", "home_store_key": VOLUME},
        "recover:use_archive",
        volume=HOME,
        archives={KEY: HOME},
    ),
    "recover: forget_archive": Case(
        asked(
            broken(archived(desired_state=Desired.PENDING), ErrorReason.ARCHIVE_ACCESS_ERROR),
            RecoverAction.FORGET_ARCHIVE,
        ),
        {"phase": "PENDING", "archive_key": None, "error_info": None},
        "recover:forget_archive",
        archives={KEY: HOME},
        happens=lambda harness: harness.lose_archive(KEY),
    ),
    "recover: remove_container": Case(
        asked(
            broken(with_home(desired_state=Desired.STANDBY), ErrorReason.CONTAINER_WITHOUT_VOLUME),
            RecoverAction.REMOVE_CONTAINER,
        ),
        {"phase": "ERROR", "error_reason": "DataLost", "recover_handled_at": NOW},
        container=True,
    ),
    "recover: empty_home": Case(
        asked(broken(with_home(desired_state=Desired.PENDING), ErrorReason.DATA_LOST), RecoverAction.EMPTY_HOME),
        {"phase": "PENDING", "home_store_key": None, "archive_key": None, "error_info": None},
        "recover:empty_home",
    ),
    "recover waits for the runtime": Case(
        asked(broken(with_home(desired_state=Desired.STANDBY)), RecoverAction.RETRY),
        {"phase": "ERROR", "recover_handled_at": None},
        volume=HOME,
        happens=silence_runtime,
        again=False,
    ),
    "take a restore point": Case(
        restoring(archived(desired_state=Desired.ARCHIVED), OTHER_KEY),
        {"archive_key": OTHER_KEY, "archive_op_id": None, "restore_handled_at": NOW, "phase": "ARCHIVED"},
        "restore_point",
        archives={KEY: HOME, OTHER_KEY: HOME},
    ),
    "an unreadable restore point": Case(
        restoring(archived(desired_state=Desired.ARCHIVED), OTHER_KEY),
        {"archive_key": KEY, "restore_handled_at": NOW},
        archives={KEY: HOME, OTHER_KEY: HOME},
        happens=lambda harness: harness.lose_archive(OTHER_KEY),
    ),
    "undelete": Case(
        archived(desired_state=Desired.DELETED, phase=Phase.DELETED, deleted_at=NOW, undelete_requested_at=NOW),
        {"deleted_at": None, "desired_state": "ARCHIVED", "undelete_handled_at": NOW},
        "undelete",
        archives={KEY: HOME},
    ),
    "purged": Case(
        workspace(
            desired_state=Desired.DELETED, phase=Phase.DELETED, deleted_at=NOW, purged_at=NOW, undelete_requested_at=NOW
        ),
        {"deleted_at": NOW, "undelete_handled_at": NOW, "phase": "DELETED"},
    ),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
@in_virtual_time
async def test_each_decision_is_recorded(case: Case) -> None:
    harness = await CoordinatorHarness.open()
    harness.place(case.row, volume=case.volume, container=case.container, archives=case.archives)
    case.happens(harness)
    after = await harness.reconcile()
    assert {name: getattr(harness.row, name) for name in case.then} == case.then
    assert case.reason is None or case.reason in harness.reasons()
    assert (after is not None) is case.again


@in_virtual_time
async def test_recorded_before_acted() -> None:
    """Every effect finds its operation in the row."""
    harness = await CoordinatorHarness.open()
    harness.place(workspace(desired_state=Desired.RUNNING))
    under = []
    for effect in ("runtime.create_volume", "runtime.start_container"):
        harness.network.meanwhile[effect] = lambda: under.append(harness.row.operation)
    await harness.converge()
    assert under == [Operation.PROVISIONING, Operation.STARTING]
    assert harness.row.phase is Phase.RUNNING


@in_virtual_time
async def test_a_row_that_moved_on_is_dropped() -> None:
    harness = await CoordinatorHarness.open()
    harness.place(with_home(desired_state=Desired.RUNNING), volume=HOME)
    harness.network.meanwhile["db.record"] = harness.change(operation=Operation.ARCHIVING)
    with pytest.raises(Stale):
        await harness.reconcile()
    assert harness.effects() == []


@in_virtual_time
async def test_a_container_that_keeps_dying_ends_in_error_and_the_admins_hear_of_it_once() -> None:
    harness = await CoordinatorHarness.open()
    harness.place(with_home(desired_state=Desired.RUNNING), volume=HOME)
    while harness.row.phase is not Phase.ERROR:
        if WORKSPACE_ID in harness.states.runtime.containers and harness.row.phase is Phase.RUNNING:
            harness.states.runtime.kill(WORKSPACE_ID)
        await asyncio.sleep(await harness.reconcile() or 1.0)
    assert (harness.row.error_reason, harness.row.error_count) == ("RetryExceeded", 3)
    await harness.reconcile(3)
    assert [subject for subject, _ in harness.notifier.notices] == ["workspace in ERROR"]
    assert harness.row.conditions.healthy.status is False


@in_virtual_time
async def test_failed_tries_keep_their_operation_and_its_id_and_wait_longer_each_time() -> None:
    harness = await CoordinatorHarness.open()
    harness.place(workspace(desired_state=Desired.STANDBY))
    harness.network.faults["runtime.create_volume"] = REFUSES
    seen, waits = set(), []
    while harness.row.phase is not Phase.ERROR:
        after = await harness.reconcile() or 0.0
        if harness.row.retry_at is not None:
            seen.add((harness.row.operation, harness.row.op_id))
            waits.append(after)
        await asyncio.sleep(after)
    assert len(seen) == 1
    assert [round(wait) for wait in waits] == [1, 2]
    assert harness.row.error_reason == "RetryExceeded"
    assert harness.network.calls.count("runtime.create_volume") == 3


@in_virtual_time
async def test_waiting_behind_an_open_breaker_burns_neither_tries_nor_time() -> None:
    harness = await CoordinatorHarness.open()
    harness.place(busy(with_home(desired_state=Desired.ARCHIVED), Operation.ARCHIVING), volume=HOME)
    harness.network.faults["jobs"] = FAILS
    for _ in range(3):
        with pytest.raises(Unreachable):
            await harness.backends.job(WORKSPACE_ID)
    for _ in range(5):
        await asyncio.sleep(await harness.reconcile() or 1.0)
    assert (harness.row.operation, harness.row.error_count, harness.row.error_reason) == ("ARCHIVING", 0, "Unreachable")
    assert harness.row.op_excused_seconds == pytest.approx(asyncio.get_running_loop().time(), abs=0.5)
    assert harness.network.calls.count("jobs.find") == 3, "nobody was asked"


@in_virtual_time
async def test_a_deadline_stands_still_while_the_runtime_is_silent_and_leaders_change() -> None:
    harness = await CoordinatorHarness.open()
    harness.place(busy(with_home(desired_state=Desired.RUNNING), Operation.STARTING), volume=HOME)
    harness.network.faults["runtime"] = FAILS
    await harness.reconcile()
    for _ in range(3):
        await asyncio.sleep(400)
        await harness.term.resign()
        await harness.become_leader()
        await harness.reconcile()
    assert (harness.row.phase, harness.row.operation) == (Phase.STANDBY, Operation.STARTING)
    assert harness.row.op_excused_seconds == pytest.approx(1200)
    await harness.term.resign()
    await asyncio.sleep(400)
    await harness.become_leader()
    harness.network.faults.clear()
    await harness.reconcile()
    assert (harness.row.phase, harness.row.operation) == (Phase.STANDBY, Operation.STARTING)
    assert harness.row.op_excused_seconds == pytest.approx(1600), "what went by before it answered again counts too"


@in_virtual_time
async def test_recovering_with_a_chosen_archive_survives_an_outage_of_the_object_store() -> None:
    """The person's choice waits for the store; nobody is sent to ERROR because of it."""
    harness = await CoordinatorHarness.open()
    lost = broken(with_home(desired_state=Desired.RUNNING), ErrorReason.DATA_LOST)
    harness.place(restoring(asked(lost, RecoverAction.USE_ARCHIVE), KEY), archives={KEY: HOME})
    harness.network.faults["archives"] = FAILS
    for _ in range(20):
        with contextlib.suppress(BackendError):
            await harness.reconcile()
        await asyncio.sleep(5)
    assert (harness.row.operation, harness.row.error_reason) in (("NONE", None), ("NONE", "DataLost"))
    assert harness.row.phase is not Phase.STANDBY
    harness.network.faults.clear()
    await asyncio.sleep(10)
    await harness.converge()
    assert harness.row.phase is Phase.RUNNING
    assert harness.states.runtime.volumes[harness.row.home_store_key or ""].content == HOME


@in_virtual_time
async def test_a_silent_runtime_stops_the_deadline() -> None:
    harness = await CoordinatorHarness.open()
    harness.place(with_home(desired_state=Desired.RUNNING), volume=HOME)
    harness.states.runtime.boot_seconds = 10_000
    await harness.reconcile(2)
    silence_runtime(harness)
    for _ in range(100):
        await harness.reconcile()
        await asyncio.sleep(10)
    assert harness.row.operation is Operation.STARTING
    harness.network.faults.clear()
    while harness.row.phase is not Phase.ERROR:
        await harness.reconcile()
        await asyncio.sleep(5)
    assert harness.row.error_reason == "Timeout"
    assert asyncio.get_running_loop().time() >= 1300


@in_virtual_time
async def test_a_restore_point_first_archives_the_present_state() -> None:
    harness = await CoordinatorHarness.open()
    harness.place(running(archive_key=KEY), volume=(1, 2, 3, 4), container=True, archives={KEY: (1,)})
    await harness.commands.restore(WORKSPACE_ID, KEY, PERSON)
    await harness.converge()
    row, objects = harness.row, harness.states.archives.objects
    assert (row.phase, row.archive_key) == (Phase.RUNNING, KEY)
    assert harness.states.runtime.volumes[row.home_store_key or ""].content == (1,)
    assert [a.content for key, a in objects.items() if key != KEY] == [(1, 2, 3, 4)]
    assert {p.key for p in harness.states.database.points[WORKSPACE_ID]} == set(objects)


@in_virtual_time
async def test_what_was_discarded_comes_back_and_stays() -> None:
    """A discarded home that is wanted back is not discarded again at once; and a lost home then comes back from it."""
    harness = await CoordinatorHarness.open()
    harness.place(archived(archive_key=KEY), archives={KEY: HOME})
    await harness.commands.want(WORKSPACE_ID, Desired.PENDING, PERSON, discard_home=True)
    await harness.converge()
    assert (harness.row.phase, harness.row.archive_key) == (Phase.PENDING, None)
    await harness.commands.restore(WORKSPACE_ID, KEY, PERSON)
    await harness.converge()
    assert (harness.row.phase, harness.row.desired_state, harness.row.archive_key) == (
        Phase.ARCHIVED,
        Desired.ARCHIVED,
        KEY,
    )
    await harness.commands.want(WORKSPACE_ID, Desired.STANDBY, PERSON)
    await harness.converge()
    harness.states.runtime.volumes.clear()
    await harness.converge()
    assert harness.row.error_reason is ErrorReason.DATA_LOST
    await harness.commands.recover(WORKSPACE_ID, RecoverAction.USE_ARCHIVE, PERSON)
    await harness.converge()
    assert harness.row.phase is Phase.STANDBY
    assert harness.states.runtime.volumes[harness.row.home_store_key or ""].content == HOME


@in_virtual_time
async def test_undelete_brings_an_archived_home_back_at_rest() -> None:
    harness = await CoordinatorHarness.open()
    harness.place(running(), volume=HOME, container=True)
    await harness.commands.want(WORKSPACE_ID, Desired.DELETED, PERSON)
    await harness.converge()
    assert (harness.row.phase, harness.states.runtime.volumes) == (Phase.DELETED, {})
    await harness.commands.undelete(WORKSPACE_ID, PERSON)
    await harness.converge()
    assert (harness.row.phase, harness.row.desired_state) == (Phase.ARCHIVED, Desired.ARCHIVED)
    await harness.commands.want(WORKSPACE_ID, Desired.RUNNING, PERSON)
    await harness.converge()
    assert harness.states.runtime.volumes[harness.row.home_store_key or ""].content == HOME


@in_virtual_time
async def test_stopping_ends_the_leases() -> None:
    harness = await CoordinatorHarness.open()
    harness.place(running(desired_state=Desired.STANDBY), volume=HOME, container=True)
    await harness.dependencies.specs.hold(WORKSPACE_ID, "make train", NOW + timedelta(hours=5))
    await harness.converge()
    assert harness.row.phase is Phase.STANDBY
    assert await harness.dependencies.specs.leases() == {}


@in_virtual_time
async def test_a_repointed_home_tells_the_admins() -> None:
    harness = await CoordinatorHarness.open()
    harness.place(with_home(desired_state=Desired.STANDBY, archive_key=KEY), volume=HOME, archives={KEY: HOME})
    harness.lose_archive(KEY)
    await harness.reconcile()
    ((subject, details),) = harness.notifier.notices
    assert "archive lost" in subject
    assert details["lost"] == KEY
    assert harness.row.home == with_home().home
