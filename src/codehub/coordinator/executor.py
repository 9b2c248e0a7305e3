"""The executor: takes the next step of the recorded operation (contracts 6, 7, 8). Each step is short and idempotent.

Long work is a job that is looked at again, never waited for, so whoever leads next simply goes on. Order is safety:
container before volume, proof before `archive_key`, `archive_key` before the safe point, the safe point before the
volume is deleted.
"""

from dataclasses import replace
from datetime import datetime
from uuid import UUID

from codehub.coordinator.context import TermContext
from codehub.domain import naming, operations
from codehub.domain.errors import BackendError, Deferred, ErrorReason, JobInterrupted, VolumeInUse
from codehub.domain.gc_rules import RestorePoint
from codehub.domain.judge import ArchiveState, Facts
from codehub.domain.plan import next_operation, wants_volume_gone
from codehub.domain.template import NO_KUBERNETES_OPTIONS, Template
from codehub.domain.workspace import NO_VOLUME, Operation, Progress, Workspace
from codehub.ports.jobs import JobKind, JobResult, JobSeen, JobSpec, JobState
from codehub.ports.runtime import ContainerSpec, Resources
from codehub.usecases.start_secrets import StartContents

STARTED = Progress(step="started")


class Executor:
    """Takes one step of one workspace's operation. `row` follows our own writes; `watches`: a job or an image pull goes
    on. A step that fails raises BackendError; a term or operation that is over, Stale."""

    def __init__(self, context: TermContext, ws: Workspace, facts: Facts, now: datetime) -> None:
        self._context = context
        self._backends = context.backends
        self._statuses = context.statuses
        self.row = ws
        self._facts = facts
        self._now = now
        self.watches = False

    async def step(self) -> None:
        match self.row.operation:
            case Operation.PROVISIONING:
                await self._create_volume()
            case Operation.CREATE_EMPTY_ARCHIVE:
                await self._create_empty_archive()
            case Operation.RESTORING:
                await self._restore()
            case Operation.STARTING:
                await self._start()
            case Operation.STOPPING:
                await self._backends.remove_container(self.row.id)
            case Operation.ARCHIVING:
                await self._archive()
            case Operation.DISCARDING:
                await self._discard()
            case Operation.DELETING:
                await self._delete()
            case Operation.NONE:
                pass

    @property
    def _volume(self) -> str:
        if self.row.home_store_key is None:
            raise _mismatch("the workspace has no volume name", expected="a volume's name", actual="none")
        return self.row.home_store_key

    @property
    def _archive_key(self) -> str:
        if self.row.archive_op_id is None:
            raise _mismatch("the archive has no id", expected="an archive's id", actual="none")
        return naming.archive_key(self._context.tuning.policy.archive_prefix, self.row.id, self.row.archive_op_id)

    async def _create_empty_archive(self) -> None:
        result = await self._backends.create_empty_archive(self.row.id, self._archive_key)
        await self._commit_archive(result)

    async def _start(self) -> None:
        await self._own_job()
        seen = self._facts.container
        if seen is not None and seen.volume and seen.volume != self._volume:
            await self._backends.remove_container(self.row.id)
        elif seen is not None and not seen.running and self.row.op_progress == STARTED:
            raise BackendError(
                f"the container ended before it answered: {seen.detail or 'no reason given'}", action="start"
            )
        elif seen is None or not seen.running or self.row.op_progress != STARTED:
            # One that runs without a record of its start may still wait for its secrets.
            await self._start_container()

    async def _start_container(self) -> None:
        """Start the container. The image is recorded before, for a workspace follows its template at each start; the
        start itself is recorded after, so that a container which exits at once is a failed try and not a leftover."""
        given = await self._given()
        spec = await self._container_spec(given)
        if spec.image_ref != self.row.image_ref:
            await self._record(replace(self.row, image_ref=spec.image_ref), "image")
        try:
            pulling = await self._backends.start_container(spec)
        except Deferred as held:
            await self._wait_to_start(Progress(step=str(held)))
            return
        if pulling is not None:
            await self._wait_to_start(Progress(pulling.bytes, 0, pulling.total_bytes, pulling.detail))
        elif self.row.op_progress != STARTED:
            await self._record_use(given)
            await self._record(replace(self.row, op_progress=STARTED), "started")

    async def _wait_to_start(self, progress: Progress) -> None:
        """Wait with a start that cannot begin yet, perhaps for long: it is given up as soon as nobody wants it any
        more."""
        if next_operation(self.row) is Operation.STARTING:
            await self._progressed(progress, excuse=True)
        else:
            await self._record(operations.abandon(self.row), "desired_state_changed")

    async def _given(self) -> StartContents:
        """What the owner and the template keep for a start, as it is now."""
        secrets = self._context.secrets
        return await secrets.for_start(self.row) if secrets else StartContents()

    async def _record_use(self, given: StartContents) -> None:
        if self._context.secrets is not None:
            actor = self._context.actor("coordinator")
            await self._context.secrets.record_use(self.row, self._op_id, given, actor)

    async def _container_spec(self, given: StartContents) -> ContainerSpec:
        """What the container gets. Image, variables and limits are those that the template has now, even a disabled
        one: what an admin mends is there at the next start. A workspace without a template keeps its image."""
        template = await self._template()
        share, env, image_ref, sudo, kubernetes = Resources(), {}, self.row.image_ref, False, NO_KUBERNETES_OPTIONS
        if template is not None:
            image_ref, sudo, kubernetes = template.image_ref, template.sudo, template.kubernetes
            share = Resources(template.cpu, template.memory_bytes, template.disk_bytes, template.pids)
            env = dict(template.env)
        if self.row.git_url:
            env |= {"CODEHUB_GIT_URL": self.row.git_url, "CODEHUB_GIT_REF": self.row.git_ref or ""}
        env |= given.env
        secrets = given.secrets
        return ContainerSpec(self.row.id, self._volume, image_ref, env, share, secrets, sudo, kubernetes)

    async def _template(self) -> Template | None:
        templates = self._context.templates
        return await templates.get(self.row.template) if templates else None

    async def _archive(self) -> None:
        if await self._container_remains():
            return
        job = await self._own_job()
        if not self.row.home.deleting_volume:
            if not wants_volume_gone(self.row):
                await self._yield(job)
                return
            if not naming.is_archive_of(self.row.archive_key, self.row.id, self.row.archive_op_id):
                await self._run_archive_job(job)
                return
            passed = await self._statuses.pass_safe_point(self.row)
            if passed is None:
                await self._yield(job)
                return
            self.row = passed
        elif not naming.is_archive_of(self.row.archive_key, self.row.id, self.row.archive_op_id):
            await self._run_archive_job(job)
            return
        await self._delete_archived_volume()

    async def _run_archive_job(self, job: JobSeen | None) -> None:
        result = await self._job_result(job, JobKind.ARCHIVE, self._archive_key)
        if result is not None:
            await self._commit_archive(result)
            await self._backends.clear_job(self.row.id)

    async def _yield(self, job: JobSeen | None) -> None:
        """Give ARCHIVING up, as the desired state needs the volume: end the job, keep the volume, plan anew."""
        if job is not None:
            await self._backends.clear_job(self.row.id)
        await self._record(operations.abandon(self.row), "yielded")

    async def _delete_archived_volume(self) -> None:
        state = await self._backends.look(self._archive_key)
        if state is not ArchiveState.READABLE:
            message = f"the archive was lost before the volume was deleted ({state}); the volume is kept"
            raise _mismatch(message, expected=ArchiveState.READABLE.value, actual=state.value)
        await self._delete_volume()

    async def _delete_volume(self) -> None:
        """Delete the volume. A job of ours that took it meanwhile is ended first; a container may have written, so the
        next observation decides. What is not ours is not ended: then this try has failed."""
        try:
            await self._backends.delete_volume(self.row.id, self._volume)
        except VolumeInUse:
            await self._backends.clear_job(self.row.id)
            if self.row.id in await self._backends.containers([self.row.id]):
                return
            await self._backends.remove_container(self.row.id)
            await self._backends.delete_volume(self.row.id, self._volume)

    async def _restore(self) -> None:
        if await self._container_remains():
            return
        job = await self._own_job()
        key = self.row.archive_key
        if key is None:
            raise BackendError("there is no archive to restore", reason=ErrorReason.ARCHIVE_ACCESS_ERROR)
        if self.row.conditions.volume_ready.reason == NO_VOLUME.reason:
            await self._make_volume_to_restore(job, key)
            return
        if self.row.home.restoring is None:
            return  # restored; the next look will see it
        result = await self._job_result(job, JobKind.RESTORE, key)
        if result is not None:
            home = replace(self.row.home, marker=(key, self._op_id), restoring=None)
            await self._record(replace(self.row, home=home), "restored")
            await self._backends.clear_job(self.row.id)

    async def _make_volume_to_restore(self, job: JobSeen | None, key: str) -> None:
        """Make the volume that the archive is restored into. The job starts only once its volume was seen, and a job on
        a volume that vanished must not vouch for the next."""
        if job is not None:
            await self._backends.clear_job(self.row.id)
        afresh = replace(self.row.home, restoring=key, marker=None, volume_instance=None)
        if afresh != self.row.home:
            await self._record(replace(self.row, home=afresh), "vanished")
        await self._create_volume()

    async def _create_volume(self) -> None:
        template = await self._template()
        disk_bytes = template.disk_bytes if template else None
        storage_class = template.kubernetes.storage_class if template else None
        await self._backends.create_volume(self.row.id, self._volume, disk_bytes, storage_class)

    async def _discard(self) -> None:
        await self._statuses.release_restore_points(self.row)
        await self._record(replace(self.row, archive_key=None, archive_op_id=None), "discarded")

    async def _delete(self) -> None:
        """Delete the workspace. A live volume is the only copy of something: it is kept for the undo window, and the
        collector removes it then."""
        if await self._container_remains():
            return
        await self._backends.clear_job(self.row.id)
        volumes = self._facts.volumes or {}
        if self.row.home_store_key in volumes and not self.row.volume_may_be_only_copy:
            await self._delete_volume()
        elif not await self._context.commands.mark_deleted(self.row.id, self._context.actor("coordinator")):
            await self._record(operations.abandon(self.row), "delete_withdrawn")

    async def _container_remains(self) -> bool:
        if self._facts.container is None:
            return False
        await self._backends.remove_container(self.row.id)
        return True

    async def _own_job(self) -> JobSeen | None:
        """The job of this operation, if any. A job of another operation is ended before anything uses the volume."""
        job = await self._backends.job(self.row.id)
        if job is None or job.op_id == self.row.op_id:
            return job
        await self._backends.clear_job(self.row.id)
        return None

    async def _job_result(self, job: JobSeen | None, kind: JobKind, key: str) -> JobResult | None:
        """Start the job, watch it, or take its result; a failed one is cleared, so that the next try starts afresh."""
        if job is None:
            await self._backends.start_job(await self._job_spec(kind, key))
            return None
        if job.state is JobState.RUNNING:
            if job.progress is not None:
                await self._progressed(job.progress)
            return None
        if job.state is JobState.SUCCEEDED and job.result is not None and job.result.key == key:
            return job.result
        if job.state is JobState.SUCCEEDED and job.result is not None:
            await self._backends.clear_job(self.row.id)
            return None  # of an archive that a container has outdated since
        await self._backends.clear_job(self.row.id)
        message = job.message or f"the {kind} job ended without a result"
        if job.reason is ErrorReason.UNREACHABLE:
            raise JobInterrupted(message, endpoint=self._backends.endpoint("archives"), action=kind.value)
        said = {"exit_code": job.exit_code, "stderr": job.stderr or None}
        raise BackendError(message, reason=job.reason or ErrorReason.ACTION_FAILED, action=kind.value, **said)

    async def _job_spec(self, kind: JobKind, key: str) -> JobSpec:
        """What the job gets. It runs where the template's pods do: it may be the first to use the volume, which then
        stays there."""
        template = await self._template()
        options = template.kubernetes if template else NO_KUBERNETES_OPTIONS
        return JobSpec(self.row.id, self._op_id, kind, self._volume, key, kubernetes=options)

    async def _commit_archive(self, result: JobResult) -> None:
        point = RestorePoint(
            workspace_id=self.row.id,
            op_id=self.row.archive_op_id or self._op_id,
            key=result.key,
            bytes=result.bytes,
            files=result.files,
            sha256=result.sha256,
            created_at=self._now,
            verified_at=self._now,
        )
        await self._record(replace(self.row, archive_key=result.key), "archived", point)

    async def _progressed(self, progress: Progress, *, excuse: bool = False) -> None:
        self.watches = True
        after = operations.progressed(self.row, progress, self._now)
        if excuse and self.row.op_started_at is not None:
            elapsed = (self._now - self.row.op_started_at).total_seconds()
            after = replace(after, op_excused_seconds=max(elapsed, after.op_excused_seconds))
        if after != self.row:
            await self._record(after, "progress")

    async def _record(self, after: Workspace, reason: str, point: RestorePoint | None = None) -> None:
        self.row = await self._statuses.record(self.row, after, reason=reason, point=point)

    @property
    def _op_id(self) -> UUID:
        if self.row.op_id is None:
            raise _mismatch("the operation has no id", expected="an operation's id", actual="none")
        return self.row.op_id


def _mismatch(message: str, *, expected: str, actual: str) -> BackendError:
    return BackendError(message, reason=ErrorReason.MISMATCH, expected=expected, actual=actual)
