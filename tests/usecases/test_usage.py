"""What people see of usage now: fresh enough, asked for once for all who look, and the leader's sample otherwise."""

import asyncio
from collections.abc import Collection, Mapping
from uuid import UUID, uuid4

from codehub.adapters.memory import MemoryDatabase, MemoryRuntime
from codehub.adapters.memory.fault_injection import Network
from codehub.adapters.memory.runtime import Container, Volume
from codehub.domain.usage import ComputeUsage, DiskUsage, Usage
from codehub.ports.runtime import ContainerSpec, Resources
from codehub.usecases.usage import ANSWER_SECONDS, FRESH_SECONDS, REST, WorkspaceUsage
from tests.coordinator.harness import FAILS, HANGS, ScriptedNetwork, in_virtual_time, now
from tests.simulation.virtual_time import VirtualClock

DISK = DiskUsage(1, 2, 3, 4)


class Scene:
    """A runtime with some running workspaces, and somebody who looks. `seconds`: how long the runtime takes."""

    def __init__(self) -> None:
        self.network = ScriptedNetwork(VirtualClock())
        self.runtime = MemoryRuntime(network=self.network)
        self.database = MemoryDatabase(network=Network())
        self.database.state.now = now
        self.seconds = 0.0
        self.usage = WorkspaceUsage(SlowRuntime(self), self.database.usage_history(), VirtualClock())

    def start(self) -> UUID:
        key = uuid4()
        self.runtime.state.volumes[str(key)] = Volume(key)
        self.runtime.state.containers[key] = Container("run-1", str(key), memory_bytes=7)
        return key

    async def record(self, key: UUID, usage: Usage) -> None:
        await self.database.usage_history().record({key: usage}, 0)

    @property
    def questions(self) -> int:
        return self.network.calls.count("runtime.compute_usage")


class SlowRuntime(MemoryRuntime):
    def __init__(self, scene: Scene) -> None:
        super().__init__(scene.runtime.state, scene.network)
        self._scene = scene

    async def compute_usage(self, ids: Collection[UUID]) -> Mapping[UUID, ComputeUsage]:
        await asyncio.sleep(self._scene.seconds)
        return await super().compute_usage(ids)


@in_virtual_time
async def test_cpu_is_known_from_the_second_look_on() -> None:
    scene = Scene()
    key = scene.start()
    assert await scene.usage.now([key]) == {key: Usage(None, None, 7, None, None)}
    await asyncio.sleep(5)
    scene.runtime.state.containers[key].cpu_seconds += 2.5
    assert (await scene.usage.now([key]))[key].cpu == 0.5


@in_virtual_time
async def test_at_the_first_look_the_leader_s_sample_helps() -> None:
    scene = Scene()
    key = scene.start()
    await scene.record(key, Usage(0.25, 2.0, 5, 6, DISK))
    assert await scene.usage.now([key]) == {key: Usage(0.25, None, 7, None, DISK)}
    await asyncio.sleep(5)
    assert (await scene.usage.now([key]))[key] == Usage(0.0, None, 7, None, DISK)


@in_virtual_time
async def test_however_many_look_the_runtime_is_asked_once() -> None:
    scene = Scene()
    keys = [scene.start() for _ in range(3)]
    scene.seconds = 0.5
    answers = await asyncio.gather(*(scene.usage.now(keys) for _ in range(50)))
    assert scene.questions == 1
    assert all(set(answer) == set(keys) for answer in answers)
    await asyncio.sleep(FRESH_SECONDS + 1)
    await scene.usage.now(keys)
    assert scene.questions == 2


@in_virtual_time
async def test_a_slow_runtime_is_asked_for_a_fifth_of_the_time() -> None:
    scene = Scene()
    one, other = scene.start(), scene.start()
    scene.seconds = 2.0
    await scene.usage.now([one])
    await scene.record(other, Usage(memory_bytes=1))
    assert (await scene.usage.now([other]))[other].memory_bytes == 1, "the leader's sample meanwhile"
    assert scene.questions == 1
    await asyncio.sleep(REST * scene.seconds)
    assert (await scene.usage.now([other]))[other].memory_bytes == 7
    assert scene.questions == 2


@in_virtual_time
async def test_one_question_is_for_all_who_look() -> None:
    scene = Scene()
    keys = [scene.start() for _ in range(10)]
    scene.seconds = 1.0
    for key in keys:
        await scene.usage.now([key])
    await asyncio.sleep(FRESH_SECONDS)
    await scene.usage.now(keys[:1])
    scene.runtime.state.containers.clear()
    asked = scene.questions
    assert all([await scene.usage.now([key]) for key in keys]), "each was part of the question of another"
    assert scene.questions == asked


@in_virtual_time
async def test_a_runtime_that_does_not_answer_leaves_what_was_recorded() -> None:
    scene = Scene()
    key, unknown = scene.start(), scene.start()
    await scene.record(key, Usage(0.25, memory_bytes=1))
    for fault in (FAILS, HANGS):
        scene.network.faults["runtime"] = fault
        assert await scene.usage.now([key, unknown]) == {key: Usage(0.25, memory_bytes=1)}
        await asyncio.sleep(REST * ANSWER_SECONDS)


@in_virtual_time
async def test_what_has_stopped_uses_nothing_that_is_known() -> None:
    scene = Scene()
    key = scene.start()
    await scene.record(key, Usage(0.25, memory_bytes=1))
    scene.runtime.state.kill(key)
    assert await scene.usage.now([key]) == {}
    assert len(await scene.usage.last_hour(key)) == 1


@in_virtual_time
async def test_another_run_counts_anew() -> None:
    scene = Scene()
    key = scene.start()
    scene.runtime.state.containers[key].cpu_seconds = 100.0
    await scene.usage.now([key])
    await asyncio.sleep(5)
    scene.runtime.state.containers[key] = Container("run-2", str(key), cpu_seconds=101.0)
    assert (await scene.usage.now([key]))[key].cpu is None


@in_virtual_time
async def test_limits_are_the_share() -> None:
    scene = Scene()
    key = scene.start()
    await scene.runtime.remove_container(key)
    await scene.runtime.start_container(ContainerSpec(key, str(key), "", share=Resources(1.5, 10)))
    found = (await scene.usage.now([key]))[key]
    assert (found.cpu_limit, found.memory_limit_bytes) == (1.5, 10)
