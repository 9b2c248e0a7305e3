"""The Jobs port on a Kubernetes cluster: the storage job as a batch/v1 Job of CodeHub's own image, found by its name.

It outlives the coordinator; what it printed stays with its pod until it is cleared. The store's credentials are in a
secret that jobs alone name. A job whose pod is on a silent node goes on as far as anybody knows: it has not failed.
"""

import asyncio
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from uuid import UUID

from codehub.adapters.kubernetes import manifests, observations
from codehub.adapters.kubernetes.cache import owner
from codehub.adapters.kubernetes.cluster import FORBIDDEN, JOBS, PODS, UNAUTHORIZED, Manifest, Refusal
from codehub.adapters.kubernetes.manifests import JOB, KIND_LABEL
from codehub.adapters.kubernetes.observations import Meaning, Seen
from codehub.adapters.kubernetes.runtime import KubernetesRuntime, refused
from codehub.adapters.storage_job import JobOutput, job_environment
from codehub.domain.errors import BackendError, ErrorReason, JobConflict, Unreachable
from codehub.domain.naming import OPERATION_LABEL, WORKSPACE_LABEL, job_name
from codehub.domain.workspace import Progress
from codehub.job.store import parse_store
from codehub.ports.jobs import JobKind, JobSeen, JobSpec

PROGRAM = ("/usr/local/lib/codehub/bin/python", "-I", "-m", "codehub.job")

_PASSED_ON = ("AWS_", "CODEHUB_S3_")
_NOT_THERE = ("AWS_CA_BUNDLE", "AWS_SHARED_CREDENTIALS_FILE", "AWS_CONFIG_FILE", "AWS_WEB_IDENTITY_TOKEN_FILE")
"""Files of this machine, which the pod does not have."""
_TAIL = 60
_LOG_SECONDS = 30.0
_SETTLE_SECONDS = 30.0
_LOOK_AGAIN_SECONDS = 0.1


class KubernetesJobs:
    """`store_env`: the object store's address and credentials, which a secret of the cluster hands to jobs."""

    def __init__(
        self,
        runtime: KubernetesRuntime,
        store_url: str,
        store_env: Mapping[str, str],
        *,
        program: Sequence[str] = PROGRAM,
    ) -> None:
        self._runtime = runtime
        self._cluster = runtime.cluster
        self._site = runtime.site
        self._store_url = store_url
        self._store_env = store_env
        self._program = list(program)

    async def find(self, ids: Collection[UUID] | None = None) -> Mapping[UUID, JobSeen]:
        if ids is None:
            self._runtime.cache.begin()
            jobs = list(await self._runtime.cache.jobs.all())
        else:
            named = await asyncio.gather(*(self._cluster.get(JOBS, job_name(key)) for key in ids))
            jobs = [job for job in named if job is not None]
        mine = {key: job for job in jobs if self._runtime.is_ours(job, JOB) and (key := owner(job)) is not None}
        found = await asyncio.gather(*(self._seen(key, job) for key, job in mine.items()))
        return {key: seen for key, seen in zip(mine, found, strict=True) if seen is not None}

    async def start(self, spec: JobSpec) -> None:
        there = await self._runtime.claims.own(spec.workspace_id, spec.volume)
        is_there = there is not None and not observations.is_terminating(there)
        await self._keep_credentials()
        wanted = manifests.job(self._site, spec, self._program, self._store_url, volume_is_there=is_there)
        until = asyncio.get_running_loop().time() + _SETTLE_SECONDS
        while not await self._try_to_start(spec, wanted):
            if asyncio.get_running_loop().time() > until:
                raise BackendError(f"the job of {spec.workspace_id} comes and goes: who else starts it?")
            await asyncio.sleep(_LOOK_AGAIN_SECONDS)

    async def clear(self, workspace_id: UUID) -> None:
        """Ends the job and waits until its pods are gone, wherever they run."""
        job = await self._cluster.get(JOBS, job_name(workspace_id))
        if job is not None and self._runtime.is_ours(job, JOB):
            name, uid = job["metadata"]["name"], job["metadata"]["uid"]
            await self._cluster.delete(JOBS, name, uid, propagation="Foreground")
            self._runtime.cache.jobs.note_gone(name, uid)
        for pod in await self._pods(workspace_id):
            await self._runtime.end(pod, 1)
        await self._until_gone(workspace_id, job)

    async def _until_gone(self, workspace_id: UUID, job: Manifest | None) -> None:
        until = asyncio.get_running_loop().time() + _SETTLE_SECONDS
        while job is not None:
            found = await self._cluster.get(JOBS, job_name(workspace_id))
            if found is None or found["metadata"]["uid"] != job["metadata"]["uid"]:
                return
            if asyncio.get_running_loop().time() > until:
                message = f"the job of {workspace_id} does not end"
                raise BackendError(message, reason=ErrorReason.UNREACHABLE, endpoint="k8s-api")
            await asyncio.sleep(_LOOK_AGAIN_SECONDS)

    async def _keep_credentials(self) -> None:
        content = {name: value.encode() for name, value in self._store_env.items()}
        try:
            await self._runtime.keep_secret(self._site.store_secret, content)
        except Refusal as refusal:
            raise BackendError(f"the store's credentials cannot be kept: {refusal}") from refusal

    async def _try_to_start(self, spec: JobSpec, wanted: Manifest) -> bool:
        """False: one of before is just going; look again."""
        try:
            made = await self._cluster.create(JOBS, wanted)
        except Refusal as refusal:
            if not refusal.already_exists:
                raise BackendError(f"the job cannot be made: {refusal}") from refusal
        else:
            self._runtime.cache.jobs.note(made)
            return True
        present = await self._cluster.get(JOBS, job_name(spec.workspace_id))
        if present is None or observations.is_terminating(present):
            return False
        operation = (present["metadata"].get("labels") or {}).get(OPERATION_LABEL)
        if operation != str(spec.op_id):
            raise JobConflict(f"a job of operation {operation} is still there")
        return True

    async def _pods(self, workspace_id: UUID) -> list[Manifest]:
        selector = f"{manifests.ours(self._site, JOB)},{WORKSPACE_LABEL}={workspace_id}"
        return (await self._cluster.list(PODS, selector))[0]

    async def _seen(self, workspace_id: UUID, job: Manifest) -> JobSeen | None:
        """What is seen of the job; None of one that was deleted and has no pod any more that could touch the volume."""
        own = job["metadata"]["labels"]
        op_id, kind = UUID(own[OPERATION_LABEL]), JobKind(own[KIND_LABEL])
        pod = _newest([one for one in await self._pods(workspace_id) if own[OPERATION_LABEL] == _operation(one)])
        if observations.is_terminating(job):
            runs = pod is not None and not observations.ended(pod)
            return JobOutput(op_id, kind, "").running() if runs else None
        if pod is None:
            said = JobOutput(op_id, kind, "")
            return said.interrupted("its pod was removed with what it reported") if _has_ended(job) else said.running()
        seen = await self._runtime.examined(pod)
        output = await self._output(pod) if seen.state.meaning in (Meaning.RUNNING, Meaning.ENDED) else ""
        said = JobOutput(op_id, kind, output)
        match seen.state.meaning:
            case Meaning.REFUSED:
                return said.failed(1, f"cannot begin: {refused(pod, seen)}", str(refused(pod, seen)))
            case Meaning.STARTING:
                return replace(said.running(), progress=Progress(step=seen.words))
            case Meaning.RUNNING | Meaning.UNKNOWN:
                return said.running()
            case Meaning.ENDED:
                return said.succeeded(observations.exit_code(pod)) or self._unsuccessful(said, pod, seen, output)

    async def _output(self, pod: Manifest) -> str:
        """What the job printed last; nothing if its node does not tell, which says nothing about other jobs."""
        try:
            return await self._cluster.log(pod["metadata"]["name"], JOB, _TAIL)
        except Unreachable as error:
            if error.context.get("status_code") in (UNAUTHORIZED, FORBIDDEN):
                raise
            return ""

    def _unsuccessful(self, said: JobOutput, pod: Manifest, seen: Seen, output: str) -> JobSeen:
        code = observations.exit_code(pod)
        if code == 0:
            return self._unread(said, pod)
        if code is None:
            return said.interrupted(f"its pod was ended: {seen.detail}")
        return said.failed(code, f"ended with exit code {code}", _errors(output))

    def _unread(self, said: JobOutput, pod: Manifest) -> JobSeen:
        """What is said of a job that succeeded and whose report is not in its log: a node that has just ended a pod may
        not find the log for a moment. If it stays away, the job is run again, and finds its work done."""
        ended_at = observations.moment(observations.terminated(pod).get("finishedAt")) or self._cluster.now
        if (self._cluster.now - ended_at).total_seconds() < _LOG_SECONDS:
            return said.running()
        return said.interrupted("it ended well, and its node does not find what it reported")


def _newest(pods: list[Manifest]) -> Manifest | None:
    return max(pods, key=lambda pod: str(pod["metadata"]["creationTimestamp"]), default=None)


def _operation(pod: Manifest) -> str:
    return str((pod["metadata"].get("labels") or {}).get(OPERATION_LABEL, ""))


def _has_ended(job: Manifest) -> bool:
    conditions = (job.get("status") or {}).get("conditions") or ()
    return any(one.get("type") in ("Failed", "Complete") and one.get("status") == "True" for one in conditions)


def _errors(output: str) -> str:
    """What the job printed besides its reports: a pod's log has both of its outputs in one."""
    return "\n".join(line for line in output.splitlines() if not line.startswith("{"))


def store_environment(url: str, environ: Mapping[str, str]) -> dict[str, str]:
    """What of `environ` reaches the object store. Raises BackendError for a directory, which pods do not have."""
    directory, _bucket = parse_store(url)
    if directory is not None:
        raise BackendError(
            f"archives in the directory {directory} are out of the reach of pods: set CODEHUB_ARCHIVE_URL to a bucket "
            "(s3://…)"
        )
    found = job_environment(environ, _PASSED_ON)
    return {name: value for name, value in found.items() if name not in _NOT_THERE}
