"""The usage sampler: what it records, what it leaves unknown, and how little of the time it may take."""

import asyncio
from collections.abc import Collection, Mapping
from dataclasses import replace
from itertools import takewhile
from uuid import UUID, uuid4

import pytest

from codehub.adapters.memory import MemoryDatabase, MemoryRuntime
from codehub.adapters.memory.runtime import Container, Volume
from codehub.coordinator.context import Tuning
from codehub.coordinator.process import TermRunner
from codehub.coordinator.usage_sampler import (
    DISK_SECONDS,
    FORGET_DISK_SECONDS,
    MOST_HOMES,
    UsageSampler,
)
from codehub.domain.errors import Stale
from codehub.domain.usage import ComputeUsage, DiskUsage, Usage
from codehub.telemetry import USAGE_CPU, USAGE_DISK, USAGE_MEASURED, USAGE_WARNINGS, WORKSPACE_MEMORY, Metric
from tests.coordinator.harness import FAILS, HANGS, CoordinatorHarness, in_virtual_time

INTERVAL = 60.0
GB = 1 << 30


class Sampling:
    """A leader's sampler on a runtime in memory."""

    def __init__(self, harness: CoordinatorHarness, tuning: Tuning) -> None:
        self.harness = harness
        self.state = harness.states.runtime
        self.history = MemoryDatabase(harness.states.database, harness.network).usage_history()
        self.sampler = UsageSampler(harness.dependencies, self.history, tuning, harness.term.epoch)

    @classmethod
    async def begun(cls, *, per_workspace: bool = False) -> "Sampling":
        tuning = Tuning(usage_interval=INTERVAL, usage_metrics_per_workspace=per_workspace)
        return cls(await CoordinatorHarness.open(), tuning)

    def start(self, used_bytes: int = 1, limit: int | None = None) -> UUID:
        key = uuid4()
        self.state.volumes[str(key)] = Volume(key, used_bytes=used_bytes, disk_bytes=limit)
        self.state.containers[key] = Container("run-1", str(key), memory_bytes=7)
        return key

    async def last(self, key: UUID) -> Usage:
        return (await self.history.of(key))[-1].usage

    def metric(self, metric: Metric, **labels: str) -> float | None:
        return self.harness.metrics.registry.get_sample_value(metric.name, labels)

    @property
    def disk_looks(self) -> int:
        return self.harness.network.calls.count("runtime.disk_usage")


@in_virtual_time
async def test_a_sample_holds_all_that_is_known() -> None:
    sampling = await Sampling.begun()
    key = sampling.start(used_bytes=5, limit=100)
    asleep = sampling.start()
    sampling.state.kill(asleep)
    await asyncio.sleep(await sampling.sampler.tick())
    assert (await sampling.last(key)).cpu is None, "one look tells no rate"
    sampling.state.containers[key].cpu_seconds += 30.0
    await sampling.sampler.tick()
    found = await sampling.last(key)
    assert found.cpu == pytest.approx(30.0 / INTERVAL)
    assert found.memory_bytes == 7
    assert found.disk is not None
    assert (found.disk.used_bytes, found.disk.limit_bytes) == (5, 100)
    assert not await sampling.history.of(asleep)


@in_virtual_time
async def test_disks_are_measured_rarely_and_those_that_fill_up_each_time() -> None:
    sampling = await Sampling.begun()
    sampling.start(used_bytes=1, limit=100)
    for _ in range(4):
        await asyncio.sleep(await sampling.sampler.tick())
    assert sampling.disk_looks == 1
    await asyncio.sleep(DISK_SECONDS)
    await sampling.sampler.tick()
    assert sampling.disk_looks == 2
    sampling.start(used_bytes=80, limit=100)
    for _ in range(3):
        await asyncio.sleep(await sampling.sampler.tick())
    assert sampling.disk_looks == 5


@in_virtual_time
async def test_a_disk_that_cannot_be_measured_is_repeated_for_a_while_and_then_unknown() -> None:
    sampling = await Sampling.begun()
    key = sampling.start(used_bytes=5)
    await asyncio.sleep(await sampling.sampler.tick())
    sampling.harness.network.faults["runtime.disk_usage"] = HANGS
    await asyncio.sleep(DISK_SECONDS)
    await sampling.sampler.tick()
    disk = (await sampling.last(key)).disk
    assert disk is not None
    assert disk.used_bytes == 5
    await asyncio.sleep(FORGET_DISK_SECONDS)
    await sampling.sampler.tick()
    found = await sampling.last(key)
    assert found.disk is None
    assert found.memory_bytes == 7, "the rest is known all the same"


@pytest.mark.parametrize("silent", ["runtime", "runtime.compute_usage", "usage.record"])
@in_virtual_time
async def test_what_does_not_answer_leaves_a_sample_out_and_nothing_else(silent: str) -> None:
    sampling = await Sampling.begun()
    key = sampling.start()
    await sampling.sampler.tick()
    assert sampling.metric(USAGE_MEASURED, known="all") == 1
    sampling.harness.network.faults[silent] = FAILS
    assert await sampling.sampler.tick() == INTERVAL
    assert sampling.metric(USAGE_MEASURED, known="all") is None, "what is not known is not told"
    sampling.harness.network.faults.clear()
    await sampling.sampler.tick()
    assert len(await sampling.history.of(key)) == 2
    assert sampling.harness.backends.acted_at(key) == float("-inf")


class SlowRuntime(MemoryRuntime):
    seconds = 30.0

    async def compute_usage(self, ids: Collection[UUID]) -> Mapping[UUID, ComputeUsage]:
        await asyncio.sleep(self.seconds)
        return await super().compute_usage(ids)


@in_virtual_time
async def test_a_pass_that_takes_long_comes_less_often() -> None:
    sampling = await Sampling.begun()
    sampling.start()
    slow = SlowRuntime(sampling.state, sampling.harness.network)
    dependencies = replace(sampling.harness.dependencies, runtime=slow)
    sampler = UsageSampler(dependencies, sampling.history, Tuning(usage_interval=INTERVAL), sampling.harness.term.epoch)
    assert await sampler.tick() == pytest.approx(9 * slow.seconds), "a tenth of the time"
    slow.seconds = 0.0
    assert await sampler.tick() == INTERVAL


@in_virtual_time
async def test_so_many_homes_are_measured_at_once_and_the_others_next() -> None:
    sampling = await Sampling.begun()
    keys = [sampling.start() for _ in range(MOST_HOMES + 3)]
    await asyncio.sleep(await sampling.sampler.tick())
    assert sampling.metric(USAGE_MEASURED, known="disk") == MOST_HOMES
    await sampling.sampler.tick()
    assert sampling.metric(USAGE_MEASURED, known="disk") == len(keys)


class EndingRuntime(MemoryRuntime):
    """Its program that measures homes ends at a home that cannot be counted: those behind it get no answer."""

    hostile: UUID
    answers_unknown = False

    async def disk_usage(self, ids: Collection[UUID], seconds: float) -> Mapping[UUID, DiskUsage]:
        before = list(takewhile(lambda key: key != self.hostile, ids))
        found = await super().disk_usage(ids, seconds)
        unknown = {key: replace(found[key], used_bytes=None) for key in ids} if self.answers_unknown else {}
        return {**unknown, **{key: found[key] for key in before}}


@pytest.mark.parametrize("answers_unknown", [False, True])
@in_virtual_time
async def test_a_home_that_cannot_be_counted_keeps_no_other_waiting(answers_unknown: bool) -> None:
    sampling = await Sampling.begun()
    runtime = EndingRuntime(sampling.state, sampling.harness.network)
    runtime.answers_unknown = answers_unknown
    runtime.hostile = sampling.start()
    others = [sampling.start() for _ in range(3)]
    dependencies = replace(sampling.harness.dependencies, runtime=runtime)
    sampler = UsageSampler(dependencies, sampling.history, Tuning(usage_interval=INTERVAL), sampling.harness.term.epoch)
    await sampler.tick()
    assert sampling.metric(USAGE_MEASURED, known="disk") == 0
    for _ in range(3):
        await asyncio.sleep(DISK_SECONDS)
        await sampler.tick()
        assert sampling.metric(USAGE_MEASURED, known="disk") == len(others)


@in_virtual_time
async def test_metrics_are_sums_and_distributions_and_name_nobody() -> None:
    sampling = await Sampling.begun()
    keys = [sampling.start(used_bytes=size) for size in (10, 20, 30)]
    sampling.start(used_bytes=95, limit=100)
    await asyncio.sleep(await sampling.sampler.tick())
    await sampling.sampler.tick()
    labels = {"runtime": "memory"}
    shown = [sampling.metric(USAGE_DISK, statistic=name, **labels) for name in ("sum", "median", "max")]
    assert shown == [155, 25, 95]
    assert sampling.metric(USAGE_CPU, statistic="sum", **labels) == 0.0
    assert sampling.metric(USAGE_WARNINGS, warning="disk_nearly_full") == 1
    assert sampling.metric(WORKSPACE_MEMORY, workspace=str(keys[0])) is None
    sampling.sampler.close()
    assert sampling.metric(USAGE_DISK, statistic="sum", **labels) is None


@in_virtual_time
async def test_each_workspace_is_named_where_that_is_asked_for() -> None:
    sampling = await Sampling.begun(per_workspace=True)
    key = sampling.start()
    await sampling.sampler.tick()
    assert sampling.metric(WORKSPACE_MEMORY, workspace=str(key)) == 7
    sampling.state.kill(key)
    await sampling.sampler.tick()
    assert sampling.metric(WORKSPACE_MEMORY, workspace=str(key)) is None


@in_virtual_time
async def test_admins_hear_once_that_the_shared_disk_is_nearly_full() -> None:
    sampling = await Sampling.begun()
    sampling.state.disk_bytes = 10 * GB
    key = sampling.start(used_bytes=9 * GB + GB // 2)
    for _ in range(3):
        await asyncio.sleep(await sampling.sampler.tick())
    told = [subject for subject, _ in sampling.harness.notifier.notices]
    assert told == ["the disk that workspaces share is nearly full"]
    sampling.state.volumes[str(key)].used_bytes = GB
    await asyncio.sleep(await sampling.sampler.tick())
    sampling.state.volumes[str(key)].used_bytes = 10 * GB
    await asyncio.sleep(DISK_SECONDS)
    await sampling.sampler.tick()
    assert len(sampling.harness.notifier.notices) == 2


@in_virtual_time
async def test_a_term_that_is_over_records_nothing() -> None:
    sampling = await Sampling.begun()
    key = sampling.start()
    await sampling.harness.term.resign()
    await sampling.harness.dependencies.leadership.campaign("somebody else")
    with pytest.raises(Stale):
        await sampling.sampler.tick()
    assert not await sampling.history.of(key)


@in_virtual_time
async def test_a_leader_samples_by_itself() -> None:
    sampling = await Sampling.begun()
    key = sampling.start()
    dependencies = replace(sampling.harness.dependencies, usage_history=sampling.history)
    runner = TermRunner(sampling.harness.term, dependencies, Tuning(usage_interval=INTERVAL))
    running = asyncio.create_task(runner.run())
    await asyncio.sleep(2.5 * INTERVAL)
    assert sampling.metric(USAGE_MEASURED, known="all") == 1
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert len(await sampling.history.of(key)) == 3
    assert sampling.metric(USAGE_MEASURED, known="all") is None
