"""A definite answer from another backend is none: nothing is lost or deleted, and all goes on with the right one."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from codehub.adapters.memory import MemoryArchives, MemoryDatabase, MemoryJobs, MemoryRuntime
from codehub.adapters.memory.runtime import RuntimeState
from codehub.adapters.object_store.archives import ObjectArchives
from codehub.coordinator.backends import Backends, Breaker, IdentityCheck
from codehub.coordinator.context import Tuning
from codehub.domain.errors import CircuitOpen, Unreachable, WrongBackend
from codehub.domain.judge import ArchiveState
from codehub.domain.naming import Backend
from codehub.domain.workspace import Desired, Phase
from codehub.telemetry import Metrics
from tests.contracts.databases import RealClock
from tests.coordinator.collection import collector
from tests.coordinator.harness import ANSWER_LOST, FAILS, PERSON, CoordinatorHarness, ScriptedNetwork, in_virtual_time
from tests.rows import KEY, OTHER_KEY, VOLUME, WORKSPACE_ID, archived, with_home
from tests.simulation.harness import BackendStates, SimulationHarness
from tests.simulation.virtual_time import VirtualClock

WAIT = 6.0
"""How long until a backend that was refused is asked again."""


@contextmanager
def unmounted(harness: CoordinatorHarness) -> Iterator[None]:
    """While this lasts, the archives' directory is there, empty and without its mark."""
    state = harness.states.archives
    kept, owner = dict(state.objects), state.owner
    state.objects.clear()
    state.owner = None
    yield
    state.objects.clear()
    state.objects.update(kept)
    state.owner = owner


@contextmanager
def elsewhere(harness: CoordinatorHarness) -> Iterator[None]:
    """While this lasts, the runtime is another engine, or an empty data directory: nothing is there, definitely."""
    state = harness.states.runtime
    volumes, containers, identity = dict(state.volumes), dict(state.containers), state.identity
    state.volumes.clear()
    state.containers.clear()
    state.identity = "another"
    yield
    state.volumes.clear()
    state.volumes.update(volumes)
    state.containers.update(containers)
    state.identity = identity


async def passes(harness: CoordinatorHarness, seconds: int = 30) -> None:
    """Run passes as the coordinator would, for a while."""
    for _ in range(seconds):
        await harness.observer.full_pass()
        await harness.observer.active_pass([WORKSPACE_ID])
        await harness.reconcile()
        await asyncio.sleep(1)


def seen(harness: CoordinatorHarness) -> tuple[bool | None, bool | None]:
    """Whether the volume was seen, and the archive."""
    conditions = harness.row.conditions
    return conditions.volume_ready.status, conditions.archive_ready.status


# ── archives ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@in_virtual_time
async def test_an_unmounted_store_loses_no_archive() -> None:
    harness = await CoordinatorHarness.open()
    harness.place(archived(desired_state=Desired.ARCHIVED), archives={KEY: (1,)})
    await passes(harness, 2)
    with unmounted(harness):
        await passes(harness)
        assert (harness.row.phase, harness.row.archive_key, harness.row.error_info) == (Phase.ARCHIVED, KEY, None)
        assert seen(harness)[1] is None
    await passes(harness, 10)
    assert seen(harness)[1] is True
    assert harness.notifier.notices == []


@in_virtual_time
async def test_an_unmounted_store_takes_no_archive_from_a_living_home() -> None:
    harness = await CoordinatorHarness.open(Tuning(inventory_interval=5))
    harness.place(with_home(desired_state=Desired.STANDBY, archive_key=KEY), volume=(1, 2), archives={KEY: (1,)})
    with unmounted(harness):
        await passes(harness)
    assert (harness.row.phase, harness.row.archive_key) == (Phase.STANDBY, KEY)


@in_virtual_time
async def test_a_look_at_one_archive_alone_is_not_believed_either() -> None:
    harness = await CoordinatorHarness.open()
    harness.place(archived(desired_state=Desired.ARCHIVED), archives={KEY: (1,)})
    with unmounted(harness):
        await harness.reconcile(3)
    assert (harness.row.phase, harness.row.error_info) == (Phase.ARCHIVED, None)


@in_virtual_time
async def test_nothing_is_archived_into_an_unmounted_store_and_no_try_is_lost() -> None:
    harness = await CoordinatorHarness.open()
    harness.place(with_home(desired_state=Desired.ARCHIVED), volume=(1, 2))
    with unmounted(harness):
        await passes(harness, 120)
        assert harness.states.archives.objects == {}
        assert harness.states.runtime.volumes[VOLUME].content == (1, 2)
        assert (harness.row.phase, harness.row.error_count) == (Phase.STANDBY, 0)
        assert harness.row.error_info is not None
        assert "Is its disk mounted?" in harness.row.error_info.message, "who waits is told why"
    await passes(harness)
    assert harness.row.phase is Phase.ARCHIVED
    assert [a.content for a in harness.states.archives.objects.values()] == [(1, 2)]


@in_virtual_time
async def test_a_store_unmounted_below_a_running_job_keeps_the_volume() -> None:
    harness = await CoordinatorHarness.open()
    harness.states.jobs.step_seconds = 5
    harness.place(with_home(desired_state=Desired.ARCHIVED), volume=(1, 2))
    await passes(harness, 3)
    with unmounted(harness):
        await passes(harness, 40)
        assert not any(a.committed for a in harness.states.archives.objects.values())
        assert harness.states.runtime.volumes[VOLUME].content == (1, 2)
    await passes(harness, 60)
    assert harness.row.phase is Phase.ARCHIVED


@in_virtual_time
async def test_no_empty_archive_is_made_in_an_unmounted_store() -> None:
    harness = await CoordinatorHarness.open()
    with unmounted(harness):
        with pytest.raises(WrongBackend, match="without the mark codehub-owner"):
            await harness.backends.create_empty_archive(WORKSPACE_ID, KEY)
        assert harness.states.archives.objects == {}


@in_virtual_time
async def test_the_first_leader_claims_the_store_and_the_next_ones_only_look() -> None:
    harness = await CoordinatorHarness.open()
    assert (harness.states.archives.owner, harness.states.database.backend_identities[Backend.ARCHIVES].identity) == (
        "this",
        "this",
    )
    await harness.term.resign()
    harness.states.archives.owner = None
    await harness.become_leader()
    with pytest.raises(WrongBackend):
        await harness.backends.check_all_identities()
    assert "archives.claim" not in harness.network.calls
    assert harness.states.archives.owner is None


# ── the runtime ──────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("row", ["standby", "running"])
@in_virtual_time
async def test_another_runtime_loses_no_home(row: str) -> None:
    harness = await CoordinatorHarness.open()
    wished = Desired.RUNNING if row == "running" else Desired.STANDBY
    harness.place(with_home(desired_state=wished), volume=(1, 2), container=row == "running")
    await passes(harness, 3)
    before = harness.row
    with elsewhere(harness):
        harness.network.calls.clear()
        await passes(harness)
        assert (harness.row.phase, harness.row.error_info, harness.row.operation) == (
            before.phase,
            None,
            before.operation,
        )
        assert seen(harness)[0] is None
        assert harness.effects() == []
        assert (harness.states.runtime.volumes, harness.states.runtime.containers) == ({}, {})
    await passes(harness, 10)
    assert (harness.row.phase, seen(harness)[0]) == (before.phase, True)


@in_virtual_time
async def test_a_look_at_one_home_alone_is_not_believed_either() -> None:
    """Between two passes over all, a hint or a command has one workspace looked at."""
    harness = await CoordinatorHarness.open()
    harness.place(with_home(desired_state=Desired.STANDBY), volume=(1, 2))
    with elsewhere(harness):
        await harness.reconcile(3)
    assert (harness.row.phase, harness.row.error_info) == (Phase.STANDBY, None)


@in_virtual_time
async def test_a_wish_waits_until_the_right_runtime_is_back() -> None:
    harness = await CoordinatorHarness.open()
    harness.place(archived(desired_state=Desired.ARCHIVED), archives={KEY: (1,)})
    with elsewhere(harness):
        await harness.commands.want(WORKSPACE_ID, Desired.STANDBY, PERSON)
        await passes(harness, 60)
        assert harness.states.runtime.volumes == {}
    await harness.converge()
    assert (harness.row.phase, harness.row.error_count) == (Phase.STANDBY, 0)


@in_virtual_time
async def test_a_backend_that_changes_during_a_silence_is_identified_first() -> None:
    """An engine comes back with nothing in it: not one call is made there before that is seen."""
    harness = await CoordinatorHarness.open()
    harness.network.faults["runtime.remove_container"] = FAILS
    with pytest.raises(Unreachable):
        await harness.backends.remove_container(WORKSPACE_ID)
    harness.network.faults.clear()
    with elsewhere(harness):
        harness.network.calls.clear()
        with pytest.raises(WrongBackend):
            await harness.backends.create_volume(WORKSPACE_ID, VOLUME)
        assert harness.network.calls == ["runtime.identity", "db.backend_identities"]


@in_virtual_time
async def test_nothing_is_collected_in_another_backend() -> None:
    harness = await CoordinatorHarness.open()
    with elsewhere(harness), pytest.raises(WrongBackend, match="the runtime is not the one that holds"):
        await collector(harness).run()


@in_virtual_time
async def test_a_refusal_is_not_asked_for_again_at_once() -> None:
    harness = await CoordinatorHarness.open()
    with elsewhere(harness):
        for _ in range(20):
            with pytest.raises(CircuitOpen):
                await harness.backends.volumes()
        assert harness.network.calls.count("runtime.identity") == 1
    await asyncio.sleep(WAIT)
    assert await harness.backends.volumes() == {}


@in_virtual_time
async def test_what_an_operator_forgets_is_adopted_anew_within_the_term() -> None:
    harness = await CoordinatorHarness.open()
    with elsewhere(harness):
        with pytest.raises(WrongBackend, match="codehub admin backends --forget runtime"):
            await harness.backends.volumes()
        assert await MemoryDatabase(harness.states.database).backend_identities().forget(Backend.RUNTIME)
        await asyncio.sleep(WAIT)
        assert await harness.backends.volumes() == {}
        assert harness.states.database.backend_identities[Backend.RUNTIME].identity == "another"


@in_virtual_time
async def test_an_adoption_whose_answer_is_lost_is_made_once() -> None:
    harness = CoordinatorHarness()
    await harness.become_leader()
    harness.network.faults["db.adopt_backend"] = ANSWER_LOST
    with pytest.raises(Unreachable):
        await harness.backends.check_all_identities()
    harness.network.faults.clear()
    await harness.backends.check_all_identities()
    assert harness.states.database.backend_identities[Backend.RUNTIME].identity == harness.states.runtime.identity


# ── who leads ────────────────────────────────────────────────────────────────────────────────────────────────────────


def start(it: SimulationHarness, name: str, runtime: RuntimeState | None = None) -> ScriptedNetwork:
    network = ScriptedNetwork(VirtualClock())
    right = it.states.runtime
    it.states.runtime = runtime or right
    it.start(name, network)
    it.states.runtime = right
    return network


def leads(it: SimulationHarness, name: str) -> bool:
    return it.running[name].coordinator.readiness().leads


@in_virtual_time
async def test_a_coordinator_with_another_runtime_does_not_lead() -> None:
    it = SimulationHarness(BackendStates.fresh(), Tuning(workers=2))
    start(it, "right")
    row = await it.create(Desired.RUNNING)
    assert await it.reaches(row.id, "RUNNING")
    wrong = start(it, "wrong", RuntimeState())
    await asyncio.sleep(60)
    await it.kill("right")
    await asyncio.sleep(60)
    assert not leads(it, "wrong")
    assert "leadership.take" not in wrong.calls
    assert it.row(row.id).phase is Phase.RUNNING
    start(it, "right")
    assert await it.until(lambda: leads(it, "right"), 10)


@in_virtual_time
async def test_one_that_stood_by_while_its_mount_was_lost_lets_another_lead() -> None:
    it = SimulationHarness(BackendStates.fresh(), Tuning(workers=2))
    start(it, "a")
    assert await it.until(lambda: bool(it.states.database.backend_identities), 10)
    own = RuntimeState(identity=it.states.runtime.identity)
    start(it, "b", own)
    await asyncio.sleep(10)
    own.identity = "another"
    await it.kill("a")
    await asyncio.sleep(10)
    assert not leads(it, "b")
    start(it, "c")
    assert await it.until(lambda: leads(it, "c"), 10)
    own.identity = it.states.runtime.identity
    await it.kill("c")
    assert await it.until(lambda: leads(it, "b"), 10)


@in_virtual_time
async def test_a_runtime_that_does_not_answer_keeps_nobody_from_leading() -> None:
    it = SimulationHarness(BackendStates.fresh(), Tuning(workers=2))
    start(it, "a")
    assert await it.until(lambda: bool(it.states.database.backend_identities), 10)
    await it.kill("a")
    start(it, "b").faults["runtime"] = FAILS
    assert await it.until(lambda: leads(it, "b"), 10)


PREFIX = "homes/"


@pytest.fixture
def archives(tmp_path: Path) -> Iterator[ObjectArchives]:
    archives = ObjectArchives((tmp_path / "mnt").as_uri(), PREFIX, make_directory=True)
    yield archives
    archives.close()


async def backends(archives: ObjectArchives) -> Backends:
    clock, metrics, runtime, database = RealClock(), Metrics(), MemoryRuntime(), MemoryDatabase()
    term = await database.leadership(clock).campaign("me")
    breakers = {name: Breaker(name, clock, metrics) for name in ("runtime", "jobs", "archives")}
    identities = IdentityCheck(database.backend_identities(), term.epoch, clock, "this", PREFIX)
    jobs = MemoryJobs(runtime, MemoryArchives())
    return Backends(runtime, jobs, archives, term, clock, breakers, identities)


async def test_of_an_unmounted_directory_nothing_is_believed_and_nothing_is_put_there(
    archives: ObjectArchives, tmp_path: Path
) -> None:
    mount, disk, key = tmp_path / "mnt", tmp_path / "disk", PREFIX + KEY
    dependencies = await backends(archives)
    await dependencies.create_empty_archive(WORKSPACE_ID, key)
    assert (mount / PREFIX / "codehub-owner").read_text() == "this"
    mount.rename(disk)
    mount.mkdir()
    for ask in (
        dependencies.look(key),
        dependencies.inventory(),
        dependencies.create_empty_archive(WORKSPACE_ID, PREFIX + OTHER_KEY),
        dependencies.check_all_identities(),
    ):
        with pytest.raises(WrongBackend, match="Is its disk mounted"):
            await ask
    assert list(mount.iterdir()) == []
    mount.rmdir()
    disk.rename(mount)
    async with asyncio.timeout(30):
        while True:
            try:
                assert await dependencies.look(key) is ArchiveState.READABLE
                break
            except WrongBackend:
                await asyncio.sleep(0.2)
