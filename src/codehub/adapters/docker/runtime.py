"""The Runtime port on a Docker engine.

Effects name what they touch by the engine's own id, never by a name that may have passed to another meanwhile. A
container that was made and not started, by whoever died in between, is started if it is the one that is wanted now.
"""

import asyncio
import os
import re
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import suppress
from enum import Enum, auto
from typing import Any
from uuid import UUID, uuid4

from aiodocker import DockerError

from codehub.adapters.agent_exec import exec_by_agent
from codehub.adapters.docker import payloads
from codehub.adapters.docker.engine import CONFLICT, NOT_FOUND, Engine, Orphans, doing
from codehub.adapters.docker.events import EngineEvents
from codehub.adapters.docker.images import Pulls
from codehub.adapters.docker.network_isolation import NetworkIsolation
from codehub.adapters.docker.payloads import (
    JOB,
    MARK_LABEL,
    PORT,
    ROLE_LABEL,
    SPEC_LABEL,
    STRAY_LABEL,
    VOLUME_LABEL,
    WORKSPACE,
    DockerSite,
    Launch,
    Payload,
)
from codehub.adapters.docker.usage import ContainerUsage, measure_homes
from codehub.adapters.docker.volumes import AgentVolume, make_volume
from codehub.adapters.readiness_probe import ReadinessProbe, accepts, answers_http, connect
from codehub.adapters.start_secrets import hand_over_secrets
from codehub.agent.handshake import AGENT_PORT, KEY_BYTES, is_led_to
from codehub.agent.secrets import SECRETS_VARIABLE
from codehub.domain.errors import BackendError, ErrorReason, Unreachable, VolumeInUse
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
    StartSecrets,
    no_such_volume,
)

_FEW = 50
"""Up to so many containers are looked up by name; above, all are listed: one question either way."""
_NAMES: Mapping[str, Callable[[UUID], str]] = {WORKSPACE: container_name, JOB: job_name}
_ALIVE = {"running", "paused", "restarting"}
EXITED = re.compile(r"Exited \((\d+)\)")
_RACE_SECONDS = 30.0
_LOOK_AGAIN_SECONDS = 0.05
_LONGEST_DETAIL = 300
_LAST_WORDS = 3


class _Tried(Enum):
    STARTED = auto()
    RUNS = auto()
    """Somebody else has started it, perhaps with other secrets than there are now."""
    AGAIN = auto()
    """Somebody else was at it, or something was missing that is there now."""


_STARTED, _RUNS, _AGAIN = _Tried.STARTED, _Tried.RUNS, _Tried.AGAIN


class DockerRuntime:
    name = "docker"
    supports_sudo = True

    def __init__(
        self, engine: Engine, site: DockerSite, *, isolation: NetworkIsolation | None = None, grace_seconds: int = 10
    ) -> None:
        self.engine = engine
        self.site = site
        self.isolation = isolation or NetworkIsolation(engine, site)
        self._agent = AgentVolume(engine, site)
        self._grace = grace_seconds
        self._pulls = Pulls(engine)
        self._readiness_probe = ReadinessProbe(self.endpoint)
        self._hints = EngineEvents(engine, site.install_id, self._readiness_probe.heard)
        self._orphans = Orphans(engine, site)
        self._usage = ContainerUsage(engine)
        self._endings: dict[str, str] = {}

    async def close(self) -> None:
        await self._pulls.close()
        await self._readiness_probe.close()

    async def identity(self) -> str:
        """The engine's id, which it keeps beside its volumes."""
        return f"docker {(await self.engine.info()).get('ID', '')} {self.site.install_id}"

    async def containers(self, ids: Collection[UUID] | None = None) -> Mapping[UUID, ContainerSeen]:
        found = await self.listed(WORKSPACE, ids)
        seen = {key: await self._seen(container) for key, container in found.items()}
        if ids is None:
            there = {one.instance for one in seen.values()}
            self._endings = {key: words for key, words in self._endings.items() if key in there}
        return seen

    async def volumes(self, ids: Collection[UUID] | None = None) -> Mapping[UUID, Mapping[str, str]]:
        if ids is not None and not ids:
            return {}
        label = f"{INSTALL_LABEL}={self.site.install_id}"
        wanted = [f"{WORKSPACE_LABEL}={next(iter(ids))}"] if ids is not None and len(ids) == 1 else []
        found: dict[UUID, dict[str, str]] = {}
        for volume in await self.engine.volumes([label, *wanted]):
            owner, mark = _owner(volume["Labels"]), volume["Labels"].get(MARK_LABEL)
            if owner is not None and mark and (ids is None or owner in ids):
                found.setdefault(owner, {})[volume["Name"]] = mark
        return found

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
        """The agent's address and key. They are of the same container: both are in one answer of the engine's."""
        container = await self.engine.container(container_name(workspace_id))
        if container is None or not container["State"]["Running"]:
            return None
        labels = container["Config"]["Labels"] or {}
        if labels.get(INSTALL_LABEL) != self.site.install_id or _owner(labels) != workspace_id:
            return None
        attached = container["NetworkSettings"]["Networks"].get(self.site.network) or {}
        address, key = attached.get("IPAddress"), payloads.key_of(container["Config"]["Env"] or ())
        if not address:
            return None
        if key is None:  # it was started before there were agents, and runs on
            return Endpoint(host=address, port=port, instance=container["Id"])
        return Endpoint(host=address, port=AGENT_PORT, inside=AgentPort(port, key))

    async def exec(self, workspace_id: UUID, request: ExecRequest) -> ExecSession:
        return await exec_by_agent(await self.endpoint(workspace_id), request)

    async def logs(self, workspace_id: UUID, tail: int) -> str:
        container = await self.listed_of(WORKSPACE, workspace_id)
        return await self.engine.output(container["Id"], tail) if container else ""

    async def create_volume(
        self,
        workspace_id: UUID,
        name: str,
        disk_bytes: int | None = None,
        storage_class: str | None = None,  # noqa: ARG002 - an engine has its own local volumes alone
    ) -> None:
        payload = payloads.volume(self.site, workspace_id, name, uuid4().hex, disk_bytes)
        with doing(f"volume {name} cannot be made"):
            await make_volume(self.engine, payload)
        # One that was there before stays as it was, whoever's it is.
        if not await self.owns_volume(workspace_id, name):
            raise BackendError(f"volume {name} is there and is not ours: rename or remove it")

    async def delete_volume(self, workspace_id: UUID, name: str) -> None:
        holders: str | None = ""
        for _ in range(2):
            if not await self.owns_volume(workspace_id, name):
                return
            holders = await self._kept_by(name)
            if holders is None:
                return
            if not await self._release_ended_job(workspace_id, name):
                break
        raise VolumeInUse(f"volume {name} is in use; remove the container that has it ({holders})")

    async def start_container(self, spec: ContainerSpec) -> Pulling | None:
        """Makes the container first and looks only if that fails: most often nothing of that name is there, and the
        image is."""
        if not await self.owns_volume(spec.workspace_id, spec.volume):
            raise no_such_volume(spec.volume)
        await self.isolation.stand()
        loop = asyncio.get_running_loop()
        until = loop.time() + _RACE_SECONDS
        while (outcome := await self._try_to_start(spec)) is _AGAIN:
            if loop.time() > until:
                raise BackendError(f"container {container_name(spec.workspace_id)} comes and goes: who else starts it?")
            # A name is taken before the container that has it is seen.
            await asyncio.sleep(_LOOK_AGAIN_SECONDS)
        if isinstance(outcome, Pulling):
            return outcome
        if await self._awaits_secrets(spec, outcome):
            await self._hand_over_secrets(spec)
        return None

    async def remove_container(self, workspace_id: UUID) -> None:
        found = await self.listed_of(WORKSPACE, workspace_id)
        if found is not None:
            await self.engine.end(found["Id"], self._grace)

    async def compute_usage(self, ids: Collection[UUID]) -> Mapping[UUID, ComputeUsage]:
        return await self._usage.of(await self._running(ids))

    async def disk_usage(self, ids: Collection[UUID], seconds: float) -> Mapping[UUID, DiskUsage]:
        running = await self._running(ids)
        volumes = {key: running[key]["Labels"].get(VOLUME_LABEL, "") for key in ids if key in running}
        return await measure_homes(self.engine, self.site, volumes, seconds)

    async def _running(self, ids: Collection[UUID]) -> Mapping[UUID, Mapping[str, Any]]:
        found = await self.listed(WORKSPACE, ids)
        return {key: container for key, container in found.items() if container["State"] in _ALIVE}

    async def isolates(self) -> bool:
        return True

    def watch_isolation(self) -> AsyncIterator[IsolationReport]:
        return self.isolation.watch()

    async def capacity(self) -> Resources:
        """All of the engine's machine: the engine refuses to give one container more processors than there are."""
        found = await self.engine.info()
        return Resources(cpu=float(found["NCPU"]), memory_bytes=int(found["MemTotal"]))

    async def remove_orphans(self) -> int:
        return await self._orphans.remove()

    def hints(self) -> AsyncIterator[UUID]:
        return self._hints.listen()

    async def run_inside(self, spec: ContainerSpec, argv: Sequence[str], seconds: float = 60.0) -> tuple[int, str]:
        """Runs a command confined exactly as the workspace's IDE is, and returns its exit code and output."""
        await self.isolation.stand()
        payload = payloads.probe(self.site, spec, argv, await self._agent.name())
        return await self.engine.run(payload, f"{container_name(spec.workspace_id)}-probe-{uuid4().hex[:8]}", seconds)

    async def listed(self, role: str, ids: Collection[UUID] | None) -> dict[UUID, Mapping[str, Any]]:
        """The containers of a role (WORKSPACE or JOB) by workspace: all, or those of `ids`."""
        if ids is not None and not ids:
            return {}
        names = [_NAMES[role](key) for key in ids] if ids is not None and len(ids) <= _FEW else []
        found = await self.engine.containers([f"{INSTALL_LABEL}={self.site.install_id}", f"{ROLE_LABEL}={role}"], names)
        owners = {owner: container for container in found if (owner := _owner(container["Labels"])) is not None}
        return {owner: container for owner, container in owners.items() if ids is None or owner in ids}

    async def listed_of(self, role: str, workspace_id: UUID) -> Mapping[str, Any] | None:
        return (await self.listed(role, [workspace_id])).get(workspace_id)

    async def _seen(self, container: Mapping[str, Any]) -> ContainerSeen:
        running = container["State"] in _ALIVE
        detail = "" if running else await self._ending(container)
        return ContainerSeen(container["Id"], running, container["Labels"].get(VOLUME_LABEL, ""), detail=detail)

    async def _ending(self, container: Mapping[str, Any]) -> str:
        """How the container ended, asked once of each: it does not change."""
        known = self._endings.get(container["Id"])
        if known is not None:
            return known
        exited = EXITED.match(container["Status"])
        if exited is None:
            return f"is {container['State']}"
        found = await self.engine.container(container["Id"]) or {}
        state = found.get("State", {})
        words = [f"exit code {exited[1]}"]
        if state.get("OOMKilled"):
            words.append("it took more memory than its share")
        last = (await self.engine.output(container["Id"], _LAST_WORDS)).strip().splitlines()[-1:]
        self._endings[container["Id"]] = detail = ": ".join([*words, *last])[:_LONGEST_DETAIL]
        return detail

    async def owns_volume(self, workspace_id: UUID, name: str) -> bool:
        volume = await self.engine.volume(name)
        labels = (volume or {}).get("Labels") or {}
        return labels.get(INSTALL_LABEL) == self.site.install_id and _owner(labels) == workspace_id

    async def _kept_by(self, name: str) -> str | None:
        """Deletes the volume: None if it is deleted, else who has it, in the engine's words."""
        with doing(f"volume {name} cannot be deleted"):
            try:
                await self.engine.delete_volume(name)
            except DockerError as error:
                if error.status == CONFLICT:
                    return str(error.message)
                if error.status != NOT_FOUND:
                    raise
        return None

    async def _release_ended_job(self, workspace_id: UUID, name: str) -> bool:
        """Removes a job that has ended and still counts as a holder of the volume, which it needs no more. False: there
        is no such job."""
        job = await self.listed_of(JOB, workspace_id)
        if job is None or job["State"] != "exited" or job["Labels"].get(VOLUME_LABEL) != name:
            return False
        await self.engine.end(job["Id"])
        return True

    async def _try_to_start(self, spec: ContainerSpec) -> "Pulling | _Tried":
        image = spec.image_ref or self.site.workspace_image
        launch = await self.launch(image)
        if launch is None:
            return self._pulls.ask(image) or _AGAIN
        made = await self._make(spec, payloads.workspace(self.site, spec, launch))
        if not isinstance(made, str):
            return made
        if await self._took_stray(made, spec.volume):
            raise no_such_volume(spec.volume)
        if await self._took_stray(made, launch.agent):
            await self._agent.name(afresh=True)
            return _AGAIN
        if not await self._start(made):
            return _AGAIN
        self._readiness_probe.watch(spec.workspace_id)
        return _STARTED

    async def _awaits_secrets(self, spec: ContainerSpec, outcome: _Tried) -> bool:
        """Whether the agent was told to wait for secrets. One that runs already may wait for some that were deleted
        since: then it is given none, and goes on."""
        if outcome is not _RUNS:
            return spec.secrets != StartSecrets()
        container = await self.engine.container(container_name(spec.workspace_id)) or {}
        return any(one.startswith(f"{SECRETS_VARIABLE}=") for one in container.get("Config", {}).get("Env") or ())

    async def _hand_over_secrets(self, spec: ContainerSpec) -> None:
        failure = await hand_over_secrets(spec, self.endpoint)
        if failure is not None:
            raise Unreachable(f"the container's secrets could not be handed over: {failure}")

    async def launch(self, image: str) -> Launch | None:
        """A start of that image, with a key that no other has. None: the image is not there."""
        found = await self.engine.image(image)
        if found is None:
            return None
        config = found["Config"] or {}
        command = [*(config.get("Entrypoint") or ()), *(config.get("Cmd") or ())]
        if not command:
            message = f"the image {image} names no command that serves the IDE: give it a CMD, or choose another"
            raise BackendError(message, reason=ErrorReason.IMAGE_PULL_FAILED)
        return Launch(command, await self._agent.name(), os.urandom(KEY_BYTES))

    async def _make(self, spec: ContainerSpec, payload: Payload) -> "str | Pulling | _Tried":
        """The id of a container that is made and not started."""
        with doing("the container cannot be made"):
            try:
                return (await self.engine.make(payload, container_name(spec.workspace_id))).id
            except DockerError as error:
                if error.status == CONFLICT:
                    return await self._there_already(spec, payload)
                if await self.engine.has_image(payload["Image"]):
                    return await self._missed(error)
        return self._pulls.ask(payload["Image"]) or _AGAIN

    async def _missed(self, error: DockerError) -> _Tried:
        """Decides what follows a refusal to make a container: it is tried again once a missing network is made or the
        image is there; whatever else the engine said has failed."""
        words = str(error.message)
        if error.status != NOT_FOUND or not ("network" in words or "No such image" in words):
            raise error
        if "network" in words:
            await self.isolation.stand(afresh=True)
        return _AGAIN

    async def _there_already(self, spec: ContainerSpec, payload: Payload) -> "str | _Tried":
        """Judges the container that has the name: it runs, or somebody who died has made it, or it is in the way."""
        present = await self.listed_of(WORKSPACE, spec.workspace_id)
        if present is None:
            return _AGAIN
        if present["State"] in _ALIVE:
            return _RUNS
        if present["State"] == "created" and present["Labels"].get(SPEC_LABEL) == payload["Labels"][SPEC_LABEL]:
            return str(present["Id"])
        await self.engine.end(present["Id"])
        return _AGAIN

    async def _start(self, key: str) -> bool:
        with doing("the container cannot be started"):
            try:
                await (await self.engine.docker()).containers.container(key).start()
            except DockerError as error:
                if error.status == NOT_FOUND and "No such container" in str(error.message):
                    return False
                if "network" in str(error.message) and "not found" in str(error.message):
                    await self.isolation.stand(afresh=True)
                raise
        return True

    async def _took_stray(self, made: str, name: str) -> bool:
        """Whether the volume was gone when the container was made, so that the engine made an empty one; then both are
        removed."""
        volume = await self.engine.volume(name)
        if volume is not None and STRAY_LABEL not in (volume["Labels"] or {}):
            return False
        await self.engine.end(made)
        with doing("a stray volume cannot be removed"), suppress(DockerError):
            await self.engine.delete_volume(name)
        return True


def _owner(labels: Mapping[str, str]) -> UUID | None:
    try:
        return UUID(labels.get(WORKSPACE_LABEL, ""))
    except ValueError:
        return None
