"""The Jobs port on a Docker engine: the storage job as a container of CodeHub's own image, found again by its name.

It outlives the coordinator; what it printed stays with it until it is cleared. Workspaces never see the archive store:
its directory or its credentials are in this container alone.
"""

import asyncio
from collections.abc import Collection, Mapping, Sequence
from typing import Any
from uuid import UUID

from aiodocker import DockerError

from codehub.adapters.docker import payloads
from codehub.adapters.docker.engine import CONFLICT, Engine, doing
from codehub.adapters.docker.payloads import JOB, KIND_LABEL, DockerSite, JobStore
from codehub.adapters.docker.runtime import EXITED, DockerRuntime
from codehub.adapters.storage_job import JobOutput, job_environment
from codehub.domain.errors import BackendError, ErrorReason, JobConflict
from codehub.domain.naming import OPERATION_LABEL, job_name
from codehub.job.store import parse_store
from codehub.ports.jobs import JobKind, JobSeen, JobSpec

PROGRAM = ("/usr/local/lib/codehub/bin/python", "-I", "-m", "codehub.job")

_PASSED_ON = ("AWS_", "CODEHUB_S3_")
_NOT_THERE = ("AWS_CA_BUNDLE", "AWS_SHARED_CREDENTIALS_FILE", "AWS_CONFIG_FILE")
"""Files of this machine, which the container does not have."""
_LOST_BY_THE_ENGINE = 255
"""What an engine that comes up again says of a container that ended without it. The job itself never ends so."""
_TAIL = 40
_SETTLE_SECONDS = 15.0
_LOOK_AGAIN_SECONDS = 0.05


class DockerJobs:
    def __init__(self, runtime: DockerRuntime, store: JobStore, *, program: Sequence[str] = PROGRAM) -> None:
        self._runtime = runtime
        self._engine: Engine = runtime.engine
        self._site: DockerSite = runtime.site
        self._store = store
        self._program = list(program)

    async def find(self, ids: Collection[UUID] | None = None) -> Mapping[UUID, JobSeen]:
        found = await self._runtime.listed(JOB, ids)
        # One that was made and never started is not there: the next start goes on with it.
        begun = {key: job for key, job in found.items() if job["State"] != "created"}
        return dict(zip(begun, await asyncio.gather(*(self._seen(job) for job in begun.values())), strict=True))

    async def start(self, spec: JobSpec) -> None:
        if not await self._engine.has_image(self._site.codehub_image):
            message = f"the image {self._site.codehub_image} of storage jobs is not there: build it (`make images`)"
            raise BackendError(message, reason=ErrorReason.ACTION_FAILED)
        loop = asyncio.get_running_loop()
        until = loop.time() + _SETTLE_SECONDS
        while not await self._try_to_start(spec, last=loop.time() > until):
            if loop.time() > 2 * _SETTLE_SECONDS + until:
                raise BackendError(f"the job of {spec.workspace_id} comes and goes: who else starts it?")
            await asyncio.sleep(_LOOK_AGAIN_SECONDS)

    async def clear(self, workspace_id: UUID) -> None:
        found = await self._runtime.listed_of(JOB, workspace_id)
        if found is not None:
            await self._engine.end(found["Id"])

    async def _try_to_start(self, spec: JobSpec, *, last: bool) -> bool:
        """False: look again. Whoever makes a job starts it at once; one that stays as it was made to the `last` is what
        somebody who died has left."""
        present = await self._runtime.listed_of(JOB, spec.workspace_id)
        key = await self._make(spec) if present is None else present["Id"]
        if key is None:
            return False
        if present is not None and present["Labels"][OPERATION_LABEL] != str(spec.op_id):
            if present["State"] != "created":
                raise JobConflict(f"a job of operation {present['Labels'][OPERATION_LABEL]} is still there")
            if last:
                await self._engine.end(key)
            return False
        if present is None or present["State"] == "created":
            with doing("the job cannot be started"):
                await (await self._engine.docker()).containers.container(key).start()
        return True

    async def _make(self, spec: JobSpec) -> str | None:
        """Makes the container of a job. None: somebody else was quicker."""
        there = await self._runtime.owns_volume(spec.workspace_id, spec.volume)
        payload = payloads.job(self._site, spec, self._program, self._store, volume_is_there=there)
        with doing("the job cannot be made"):
            try:
                return (await self._engine.make(payload, job_name(spec.workspace_id))).id
            except DockerError as error:
                if error.status != CONFLICT:
                    raise
        return None

    async def _seen(self, job: Mapping[str, Any]) -> JobSeen:
        op_id, kind = UUID(job["Labels"][OPERATION_LABEL]), JobKind(job["Labels"][KIND_LABEL])
        said = JobOutput(op_id, kind, await self._engine.output(job["Id"], _TAIL, stderr=False))
        if job["State"] != "exited":
            return said.running()
        exited = EXITED.match(job["Status"])
        code = int(exited[1]) if exited else None
        seen = said.succeeded(code)
        if seen is not None:
            return seen
        if code == _LOST_BY_THE_ENGINE:
            return said.interrupted("the Docker engine or its machine ended while the job ran")
        errors = await self._engine.output(job["Id"], _TAIL, stdout=False)
        return said.failed(code, f"ended with exit code {code}", errors)


def job_store(url: str, environ: Mapping[str, str]) -> JobStore:
    """A directory is mounted; a bucket is reached with the credentials of `environ`, and nothing else of it."""
    directory, _bucket = parse_store(url)
    if directory is not None:
        return JobStore("file:///archives", str(directory))
    env = job_environment(environ, _PASSED_ON)
    return JobStore(url, None, {name: value for name, value in env.items() if name not in _NOT_THERE})
