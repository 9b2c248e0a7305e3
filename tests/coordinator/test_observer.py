"""The observer: a settled world costs one look and no write; unknown is not absent, and absent is looked at twice."""

import asyncio
from collections.abc import Collection, Mapping
from dataclasses import replace
from uuid import UUID

from codehub.adapters.memory.runtime import MemoryRuntime, Volume
from codehub.coordinator.tuning import Tuning
from codehub.domain import naming
from codehub.domain.judge import ContainerSeen
from codehub.domain.workspace import Desired, Operation, Phase
from tests.coordinator.workshop import FAILS, Workshop, in_virtual_time
from tests.rows import KEY, VOLUME, WORKSPACE_ID, archived, with_home

MANY = 40


def settle_many(shop: Workshop) -> None:
    """RUNNING, each with its own volume and container."""
    for number in range(1, MANY + 1):
        key = UUID(int=number)
        row = with_home(
            id=key,
            slug=f"demo-{number}",
            phase=Phase.RUNNING,
            desired_state=Desired.RUNNING,
            home_store_key=naming.volume_name(key, 1),
        )
        shop.place(row, volume=(number,), container=True)
    shop.worlds.database.row_writes = 0


def writes(shop: Workshop) -> int:
    return shop.worlds.database.row_writes


@in_virtual_time
async def test_a_pass_over_a_settled_world_loads_and_writes_nothing() -> None:
    shop = await Workshop.open()
    settle_many(shop)
    first = await shop.observer.full_pass()
    assert (first.rows, first.judged, first.written, first.queued) == (MANY, MANY, 0, 0)
    shop.network.calls.clear()
    second = await shop.observer.full_pass()
    assert (second.rows, second.judged, second.written, second.queued) == (MANY, 0, 0, 0)
    looks = ["runtime.volumes", "runtime.identity", "runtime.containers", "runtime.identity"]
    assert shop.network.calls == [*looks, "db.versions"]
    assert writes(shop) == 0


@in_virtual_time
async def test_only_what_changed_is_loaded_again() -> None:
    shop = await Workshop.open()
    settle_many(shop)
    await shop.observer.full_pass()
    shop.worlds.runtime.kill(UUID(int=3))
    shop.worlds.database.put(row := shop.worlds.database.rows[UUID(int=5)], replace(row, memo="hello"), "ann", "")
    report = await shop.observer.full_pass()
    assert (report.judged, report.queued) == (2, 1)
    assert await shop.queue.get() == UUID(int=3)


@in_virtual_time
async def test_an_outage_is_one_statement_and_starts_nothing() -> None:
    shop = await Workshop.open()
    settle_many(shop)
    await shop.observer.full_pass()
    shop.network.faults["runtime"] = FAILS
    shop.network.calls.clear()
    report = await shop.observer.full_pass()
    assert (report.written, report.queued) == (MANY, 0)
    assert shop.network.calls.count("db.record_observations") == 1
    rows = shop.worlds.database.rows.values()
    assert {row.phase for row in rows} == {Phase.RUNNING}
    assert {row.conditions.container_ready.status for row in rows} == {None}
    again = await shop.observer.full_pass()
    assert again.written == again.queued == 0
    assert shop.effects() == []


@in_virtual_time
async def test_only_what_looks_different_is_loaded_again() -> None:
    shop = await Workshop.open()
    settle_many(shop)
    await shop.observer.full_pass()
    shop.worlds.runtime.kill(next(iter(shop.worlds.runtime.containers)))
    report = await shop.observer.full_pass()
    assert (report.rows, report.judged, report.queued) == (MANY, 1, 1)
    shop.network.faults["runtime"] = FAILS
    assert (await shop.observer.full_pass()).judged == MANY
    assert (await shop.observer.full_pass()).judged == MANY


@in_virtual_time
async def test_readiness_counts_only_passes_that_saw_everything() -> None:
    shop = await Workshop.open()
    settle_many(shop)
    shop.network.faults["runtime"] = FAILS
    assert not (await shop.observer.full_pass()).whole
    assert shop.observer.last_pass_at == float("-inf")
    del shop.network.faults["runtime"]
    await asyncio.sleep(10)
    assert (await shop.observer.full_pass()).whole
    assert shop.observer.last_pass_at == 10


class HalfBlind(MemoryRuntime):
    """Cannot tell what is there of one workspace."""

    async def containers(self, ids: Collection[UUID] | None = None) -> Mapping[UUID, ContainerSeen]:
        unknown = ContainerSeen("", running=False, detail="its record is spoilt", known=False)
        return {**await super().containers(ids), WORKSPACE_ID: unknown}


@in_virtual_time
async def test_what_cannot_be_told_of_one_is_unknown_of_that_one_alone() -> None:
    shop = Workshop()
    shop.outside = replace(shop.outside, runtime=HalfBlind(shop.worlds.runtime, shop.network))
    await shop.take_office()
    settle_many(shop)
    shop.place(with_home(phase=Phase.RUNNING, desired_state=Desired.RUNNING), volume=(1,))
    neighbour = UUID(int=3)
    del shop.worlds.runtime.containers[neighbour]
    await shop.observer.full_pass()
    await shop.reconcile()
    assert shop.row.conditions.container_ready.status is None
    assert (shop.row.phase, shop.row.operation) == (Phase.RUNNING, Operation.NONE)
    assert shop.effects() == []
    assert await shop.queue.get() == neighbour


@in_virtual_time
async def test_a_sight_begun_before_an_act_is_not_believed() -> None:
    shop = await Workshop.open()
    shop.place(with_home(desired_state=Desired.STANDBY), volume=())
    seen_before = await shop.observer._look(None)
    await shop.backends.remove_container(WORKSPACE_ID)
    pairs, busy = shop.observer._assess([shop.row], seen_before, {WORKSPACE_ID: object()}, shop.row.updated_at)
    assert (pairs, busy) == ([], [WORKSPACE_ID])
    await shop.observer.active_pass([WORKSPACE_ID])
    await shop.backends.remove_container(WORKSPACE_ID)
    shop.network.calls.clear()
    await shop.observer.facts(shop.row)
    assert "runtime.volumes" in shop.network.calls


@in_virtual_time
async def test_the_active_pass_is_one_filtered_look_that_the_workers_share() -> None:
    shop = await Workshop.open()
    settle_many(shop)
    shop.place(with_home(desired_state=Desired.RUNNING), volume=())
    await shop.observer.active_pass()
    assert shop.network.calls == ["db.active", "runtime.volumes", "runtime.containers"]
    await asyncio.sleep(0.1)
    await shop.observer.facts(shop.row)
    assert shop.network.calls == ["db.active", "runtime.volumes", "runtime.containers"]
    assert await shop.queue.get() == WORKSPACE_ID
    assert len(shop.queue) == 0
    await asyncio.sleep(2)
    await shop.observer.facts(shop.row)
    assert shop.network.calls.count("runtime.volumes") == 2


@in_virtual_time
async def test_a_woken_workspace_at_rest_is_looked_at_again_but_queued_only_when_it_looks_different() -> None:
    shop = await Workshop.open()
    shop.place(with_home(desired_state=Desired.STANDBY), volume=())
    assert [await shop.observer.active_pass([WORKSPACE_ID]) for _ in range(3)] == [1, 0, 0]
    shop.worlds.runtime.volumes.pop(VOLUME)
    assert [await shop.observer.active_pass([WORKSPACE_ID]) for _ in range(2)] == [1, 0]
    shop.network.faults["runtime"] = FAILS
    assert [await shop.observer.active_pass([WORKSPACE_ID]) for _ in range(2)] == [1, 1]
    assert shop.network.calls.count("runtime.volumes") == 6  # after a silence it is first asked which one it is


@in_virtual_time
async def test_an_absence_is_confirmed_by_a_direct_look() -> None:
    """The list of the pass missed it; the workspace's own look does not."""
    shop = await Workshop.open()
    shop.place(with_home(desired_state=Desired.STANDBY), volume=())
    volume = shop.worlds.runtime.volumes.pop(VOLUME)
    shop.network.meanwhile["runtime.containers"] = lambda: shop.worlds.runtime.volumes.update({VOLUME: volume})
    report = await shop.observer.full_pass()
    assert (report.written, report.queued) == (0, 1)
    await shop.reconcile()
    assert (shop.row.phase, shop.row.error_info) == (Phase.STANDBY, None)

    shop.worlds.runtime.volumes.pop(VOLUME)
    await shop.observer.full_pass()
    await shop.reconcile()
    assert shop.row.error_info is not None
    assert shop.row.error_info.reason == "DataLost"


@in_virtual_time
async def test_an_archive_that_the_listing_missed_is_looked_at() -> None:
    shop = await Workshop.open(Tuning(inventory_interval=0))
    shop.place(archived(desired_state=Desired.ARCHIVED), archives={KEY: (1,)})
    await shop.observer.full_pass()
    shop.worlds.archives.objects[KEY].committed = False
    report = await shop.observer.full_pass()
    assert (report.written, report.queued) == (0, 1)
    shop.worlds.archives.objects[KEY].committed = True
    await shop.reconcile()
    assert shop.row.phase is Phase.ARCHIVED


@in_virtual_time
async def test_the_inventory_is_listed_now_and_then_and_its_outage_harms_nobody() -> None:
    shop = await Workshop.open(Tuning(inventory_interval=300))
    shop.place(archived(desired_state=Desired.ARCHIVED), archives={KEY: (1,)})
    for _ in range(3):
        await shop.observer.full_pass()
    assert shop.network.calls.count("archives.inventory") == 1
    shop.network.faults["archives"] = FAILS
    await asyncio.sleep(301)
    report = await shop.observer.full_pass()
    assert report.queued == 0
    assert (shop.row.phase, shop.row.conditions.archive_ready.status) == (Phase.ARCHIVED, None)


@in_virtual_time
async def test_a_row_that_cannot_be_read_does_not_stop_the_others() -> None:
    """The store leaves it out, as it promises; the pass goes on with the rest."""
    shop = await Workshop.open()
    settle_many(shop)
    database, bad = shop.worlds.database, UUID(int=7)
    shop.worlds.runtime.kill(UUID(int=8))

    def vanish() -> None:
        del database.rows[bad]

    shop.network.meanwhile["db.load"] = vanish
    report = await shop.observer.full_pass()
    assert (report.rows, report.queued) == (MANY, 1)
    assert await shop.queue.get() == UUID(int=8)
    assert await shop.reconciler.reconcile(bad) is None


@in_virtual_time
async def test_a_row_written_since_the_pass_loaded_it_is_skipped() -> None:
    shop = await Workshop.open()
    shop.place(with_home(desired_state=Desired.STANDBY), volume=())
    shop.network.faults["runtime"] = FAILS
    shop.network.meanwhile["db.record_observations"] = shop.change(operation=Operation.STOPPING)
    report = await shop.observer.full_pass()
    assert report.written == 0
    assert shop.row.operation is Operation.STOPPING


@in_virtual_time
async def test_a_strangers_volume_is_not_the_home() -> None:
    shop = await Workshop.open()
    shop.place(archived(desired_state=Desired.ARCHIVED, home_store_key=VOLUME), archives={KEY: (1,)})
    shop.worlds.runtime.volumes[VOLUME] = Volume(WORKSPACE_ID)
    await shop.observer.full_pass()
    await shop.reconcile()
    assert shop.row.phase is Phase.ARCHIVED
