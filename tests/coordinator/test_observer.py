"""The observer: settled workspaces cost one look and no write; unknown is not absent, and absent is looked at twice."""

import asyncio
from collections.abc import Collection, Mapping
from dataclasses import replace
from uuid import UUID

from codehub.adapters.memory.runtime import MemoryRuntime, Volume
from codehub.coordinator.context import Tuning
from codehub.domain import naming
from codehub.domain.judge import ContainerSeen
from codehub.domain.workspace import Desired, Operation, Phase
from tests.coordinator.harness import FAILS, CoordinatorHarness, in_virtual_time
from tests.rows import KEY, VOLUME, WORKSPACE_ID, archived, with_home

MANY = 40


def settle_many(harness: CoordinatorHarness) -> None:
    """Add many RUNNING workspaces, each with its own volume and container."""
    for number in range(1, MANY + 1):
        key = UUID(int=number)
        row = with_home(
            id=key,
            slug=f"demo-{number}",
            phase=Phase.RUNNING,
            desired_state=Desired.RUNNING,
            home_store_key=naming.volume_name(key, 1),
        )
        harness.place(row, volume=(number,), container=True)
    harness.states.database.row_writes = 0


def writes(harness: CoordinatorHarness) -> int:
    return harness.states.database.row_writes


@in_virtual_time
async def test_a_pass_over_settled_workspaces_loads_and_writes_nothing() -> None:
    harness = await CoordinatorHarness.open()
    settle_many(harness)
    first = await harness.observer.full_pass()
    assert (first.rows, first.judged, first.written, first.queued) == (MANY, MANY, 0, 0)
    harness.network.calls.clear()
    second = await harness.observer.full_pass()
    assert (second.rows, second.judged, second.written, second.queued) == (MANY, 0, 0, 0)
    looks = ["runtime.volumes", "runtime.identity", "runtime.containers", "runtime.identity"]
    assert harness.network.calls == [*looks, "db.versions"]
    assert writes(harness) == 0


@in_virtual_time
async def test_only_what_changed_is_loaded_again() -> None:
    harness = await CoordinatorHarness.open()
    settle_many(harness)
    await harness.observer.full_pass()
    harness.states.runtime.kill(UUID(int=3))
    harness.states.database.put(row := harness.states.database.rows[UUID(int=5)], replace(row, memo="hello"), "ann", "")
    report = await harness.observer.full_pass()
    assert (report.judged, report.queued) == (2, 1)
    assert await harness.queue.get() == UUID(int=3)


@in_virtual_time
async def test_an_outage_is_one_statement_and_starts_nothing() -> None:
    harness = await CoordinatorHarness.open()
    settle_many(harness)
    await harness.observer.full_pass()
    harness.network.faults["runtime"] = FAILS
    harness.network.calls.clear()
    report = await harness.observer.full_pass()
    assert (report.written, report.queued) == (MANY, 0)
    assert harness.network.calls.count("db.record_observations") == 1
    rows = harness.states.database.rows.values()
    assert {row.phase for row in rows} == {Phase.RUNNING}
    assert {row.conditions.container_ready.status for row in rows} == {None}
    again = await harness.observer.full_pass()
    assert again.written == again.queued == 0
    assert harness.effects() == []


@in_virtual_time
async def test_only_what_looks_different_is_loaded_again() -> None:
    harness = await CoordinatorHarness.open()
    settle_many(harness)
    await harness.observer.full_pass()
    harness.states.runtime.kill(next(iter(harness.states.runtime.containers)))
    report = await harness.observer.full_pass()
    assert (report.rows, report.judged, report.queued) == (MANY, 1, 1)
    harness.network.faults["runtime"] = FAILS
    assert (await harness.observer.full_pass()).judged == MANY
    assert (await harness.observer.full_pass()).judged == MANY


@in_virtual_time
async def test_readiness_counts_only_passes_that_saw_everything() -> None:
    harness = await CoordinatorHarness.open()
    settle_many(harness)
    harness.network.faults["runtime"] = FAILS
    assert not (await harness.observer.full_pass()).whole
    assert harness.observer.last_pass_at == float("-inf")
    del harness.network.faults["runtime"]
    await asyncio.sleep(10)
    assert (await harness.observer.full_pass()).whole
    assert harness.observer.last_pass_at == 10


class HalfBlind(MemoryRuntime):
    """A runtime that cannot tell what is there of one workspace."""

    async def containers(self, ids: Collection[UUID] | None = None) -> Mapping[UUID, ContainerSeen]:
        unknown = ContainerSeen("", running=False, detail="its record is spoilt", known=False)
        return {**await super().containers(ids), WORKSPACE_ID: unknown}


@in_virtual_time
async def test_what_cannot_be_told_of_one_is_unknown_of_that_one_alone() -> None:
    harness = CoordinatorHarness()
    harness.dependencies = replace(harness.dependencies, runtime=HalfBlind(harness.states.runtime, harness.network))
    await harness.become_leader()
    settle_many(harness)
    harness.place(with_home(phase=Phase.RUNNING, desired_state=Desired.RUNNING), volume=(1,))
    neighbour = UUID(int=3)
    del harness.states.runtime.containers[neighbour]
    await harness.observer.full_pass()
    await harness.reconcile()
    assert harness.row.conditions.container_ready.status is None
    assert (harness.row.phase, harness.row.operation) == (Phase.RUNNING, Operation.NONE)
    assert harness.effects() == []
    assert await harness.queue.get() == neighbour


@in_virtual_time
async def test_a_snapshot_begun_before_an_act_is_not_believed() -> None:
    harness = await CoordinatorHarness.open()
    harness.place(with_home(desired_state=Desired.STANDBY), volume=())
    seen_before = await harness.observer._look(None)
    await harness.backends.remove_container(WORKSPACE_ID)
    pairs, busy = harness.observer._assess([harness.row], seen_before, {WORKSPACE_ID: object()}, harness.row.updated_at)
    assert (pairs, busy) == ([], [WORKSPACE_ID])
    await harness.observer.active_pass([WORKSPACE_ID])
    await harness.backends.remove_container(WORKSPACE_ID)
    harness.network.calls.clear()
    await harness.observer.facts(harness.row)
    assert "runtime.volumes" in harness.network.calls


@in_virtual_time
async def test_the_active_pass_is_one_filtered_look_that_the_workers_share() -> None:
    harness = await CoordinatorHarness.open()
    settle_many(harness)
    harness.place(with_home(desired_state=Desired.RUNNING), volume=())
    await harness.observer.active_pass()
    assert harness.network.calls == ["db.active", "runtime.volumes", "runtime.containers"]
    await asyncio.sleep(0.1)
    await harness.observer.facts(harness.row)
    assert harness.network.calls == ["db.active", "runtime.volumes", "runtime.containers"]
    assert await harness.queue.get() == WORKSPACE_ID
    assert len(harness.queue) == 0
    await asyncio.sleep(2)
    await harness.observer.facts(harness.row)
    assert harness.network.calls.count("runtime.volumes") == 2


@in_virtual_time
async def test_a_woken_workspace_at_rest_is_looked_at_again_but_queued_only_when_it_looks_different() -> None:
    harness = await CoordinatorHarness.open()
    harness.place(with_home(desired_state=Desired.STANDBY), volume=())
    assert [await harness.observer.active_pass([WORKSPACE_ID]) for _ in range(3)] == [1, 0, 0]
    harness.states.runtime.volumes.pop(VOLUME)
    assert [await harness.observer.active_pass([WORKSPACE_ID]) for _ in range(2)] == [1, 0]
    harness.network.faults["runtime"] = FAILS
    assert [await harness.observer.active_pass([WORKSPACE_ID]) for _ in range(2)] == [1, 1]
    assert harness.network.calls.count("runtime.volumes") == 6  # after a silence it is first asked which one it is


@in_virtual_time
async def test_an_absence_is_confirmed_by_a_direct_look() -> None:
    """The list of the pass missed a volume; the workspace's own look does not."""
    harness = await CoordinatorHarness.open()
    harness.place(with_home(desired_state=Desired.STANDBY), volume=())
    volume = harness.states.runtime.volumes.pop(VOLUME)
    harness.network.meanwhile["runtime.containers"] = lambda: harness.states.runtime.volumes.update({VOLUME: volume})
    report = await harness.observer.full_pass()
    assert (report.written, report.queued) == (0, 1)
    await harness.reconcile()
    assert (harness.row.phase, harness.row.error_info) == (Phase.STANDBY, None)

    harness.states.runtime.volumes.pop(VOLUME)
    await harness.observer.full_pass()
    await harness.reconcile()
    assert harness.row.error_info is not None
    assert harness.row.error_info.reason == "DataLost"


@in_virtual_time
async def test_an_archive_that_the_listing_missed_is_looked_at() -> None:
    harness = await CoordinatorHarness.open(Tuning(inventory_interval=0))
    harness.place(archived(desired_state=Desired.ARCHIVED), archives={KEY: (1,)})
    await harness.observer.full_pass()
    harness.states.archives.objects[KEY].committed = False
    report = await harness.observer.full_pass()
    assert (report.written, report.queued) == (0, 1)
    harness.states.archives.objects[KEY].committed = True
    await harness.reconcile()
    assert harness.row.phase is Phase.ARCHIVED


@in_virtual_time
async def test_the_inventory_is_listed_now_and_then_and_its_outage_harms_nobody() -> None:
    harness = await CoordinatorHarness.open(Tuning(inventory_interval=300))
    harness.place(archived(desired_state=Desired.ARCHIVED), archives={KEY: (1,)})
    for _ in range(3):
        await harness.observer.full_pass()
    assert harness.network.calls.count("archives.inventory") == 1
    harness.network.faults["archives"] = FAILS
    await asyncio.sleep(301)
    report = await harness.observer.full_pass()
    assert report.queued == 0
    assert (harness.row.phase, harness.row.conditions.archive_ready.status) == (Phase.ARCHIVED, None)


@in_virtual_time
async def test_a_row_that_cannot_be_read_does_not_stop_the_others() -> None:
    """The store leaves an unreadable row out, as it promises; the pass goes on with the rest."""
    harness = await CoordinatorHarness.open()
    settle_many(harness)
    database, bad = harness.states.database, UUID(int=7)
    harness.states.runtime.kill(UUID(int=8))

    def vanish() -> None:
        del database.rows[bad]

    harness.network.meanwhile["db.load"] = vanish
    report = await harness.observer.full_pass()
    assert (report.rows, report.queued) == (MANY, 1)
    assert await harness.queue.get() == UUID(int=8)
    assert await harness.reconciler.reconcile(bad) is None


@in_virtual_time
async def test_a_row_written_since_the_pass_loaded_it_is_skipped() -> None:
    harness = await CoordinatorHarness.open()
    harness.place(with_home(desired_state=Desired.STANDBY), volume=())
    harness.network.faults["runtime"] = FAILS
    harness.network.meanwhile["db.record_observations"] = harness.change(operation=Operation.STOPPING)
    report = await harness.observer.full_pass()
    assert report.written == 0
    assert harness.row.operation is Operation.STOPPING


@in_virtual_time
async def test_a_strangers_volume_is_not_the_home() -> None:
    harness = await CoordinatorHarness.open()
    harness.place(archived(desired_state=Desired.ARCHIVED, home_store_key=VOLUME), archives={KEY: (1,)})
    harness.states.runtime.volumes[VOLUME] = Volume(WORKSPACE_ID)
    await harness.observer.full_pass()
    await harness.reconcile()
    assert harness.row.phase is Phase.ARCHIVED


@in_virtual_time
async def test_after_a_hint_an_older_look_says_nothing() -> None:
    harness = await CoordinatorHarness.open()
    harness.place(with_home(desired_state=Desired.RUNNING), volume=())
    await harness.converge()
    assert harness.row.phase is Phase.RUNNING
    await harness.clock.sleep(0.01)
    await harness.observer.active_pass([WORKSPACE_ID])
    harness.states.runtime.kill(WORKSPACE_ID)
    before = await harness.observer.facts(harness.row)
    assert before.container is not None
    assert before.container.running, "the last look is fresh enough"
    harness.observer.distrust(WORKSPACE_ID)
    after = await harness.observer.facts(harness.row)
    assert after.container is not None
    assert not after.container.running
