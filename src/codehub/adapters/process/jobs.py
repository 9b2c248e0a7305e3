"""The Jobs port on processes: the storage job as a supervised subprocess that outlives the coordinator.

What it prints is kept beside its record; whoever looks later reads progress and result from there.
"""

import asyncio
import os
import sys
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from uuid import UUID

from codehub.adapters.process import shim
from codehub.adapters.process.runtime import VOLUME_LABEL, ProcessRuntime
from codehub.adapters.process.table import Command, ProcessEntry
from codehub.adapters.storage_job import JobOutput, job_arguments, job_environment
from codehub.domain.errors import BackendError, JobConflict
from codehub.domain.naming import OPERATION_LABEL
from codehub.ports.jobs import JobKind, JobSeen, JobSpec

KIND_LABEL = "codehub.job"
PROGRAM = (sys.executable, "-I", "-m", "codehub.job")

_PASSED_ON = ("AWS_", "CODEHUB_S3_", "SSL_CERT_", "LC_", "LD_LIBRARY_PATH", "PATH", "LANG", "TZ", "TMPDIR")


class ProcessJobs:
    """`environ` holds the object store's address and credentials; only what the job may need of it is passed on.
    `most_bytes`: what a restored home may hold; None is what the disk has free."""

    def __init__(
        self,
        runtime: ProcessRuntime,
        store_url: str,
        *,
        environ: Mapping[str, str] | None = None,
        most_bytes: int | None = None,
        program: Sequence[str] = PROGRAM,
    ) -> None:
        self._table = runtime.jobs
        self._homes = runtime.homes
        self._store_url = store_url
        self._env = job_environment(os.environ if environ is None else environ, _PASSED_ON)
        self._most_bytes = most_bytes
        self._program = list(program)

    async def find(self, ids: Collection[UUID] | None = None) -> Mapping[UUID, JobSeen]:
        """One that cannot be read is an error when it is asked for by itself: no job must be thought to be gone."""
        return await asyncio.to_thread(self._find, ids)

    async def start(self, spec: JobSpec) -> None:
        if self._is_there(spec):
            return
        argv = [*self._program, *job_arguments(spec, str(self._homes.home(spec.volume)), self._store_url)]
        if spec.kind is JobKind.RESTORE:
            argv += ["--max-bytes", "free" if self._most_bytes is None else str(self._most_bytes)]
        labels = {OPERATION_LABEL: str(spec.op_id), KIND_LABEL: spec.kind.value, VOLUME_LABEL: spec.volume}
        command = Command(argv, self._env, directory=Path("/"), labels=labels, once=True, apart=True)
        answer = await self._table.start(spec.workspace_id, command)
        if answer != shim.STARTED and not self._is_there(spec):
            raise BackendError(f"the job of {spec.workspace_id} could not be started: it came and went")

    async def clear(self, workspace_id: UUID) -> None:
        await self._table.end(workspace_id)

    def _find(self, ids: Collection[UUID] | None) -> Mapping[UUID, JobSeen]:
        seen = {}
        for key, entry in self._table.list(ids).items():
            if isinstance(entry, ProcessEntry):
                seen[key] = _seen(entry)
            elif ids is not None:
                raise entry
        return seen

    def _is_there(self, spec: JobSpec) -> bool:
        entry = self._table.look(spec.workspace_id)
        if entry is not None and entry.labels[OPERATION_LABEL] != str(spec.op_id):
            raise JobConflict(f"a job of operation {entry.labels[OPERATION_LABEL]} is still there")
        return entry is not None


def _seen(entry: ProcessEntry) -> JobSeen:
    op_id, kind = UUID(entry.labels[OPERATION_LABEL]), JobKind(entry.labels[KIND_LABEL])
    said = JobOutput(op_id, kind, entry.output())
    if entry.running:
        return said.running()
    code = entry.exit_code
    return said.succeeded(code) or said.failed(code, entry.ending(), entry.errors())
