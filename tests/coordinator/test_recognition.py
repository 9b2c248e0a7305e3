"""A definite answer from another world is none: nothing is lost or deleted, and all goes on in the right one."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from codehub.adapters.memory import MemoryDatabase
from codehub.adapters.memory.runtime import RuntimeState
from codehub.coordinator.tuning import Tuning
from codehub.domain.backend_identity import Backend
from codehub.domain.errors import CircuitOpen, Unreachable, WrongBackend
from codehub.domain.workspace import Desired, Phase
from tests.coordinator.test_gc_runner import collector
from tests.coordinator.workshop import ANSWER_LOST, FAILS, PERSON, ScriptedWire, Workshop, in_virtual_time
from tests.rows import KEY, VOLUME, WORKSPACE_ID, archived, with_home
from tests.simulation.stage import Stage, Worlds
from tests.simulation.virtual_time import VirtualClock

WAIT = 6.0
"""Until one that was refused is asked again."""


@contextmanager
def unmounted(shop: Workshop) -> Iterator[None]:
    """The archives' directory is there, empty and without its mark."""
    state = shop.worlds.archives
    kept, owner = dict(state.objects), state.owner
    state.objects.clear()
    state.owner = None
    yield
    state.objects.clear()
    state.objects.update(kept)
    state.owner = owner


@contextmanager
def elsewhere(shop: Workshop) -> Iterator[None]:
    """Another engine, or an empty data directory: nothing is there, definitely."""
    state = shop.worlds.runtime
    volumes, containers, identity = dict(state.volumes), dict(state.containers), state.identity
    state.volumes.clear()
    state.containers.clear()
    state.identity = "another"
    yield
    state.volumes.clear()
    state.volumes.update(volumes)
    state.containers.update(containers)
    state.identity = identity


async def passes(shop: Workshop, seconds: int = 30) -> None:
    """As the coordinator would, for a while."""
    for _ in range(seconds):
        await shop.observer.full_pass()
        await shop.observer.active_pass([WORKSPACE_ID])
        await shop.reconcile()
        await asyncio.sleep(1)


def seen(shop: Workshop) -> tuple[bool | None, bool | None]:
    """Is the volume there, and the archive?"""
    conditions = shop.row.conditions
    return conditions.volume_ready.status, conditions.archive_ready.status


# ── archives ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@in_virtual_time
async def test_an_unmounted_store_loses_no_archive() -> None:
    shop = await Workshop.open()
    shop.place(archived(desired_state=Desired.ARCHIVED), archives={KEY: (1,)})
    await passes(shop, 2)
    with unmounted(shop):
        await passes(shop)
        assert (shop.row.phase, shop.row.archive_key, shop.row.error_info) == (Phase.ARCHIVED, KEY, None)
        assert seen(shop)[1] is None
    await passes(shop, 10)
    assert seen(shop)[1] is True
    assert shop.notifier.notices == []


@in_virtual_time
async def test_an_unmounted_store_takes_no_archive_from_a_living_home() -> None:
    shop = await Workshop.open(Tuning(inventory_interval=5))
    shop.place(with_home(desired_state=Desired.STANDBY, archive_key=KEY), volume=(1, 2), archives={KEY: (1,)})
    with unmounted(shop):
        await passes(shop)
    assert (shop.row.phase, shop.row.archive_key) == (Phase.STANDBY, KEY)


@in_virtual_time
async def test_a_look_at_one_archive_alone_is_not_believed_either() -> None:
    shop = await Workshop.open()
    shop.place(archived(desired_state=Desired.ARCHIVED), archives={KEY: (1,)})
    with unmounted(shop):
        await shop.reconcile(3)
    assert (shop.row.phase, shop.row.error_info) == (Phase.ARCHIVED, None)


@in_virtual_time
async def test_nothing_is_archived_into_an_unmounted_store_and_no_try_is_lost() -> None:
    shop = await Workshop.open()
    shop.place(with_home(desired_state=Desired.ARCHIVED), volume=(1, 2))
    with unmounted(shop):
        await passes(shop, 120)
        assert shop.worlds.archives.objects == {}
        assert shop.worlds.runtime.volumes[VOLUME].content == (1, 2)
        assert (shop.row.phase, shop.row.error_count) == (Phase.STANDBY, 0)
        assert shop.row.error_info is not None
        assert "Is its disk mounted?" in shop.row.error_info.message, "who waits is told why"
    await passes(shop)
    assert shop.row.phase is Phase.ARCHIVED
    assert [a.content for a in shop.worlds.archives.objects.values()] == [(1, 2)]


@in_virtual_time
async def test_a_store_unmounted_below_a_running_job_keeps_the_volume() -> None:
    shop = await Workshop.open()
    shop.worlds.jobs.step_seconds = 5
    shop.place(with_home(desired_state=Desired.ARCHIVED), volume=(1, 2))
    await passes(shop, 3)
    with unmounted(shop):
        await passes(shop, 40)
        assert not any(a.committed for a in shop.worlds.archives.objects.values())
        assert shop.worlds.runtime.volumes[VOLUME].content == (1, 2)
    await passes(shop, 60)
    assert shop.row.phase is Phase.ARCHIVED


@in_virtual_time
async def test_no_empty_archive_is_made_in_an_unmounted_store() -> None:
    shop = await Workshop.open()
    with unmounted(shop):
        with pytest.raises(WrongBackend, match="without the mark codehub-owner"):
            await shop.backends.create_empty_archive(WORKSPACE_ID, KEY)
        assert shop.worlds.archives.objects == {}


@in_virtual_time
async def test_the_first_leader_claims_the_store_and_the_next_ones_only_look() -> None:
    shop = await Workshop.open()
    assert (shop.worlds.archives.owner, shop.worlds.database.backend_identities[Backend.ARCHIVES].identity) == (
        "this",
        "this",
    )
    await shop.term.resign()
    shop.worlds.archives.owner = None
    await shop.take_office()
    with pytest.raises(WrongBackend):
        await shop.backends.recognise_all()
    assert "archives.claim" not in shop.network.calls
    assert shop.worlds.archives.owner is None


# ── the runtime ──────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("row", ["standby", "running"])
@in_virtual_time
async def test_another_runtime_loses_no_home(row: str) -> None:
    shop = await Workshop.open()
    wished = Desired.RUNNING if row == "running" else Desired.STANDBY
    shop.place(with_home(desired_state=wished), volume=(1, 2), container=row == "running")
    await passes(shop, 3)
    before = shop.row
    with elsewhere(shop):
        shop.network.calls.clear()
        await passes(shop)
        assert (shop.row.phase, shop.row.error_info, shop.row.operation) == (before.phase, None, before.operation)
        assert seen(shop)[0] is None
        assert shop.effects() == []
        assert (shop.worlds.runtime.volumes, shop.worlds.runtime.containers) == ({}, {})
    await passes(shop, 10)
    assert (shop.row.phase, seen(shop)[0]) == (before.phase, True)


@in_virtual_time
async def test_a_look_at_one_home_alone_is_not_believed_either() -> None:
    """Between two passes over all, when a hint or a wish has it looked at."""
    shop = await Workshop.open()
    shop.place(with_home(desired_state=Desired.STANDBY), volume=(1, 2))
    with elsewhere(shop):
        await shop.reconcile(3)
    assert (shop.row.phase, shop.row.error_info) == (Phase.STANDBY, None)


@in_virtual_time
async def test_a_wish_waits_until_the_right_runtime_is_back() -> None:
    shop = await Workshop.open()
    shop.place(archived(desired_state=Desired.ARCHIVED), archives={KEY: (1,)})
    with elsewhere(shop):
        await shop.wishes.want(WORKSPACE_ID, Desired.STANDBY, PERSON)
        await passes(shop, 60)
        assert shop.worlds.runtime.volumes == {}
    await shop.converge()
    assert (shop.row.phase, shop.row.error_count) == (Phase.STANDBY, 0)


@in_virtual_time
async def test_a_world_that_changes_after_a_silence_is_looked_at_first() -> None:
    """An engine that comes back with nothing in it: not one call is made there before that is seen."""
    shop = await Workshop.open()
    shop.network.faults["runtime.remove_container"] = FAILS
    with pytest.raises(Unreachable):
        await shop.backends.remove_container(WORKSPACE_ID)
    shop.network.faults.clear()
    with elsewhere(shop):
        shop.network.calls.clear()
        with pytest.raises(WrongBackend):
            await shop.backends.create_volume(WORKSPACE_ID, VOLUME)
        assert shop.network.calls == ["runtime.identity", "db.backend_identities"]


@in_virtual_time
async def test_nothing_is_collected_in_another_world() -> None:
    shop = await Workshop.open()
    with elsewhere(shop), pytest.raises(WrongBackend, match="the runtime is not the one that holds"):
        await collector(shop).run()


@in_virtual_time
async def test_a_refusal_is_not_asked_for_again_at_once() -> None:
    shop = await Workshop.open()
    with elsewhere(shop):
        for _ in range(20):
            with pytest.raises(CircuitOpen):
                await shop.backends.volumes()
        assert shop.network.calls.count("runtime.identity") == 1
    await asyncio.sleep(WAIT)
    assert await shop.backends.volumes() == {}


@in_virtual_time
async def test_what_an_operator_forgets_is_adopted_anew_within_the_term() -> None:
    shop = await Workshop.open()
    with elsewhere(shop):
        with pytest.raises(WrongBackend, match="codehub admin backends --forget runtime"):
            await shop.backends.volumes()
        assert await MemoryDatabase(shop.worlds.database).backend_identities().forget(Backend.RUNTIME)
        await asyncio.sleep(WAIT)
        assert await shop.backends.volumes() == {}
        assert shop.worlds.database.backend_identities[Backend.RUNTIME].identity == "another"


@in_virtual_time
async def test_an_adoption_whose_answer_is_lost_is_made_once() -> None:
    shop = Workshop()
    await shop.take_office()
    shop.network.faults["db.adopt_backend"] = ANSWER_LOST
    with pytest.raises(Unreachable):
        await shop.backends.recognise_all()
    shop.network.faults.clear()
    await shop.backends.recognise_all()
    assert shop.worlds.database.backend_identities[Backend.RUNTIME].identity == shop.worlds.runtime.identity


# ── who leads ────────────────────────────────────────────────────────────────────────────────────────────────────────


def start(it: Stage, name: str, runtime: RuntimeState | None = None) -> ScriptedWire:
    network = ScriptedWire(VirtualClock())
    right = it.worlds.runtime
    it.worlds.runtime = runtime or right
    it.start(name, network)
    it.worlds.runtime = right
    return network


def leads(it: Stage, name: str) -> bool:
    return it.casts[name].coordinator.readiness().leads


@in_virtual_time
async def test_a_coordinator_in_another_world_does_not_lead() -> None:
    it = Stage(Worlds.fresh(), Tuning(workers=2))
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
    it = Stage(Worlds.fresh(), Tuning(workers=2))
    start(it, "a")
    assert await it.until(lambda: bool(it.worlds.database.backend_identities), 10)
    own = RuntimeState(identity=it.worlds.runtime.identity)
    start(it, "b", own)
    await asyncio.sleep(10)
    own.identity = "another"
    await it.kill("a")
    await asyncio.sleep(10)
    assert not leads(it, "b")
    start(it, "c")
    assert await it.until(lambda: leads(it, "c"), 10)
    own.identity = it.worlds.runtime.identity
    await it.kill("c")
    assert await it.until(lambda: leads(it, "b"), 10)


@in_virtual_time
async def test_a_runtime_that_does_not_answer_keeps_nobody_from_leading() -> None:
    it = Stage(Worlds.fresh(), Tuning(workers=2))
    start(it, "a")
    assert await it.until(lambda: bool(it.worlds.database.backend_identities), 10)
    await it.kill("a")
    start(it, "b").faults["runtime"] = FAILS
    assert await it.until(lambda: leads(it, "b"), 10)
