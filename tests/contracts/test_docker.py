"""What only Docker can do to us: names that others have, containers half made, an engine that is away."""

import asyncio
import subprocess
from collections.abc import AsyncGenerator, AsyncIterator
from pathlib import Path
from uuid import UUID, uuid4

import pytest

from codehub.adapters.docker import DockerRuntime, Engine, payloads
from codehub.adapters.docker.engine import Orphans
from codehub.domain.errors import BackendError, ErrorReason, Unreachable, VolumeInUse
from codehub.domain.naming import INSTALL_LABEL, archive_key, container_name, job_name, volume_name
from codehub.ports.jobs import JobKind, JobSpec, JobState
from codehub.ports.runtime import ContainerSpec, Resources
from tests.contracts.places import DockerPlace
from tests.docker_engine import DockerTestbed
from tests.eventually import eventually

pytestmark = pytest.mark.system


@pytest.fixture
async def place(docker_testbed: DockerTestbed, tmp_path: Path) -> AsyncIterator[DockerPlace]:
    place = DockerPlace(docker_testbed, tmp_path)
    yield place
    await place.close()


@pytest.fixture
def runtime(place: DockerPlace) -> DockerRuntime:
    return place.runtime()


@pytest.fixture
async def spec(runtime: DockerRuntime) -> ContainerSpec:
    key = uuid4()
    await runtime.create_volume(key, volume_name(key, 1))
    return ContainerSpec(key, volume_name(key, 1), "", {}, Resources(memory_bytes=64 << 20))


async def payload_of(runtime: DockerRuntime, spec: ContainerSpec) -> payloads.Payload:
    launch = await runtime.launch(spec.image_ref or runtime.site.workspace_image)
    assert launch is not None
    return payloads.workspace(runtime.site, spec, launch)


async def made(runtime: DockerRuntime, spec: ContainerSpec) -> str:
    """As by somebody who died before it was started."""
    docker = await runtime.engine.docker()
    payload = await payload_of(runtime, spec)
    created = await docker.containers.create(payload, name=container_name(spec.workspace_id))
    key: str = created.id
    return key


async def test_a_volume_that_an_operators_container_has_is_kept_and_it_says_whose(
    runtime: DockerRuntime, spec: ContainerSpec
) -> None:
    docker = await runtime.engine.docker()
    image = runtime.site.workspace_image
    foreign = await docker.containers.create({"Image": image, "HostConfig": {"Binds": [f"{spec.volume}:/backup"]}})
    try:
        with pytest.raises(VolumeInUse, match=f"remove the container that has it .*{foreign.id}"):
            await runtime.delete_volume(spec.workspace_id, spec.volume)
    finally:
        await foreign.delete(force=True)
    await runtime.delete_volume(spec.workspace_id, spec.volume)
    assert not await runtime.volumes()


async def test_a_container_that_was_made_and_not_started_is_started(
    runtime: DockerRuntime, spec: ContainerSpec
) -> None:
    key = await made(runtime, spec)
    assert not (await runtime.containers())[spec.workspace_id].running
    await runtime.start_container(spec)
    seen = (await runtime.containers())[spec.workspace_id]
    assert (seen.running, seen.instance) == (True, key)


async def test_one_that_was_made_otherwise_is_replaced(runtime: DockerRuntime, spec: ContainerSpec) -> None:
    key = await made(runtime, ContainerSpec(spec.workspace_id, spec.volume, "", {"OLD": "1"}, spec.share))
    await runtime.start_container(spec)
    seen = (await runtime.containers())[spec.workspace_id]
    assert seen.running
    assert seen.instance != key


async def test_a_job_that_was_made_and_not_started_is_started(place: DockerPlace, spec: ContainerSpec) -> None:
    jobs, op_id = place.jobs(), uuid4()
    key = archive_key("", spec.workspace_id, op_id)
    job = JobSpec(spec.workspace_id, op_id, JobKind.ARCHIVE, spec.volume, key)
    payload = payloads.job(place.site, job, jobs._program, jobs._store, volume_is_there=True)
    docker = await place.engine().docker()
    created = await docker.containers.create(payload, name=job_name(spec.workspace_id))
    assert await jobs.find() == {}
    await jobs.start(job)

    async def succeeded() -> bool:
        return (await jobs.find())[spec.workspace_id].state is JobState.SUCCEEDED

    await eventually(succeeded, 60)
    found = await place.engine().container(job_name(spec.workspace_id))
    assert found is not None
    assert found["Id"] == created.id


async def test_more_processors_than_there_are_limit_nothing(runtime: DockerRuntime, spec: ContainerSpec) -> None:
    """A template from a larger machine, or our own default on a smaller one: the engine refuses it, we do not."""
    there = (await runtime.capacity()).cpu
    assert there is not None
    generous = ContainerSpec(spec.workspace_id, spec.volume, "", {}, Resources(cpu=1000.0, memory_bytes=64 << 20))
    await runtime.start_container(generous)
    found = await runtime.engine.container(container_name(spec.workspace_id))
    assert found is not None
    assert found["HostConfig"]["NanoCpus"] == there * 1e9


async def test_what_somebody_who_was_killed_left_behind_is_removed_and_nothing_else(
    place: DockerPlace, runtime: DockerRuntime, spec: ContainerSpec
) -> None:
    engine, site, jobs = runtime.engine, runtime.site, place.jobs()
    helper = payloads.firewall_helper(site, "true")
    docker = await engine.docker()
    left = [await docker.containers.create(helper, name=f"codehub-firewall-{uuid4().hex[:8]}") for _ in range(2)]
    await left[1].start()
    await left[1].wait()
    op_id = uuid4()
    job = JobSpec(spec.workspace_id, op_id, JobKind.ARCHIVE, spec.volume, archive_key("", spec.workspace_id, op_id))
    payload = payloads.job(site, job, jobs._program, jobs._store, volume_is_there=True)
    left.append(await docker.containers.create(payload, name=job_name(spec.workspace_id)))
    filling = payloads.agent_filling(site, await runtime._agent.name())
    left.append(await docker.containers.create(filling, name=f"codehub-agent-{uuid4().hex[:8]}"))
    trial = payloads.trial_volume(site.install_id, f"codehub-trial-{uuid4().hex}")
    del trial["DriverOpts"]  # few engines take a size
    await docker.volumes.create(trial)
    await runtime.start_container(spec)
    busy = await docker.containers.create(
        payloads.firewall_helper(site, "sleep 60"), name=f"codehub-firewall-{uuid4().hex[:8]}"
    )
    await busy.start()
    orphans = Orphans(engine, site, after_seconds=1.0)
    assert await orphans.remove() == 0, "what is young may be waited for"
    await asyncio.sleep(1.0)
    assert await orphans.remove() == 5
    assert [await engine.container(one.id) for one in left] == [None] * 4
    assert await engine.container(busy.id) is not None
    assert (await runtime.containers())[spec.workspace_id].running
    kept = {volume["Name"] for volume in await engine.volumes([f"{INSTALL_LABEL}={site.install_id}"])}
    assert kept == {spec.volume, await runtime._agent.name()}


async def test_a_job_that_was_begun_is_no_leftover(
    place: DockerPlace, runtime: DockerRuntime, spec: ContainerSpec
) -> None:
    jobs, op_id = place.jobs(), uuid4()
    key = archive_key("", spec.workspace_id, op_id)
    await jobs.start(JobSpec(spec.workspace_id, op_id, JobKind.ARCHIVE, spec.volume, key))
    orphans = Orphans(runtime.engine, runtime.site, after_seconds=0.0)
    assert await orphans.remove() == 0

    async def ended() -> bool:
        return (await jobs.find())[spec.workspace_id].state is not JobState.RUNNING

    await eventually(ended, 60)
    assert await orphans.remove() == 0


async def test_a_volume_of_that_name_that_is_not_ours_is_left_alone(place: DockerPlace, runtime: DockerRuntime) -> None:
    key = uuid4()
    name = volume_name(key, 1)
    docker = await runtime.engine.docker()
    await docker.volumes.create({"Name": name})
    try:
        with pytest.raises(BackendError, match="not ours"):
            await runtime.create_volume(key, name)
        await runtime.delete_volume(key, name)
        assert await runtime.volumes() == {}
        assert place.content(name) == []  # it is still there
    finally:
        await runtime.engine.delete_volume(name)


async def test_another_installation_s_are_not_seen_and_not_touched(
    place: DockerPlace, runtime: DockerRuntime, spec: ContainerSpec
) -> None:
    await runtime.start_container(spec)
    elsewhere = place.testbed.site()
    stranger, jobs = place.runtime(elsewhere), place.jobs(site=elsewhere)
    assert (await stranger.containers(), await stranger.volumes(), await jobs.find()) == ({}, {}, {})
    await stranger.remove_container(spec.workspace_id)
    await stranger.delete_volume(spec.workspace_id, spec.volume)
    await jobs.clear(spec.workspace_id)
    with pytest.raises(BackendError) as refused:
        await stranger.start_container(spec)
    assert refused.value.reason is ErrorReason.MISMATCH
    assert (await runtime.containers())[spec.workspace_id].running
    assert set(await runtime.volumes()) == {spec.workspace_id}


async def test_how_it_ended_is_told_once_and_stays_the_same(
    place: DockerPlace, runtime: DockerRuntime, spec: ContainerSpec
) -> None:
    await runtime.start_container(spec)
    await eventually(lambda: runtime.answers(spec.workspace_id))
    await place.exit_by_itself(spec.workspace_id)

    async def ended() -> bool:
        return not (await runtime.containers())[spec.workspace_id].running

    await eventually(ended)
    detail = (await runtime.containers())[spec.workspace_id].detail
    assert detail == "exit code 137: listening"
    assert (await place.runtime().containers([spec.workspace_id]))[spec.workspace_id].detail == detail


async def test_its_first_answer_is_told(runtime: DockerRuntime, spec: ContainerSpec) -> None:
    hints = runtime.hints()
    told = asyncio.ensure_future(anext(hints))
    await asyncio.sleep(0.5)  # it listens
    await runtime.start_container(spec)
    async with asyncio.timeout(20):
        while not await runtime.answers(await told):
            told = asyncio.ensure_future(anext(hints))
    assert isinstance(hints, AsyncGenerator)
    await hints.aclose()


async def test_an_engine_that_is_not_there_leaves_all_unknown(place: DockerPlace) -> None:
    engine = Engine("unix:///nowhere/docker.sock")
    runtime = place.testbed.runtime(engine, place.site)
    nobody = UUID(int=0)
    for question in (runtime.containers(), runtime.volumes(), runtime.answers(nobody), runtime.logs(nobody, 1)):
        with pytest.raises(Unreachable):
            await question
    with pytest.raises(Unreachable):
        await anext(runtime.hints())
    await engine.close()


async def test_one_that_was_started_before_there_were_agents_is_reached_until_it_ends(
    place: DockerPlace, runtime: DockerRuntime, spec: ContainerSpec
) -> None:
    launch = await runtime.launch(runtime.site.workspace_image)
    assert launch is not None
    payload = payloads.workspace(runtime.site, spec, launch)
    payload["Env"].pop()
    payload["Entrypoint"] = list(launch.command)
    docker = await runtime.engine.docker()
    older = await docker.containers.create(payload, name=container_name(spec.workspace_id))
    await older.start()
    await eventually(lambda: runtime.answers(spec.workspace_id))
    found = await runtime.endpoint(spec.workspace_id)
    assert found is not None
    assert (found.port, found.inside, found.instance) == (payloads.PORT, None, older.id)
    await runtime.start_container(spec)
    assert (await runtime.containers())[spec.workspace_id].instance == older.id, "whoever works there is left alone"
    await place.exit_by_itself(spec.workspace_id)
    await runtime.start_container(spec)
    await eventually(lambda: runtime.answers(spec.workspace_id))
    found = await runtime.endpoint(spec.workspace_id)
    assert found is not None
    assert found.inside is not None
    assert found.instance is None


async def test_an_image_without_a_command_is_told(runtime: DockerRuntime, spec: ContainerSpec) -> None:
    image = f"{runtime.site.install_id}:latest"
    made = f"FROM {runtime.site.workspace_image}\nENTRYPOINT []\nCMD []\n"
    subprocess.run(["docker", "build", "--tag", image, "-"], input=made.encode(), check=True, capture_output=True)
    try:
        with pytest.raises(BackendError, match="names no command") as refused:
            await runtime.start_container(ContainerSpec(spec.workspace_id, spec.volume, image))
    finally:
        subprocess.run(["docker", "rmi", image], check=True, capture_output=True)
    assert refused.value.reason is ErrorReason.IMAGE_PULL_FAILED


async def test_each_start_has_a_key_of_its_own(runtime: DockerRuntime, spec: ContainerSpec) -> None:
    keys = set()
    for _ in range(2):
        await runtime.start_container(spec)
        found = await runtime.endpoint(spec.workspace_id)
        assert found is not None
        assert found.inside is not None
        keys.add(found.inside.key)
        await runtime.remove_container(spec.workspace_id)
    assert len(keys) == 2


async def test_an_agent_s_volume_that_was_removed_is_made_again(runtime: DockerRuntime, spec: ContainerSpec) -> None:
    await runtime.start_container(spec)
    await runtime.remove_container(spec.workspace_id)
    await runtime.engine.delete_volume(await runtime._agent.name())
    await runtime.start_container(spec)
    await eventually(lambda: runtime.answers(spec.workspace_id))
