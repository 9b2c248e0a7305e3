"""Three tries are for definite failures, and each operation has its own. An outage is waited for, whichever way the
backend breaks; and an archive is damaged when it was read so, not when an answer came wrong."""

import asyncio
from collections.abc import Callable
from typing import TypeVar, cast
from uuid import UUID

import pytest

from codehub.adapters.memory import Fault, FaultyNetwork
from codehub.adapters.memory.fault_injection import BREAKS, FaultKind
from codehub.coordinator.context import Tuning
from codehub.domain import naming
from codehub.domain.errors import ErrorReason
from codehub.domain.failures import Policy
from codehub.domain.workspace import Desired, Operation, Phase, RecoverAction, Workspace
from tests.coordinator.harness import PERSON, REFUSES, CoordinatorHarness, in_virtual_time
from tests.rows import KEY, OTHER_KEY, VOLUME, WORKSPACE_ID, archived, with_home, workspace

T = TypeVar("T")

HOME = (1, 2, 3)


async def turn_until(harness: CoordinatorHarness, done: Callable[[Workspace], bool], seconds: float = 600) -> None:
    end = asyncio.get_running_loop().time() + seconds
    while not done(harness.row):
        assert asyncio.get_running_loop().time() < end, f"not within {seconds} s: {harness.row}"
        await asyncio.sleep(await harness.reconcile() or 1.0)


async def fail(harness: CoordinatorHarness, call: str, operation: Operation, times: int) -> None:
    """Let that operation fail for certain so many times, and then no more."""
    harness.network.faults[call] = REFUSES
    for count in range(1, times + 1):
        await turn_until(harness, lambda row, count=count: row.operation is operation and row.error_count == count)  # type: ignore[misc]
    harness.network.faults.clear()


# ── tries ────────────────────────────────────────────────────────────────────────────────────────────────────────────


@in_virtual_time
async def test_tries_of_one_operation_are_not_charged_to_the_next() -> None:
    harness = await CoordinatorHarness.open()
    harness.place(archived(desired_state=Desired.RUNNING), archives={KEY: HOME})
    await fail(harness, "jobs.start", Operation.RESTORING, 2)
    await fail(harness, "runtime.start_container", Operation.STARTING, 2)
    await harness.converge()
    assert harness.row.phase is Phase.RUNNING


@in_virtual_time
async def test_a_start_that_fails_and_then_dies_at_once_has_three_tries_in_all() -> None:
    harness = await CoordinatorHarness.open()
    harness.place(with_home(desired_state=Desired.RUNNING), volume=HOME)
    await fail(harness, "runtime.start_container", Operation.STARTING, 1)
    died = 0
    while harness.row.phase is not Phase.ERROR:
        if harness.row.phase is Phase.RUNNING:
            harness.states.runtime.kill(WORKSPACE_ID)
            died += 1
        await asyncio.sleep(await harness.reconcile() or 1.0)
    assert (harness.row.error_reason, harness.row.error_count, died) == ("RetryExceeded", 3, 2)


# ── outages ──────────────────────────────────────────────────────────────────────────────────────────────────────────

ON_THEIR_WAY = {
    Operation.PROVISIONING: (workspace(desired_state=Desired.STANDBY), "runtime.create_volume"),
    Operation.CREATE_EMPTY_ARCHIVE: (workspace(desired_state=Desired.ARCHIVED), "archives.create_empty"),
    Operation.RESTORING: (archived(desired_state=Desired.STANDBY), "jobs.start"),
    Operation.STARTING: (with_home(desired_state=Desired.RUNNING), "runtime.start_container"),
    Operation.STOPPING: (with_home(phase=Phase.RUNNING, desired_state=Desired.STANDBY), "runtime.remove_container"),
    Operation.ARCHIVING: (with_home(desired_state=Desired.ARCHIVED), "runtime.delete_volume"),
}


@pytest.mark.parametrize("way", BREAKS, ids=str)
@pytest.mark.parametrize("operation", ON_THEIR_WAY, ids=str)
@in_virtual_time
async def test_an_outage_burns_no_try_however_the_backend_breaks(operation: Operation, way: FaultKind) -> None:
    row, call = ON_THEIR_WAY[operation]
    harness = await CoordinatorHarness.open()
    harness.network._timeout = 8.0
    harness.place(
        row,
        volume=HOME if row.home_store_key else None,
        container=row.phase is Phase.RUNNING,
        archives={KEY: HOME} if row.archive_key else None,
    )
    harness.network.faults[call] = Fault(way)
    for _ in range(200):
        await asyncio.sleep(await harness.reconcile() or 1.0)
        assert (harness.row.phase, harness.row.error_count) != (Phase.ERROR, 0)
        assert harness.row.error_count == 0
    harness.network.faults.clear()
    await asyncio.sleep(20)
    await harness.converge()
    assert harness.row.phase.value == harness.row.desired_state.value


@pytest.mark.parametrize("way", BREAKS, ids=str)
@pytest.mark.parametrize(
    "row", [archived(desired_state=Desired.STANDBY), with_home(desired_state=Desired.ARCHIVED)], ids=lambda r: r.phase
)
@in_virtual_time
async def test_an_outage_inside_a_storage_job_burns_no_try(row: Workspace, way: FaultKind) -> None:
    """The coordinator reaches the store all the while: only the job's own transfers break."""
    harness = await CoordinatorHarness.open()
    harness.place(row, volume=HOME if row.home_store_key else None, archives={KEY: HOME} if row.archive_key else None)
    harness.states.jobs.store = FaultyNetwork(harness.clock, lambda _name: Fault(way))
    for _ in range(300):
        await asyncio.sleep(await harness.reconcile() or 1.0)
        assert (harness.row.phase is Phase.ERROR, harness.row.error_count) == (False, 0)
    harness.states.jobs.store = FaultyNetwork(harness.clock, lambda _name: None)
    await asyncio.sleep(20)
    await harness.converge()
    assert harness.row.phase.value == row.desired_state.value
    assert HOME in (
        *(volume.content for volume in harness.states.runtime.volumes.values()),
        *(archive.content for archive in harness.states.archives.objects.values()),
    )


@in_virtual_time
async def test_the_deadline_of_a_storage_job_stands_still_while_the_store_is_out() -> None:
    """Each job hangs for longer than half of the deadline before it says that the store is out."""
    harness = await CoordinatorHarness.open(Tuning(policy=Policy(deadlines={Operation.ARCHIVING: 100})))
    harness.place(with_home(desired_state=Desired.ARCHIVED), volume=HOME)
    harness.states.jobs.store = FaultyNetwork(harness.clock, lambda _name: Fault(FaultKind.HANG), timeout=60)
    end = asyncio.get_running_loop().time() + 1000
    while asyncio.get_running_loop().time() < end:
        await asyncio.sleep(await harness.reconcile() or 1.0)
        assert harness.row.phase is Phase.STANDBY, harness.row.error_info
    harness.states.jobs.store = FaultyNetwork(harness.clock, lambda _name: None)
    await turn_until(harness, lambda row: row.phase is Phase.ARCHIVED)


@in_virtual_time
async def test_what_no_leader_saw_of_an_outage_counts_against_no_deadline() -> None:
    """The store is out, the leader dies, and the next comes after more than the whole deadline."""
    harness = await CoordinatorHarness.open(Tuning(policy=Policy(deadlines={Operation.CREATE_EMPTY_ARCHIVE: 60})))
    harness.place(workspace(desired_state=Desired.ARCHIVED))
    harness.network.faults["archives.create_empty"] = Fault(FaultKind.FAIL)
    await turn_until(harness, lambda row: row.error_reason is ErrorReason.UNREACHABLE)
    leadership = harness.states.database.leadership
    leadership.free(leadership.epoch)
    await asyncio.sleep(100)
    for desired in (Desired.STANDBY, Desired.ARCHIVED):
        await harness.commands.want(WORKSPACE_ID, desired, PERSON)
    await harness.become_leader()
    await harness.backends.check_all_identities()
    for _ in range(20):
        await asyncio.sleep(await harness.reconcile() or 1.0)
        assert harness.row.phase is Phase.PENDING, harness.row.error_info
    harness.network.faults.clear()
    await turn_until(harness, lambda row: row.phase is Phase.ARCHIVED)


@in_virtual_time
async def test_a_wish_that_changed_is_heard_while_an_outage_lasts() -> None:
    harness = await CoordinatorHarness.open()
    harness.place(with_home(desired_state=Desired.RUNNING), volume=HOME)
    harness.network.faults["runtime.start_container"] = Fault(FaultKind.FAIL)
    await turn_until(harness, lambda row: row.error_reason is ErrorReason.UNREACHABLE)
    await harness.commands.want(WORKSPACE_ID, Desired.STANDBY, PERSON)
    await harness.converge()
    assert harness.row.phase is Phase.STANDBY


# ── damaged archives ─────────────────────────────────────────────────────────────────────────────────────────────────


async def damaged(harness: CoordinatorHarness, *keys: str) -> None:
    """Let archives look as they should while their bytes are not what was proven."""
    for key in keys:
        harness.states.archives.objects[key].rotten = True
    await turn_until(harness, lambda row: row.phase is Phase.ERROR)
    assert harness.row.error_reason == "ArchiveCorrupted"


@in_virtual_time
async def test_recovering_from_a_damaged_archive_takes_another() -> None:
    harness = await CoordinatorHarness.open()
    harness.place(archived(desired_state=Desired.RUNNING), archives={KEY: HOME})
    harness.keep(WORKSPACE_ID, OTHER_KEY, (1, 2), age=60)
    await damaged(harness, KEY)
    await harness.reconcile(3)
    ready = harness.row.conditions.archive_ready
    assert (ready.status, ready.reason) == (False, "ArchiveCorrupted")
    await harness.commands.recover(WORKSPACE_ID, RecoverAction.USE_ARCHIVE, PERSON)
    await harness.converge()
    assert (harness.row.phase, harness.row.archive_key) == (Phase.RUNNING, OTHER_KEY)


@in_virtual_time
async def test_two_damaged_archives_are_not_taken_in_turns() -> None:
    third = naming.archive_key("", WORKSPACE_ID, UUID(int=3))
    harness = await CoordinatorHarness.open()
    harness.place(archived(desired_state=Desired.RUNNING), archives={KEY: HOME})
    harness.keep(WORKSPACE_ID, OTHER_KEY, (1, 2), age=60)
    harness.keep(WORKSPACE_ID, third, (1,), age=120)
    await damaged(harness, KEY, OTHER_KEY)
    for expected in (Phase.ERROR, Phase.RUNNING):
        await harness.commands.recover(WORKSPACE_ID, RecoverAction.USE_ARCHIVE, PERSON)
        await harness.converge()
        assert harness.row.phase is expected
    assert harness.row.archive_key == third


@in_virtual_time
async def test_an_archive_that_was_mended_is_taken_when_a_person_says_so() -> None:
    harness = await CoordinatorHarness.open()
    harness.place(archived(desired_state=Desired.RUNNING), archives={KEY: HOME})
    await damaged(harness, KEY)
    await harness.commands.recover(WORKSPACE_ID, RecoverAction.USE_ARCHIVE, PERSON)
    await harness.converge()
    assert harness.row.error_reason == "ArchiveCorrupted", "there is no other"
    harness.states.archives.objects[KEY].rotten = False
    await harness.commands.recover(WORKSPACE_ID, RecoverAction.RETRY, PERSON)
    await harness.converge()
    assert harness.row.phase is Phase.RUNNING


class WrongOnce(FaultyNetwork):
    """A store whose first reading comes back wrong, and every other as it should."""

    read = False

    async def call(self, name: str, effect: Callable[[], T], about: UUID | None = None) -> T:
        answer = await super().call(name, effect, about)
        if name == "store.read" and not self.read and isinstance(answer, tuple):
            self.read = True
            return cast("T", (*answer, 99))
        return answer


@in_virtual_time
async def test_a_wrong_answer_is_not_a_wrong_object() -> None:
    harness = await CoordinatorHarness.open()
    harness.place(archived(desired_state=Desired.RUNNING), archives={KEY: HOME})
    harness.states.jobs.store = WrongOnce(harness.clock, lambda _name: None)
    await harness.converge()
    assert (harness.row.phase, harness.row.error_count) == (Phase.RUNNING, 0)
    assert harness.states.runtime.volumes[harness.row.home_store_key or ""].content == HOME


# ── what failed restores leave behind ────────────────────────────────────────────────────────────────────────────────


async def restores_killed(harness: CoordinatorHarness, rounds: int) -> None:
    """Kill restores: each round is three killed jobs, and a person who asks for another try."""
    harness.states.jobs.failing[WORKSPACE_ID] = ErrorReason.ACTION_FAILED
    for _ in range(rounds):
        await turn_until(harness, lambda row: row.phase is Phase.ERROR)
        await harness.commands.recover(WORKSPACE_ID, RecoverAction.RETRY, PERSON)
        await turn_until(harness, lambda row: row.phase is not Phase.ERROR)


@in_virtual_time
async def test_half_restored_volumes_go_when_the_home_is_whole() -> None:
    harness = await CoordinatorHarness.open()
    harness.place(archived(desired_state=Desired.RUNNING), archives={KEY: HOME})
    await restores_killed(harness, 2)
    harness.states.jobs.failing.clear()
    await harness.converge()
    assert harness.row.phase is Phase.RUNNING
    assert list(harness.states.runtime.volumes) == [harness.row.home_store_key]
    assert harness.row.home.half_restored == ()


@in_virtual_time
async def test_what_is_left_of_another_archive_is_the_collector_s() -> None:
    """The half-restored volume may be the last that there is of that archive."""
    harness = await CoordinatorHarness.open()
    harness.place(archived(desired_state=Desired.RUNNING), archives={KEY: HOME})
    harness.keep(WORKSPACE_ID, OTHER_KEY, (1, 2), age=60)
    harness.states.jobs.failing[WORKSPACE_ID] = ErrorReason.ACTION_FAILED
    await turn_until(harness, lambda row: row.phase is Phase.ERROR)
    half = harness.row.home_store_key
    await harness.commands.recover(WORKSPACE_ID, RecoverAction.USE_ARCHIVE, PERSON)
    harness.states.jobs.failing.clear()
    await harness.converge()
    assert (harness.row.phase, harness.row.archive_key) == (Phase.RUNNING, OTHER_KEY)
    assert set(harness.states.runtime.volumes) == {half, harness.row.home_store_key}


@in_virtual_time
async def test_a_former_home_is_not_removed_with_them() -> None:
    """A volume that was lost and came back may hold newer work than any archive."""
    harness = await CoordinatorHarness.open()
    row = with_home(desired_state=Desired.RUNNING, archive_key=KEY)
    harness.place(row, volume=HOME, archives={KEY: HOME})
    lost = harness.states.runtime.volumes.pop(VOLUME)
    await turn_until(harness, lambda row: row.phase is Phase.ERROR)
    await harness.commands.recover(WORKSPACE_ID, RecoverAction.USE_ARCHIVE, PERSON)
    await turn_until(harness, lambda row: row.phase is not Phase.ERROR)
    await restores_killed(harness, 1)
    harness.states.runtime.volumes[VOLUME] = lost
    harness.states.jobs.failing.clear()
    await harness.converge()
    assert set(harness.states.runtime.volumes) == {VOLUME, harness.row.home_store_key}


@in_virtual_time
async def test_an_outage_names_the_endpoint_in_the_error_s_context() -> None:
    harness = await CoordinatorHarness.open()
    harness.place(with_home(desired_state=Desired.RUNNING), volume=HOME)
    harness.network.faults["runtime.start_container"] = Fault(FaultKind.FAIL)
    await turn_until(harness, lambda row: row.error_info is not None)
    assert harness.row.error_info is not None
    context = harness.row.error_info.context
    assert (context["endpoint"], context["status_code"], bool(context["error"])) == ("memory", None, True)


@in_virtual_time
async def test_a_lost_home_says_which_volume_and_which_archive() -> None:
    harness = await CoordinatorHarness.open()
    harness.place(with_home(archive_key=KEY), volume=HOME, archives={KEY: HOME})
    harness.states.runtime.volumes.clear()
    await harness.reconcile(3)
    assert harness.row.error_info is not None
    assert harness.row.error_info.reason is ErrorReason.DATA_LOST
    assert (
        harness.row.error_info.context.items() >= {"archive_key": KEY, "detail": f"volume {VOLUME} not found"}.items()
    )
