"""Storage jobs in memory: tasks of the shared state, not of the coordinator that started them, so they outlive it.

An archive job reads the volume bit by bit; what is written to the volume meanwhile is torn, as on a real disk.
"""

import asyncio
import contextlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from uuid import UUID

from codehub.adapters.memory.archives import ArchivesState, MemoryArchives, StoredArchive
from codehub.adapters.memory.fault_injection import Network, effect
from codehub.adapters.memory.runtime import MemoryRuntime, RuntimeState
from codehub.adapters.system import SystemClock
from codehub.domain.errors import ErrorReason, JobConflict, Unreachable
from codehub.domain.workspace import Progress
from codehub.ports.jobs import JobKind, JobResult, JobSeen, JobSpec, JobState
from codehub.ports.signals import Clock


@dataclass(slots=True)
class Job:
    spec: JobSpec
    state: JobState = JobState.RUNNING
    progress: Progress | None = None
    result: JobResult | None = None
    reason: ErrorReason | None = None
    message: str = ""
    task: asyncio.Task[None] | None = None


@dataclass(slots=True)
class JobsState:
    """`steps` × `step_seconds` is how long a job takes; `failing` jobs end with that reason. `store` is the jobs' own
    way to the object store, which can break while the coordinator's does not."""

    runtime: RuntimeState
    archives: ArchivesState
    clock: Clock
    steps: int = 2
    step_seconds: float = 0.0
    jobs: dict[UUID, Job] = field(default_factory=dict)
    failing: dict[UUID, ErrorReason] = field(default_factory=dict)
    store: Network = field(default_factory=Network)

    def begin(self, spec: JobSpec) -> None:
        job = Job(spec)
        self.jobs[spec.workspace_id] = job
        volume = self.runtime.volumes.get(spec.volume)
        if volume is not None:
            volume.job = spec.op_id
        job.task = asyncio.get_running_loop().create_task(self._run(job))

    def end(self, workspace_id: UUID) -> None:
        job = self.jobs.pop(workspace_id, None)
        if job is None:
            return
        if job.task is not None:
            job.task.cancel()
        self._release(job)

    async def _run(self, job: Job) -> None:
        try:
            if job.spec.workspace_id in self.failing:
                raise _JobFailed(self.failing[job.spec.workspace_id], "told to fail")
            self._refuse_anothers_store(job.spec)
            work = self._archive(job) if job.spec.kind is JobKind.ARCHIVE else self._restore(job)
            job.result = await work
            job.state = JobState.SUCCEEDED
        except _JobFailed as failed:
            job.state, job.reason, job.message = JobState.FAILED, failed.reason, str(failed)
        except Unreachable as error:
            job.state, job.reason, job.message = JobState.FAILED, error.reason, str(error)
        finally:
            self._release(job)
        self.runtime.hint(job.spec.workspace_id)

    def _release(self, job: Job) -> None:
        volume = self.runtime.volumes.get(job.spec.volume)
        if volume is not None and volume.job == job.spec.op_id:
            volume.job = None

    def _refuse_anothers_store(self, spec: JobSpec) -> None:
        if spec.owner is not None and self.archives.owner != spec.owner.name:
            raise _JobFailed(ErrorReason.UNREACHABLE, f"the archive store is not {spec.owner.name}'s")

    async def _archive(self, job: Job) -> JobResult:
        key = job.spec.key
        if await self._is_finished(key):
            return self.archives.objects[key].result(key)
        volume = self.runtime.volumes.get(job.spec.volume)
        if volume is None:
            raise _JobFailed(ErrorReason.ACTION_FAILED, f"volume {job.spec.volume} does not exist")
        read = volume.content
        await self._tick(job, len(read))
        await self.store.call("store.upload", lambda: self._upload(key, read))
        await self._tick(job, len(read))
        stored = await self.store.call("store.prove", lambda: self.archives.objects.get(key))
        if stored is None or stored.content != read:
            raise _JobFailed(ErrorReason.UNREACHABLE, "the object store does not give back what was sent")
        self._refuse_anothers_store(job.spec)
        await self.store.call("store.commit", lambda: self._commit(stored))
        return stored.result(key)

    async def _is_finished(self, key: str) -> bool:
        """Whether the archive is there already, proven once more; a damaged one is made again."""
        if not await self.store.call("store.look", lambda: self.archives.looks_complete(key)):
            return False
        try:
            await self._read(self.archives.objects[key])
        except _JobFailed as failed:
            if failed.reason is not ErrorReason.ARCHIVE_CORRUPTED:
                raise
            return False
        return True

    def _upload(self, key: str, content: tuple[int, ...]) -> None:
        self.archives.objects[key] = StoredArchive(content, self.archives.now())

    def _commit(self, stored: StoredArchive) -> None:
        stored.committed = True

    async def _restore(self, job: Job) -> JobResult:
        key, mark = job.spec.key, (job.spec.key, job.spec.op_id)
        if not await self.store.call("store.look", lambda: self.archives.looks_complete(key)):
            raise _JobFailed(ErrorReason.ARCHIVE_ACCESS_ERROR, f"archive {key} cannot be read")
        archive = self.archives.objects[key]
        volume = self.runtime.volumes.get(job.spec.volume)
        if volume is None:
            raise _JobFailed(ErrorReason.ACTION_FAILED, f"volume {job.spec.volume} does not exist")
        if volume.stamp == mark:
            return archive.result(key)
        volume.content = archive.content[: len(archive.content) // 2]
        await self._tick(job, len(volume.content))
        content = await self._read(archive)
        await self._tick(job, len(content))
        volume.content = content
        volume.stamp = mark
        return archive.result(key)

    async def _read(self, archive: StoredArchive) -> tuple[int, ...]:
        """A wrong answer is not a wrong object: damage is what is read wrong in the same way again and again."""
        read = [await self.store.call("store.read", archive.read)]
        if read[0] == archive.content:
            return archive.content
        read += [await self.store.call("store.read", archive.read) for _ in range(2)]
        if archive.content in read or read[1] != read[2]:
            raise _JobFailed(ErrorReason.UNREACHABLE, "the archive is read differently each time")
        raise _JobFailed(ErrorReason.ARCHIVE_CORRUPTED, "the archive's checksum is not the one in .meta")

    async def _tick(self, job: Job, done: int) -> None:
        for step in range(self.steps):
            await self.clock.sleep(self.step_seconds)
            job.progress = Progress(done * (step + 1), done, step=job.spec.kind.value)


class _JobFailed(Exception):
    def __init__(self, reason: ErrorReason, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class MemoryJobs:
    def __init__(
        self,
        runtime: MemoryRuntime,
        archives: MemoryArchives,
        state: JobsState | None = None,
        network: Network | None = None,
    ) -> None:
        self.state = state or JobsState(runtime.state, archives.state, SystemClock())
        self._network = network or Network()

    @effect("jobs.find")
    def find(self, ids: Collection[UUID] | None = None) -> Mapping[UUID, JobSeen]:
        return {
            key: JobSeen(
                job.spec.op_id,
                job.spec.kind,
                job.state,
                job.progress,
                job.result,
                job.reason,
                job.message,
                exit_code=1 if job.state is JobState.FAILED else None,
            )
            for key, job in self.state.jobs.items()
            if ids is None or key in ids
        }

    async def start(self, spec: JobSpec) -> None:
        def start() -> None:
            present = self.state.jobs.get(spec.workspace_id)
            if present is None:
                self.state.begin(spec)
            elif present.spec.op_id != spec.op_id:
                raise JobConflict(f"a job of operation {present.spec.op_id} is still there")

        await self._network.call("jobs.start", start, spec.workspace_id)

    async def clear(self, workspace_id: UUID) -> None:
        await self._network.call("jobs.clear", lambda: self.state.end(workspace_id), workspace_id)

    async def close(self) -> None:
        """Ends all tasks, for tests: none may outlive its loop."""
        tasks = [job.task for job in self.state.jobs.values() if job.task]
        for task in tasks:
            task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.gather(*tasks, return_exceptions=True)
