"""Three tries are for definite failures, and each operation has its own. An outage is waited for, whichever way the
backend breaks; and an archive is damaged when it was read so, not when an answer came wrong."""

import asyncio
from collections.abc import Callable
from typing import TypeVar, cast
from uuid import UUID

import pytest

from codehub.adapters.memory import Fault, FaultyNetwork
from codehub.adapters.memory.fault_injection import BREAKS, FaultKind
from codehub.coordinator.tuning import Tuning
from codehub.domain import naming
from codehub.domain.errors import ErrorReason
from codehub.domain.plan import Policy
from codehub.domain.workspace import Desired, Operation, Phase, RecoverAction, Workspace
from tests.coordinator.workshop import PERSON, REFUSES, Workshop, in_virtual_time
from tests.rows import KEY, OTHER_KEY, VOLUME, WORKSPACE_ID, archived, with_home, workspace

T = TypeVar("T")

HOME = (1, 2, 3)


async def turn_until(shop: Workshop, done: Callable[[Workspace], bool], seconds: float = 600) -> None:
    end = asyncio.get_running_loop().time() + seconds
    while not done(shop.row):
        assert asyncio.get_running_loop().time() < end, f"not within {seconds} s: {shop.row}"
        await asyncio.sleep(await shop.reconcile() or 1.0)


async def fail(shop: Workshop, call: str, operation: Operation, times: int) -> None:
    """That operation fails for certain so many times, and then no more."""
    shop.network.faults[call] = REFUSES
    for count in range(1, times + 1):
        await turn_until(shop, lambda row, count=count: row.operation is operation and row.error_count == count)  # type: ignore[misc]
    shop.network.faults.clear()


# ── tries ────────────────────────────────────────────────────────────────────────────────────────────────────────────


@in_virtual_time
async def test_tries_of_one_operation_are_not_charged_to_the_next() -> None:
    shop = await Workshop.open()
    shop.place(archived(desired_state=Desired.RUNNING), archives={KEY: HOME})
    await fail(shop, "jobs.start", Operation.RESTORING, 2)
    await fail(shop, "runtime.start_container", Operation.STARTING, 2)
    await shop.converge()
    assert shop.row.phase is Phase.RUNNING


@in_virtual_time
async def test_a_start_that_fails_and_then_dies_at_once_has_three_tries_in_all() -> None:
    shop = await Workshop.open()
    shop.place(with_home(desired_state=Desired.RUNNING), volume=HOME)
    await fail(shop, "runtime.start_container", Operation.STARTING, 1)
    died = 0
    while shop.row.phase is not Phase.ERROR:
        if shop.row.phase is Phase.RUNNING:
            shop.worlds.runtime.kill(WORKSPACE_ID)
            died += 1
        await asyncio.sleep(await shop.reconcile() or 1.0)
    assert (shop.row.error_reason, shop.row.error_count, died) == ("RetryExceeded", 3, 2)


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
    shop = await Workshop.open()
    shop.network._timeout = 8.0
    shop.place(
        row,
        volume=HOME if row.home_store_key else None,
        container=row.phase is Phase.RUNNING,
        archives={KEY: HOME} if row.archive_key else None,
    )
    shop.network.faults[call] = Fault(way)
    for _ in range(200):
        await asyncio.sleep(await shop.reconcile() or 1.0)
        assert (shop.row.phase, shop.row.error_count) != (Phase.ERROR, 0)
        assert shop.row.error_count == 0
    shop.network.faults.clear()
    await asyncio.sleep(20)
    await shop.converge()
    assert shop.row.phase.value == shop.row.desired_state.value


@pytest.mark.parametrize("way", BREAKS, ids=str)
@pytest.mark.parametrize(
    "row", [archived(desired_state=Desired.STANDBY), with_home(desired_state=Desired.ARCHIVED)], ids=lambda r: r.phase
)
@in_virtual_time
async def test_an_outage_inside_a_storage_job_burns_no_try(row: Workspace, way: FaultKind) -> None:
    """The coordinator reaches the store all the while: only the job's own transfers break."""
    shop = await Workshop.open()
    shop.place(row, volume=HOME if row.home_store_key else None, archives={KEY: HOME} if row.archive_key else None)
    shop.worlds.jobs.store = FaultyNetwork(shop.clock, lambda _name: Fault(way))
    for _ in range(300):
        await asyncio.sleep(await shop.reconcile() or 1.0)
        assert (shop.row.phase is Phase.ERROR, shop.row.error_count) == (False, 0)
    shop.worlds.jobs.store = FaultyNetwork(shop.clock, lambda _name: None)
    await asyncio.sleep(20)
    await shop.converge()
    assert shop.row.phase.value == row.desired_state.value
    assert HOME in (
        *(volume.content for volume in shop.worlds.runtime.volumes.values()),
        *(archive.content for archive in shop.worlds.archives.objects.values()),
    )


@in_virtual_time
async def test_the_deadline_of_a_storage_job_stands_still_while_the_store_is_out() -> None:
    """Each job hangs for longer than half of the deadline before it says that the store is out."""
    shop = await Workshop.open(Tuning(policy=Policy(deadlines={Operation.ARCHIVING: 100})))
    shop.place(with_home(desired_state=Desired.ARCHIVED), volume=HOME)
    shop.worlds.jobs.store = FaultyNetwork(shop.clock, lambda _name: Fault(FaultKind.HANG), timeout=60)
    end = asyncio.get_running_loop().time() + 1000
    while asyncio.get_running_loop().time() < end:
        await asyncio.sleep(await shop.reconcile() or 1.0)
        assert shop.row.phase is Phase.STANDBY, shop.row.error_info
    shop.worlds.jobs.store = FaultyNetwork(shop.clock, lambda _name: None)
    await turn_until(shop, lambda row: row.phase is Phase.ARCHIVED)


@in_virtual_time
async def test_a_wish_that_changed_is_heard_while_an_outage_lasts() -> None:
    shop = await Workshop.open()
    shop.place(with_home(desired_state=Desired.RUNNING), volume=HOME)
    shop.network.faults["runtime.start_container"] = Fault(FaultKind.FAIL)
    await turn_until(shop, lambda row: row.error_reason is ErrorReason.UNREACHABLE)
    await shop.wishes.want(WORKSPACE_ID, Desired.STANDBY, PERSON)
    await shop.converge()
    assert shop.row.phase is Phase.STANDBY


# ── damaged archives ─────────────────────────────────────────────────────────────────────────────────────────────────


async def damaged(shop: Workshop, *keys: str) -> None:
    """The archives look as they should, and their bytes are not what was proven."""
    for key in keys:
        shop.worlds.archives.objects[key].rotten = True
    await turn_until(shop, lambda row: row.phase is Phase.ERROR)
    assert shop.row.error_reason == "ArchiveCorrupted"


@in_virtual_time
async def test_recovering_from_a_damaged_archive_takes_another() -> None:
    shop = await Workshop.open()
    shop.place(archived(desired_state=Desired.RUNNING), archives={KEY: HOME})
    shop.keep(WORKSPACE_ID, OTHER_KEY, (1, 2), age=60)
    await damaged(shop, KEY)
    await shop.reconcile(3)
    ready = shop.row.conditions.archive_ready
    assert (ready.status, ready.reason) == (False, "ArchiveCorrupted")
    await shop.wishes.recover(WORKSPACE_ID, RecoverAction.USE_ARCHIVE, PERSON)
    await shop.converge()
    assert (shop.row.phase, shop.row.archive_key) == (Phase.RUNNING, OTHER_KEY)


@in_virtual_time
async def test_two_damaged_archives_are_not_taken_in_turns() -> None:
    third = naming.archive_key("", WORKSPACE_ID, UUID(int=3))
    shop = await Workshop.open()
    shop.place(archived(desired_state=Desired.RUNNING), archives={KEY: HOME})
    shop.keep(WORKSPACE_ID, OTHER_KEY, (1, 2), age=60)
    shop.keep(WORKSPACE_ID, third, (1,), age=120)
    await damaged(shop, KEY, OTHER_KEY)
    for expected in (Phase.ERROR, Phase.RUNNING):
        await shop.wishes.recover(WORKSPACE_ID, RecoverAction.USE_ARCHIVE, PERSON)
        await shop.converge()
        assert shop.row.phase is expected
    assert shop.row.archive_key == third


@in_virtual_time
async def test_an_archive_that_was_mended_is_taken_when_a_person_says_so() -> None:
    shop = await Workshop.open()
    shop.place(archived(desired_state=Desired.RUNNING), archives={KEY: HOME})
    await damaged(shop, KEY)
    await shop.wishes.recover(WORKSPACE_ID, RecoverAction.USE_ARCHIVE, PERSON)
    await shop.converge()
    assert shop.row.error_reason == "ArchiveCorrupted", "there is no other"
    shop.worlds.archives.objects[KEY].rotten = False
    await shop.wishes.recover(WORKSPACE_ID, RecoverAction.RETRY, PERSON)
    await shop.converge()
    assert shop.row.phase is Phase.RUNNING


class WrongOnce(FaultyNetwork):
    """The first reading comes back wrong, and every other as it should."""

    read = False

    async def call(self, name: str, effect: Callable[[], T], about: UUID | None = None) -> T:
        answer = await super().call(name, effect, about)
        if name == "store.read" and not self.read and isinstance(answer, tuple):
            self.read = True
            return cast("T", (*answer, 99))
        return answer


@in_virtual_time
async def test_a_wrong_answer_is_not_a_wrong_object() -> None:
    shop = await Workshop.open()
    shop.place(archived(desired_state=Desired.RUNNING), archives={KEY: HOME})
    shop.worlds.jobs.store = WrongOnce(shop.clock, lambda _name: None)
    await shop.converge()
    assert (shop.row.phase, shop.row.error_count) == (Phase.RUNNING, 0)
    assert shop.worlds.runtime.volumes[shop.row.home_store_key or ""].content == HOME


# ── what failed restores leave behind ────────────────────────────────────────────────────────────────────────────────


async def restores_killed(shop: Workshop, rounds: int) -> None:
    """Each round is three killed jobs, and a person who asks for another try."""
    shop.worlds.jobs.failing[WORKSPACE_ID] = ErrorReason.ACTION_FAILED
    for _ in range(rounds):
        await turn_until(shop, lambda row: row.phase is Phase.ERROR)
        await shop.wishes.recover(WORKSPACE_ID, RecoverAction.RETRY, PERSON)
        await turn_until(shop, lambda row: row.phase is not Phase.ERROR)


@in_virtual_time
async def test_half_restored_volumes_go_when_the_home_is_whole() -> None:
    shop = await Workshop.open()
    shop.place(archived(desired_state=Desired.RUNNING), archives={KEY: HOME})
    await restores_killed(shop, 2)
    shop.worlds.jobs.failing.clear()
    await shop.converge()
    assert shop.row.phase is Phase.RUNNING
    assert list(shop.worlds.runtime.volumes) == [shop.row.home_store_key]
    assert shop.row.home.half_restored == ()


@in_virtual_time
async def test_what_is_left_of_another_archive_is_the_collector_s() -> None:
    """It may be the last that there is of it."""
    shop = await Workshop.open()
    shop.place(archived(desired_state=Desired.RUNNING), archives={KEY: HOME})
    shop.keep(WORKSPACE_ID, OTHER_KEY, (1, 2), age=60)
    shop.worlds.jobs.failing[WORKSPACE_ID] = ErrorReason.ACTION_FAILED
    await turn_until(shop, lambda row: row.phase is Phase.ERROR)
    half = shop.row.home_store_key
    await shop.wishes.recover(WORKSPACE_ID, RecoverAction.USE_ARCHIVE, PERSON)
    shop.worlds.jobs.failing.clear()
    await shop.converge()
    assert (shop.row.phase, shop.row.archive_key) == (Phase.RUNNING, OTHER_KEY)
    assert set(shop.worlds.runtime.volumes) == {half, shop.row.home_store_key}


@in_virtual_time
async def test_a_former_home_is_not_removed_with_them() -> None:
    """A volume that was lost and came back may hold newer work than any archive."""
    shop = await Workshop.open()
    row = with_home(desired_state=Desired.RUNNING, archive_key=KEY)
    shop.place(row, volume=HOME, archives={KEY: HOME})
    lost = shop.worlds.runtime.volumes.pop(VOLUME)
    await turn_until(shop, lambda row: row.phase is Phase.ERROR)
    await shop.wishes.recover(WORKSPACE_ID, RecoverAction.USE_ARCHIVE, PERSON)
    await turn_until(shop, lambda row: row.phase is not Phase.ERROR)
    await restores_killed(shop, 1)
    shop.worlds.runtime.volumes[VOLUME] = lost
    shop.worlds.jobs.failing.clear()
    await shop.converge()
    assert set(shop.worlds.runtime.volumes) == {VOLUME, shop.row.home_store_key}


@in_virtual_time
async def test_an_outage_names_the_endpoint_in_the_error_s_context() -> None:
    shop = await Workshop.open()
    shop.place(with_home(desired_state=Desired.RUNNING), volume=HOME)
    shop.network.faults["runtime.start_container"] = Fault(FaultKind.FAIL)
    await turn_until(shop, lambda row: row.error_info is not None)
    assert shop.row.error_info is not None
    context = shop.row.error_info.context
    assert (context["endpoint"], context["status_code"], bool(context["error"])) == ("memory", None, True)


@in_virtual_time
async def test_a_lost_home_says_which_volume_and_which_archive() -> None:
    shop = await Workshop.open()
    shop.place(with_home(archive_key=KEY), volume=HOME, archives={KEY: HOME})
    shop.worlds.runtime.volumes.clear()
    await shop.reconcile(3)
    assert shop.row.error_info is not None
    assert shop.row.error_info.reason is ErrorReason.DATA_LOST
    assert shop.row.error_info.context.items() >= {"archive_key": KEY, "detail": f"volume {VOLUME} not found"}.items()
