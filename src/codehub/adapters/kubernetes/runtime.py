"""The Runtime port on a Kubernetes cluster: a pod is a workspace, a claim its home.

A workspace's pod has one name, so there are never two, wherever they run: while one is there that cannot be ended, the
next cannot be made. Effects name what they touch by its UID. A pod that waits for a node, its image or its volume is a
start on its way, not a failed one.
"""

import asyncio
import base64
import os
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from uuid import UUID, uuid4

import structlog

from codehub.adapters.agent_exec import exec_by_agent
from codehub.adapters.kubernetes import manifests, observations
from codehub.adapters.kubernetes.cache import ClusterCache, owner
from codehub.adapters.kubernetes.claims import AT_ONCE, Claims, claims_of
from codehub.adapters.kubernetes.cluster import (
    CLAIMS,
    ENDPOINT,
    EVENTS,
    FORBIDDEN,
    JOBS,
    NAMESPACES,
    PODS,
    SECRETS,
    Cluster,
    Manifest,
    Refusal,
)
from codehub.adapters.kubernetes.manifests import JOB, KEY, MAIN, PORT, PROBE, START_KEY, WORKSPACE, KubernetesSite
from codehub.adapters.kubernetes.network_isolation import NetworkIsolation
from codehub.adapters.kubernetes.observations import Meaning, Seen
from codehub.adapters.kubernetes.usage import PodUsage
from codehub.adapters.readiness_probe import ReadinessProbe, accepts, answers_http, connect
from codehub.adapters.start_secrets import hand_over_secrets
from codehub.agent.handshake import AGENT_PORT, KEY_BYTES, is_led_to
from codehub.domain.errors import BackendError, Deferred, ErrorReason, Unreachable, VolumeInUse
from codehub.domain.judge import ContainerSeen
from codehub.domain.naming import INSTALL_LABEL, WORKSPACE_LABEL, container_name, job_name
from codehub.domain.usage import ComputeUsage, DiskUsage
from codehub.ports.exec import ExecRequest, ExecSession
from codehub.ports.runtime import (
    AgentPort,
    ContainerSpec,
    Endpoint,
    IsolationReport,
    Pulling,
    Resources,
    no_such_volume,
)

log = structlog.get_logger(__name__)

_FEW = 20
"""Up to so many pods are looked up by name; above, they are listed by their labels."""
_STARTED_SECONDS = 5.0
"""How long a start waits for its pod before it is said to be on its way."""
_RACE_SECONDS = 30.0
_GONE_SECONDS = 35.0
"""How long after its grace a pod is waited for; on a node that is silent it never goes."""
_LOOK_AGAIN_SECONDS = 0.1
_ORPHANED_SECONDS = 60.0
_LONGEST_PROBE_SECONDS = 900.0
_MOST_KEYS = 10_000
_PROBE_LINES = 1000


class KubernetesRuntime:
    name = "kubernetes"
    supports_sudo = True

    def __init__(self, cluster: Cluster, site: KubernetesSite, *, isolation: NetworkIsolation | None = None) -> None:
        self.cluster = cluster
        self.site = site
        self.isolation = isolation or NetworkIsolation(cluster, site)
        self.cache = ClusterCache(cluster, manifests.ours(site))
        self.claims = Claims(cluster, site, self.cache.claims)
        self._readiness_probe = ReadinessProbe(self.endpoint)
        self._usage = PodUsage(cluster, manifests.ours(site, WORKSPACE))
        self._keys: dict[str, bytes] = {}
        self._judged: dict[UUID, tuple[Manifest, ContainerSeen]] = {}

    async def close(self) -> None:
        await self._readiness_probe.close()
        await self.cache.close()

    async def identity(self) -> str:
        """The UID of our namespace, which goes with our claims. Another's, such as kube-system's, would make the
        identity depend on rights that come and go."""
        name = await self.cluster.namespace()
        own = await self.cluster.get(NAMESPACES, name, cluster_wide=True)
        if own is None:
            raise Unreachable(f"there is no namespace {name}", endpoint=ENDPOINT)
        return " ".join(["kubernetes", own["metadata"]["uid"], self.site.install_id])

    async def containers(self, ids: Collection[UUID] | None = None) -> Mapping[UUID, ContainerSeen]:
        if ids is not None and not ids:
            return {}
        pods = await self.pods(WORKSPACE, ids)
        leaving = await self._leaving_claims(pods.values(), from_cache=ids is None)
        if ids is not None:
            return {key: self._seen(pod, leaving) for key, pod in pods.items()}
        self._judged = {key: self._judged_anew(key, pod, leaving) for key, pod in pods.items()}
        return {key: seen for key, (_, seen) in self._judged.items()}

    def _judged_anew(self, key: UUID, pod: Manifest, leaving: set[str]) -> tuple[Manifest, ContainerSeen]:
        """What is seen of a pod, which is not judged again while nothing of it has changed: of thousands, few have. Of
        one that is ending, or whose container waits, time alone changes what it means."""
        before = self._judged.get(key)
        changes = observations.is_terminating(pod) or _volume(pod) in leaving or bool(observations.waiting(pod))
        if before is not None and before[0] is pod and before[1].known and not changes:
            return before
        return pod, self._seen(pod, leaving)

    async def volumes(self, ids: Collection[UUID] | None = None) -> Mapping[UUID, Mapping[str, str]]:
        if ids is not None and not ids:
            return {}
        self.cache.begin()
        claims = list(await self.claims.found(ids))
        held = await self._held(claims, ids)
        found: dict[UUID, dict[str, str]] = {}
        for claim in claims:
            key, name = owner(claim), claim["metadata"]["name"]
            if key is not None and (name in held or not observations.is_terminating(claim)):
                found.setdefault(key, {})[name] = claim["metadata"]["uid"]
        return found

    async def _held(self, claims: Collection[Manifest], ids: Collection[UUID] | None) -> set[str]:
        """The names of Terminating claims that a pod of ours still has: what is in them is there until it ends, so they
        are not lost yet."""
        leaving = {claim["metadata"]["name"] for claim in claims if observations.is_terminating(claim)}
        if not leaving:
            return set()
        pods = [*(await self.pods(WORKSPACE, ids)).values(), *(await self.pods(JOB, ids)).values()]
        return {_volume(pod) for pod in pods if not observations.ended(pod)} & leaving

    async def answers(self, workspace_id: UUID) -> bool:
        endpoint = await self.endpoint(workspace_id)
        return endpoint is not None and await answers_http(connect(endpoint))

    async def endpoint(self, workspace_id: UUID) -> Endpoint | None:
        return await self._inside(workspace_id, PORT)

    async def port_endpoint(self, workspace_id: UUID, port: int) -> Endpoint | None:
        """The endpoint of a port inside the workspace, wherever the program listens there, on loopback too."""
        found = await self._inside(workspace_id, port) if is_led_to(port) else None
        return found if found is not None and await accepts(found) else None

    async def _inside(self, workspace_id: UUID, port: int) -> Endpoint | None:
        """The agent's address and key. They are of the same start: the pod names the secret that holds its key."""
        pod = await self._pod(workspace_id)
        if pod is None or not observations.started(pod) or observations.ended(pod):
            return None
        key = await self._key(manifests.secret_of(pod))
        if key is None:
            return None
        return Endpoint(host=observations.status(pod)["podIP"], port=AGENT_PORT, inside=AgentPort(port, key))

    async def _key(self, secret: str | None) -> bytes | None:
        """The key of a start. It never changes, so each is asked for once."""
        if secret is None:
            return None
        if secret not in self._keys:
            found = await self.cluster.get(SECRETS, secret)
            if found is None:
                return None
            if len(self._keys) >= _MOST_KEYS:
                self._keys.clear()
            self._keys[secret] = bytes.fromhex(base64.b64decode(found["data"][KEY]).decode())
        return self._keys[secret]

    async def exec(self, workspace_id: UUID, request: ExecRequest) -> ExecSession:
        return await exec_by_agent(await self.endpoint(workspace_id), request)

    async def logs(self, workspace_id: UUID, tail: int) -> str:
        return await self.cluster.log(container_name(workspace_id), MAIN, tail)

    async def create_volume(
        self, workspace_id: UUID, name: str, disk_bytes: int | None = None, storage_class: str | None = None
    ) -> None:
        await self.claims.create(workspace_id, name, disk_bytes, storage_class)

    async def delete_volume(self, workspace_id: UUID, name: str) -> None:
        try:
            await self.claims.delete(workspace_id, name)
        except VolumeInUse:
            if not await self._release_ended_job(workspace_id, name):
                raise
            await self.claims.delete(workspace_id, name)

    async def start_container(self, spec: ContainerSpec) -> Pulling | None:
        claim = await self.claims.own(spec.workspace_id, spec.volume)
        if claim is None or observations.is_terminating(claim):
            raise no_such_volume(spec.volume)
        await self.isolation.stand()
        pod = await self._pod(spec.workspace_id)
        made = pod is None or observations.ended(pod) or observations.is_terminating(pod)
        if made:
            await self._wait_for_jobs(spec)
            await self.claims.grow(claim, spec.share.disk_bytes)
            pod = await self._made(spec)
        if pod is not None and not _is_settled(pod):
            pod = await self._waited_for(pod, _STARTED_SECONDS if made else 0.0)
        if pod is None:
            return None  # it is gone already: the next look says so
        on_its_way = await self._judged_start(pod)
        if on_its_way is None and manifests.awaits_secrets(pod) and observations.started(pod):
            await self._hand_over_secrets(spec)
        if on_its_way is None:
            self._readiness_probe.watch(spec.workspace_id)
        return on_its_way

    async def remove_container(self, workspace_id: UUID) -> None:
        pod = await self._pod(workspace_id)
        if pod is not None:
            await self.end(pod)

    async def compute_usage(self, ids: Collection[UUID]) -> Mapping[UUID, ComputeUsage]:
        return await self._usage.of(await self._running(ids)) if ids else {}

    async def disk_usage(self, ids: Collection[UUID], seconds: float) -> Mapping[UUID, DiskUsage]:  # noqa: ARG002 - the port's
        """Nothing: no API of the cluster's that we may use tells what a volume holds."""
        return {}

    async def _running(self, ids: Collection[UUID]) -> dict[UUID, Manifest]:
        found: dict[UUID, Manifest] = {}
        for key in ids:
            pod = await self._pod(key)
            if pod is not None and observations.started(pod):
                found[key] = pod
        return found

    async def isolates(self) -> bool:
        return True

    def watch_isolation(self) -> AsyncIterator[IsolationReport]:
        return self.isolation.watch()

    async def capacity(self) -> Resources:
        """As much as one likes: which nodes there are, or may be added, is not ours to know."""
        return Resources()

    async def remove_orphans(self) -> int:
        """Removes the keys of starts whose pod is gone, and probes that nobody waits for."""
        removed = 0
        oldest = self.cluster.now - timedelta(seconds=_ORPHANED_SECONDS)
        pods = {pod["metadata"]["name"]: pod for pod in (await self.cluster.list(PODS, manifests.ours(self.site)))[0]}
        named = {manifests.secret_of(pod) for pod in pods.values()}
        for secret in (await self.cluster.list(SECRETS, manifests.ours(self.site, START_KEY)))[0]:
            begun = observations.created_at(secret)
            if secret["metadata"]["name"] not in named and begun is not None and begun < oldest:
                removed += await self.cluster.delete(SECRETS, secret["metadata"]["name"], secret["metadata"]["uid"])
        for pod in pods.values():
            is_probe = (pod["metadata"].get("labels") or {}).get(manifests.ROLE_LABEL) == PROBE
            begun = observations.created_at(pod)
            if is_probe and begun is not None and begun < self.cluster.now - timedelta(seconds=_LONGEST_PROBE_SECONDS):
                removed += await self.cluster.delete(PODS, pod["metadata"]["name"], pod["metadata"]["uid"])
        return removed

    def hints(self) -> AsyncIterator[UUID]:
        return self.cache.hints(self._readiness_probe.heard)

    async def run_inside(self, spec: ContainerSpec, argv: Sequence[str], seconds: float = 60.0) -> tuple[int, str]:
        """Runs a command confined exactly as the workspace's IDE is, and returns its exit code and output.
        Deferred if nobody has put up the network policies: whoever tries them does not mend them."""
        await self.isolation.check()
        name = f"{container_name(spec.workspace_id)}-probe-{uuid4().hex[:8]}"
        beside = await self._pod(spec.workspace_id)
        node = None if beside is None else beside["spec"].get("nodeName")
        pod = await self.cluster.create(PODS, manifests.probe(self.site, spec, name, argv, node))
        found: Manifest | None = pod
        try:
            async with asyncio.timeout(seconds):
                while found is not None and not observations.ended(found):
                    await asyncio.sleep(_LOOK_AGAIN_SECONDS)
                    found = await self.cluster.get(PODS, name)
            code = None if found is None else observations.exit_code(found)
            return (1 if code is None else code), await self.cluster.log(name, MAIN, _PROBE_LINES)
        finally:
            grace = 0 if found is not None and observations.has_stopped(found) else 1
            await asyncio.shield(self.cluster.delete(PODS, name, pod["metadata"]["uid"], grace_seconds=grace))

    async def pods(self, role: str, ids: Collection[UUID] | None) -> dict[UUID, Manifest]:
        """The pods of a role by workspace: all as they are known, or those of `ids` as they are now."""
        if ids is None:
            self.cache.begin()
            found = list(await self.cache.pods.all())
        elif role == WORKSPACE and len(ids) <= _FEW:
            named = await asyncio.gather(*(self.cluster.get(PODS, container_name(key)) for key in ids))
            found = [pod for pod in named if pod is not None]
        else:
            found = await self._listed(role, list(ids))
        mine = [pod for pod in found if self.is_ours(pod, role)]
        return {key: pod for pod in mine if (key := owner(pod)) is not None and (ids is None or key in ids)}

    async def _listed(self, role: str, ids: list[UUID]) -> list[Manifest]:
        found: list[Manifest] = []
        for start in range(0, len(ids), AT_ONCE):
            named = ",".join(str(key) for key in ids[start : start + AT_ONCE])
            selector = f"{manifests.ours(self.site, role)},{WORKSPACE_LABEL} in ({named})"
            found += (await self.cluster.list(PODS, selector))[0]
        return found

    def is_ours(self, found: Manifest, role: str) -> bool:
        own = found["metadata"].get("labels") or {}
        return own.get(INSTALL_LABEL) == self.site.install_id and own.get(manifests.ROLE_LABEL) == role

    async def end(self, pod: Manifest, grace_seconds: int | None = None) -> None:
        """Ends the pod and waits until it is gone. One that does not go may be on a node that is silent: then nobody
        knows, and nothing has failed. Without grace the server forgets a pod before its node has ended it, so one whose
        container may run has a second at least."""
        name, uid = pod["metadata"]["name"], pod["metadata"]["uid"]
        grace = manifests.GRACE_SECONDS if grace_seconds is None else grace_seconds
        if not observations.has_stopped(pod):
            grace = max(1, grace)
        try:
            await self.cluster.delete(PODS, name, uid, grace_seconds=grace)
        except Refusal as refusal:
            raise BackendError(f"pod {name} cannot be removed: {refusal}") from refusal
        await self.until_gone(name, uid, grace + _GONE_SECONDS)
        self.cache.pods.note_gone(name, uid)

    async def until_gone(self, name: str, uid: str, seconds: float) -> None:
        """Waits until the pod is gone. Once its node has said that its container has ended, nothing of it runs, and the
        seconds that the node takes to tidy up are not waited for."""
        until = asyncio.get_running_loop().time() + seconds
        while (pod := await self.cluster.get(PODS, name)) is not None and pod["metadata"]["uid"] == uid:
            if asyncio.get_running_loop().time() > until:
                detail = observations.observe(pod, self.cluster.now).detail or "it is Terminating"
                message = f"pod {name} does not end: {detail}"
                raise BackendError(message, reason=ErrorReason.UNREACHABLE, endpoint=ENDPOINT)
            if observations.has_stopped(pod):
                await self.cluster.delete(PODS, name, uid, grace_seconds=0)
            await asyncio.sleep(_LOOK_AGAIN_SECONDS)

    async def _pod(self, workspace_id: UUID) -> Manifest | None:
        found = await self.cluster.get(PODS, container_name(workspace_id))
        return found if found is not None and self.is_ours(found, WORKSPACE) else None

    async def _leaving_claims(self, pods: Collection[Manifest], *, from_cache: bool) -> set[str]:
        """The names of claims that somebody has deleted and that live only as long as a pod has them."""
        if from_cache:
            claims = list(await self.cache.claims.all())
        else:
            names = {_volume(pod) for pod in pods} - {""}
            found = await asyncio.gather(*(self.cluster.get(CLAIMS, name) for name in names))
            claims = [claim for claim in found if claim is not None]
        return {claim["metadata"]["name"] for claim in claims if observations.is_terminating(claim)}

    def _seen(self, pod: Manifest, leaving: set[str]) -> ContainerSeen:
        instance, volume = pod["metadata"]["uid"], _volume(pod)
        seen = observations.observe(pod, self.cluster.now)
        if volume in leaving and seen.state.meaning in (Meaning.RUNNING, Meaning.STARTING):
            seen = observations.observe_deleted_claim(pod)
        if seen.state.meaning is Meaning.UNKNOWN:
            return ContainerSeen(instance, False, volume, detail=seen.detail, known=False, state=seen.state.name)
        runs = seen.state.meaning is not Meaning.ENDED
        state = "" if seen.state in (observations.RUNNING, observations.EXITED) else seen.state.name
        evicted = seen.state in (observations.EVICTED, observations.STOPPING)
        return ContainerSeen(instance, runs, volume, detail=seen.detail, state=state, evicted=evicted)

    async def _made(self, spec: ContainerSpec) -> Manifest | None:
        """The pod, made just now, or by somebody else in the same moment."""
        until = asyncio.get_running_loop().time() + _RACE_SECONDS
        while (pod := await self._try_to_make(spec)) is None:
            if asyncio.get_running_loop().time() > until:
                raise BackendError(f"pod {container_name(spec.workspace_id)} comes and goes: who else starts it?")
            present = await self.cluster.get(PODS, container_name(spec.workspace_id))
            if present is None:
                await asyncio.sleep(_LOOK_AGAIN_SECONDS)
                continue
            if not self.is_ours(present, WORKSPACE):
                raise BackendError(f"there is a pod {container_name(spec.workspace_id)} that is not ours: remove it")
            if not observations.ended(present) and not observations.is_terminating(present):
                return present
            await self._clear_the_way(present)
        return pod

    async def _clear_the_way(self, present: Manifest) -> None:
        """Removes a pod that has ended, and waits for one that is about to. Deferred if it does not go."""
        try:
            await self.end(present, 0 if observations.has_stopped(present) else None)
        except BackendError as error:
            if error.reason is ErrorReason.UNREACHABLE and not isinstance(error, Unreachable):
                raise Deferred(str(error)) from error
            raise

    async def _try_to_make(self, spec: ContainerSpec) -> Manifest | None:
        """Makes the pod and, before it, the secret with its key, which is then the pod's and goes with it. None: a pod
        of that name is there."""
        secret = f"{container_name(spec.workspace_id)}-start-{uuid4().hex[:8]}"
        await self._ensure_authorities()
        try:
            kept = await self.cluster.create(
                SECRETS, manifests.start_secret(self.site, spec.workspace_id, secret, os.urandom(KEY_BYTES))
            )
        except Refusal as refusal:
            raise BackendError(f"the key of the start cannot be kept: {refusal}", action="start") from refusal
        try:
            pod = await self.cluster.create(PODS, manifests.workspace(self.site, spec, secret))
        except Refusal as refusal:
            await self.cluster.delete(SECRETS, secret, kept["metadata"]["uid"])
            if refusal.already_exists:
                return None
            raise BackendError(f"the pod cannot be made: {refusal}", action="start") from refusal
        await self.cluster.patch(SECRETS, secret, manifests.owned_by(pod))
        self.cache.pods.note(pod)
        return pod

    async def _ensure_authorities(self) -> None:
        if self.site.ca_bundle:
            await self.keep_secret(self.site.ca_secret, {manifests.CA_FILE: self.site.ca_bundle})

    async def keep_secret(self, name: str, content: Mapping[str, bytes]) -> None:
        """Makes the installation's secret, or brings its content up to date."""
        wanted = manifests.shared_secret(self.site, name, content)
        found = await self.cluster.get(SECRETS, name)
        try:
            if found is None:
                await self.cluster.create(SECRETS, wanted)
            elif found.get("data") != wanted["data"]:
                stale = dict.fromkeys(found.get("data") or {}, None)
                await self.cluster.patch(SECRETS, name, {"data": stale | wanted["data"]})
        except Refusal as refusal:
            if not refusal.already_exists:  # another of us made it just now
                raise

    async def _waited_for(self, pod: Manifest, seconds: float) -> Manifest | None:
        """The pod once it has started, ended or cannot start, or after so many seconds; None if it is gone."""
        name, version = pod["metadata"]["name"], pod["metadata"]["resourceVersion"]
        latest = pod
        with suppress(TimeoutError, Unreachable):
            async with asyncio.timeout(seconds):
                watch = self.cluster.watch(PODS, version, fields=f"metadata.name={name}", seconds=int(seconds) + 1)
                async for event, found in watch:
                    if event == "BOOKMARK" or found["metadata"].get("uid") != pod["metadata"]["uid"]:
                        continue
                    if event == "DELETED":
                        return None
                    latest = found
                    if _is_settled(found):
                        break
        return latest

    async def _judged_start(self, pod: Manifest) -> Pulling | None:
        """What becomes of a start: None once the container runs or has ended; else what its pod waits for. A pod that
        never will run is removed, and the reason raised."""
        seen = await self.examined(pod)
        match seen.state.meaning:
            case Meaning.RUNNING | Meaning.ENDED:
                return None
            case Meaning.UNKNOWN:
                raise Deferred(seen.detail)
            case Meaning.REFUSED:
                await self._withdraw(pod)
                raise refused(pod, seen)
            case Meaning.STARTING:
                await self._hold_to_deadline(pod, seen)
        return Pulling(seen.words)

    async def _withdraw(self, pod: Manifest) -> None:
        """Asks for the end of a pod that never will run. It is not waited for, which may take a node long: whoever
        starts the next waits."""
        name = pod["metadata"]["name"]
        try:
            await self.cluster.delete(PODS, name, pod["metadata"]["uid"], grace_seconds=1)
        except Refusal as refusal:
            raise BackendError(f"pod {name} cannot be removed: {refusal}") from refusal

    async def examined(self, pod: Manifest) -> Seen:
        """What the pod's status means, with its events where those tell more."""
        seen = observations.observe(pod, self.cluster.now)
        if not observations.needs_events(pod, seen, self.cluster.now):
            return seen
        try:
            fields = f"involvedObject.uid={pod['metadata']['uid']}"
            events, _ = await self.cluster.list(EVENTS, fields=fields)
        except Unreachable as error:
            if error.context.get("status_code") == FORBIDDEN:
                return seen
            raise
        return observations.observe_stuck(seen, events)

    async def _hold_to_deadline(self, pod: Manifest, seen: Seen) -> None:
        """Gives a pod up for which no node is found in time, or which its node does not make in time. The node may be
        stuck in what it does, so that the pod's end is not waited for."""
        if seen.state is observations.UNSCHEDULABLE:
            begun, limit = observations.created_at(pod), self.site.scheduling_seconds
            message = f"no node had room for the workspace within {limit:.0f} s: {seen.detail}"
        elif seen.state in observations.BEING_MADE:
            begun, limit = observations.scheduled_at(pod), self.site.creation_seconds
            message = f"its node did not make the workspace's pod within {limit:.0f} s: {seen.words}"
        else:
            return
        waited = 0.0 if begun is None else (self.cluster.now - begun).total_seconds()
        if waited < limit:
            return
        await self._withdraw(pod)
        context = {"operation": "STARTING", "elapsed_seconds": round(waited), "limit_seconds": round(limit)}
        raise BackendError(message, reason=ErrorReason.TIMEOUT, **context)

    async def _hand_over_secrets(self, spec: ContainerSpec) -> None:
        failure = await hand_over_secrets(spec, self.endpoint)
        if failure is not None:
            message = f"the workspace's secrets could not be handed over: {failure}"
            raise BackendError(message, reason=ErrorReason.UNREACHABLE, endpoint=ENDPOINT)

    async def _wait_for_jobs(self, spec: ContainerSpec) -> None:
        """Raises Deferred while a job's pod that has not ended has the home: two would write to it."""
        for pod in await self._listed(JOB, [spec.workspace_id]):
            if spec.volume in claims_of(pod) and not observations.ended(pod):
                raise Deferred(f"pod {pod['metadata']['name']} of a storage job still has the home")

    async def _release_ended_job(self, workspace_id: UUID, name: str) -> bool:
        """Removes a job that has ended and whose pod still names the claim, which it needs no more. False: there is no
        such job."""
        pods = await self._listed(JOB, [workspace_id])
        if not pods or any(not observations.ended(pod) or _volume(pod) != name for pod in pods):
            return False
        job = await self.cluster.get(JOBS, job_name(workspace_id))
        if job is not None:
            await self.cluster.delete(JOBS, job_name(workspace_id), job["metadata"]["uid"], propagation="Foreground")
        for pod in pods:
            await self.end(pod, 0)
        return True


def refused(pod: Manifest, seen: Seen) -> BackendError:
    """The error of a pod that never will run."""
    if seen.state is observations.PULL_FAILED:
        image = observations.image_in_trouble(pod)
        message = f"image {image!r} cannot be had: {seen.detail}"
        return BackendError(message, reason=ErrorReason.IMAGE_PULL_FAILED, image=image)
    return BackendError(f"the container cannot be made: {seen.detail}", action="start")


def _is_settled(pod: Manifest) -> bool:
    """Whether the pod's container runs or has ended."""
    return observations.started(pod) or observations.ended(pod) or observations.is_terminating(pod)


def _volume(pod: Manifest) -> str:
    return str((pod["metadata"].get("labels") or {}).get(manifests.VOLUME_LABEL, ""))
