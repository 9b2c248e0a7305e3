"""The Jobs port's promises, kept alike in memory and by the real storage job in processes, containers and pods."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from uuid import UUID, uuid4

import pytest

from codehub.domain.errors import ErrorReason, JobConflict, VolumeInUse
from codehub.domain.judge import ArchiveState
from codehub.domain.naming import archive_key, volume_name
from codehub.ports.jobs import JobKind, Jobs, JobSeen, JobSpec, JobState, StoreOwner
from tests.contracts.places import DockerPlace, KubernetesPlace, MemoryPlace, Place, ProcessPlace
from tests.eventually import eventually

KINDS = [
    "memory",
    *(pytest.param(kind, marks=pytest.mark.system) for kind in ("process", "docker")),
    pytest.param("kubernetes", marks=[pytest.mark.system, pytest.mark.kubernetes]),
]


@pytest.fixture(params=KINDS)
async def place(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Place]:
    place: Place = MemoryPlace()
    if request.param == "docker":
        place = DockerPlace(request.getfixturevalue("docker_testbed"), tmp_path)
    elif request.param == "kubernetes":
        place = KubernetesPlace(request.getfixturevalue("kubernetes_testbed"), tmp_path)
    elif request.param == "process":
        place = ProcessPlace(tmp_path / "root")
    yield place
    await place.close()


@pytest.fixture
def jobs(place: Place) -> Jobs:
    return place.jobs()


@pytest.fixture
async def spec(place: Place) -> JobSpec:
    workspace_id, op_id = uuid4(), uuid4()
    volume = volume_name(workspace_id, 1)
    await place.runtime().create_volume(workspace_id, volume)
    for value in (4, 8, 15):
        place.write(volume, value)
    return JobSpec(workspace_id, op_id, JobKind.ARCHIVE, volume, archive_key("homes/", workspace_id, op_id))


def restoring(spec: JobSpec, key: str | None = None) -> JobSpec:
    return JobSpec(spec.workspace_id, uuid4(), JobKind.RESTORE, volume_name(spec.workspace_id, 2), key or spec.key)


async def ended(jobs: Jobs, workspace_id: UUID) -> JobSeen:
    async def not_running() -> bool:
        return (await jobs.find([workspace_id]))[workspace_id].state is not JobState.RUNNING

    await eventually(not_running, 60)
    return (await jobs.find())[workspace_id]


async def done(jobs: Jobs, spec: JobSpec) -> JobSeen:
    await jobs.start(spec)
    seen = await ended(jobs, spec.workspace_id)
    assert (seen.op_id, seen.kind) == (spec.op_id, spec.kind)
    await jobs.clear(spec.workspace_id)
    return seen


async def progressing(jobs: Jobs, workspace_id: UUID) -> bool:
    seen = (await jobs.find())[workspace_id]
    assert seen.state is JobState.RUNNING
    return seen.progress is not None


async def test_nothing_is_there_at_first(jobs: Jobs) -> None:
    assert not await jobs.find()
    assert not await jobs.find([uuid4()])
    await jobs.clear(uuid4())


async def test_archived_and_restored_the_home_is_the_same(place: Place, jobs: Jobs, spec: JobSpec) -> None:
    archived = await done(jobs, spec)
    assert archived.state is JobState.SUCCEEDED, archived.message
    assert archived.result is not None
    assert (archived.result.key, archived.result.files) == (spec.key, 3)
    assert await place.archives().look(spec.key) is ArchiveState.READABLE
    again = restoring(spec)
    await place.runtime().create_volume(again.workspace_id, again.volume)
    restored = await done(jobs, again)
    assert restored.state is JobState.SUCCEEDED, restored.message
    assert restored.result == archived.result
    assert place.content(again.volume) == place.content(spec.volume) == [4, 8, 15]


async def test_an_empty_archive_restores_to_an_empty_home(place: Place, jobs: Jobs, spec: JobSpec) -> None:
    key = archive_key("homes/", spec.workspace_id, uuid4())
    result = await place.archives().create_empty(key)
    empty = restoring(spec, key)
    await place.runtime().create_volume(empty.workspace_id, empty.volume)
    restored = await done(jobs, empty)
    assert restored.state is JobState.SUCCEEDED, restored.message
    assert restored.result == result
    assert place.content(empty.volume) == []


async def test_started_again_the_ended_job_stays(jobs: Jobs, spec: JobSpec) -> None:
    await jobs.start(spec)
    seen = await ended(jobs, spec.workspace_id)
    await jobs.start(spec)
    assert (await jobs.find())[spec.workspace_id] == seen


async def test_an_archive_that_is_there_already_is_success(jobs: Jobs, spec: JobSpec) -> None:
    first = await done(jobs, spec)
    second = await done(jobs, spec)
    assert second.state is JobState.SUCCEEDED
    assert second.result == first.result


async def test_an_archive_that_is_there_and_damaged_is_made_again(place: Place, jobs: Jobs, spec: JobSpec) -> None:
    """The volume is deleted next: what was proven long ago is proven once more."""
    first = await done(jobs, spec)
    place.damage(spec.key)
    second = await done(jobs, spec)
    assert second.state is JobState.SUCCEEDED, second.message
    assert second.result == first.result
    again = restoring(spec)
    await place.runtime().create_volume(again.workspace_id, again.volume)
    restored = await done(jobs, again)
    assert restored.state is JobState.SUCCEEDED, restored.message
    assert place.content(again.volume) == place.content(spec.volume)


async def test_a_job_of_another_operation_is_in_the_way_until_cleared(jobs: Jobs, spec: JobSpec) -> None:
    await jobs.start(spec)
    other = JobSpec(spec.workspace_id, uuid4(), spec.kind, spec.volume, spec.key)
    with pytest.raises(JobConflict):
        await jobs.start(other)
    await ended(jobs, spec.workspace_id)
    with pytest.raises(JobConflict):
        await jobs.start(other)
    await jobs.clear(spec.workspace_id)
    await jobs.clear(spec.workspace_id)
    assert not await jobs.find()
    assert (await done(jobs, other)).state is JobState.SUCCEEDED


async def test_a_store_that_is_not_the_right_one_is_neither_written_nor_read(
    place: Place, jobs: Jobs, spec: JobSpec
) -> None:
    """Below a lost mount there is a directory too, and it would take anything."""
    owned = replace(spec, owner=StoreOwner("codehub-owner", "here"))
    unmarked = await done(jobs, owned)
    assert (unmarked.state, unmarked.reason) == (JobState.FAILED, ErrorReason.UNREACHABLE)
    assert not await place.archives().objects()
    await place.archives().claim("here")
    assert (await done(jobs, owned)).state is JobState.SUCCEEDED
    other = replace(restoring(spec), owner=StoreOwner("codehub-owner", "somebody"))
    await place.runtime().create_volume(other.workspace_id, other.volume)
    refused = await done(jobs, other)
    assert (refused.state, refused.reason) == (JobState.FAILED, ErrorReason.UNREACHABLE)
    assert "somebody" in refused.message
    assert place.content(other.volume) == []


async def test_an_archive_that_is_not_there_cannot_be_restored(place: Place, jobs: Jobs, spec: JobSpec) -> None:
    missing = restoring(spec, archive_key("homes/", spec.workspace_id, uuid4()))
    await place.runtime().create_volume(missing.workspace_id, missing.volume)
    seen = await done(jobs, missing)
    assert (seen.state, seen.reason) == (JobState.FAILED, ErrorReason.ARCHIVE_ACCESS_ERROR)
    assert seen.message
    assert seen.result is None


async def test_a_volume_that_is_not_there_cannot_be_archived(place: Place, jobs: Jobs, spec: JobSpec) -> None:
    await place.runtime().delete_volume(spec.workspace_id, spec.volume)
    seen = await done(jobs, spec)
    assert (seen.state, seen.reason) == (JobState.FAILED, ErrorReason.ACTION_FAILED)
    assert seen.exit_code
    assert spec.volume in seen.message
    assert await place.archives().look(spec.key) is ArchiveState.NOT_FOUND


async def test_another_coordinator_finds_the_running_job_and_waits_for_it(place: Place, spec: JobSpec) -> None:
    jobs, successor = place.slow_jobs(), place.slow_jobs()
    await jobs.start(spec)
    await eventually(lambda: progressing(successor, spec.workspace_id))
    await successor.start(spec)
    with pytest.raises(JobConflict):
        await successor.start(JobSpec(spec.workspace_id, uuid4(), spec.kind, spec.volume, spec.key))
    assert (await successor.find([spec.workspace_id]))[spec.workspace_id].op_id == spec.op_id


async def test_its_volume_is_in_use_while_it_runs(place: Place, spec: JobSpec) -> None:
    jobs, runtime = place.slow_jobs(), place.runtime()
    await jobs.start(spec)
    await eventually(lambda: progressing(jobs, spec.workspace_id))
    with pytest.raises(VolumeInUse):
        await runtime.delete_volume(spec.workspace_id, spec.volume)
    assert place.content(spec.volume) == [4, 8, 15]
    await jobs.clear(spec.workspace_id)
    assert not await jobs.find()
    await runtime.delete_volume(spec.workspace_id, spec.volume)
    assert not await runtime.volumes()


async def test_the_volume_of_an_ended_job_may_go(place: Place, jobs: Jobs, spec: JobSpec) -> None:
    await jobs.start(spec)
    await ended(jobs, spec.workspace_id)
    await place.runtime().delete_volume(spec.workspace_id, spec.volume)
    assert not await place.runtime().volumes()


async def test_started_by_many_at_once_there_is_one(place: Place, spec: JobSpec) -> None:
    specs = [JobSpec(spec.workspace_id, uuid4(), spec.kind, spec.volume, spec.key) for _ in range(3)]
    answers = await asyncio.gather(
        *(jobs.start(one) for one in specs for jobs in (place.slow_jobs(), place.slow_jobs())), return_exceptions=True
    )
    assert {type(answer) for answer in answers} == {type(None), JobConflict}
    assert answers.count(None) == 2
