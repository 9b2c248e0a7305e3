"""The Runtime port's promises, kept alike in memory, by processes, by processes in a sandbox, by containers and by
pods."""

import asyncio
import os
from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import replace
from pathlib import Path
from uuid import UUID, uuid4

import pytest

from codehub.adapters.process.sandbox import find_sandbox_tools
from codehub.agent.handshake import AGENT_PORT
from codehub.domain.errors import BackendError, ErrorReason, VolumeInUse
from codehub.domain.naming import volume_name
from codehub.ports.runtime import ContainerSpec, Resources, Runtime, StartSecrets
from tests.contracts.places import DockerPlace, KubernetesPlace, MemoryPlace, Place, ProcessPlace, names
from tests.eventually import SECONDS, eventually

KINDS = [
    "memory",
    *(pytest.param(kind, marks=pytest.mark.system) for kind in ("process", "sandbox", "docker")),
    pytest.param("kubernetes", marks=[pytest.mark.system, pytest.mark.kubernetes]),
]


@pytest.fixture(params=KINDS)
async def place(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Place]:
    if request.param == "sandbox" and find_sandbox_tools() is None:
        pytest.skip("bubblewrap is not there or does not work")
    place: Place = MemoryPlace()
    if request.param == "docker":
        place = DockerPlace(request.getfixturevalue("docker_testbed"), tmp_path)
    elif request.param == "kubernetes":
        place = KubernetesPlace(request.getfixturevalue("kubernetes_testbed"), tmp_path)
    elif request.param != "memory":
        place = ProcessPlace(tmp_path / "root", sandbox=request.param == "sandbox")
    yield place
    await place.close()


@pytest.fixture
def runtime(place: Place) -> Runtime:
    return place.runtime()


@pytest.fixture
def workspace_id() -> UUID:
    return uuid4()


@pytest.fixture
async def spec(runtime: Runtime, workspace_id: UUID) -> ContainerSpec:
    volume = volume_name(workspace_id, 1)
    await runtime.create_volume(workspace_id, volume)
    return ContainerSpec(workspace_id, volume, "")


async def start(runtime: Runtime, spec: ContainerSpec) -> None:
    """Starts the container, and asks again while that is on its way."""
    async with asyncio.timeout(SECONDS):
        while await runtime.start_container(spec) is not None:
            await asyncio.sleep(0.1)


async def instance(runtime: Runtime, workspace_id: UUID) -> str:
    seen = (await runtime.containers([workspace_id]))[workspace_id]
    assert seen.running
    return seen.instance


async def is_empty(runtime: Runtime) -> bool:
    return not await runtime.containers()


async def stopped(runtime: Runtime, workspace_id: UUID) -> bool:
    return not (await runtime.containers([workspace_id]))[workspace_id].running


async def test_it_is_the_same_world_to_everybody_and_whatever_happens_in_it(
    place: Place, runtime: Runtime, spec: ContainerSpec
) -> None:
    before = await runtime.identity()
    assert await place.runtime().identity() == before
    await start(runtime, spec)
    await runtime.remove_container(spec.workspace_id)
    await runtime.delete_volume(spec.workspace_id, spec.volume)
    assert await runtime.identity() == before
    assert before.startswith(f"{runtime.name} ")


async def test_nothing_is_there_at_first(runtime: Runtime, workspace_id: UUID) -> None:
    assert not await runtime.containers()
    assert not await runtime.volumes()
    assert not await runtime.containers([workspace_id])
    assert not await runtime.volumes([workspace_id])
    assert not await runtime.answers(workspace_id)
    assert await runtime.endpoint(workspace_id) is None
    assert await runtime.port_endpoint(workspace_id, 8080) is None


async def test_a_volume_is_made_once_and_keeps_its_content(place: Place, runtime: Runtime, spec: ContainerSpec) -> None:
    place.write(spec.volume, 7)
    await runtime.create_volume(spec.workspace_id, spec.volume)
    assert names(await runtime.volumes()) == {spec.workspace_id: {spec.volume}}
    assert place.content(spec.volume) == [7]


async def test_volumes_are_listed_by_workspace(runtime: Runtime) -> None:
    one, other = uuid4(), uuid4()
    for owner, incarnation in ((one, 1), (one, 2), (other, 1)):
        await runtime.create_volume(owner, volume_name(owner, incarnation))
    both = {volume_name(one, 1), volume_name(one, 2)}
    assert names(await runtime.volumes()) == {one: both, other: {volume_name(other, 1)}}
    assert names(await runtime.volumes([one])) == {one: both}
    assert not await runtime.volumes([])
    await runtime.delete_volume(one, volume_name(one, 1))
    assert names(await runtime.volumes([one])) == {one: {volume_name(one, 2)}}


async def test_a_volume_made_again_under_its_name_is_another_volume(
    place: Place, runtime: Runtime, spec: ContainerSpec
) -> None:
    first = (await runtime.volumes())[spec.workspace_id][spec.volume]
    place.write(spec.volume, 7)
    await runtime.create_volume(spec.workspace_id, spec.volume)
    assert (await runtime.volumes([spec.workspace_id]))[spec.workspace_id] == {spec.volume: first}
    assert (await place.runtime().volumes())[spec.workspace_id] == {spec.volume: first}, "whoever looks"
    for _ in range(3):
        await runtime.delete_volume(spec.workspace_id, spec.volume)
        await runtime.create_volume(spec.workspace_id, spec.volume)
        again = (await runtime.volumes())[spec.workspace_id][spec.volume]
        assert again != first
        first = again


async def test_deleting_a_volume_that_is_gone_is_success(runtime: Runtime, spec: ContainerSpec) -> None:
    await runtime.delete_volume(spec.workspace_id, spec.volume)
    await runtime.delete_volume(spec.workspace_id, spec.volume)
    await runtime.delete_volume(uuid4(), "ws-never-there")
    assert not await runtime.volumes()


async def test_a_volume_is_deleted_for_its_owner_only(runtime: Runtime, spec: ContainerSpec) -> None:
    await runtime.delete_volume(uuid4(), spec.volume)
    assert names(await runtime.volumes()) == {spec.workspace_id: {spec.volume}}


async def test_a_container_starts_and_answers(runtime: Runtime, spec: ContainerSpec) -> None:
    await start(runtime, spec)
    seen = (await runtime.containers())[spec.workspace_id]
    assert (seen.running, seen.volume, seen.answered) == (True, spec.volume, False)
    await eventually(lambda: runtime.answers(spec.workspace_id))
    assert await runtime.endpoint(spec.workspace_id) is not None
    assert not await runtime.containers([uuid4()])


async def test_a_running_container_stays_as_it_is(place: Place, runtime: Runtime, spec: ContainerSpec) -> None:
    await start(runtime, spec)
    before = await instance(runtime, spec.workspace_id)
    await start(runtime, spec)
    await start(place.runtime(), spec)
    assert await instance(runtime, spec.workspace_id) == before


async def test_secrets_are_in_the_environment_inside_beside_what_everybody_may_see(
    place: Place, runtime: Runtime, spec: ContainerSpec
) -> None:
    secret = "two lines\nand = signs, 한국어 " + "x" * 60_000
    secrets = StartSecrets(env={"TOKEN": secret, "EMPTY": ""})
    await start(runtime, replace(spec, env={"PLAIN": "seen"}, secrets=secrets))
    found = await place.environment(spec.workspace_id)
    assert {name: found[name] for name in ("PLAIN", "TOKEN", "EMPTY")} == {"PLAIN": "seen", **secrets.env}
    await start(runtime, replace(spec, secrets=StartSecrets(env={"TOKEN": "another"})))
    assert (await place.environment(spec.workspace_id))["TOKEN"] == secret


async def test_an_exited_container_is_seen_and_replaced(place: Place, runtime: Runtime, spec: ContainerSpec) -> None:
    await start(runtime, spec)
    before = await instance(runtime, spec.workspace_id)
    await place.exit_by_itself(spec.workspace_id)
    await eventually(lambda: stopped(runtime, spec.workspace_id))
    seen = (await runtime.containers())[spec.workspace_id]
    assert (seen.instance, seen.volume) == (before, spec.volume)
    assert seen.detail
    assert not await runtime.answers(spec.workspace_id)
    await start(runtime, spec)
    assert await instance(runtime, spec.workspace_id) != before
    await eventually(lambda: runtime.answers(spec.workspace_id))


async def test_no_container_without_its_volume_and_no_volume_by_the_way(runtime: Runtime, workspace_id: UUID) -> None:
    with pytest.raises(BackendError) as refused:
        await start(runtime, ContainerSpec(workspace_id, volume_name(workspace_id, 1), ""))
    assert refused.value.reason is ErrorReason.MISMATCH
    assert not await runtime.volumes()
    assert not await runtime.containers()


async def test_removing_a_container_is_repeatable_and_leaves_the_volume(
    place: Place, runtime: Runtime, spec: ContainerSpec
) -> None:
    await start(runtime, spec)
    place.write(spec.volume, 1)
    await runtime.remove_container(spec.workspace_id)
    assert not await runtime.containers()
    assert not await runtime.answers(spec.workspace_id)
    assert await runtime.endpoint(spec.workspace_id) is None
    await runtime.remove_container(spec.workspace_id)
    await runtime.remove_container(uuid4())
    assert place.content(spec.volume) == [1]


async def test_an_exited_container_can_be_removed(place: Place, runtime: Runtime, spec: ContainerSpec) -> None:
    await start(runtime, spec)
    await place.exit_by_itself(spec.workspace_id)
    await eventually(lambda: stopped(runtime, spec.workspace_id))
    await runtime.remove_container(spec.workspace_id)
    assert not await runtime.containers()


@pytest.mark.parametrize("exited", [False, True])
async def test_a_volume_in_use_is_not_deleted(
    place: Place, runtime: Runtime, spec: ContainerSpec, exited: bool
) -> None:
    await start(runtime, spec)
    place.write(spec.volume, 3)
    if exited:
        await place.exit_by_itself(spec.workspace_id)
        await eventually(lambda: stopped(runtime, spec.workspace_id))
    with pytest.raises(VolumeInUse):
        await runtime.delete_volume(spec.workspace_id, spec.volume)
    assert place.content(spec.volume) == [3]
    await runtime.remove_container(spec.workspace_id)
    await runtime.delete_volume(spec.workspace_id, spec.volume)
    assert not await runtime.volumes()


async def test_an_older_incarnation_may_go_while_the_container_runs(runtime: Runtime, spec: ContainerSpec) -> None:
    older = volume_name(spec.workspace_id, 9)
    await runtime.create_volume(spec.workspace_id, older)
    await start(runtime, spec)
    await runtime.delete_volume(spec.workspace_id, older)
    assert names(await runtime.volumes()) == {spec.workspace_id: {spec.volume}}
    assert await instance(runtime, spec.workspace_id)


async def test_another_coordinator_finds_everything_and_can_end_it(
    place: Place, runtime: Runtime, spec: ContainerSpec
) -> None:
    await start(runtime, spec)
    successor = place.runtime()
    assert await successor.containers() == await runtime.containers()
    assert await successor.volumes() == await runtime.volumes()
    await eventually(lambda: successor.answers(spec.workspace_id))
    await successor.remove_container(spec.workspace_id)
    await eventually(lambda: is_empty(runtime))


async def test_started_by_many_at_once_there_is_one(place: Place, spec: ContainerSpec) -> None:
    runtimes = [place.runtime() for _ in range(6)]
    await asyncio.gather(*(start(runtime, spec) for runtime in runtimes))
    seen = {await instance(runtime, spec.workspace_id) for runtime in runtimes}
    assert len(seen) == 1


async def test_a_port_is_found_while_somebody_of_the_workspace_listens(
    place: Place, runtime: Runtime, spec: ContainerSpec
) -> None:
    await start(runtime, spec)
    port = await place.listen(spec.workspace_id)
    found = await runtime.port_endpoint(spec.workspace_id, port)
    assert found is not None
    inside = found.inside.port if found.inside else found.port
    assert (inside, found.socket, bool(found.host)) == (port, None, True)
    assert await place.runtime().port_endpoint(spec.workspace_id, port) == found, "whoever looks"
    for nobodys in (1, 0, -1, AGENT_PORT, 70_000):
        assert await runtime.port_endpoint(spec.workspace_id, nobodys) is None
    await runtime.remove_container(spec.workspace_id)
    assert await runtime.port_endpoint(spec.workspace_id, port) is None
    await start(runtime, spec)
    assert await runtime.port_endpoint(spec.workspace_id, port) is None, "another container"


async def test_a_port_goes_with_its_container(place: Place, runtime: Runtime, spec: ContainerSpec) -> None:
    await start(runtime, spec)
    port = await place.listen(spec.workspace_id)
    await place.exit_by_itself(spec.workspace_id)
    await eventually(lambda: stopped(runtime, spec.workspace_id))
    assert await runtime.port_endpoint(spec.workspace_id, port) is None


async def test_a_port_is_not_the_neighbour_s(place: Place, runtime: Runtime, spec: ContainerSpec) -> None:
    neighbour = uuid4()
    await runtime.create_volume(neighbour, volume_name(neighbour, 1))
    for owner, volume in ((spec.workspace_id, spec.volume), (neighbour, volume_name(neighbour, 1))):
        await start(runtime, ContainerSpec(owner, volume, spec.image_ref))
    theirs = await place.listen(neighbour)
    assert await runtime.port_endpoint(spec.workspace_id, theirs) is None
    assert await runtime.port_endpoint(neighbour, theirs) is not None
    assert await runtime.port_endpoint(uuid4(), theirs) is None


async def _names(hints: AsyncIterator[UUID], workspace_id: UUID) -> None:
    """What a test before this one has left behind may be named as well: it is removed meanwhile."""
    async for named in hints:
        if named == workspace_id:
            return


async def test_hints_name_what_changed(place: Place, runtime: Runtime, spec: ContainerSpec) -> None:
    hints = runtime.hints()
    for change in (
        start(runtime, spec),
        place.exit_by_itself(spec.workspace_id),
        runtime.remove_container(spec.workspace_id),
    ):
        hint = asyncio.ensure_future(_names(hints, spec.workspace_id))
        await asyncio.sleep(0.1)
        await change
        await asyncio.wait_for(hint, 20)
    assert isinstance(hints, AsyncGenerator)
    await hints.aclose()


async def test_what_the_ide_printed_can_be_read_while_its_container_is_there(
    place: Place, runtime: Runtime, spec: ContainerSpec
) -> None:
    assert await runtime.logs(spec.workspace_id, 10) == ""
    await start(runtime, spec)

    async def it_said_so() -> bool:
        return await runtime.logs(spec.workspace_id, 10) == "listening\n"

    await eventually(it_said_so)
    await place.exit_by_itself(spec.workspace_id)
    await eventually(lambda: stopped(runtime, spec.workspace_id))
    assert (await runtime.logs(spec.workspace_id, 10)).startswith("listening\n")
    await runtime.remove_container(spec.workspace_id)
    assert await runtime.logs(spec.workspace_id, 10) == ""


async def test_only_the_last_lines_are_read(runtime: Runtime, spec: ContainerSpec) -> None:
    await start(runtime, spec)

    async def it_said_something() -> bool:
        return await runtime.logs(spec.workspace_id, 10) != ""

    await eventually(it_said_something)
    assert (await runtime.logs(spec.workspace_id, 1)).count("\n") == 1


async def test_sudo_is_given_or_nothing_starts(runtime: Runtime, workspace_id: UUID) -> None:
    volume = volume_name(workspace_id, 1)
    await runtime.create_volume(workspace_id, volume)
    spec = ContainerSpec(workspace_id, volume, "", sudo=True)
    if runtime.supports_sudo:
        await start(runtime, spec)
        assert (await runtime.containers([workspace_id]))[workspace_id].running
        return
    with pytest.raises(BackendError, match="sudo"):
        await start(runtime, spec)
    assert await runtime.containers([workspace_id]) == {}


async def test_a_memory_runtime_can_be_one_without_sudo() -> None:
    place, workspace_id = MemoryPlace(), uuid4()
    place.state.supports_sudo = False
    await test_sudo_is_given_or_nothing_starts(place.runtime(), workspace_id)


where_usage_is_told = pytest.mark.parametrize("place", KINDS[:-1], indirect=True)
"""A cluster tells CPU and memory by an API that it may have, and disks by none; the port allows it."""


async def test_what_does_not_run_uses_nothing_that_is_known(
    place: Place, runtime: Runtime, spec: ContainerSpec
) -> None:
    for ids in ([], [spec.workspace_id], [uuid4()]):
        assert not await runtime.compute_usage(ids)
        assert not await runtime.disk_usage(ids, 10.0)
    await start(runtime, spec)
    await place.exit_by_itself(spec.workspace_id)
    await eventually(lambda: stopped(runtime, spec.workspace_id))
    assert not await runtime.compute_usage([spec.workspace_id])
    assert not await runtime.disk_usage([spec.workspace_id], 10.0)


@where_usage_is_told
async def test_cpu_and_memory_are_counted_from_the_start(runtime: Runtime, spec: ContainerSpec) -> None:
    await start(runtime, spec)
    await eventually(lambda: runtime.answers(spec.workspace_id))
    first = (await runtime.compute_usage([spec.workspace_id, uuid4()]))[spec.workspace_id]
    assert first.instance == await instance(runtime, spec.workspace_id)
    assert first.cpu_seconds is not None
    assert first.memory_bytes is not None
    assert first.memory_bytes > 1 << 20

    async def worked() -> bool:
        assert await runtime.answers(spec.workspace_id)
        later = (await runtime.compute_usage([spec.workspace_id]))[spec.workspace_id]
        assert later.instance == first.instance
        assert first.cpu_seconds is not None
        assert later.cpu_seconds is not None
        assert later.cpu_seconds >= first.cpu_seconds
        return later.cpu_seconds > first.cpu_seconds

    await eventually(worked)


@where_usage_is_told
async def test_a_limit_on_cpu_and_memory_is_told_where_there_is_one(runtime: Runtime, spec: ContainerSpec) -> None:
    share = Resources(cpu=0.5, memory_bytes=256 << 20)
    await start(runtime, replace(spec, share=share))
    await eventually(lambda: runtime.answers(spec.workspace_id))
    found = (await runtime.compute_usage([spec.workspace_id]))[spec.workspace_id]
    is_held_to_it = runtime.name != "process"
    assert found.memory_limit_bytes == (share.memory_bytes if is_held_to_it else None)
    assert found.cpu_limit == (share.cpu if is_held_to_it else len(os.sched_getaffinity(0)))


@where_usage_is_told
async def test_what_a_home_holds_is_counted(place: Place, runtime: Runtime, spec: ContainerSpec) -> None:
    await start(runtime, spec)
    await eventually(lambda: runtime.answers(spec.workspace_id))
    before = (await runtime.disk_usage([spec.workspace_id, uuid4()], 30.0))[spec.workspace_id]
    assert before.used_bytes is not None
    assert before.limit_bytes is None
    assert before.total_bytes
    assert before.free_bytes
    assert before.free_bytes <= before.total_bytes
    place.fill(spec.volume, 3 << 20)
    after = (await runtime.disk_usage([spec.workspace_id], 30.0))[spec.workspace_id]
    assert after.used_bytes is not None
    assert 3 << 20 <= after.used_bytes - before.used_bytes < 4 << 20


@where_usage_is_told
async def test_homes_are_counted_apart(place: Place, runtime: Runtime) -> None:
    specs = [ContainerSpec(key, volume_name(key, 1), "") for key in (uuid4(), uuid4())]
    for number, spec in enumerate(specs):
        await runtime.create_volume(spec.workspace_id, spec.volume)
        await start(runtime, spec)
        place.fill(spec.volume, (number + 1) << 20)
    found = await runtime.disk_usage([spec.workspace_id for spec in specs], 30.0)
    sizes = [found[spec.workspace_id].used_bytes or 0 for spec in specs]
    assert 1 << 20 <= sizes[0] < 2 << 20 <= sizes[1] < 3 << 20
    only = await runtime.disk_usage([specs[1].workspace_id], 30.0)
    assert list(only) == [specs[1].workspace_id]


@where_usage_is_told
async def test_there_may_be_no_time_to_count(place: Place, runtime: Runtime, spec: ContainerSpec) -> None:
    await start(runtime, spec)
    await eventually(lambda: runtime.answers(spec.workspace_id))
    place.fill(spec.volume, 1 << 20)
    found = (await runtime.disk_usage([spec.workspace_id], 0.0)).get(spec.workspace_id)
    if runtime.name != "memory":
        assert found is not None
        assert found.used_bytes is None, "not known is not 0"
        assert found.free_bytes
    assert not (await runtime.disk_usage([uuid4()], 0.0))
