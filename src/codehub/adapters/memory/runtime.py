"""Containers and volumes in memory. A volume holds the list of what was written to it, so that a lost byte shows."""

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from dataclasses import dataclass, field
from uuid import UUID, uuid4

from codehub.adapters.memory.exec import MemoryExecSession
from codehub.adapters.memory.fault_injection import Network, effect
from codehub.domain.errors import BackendError, Deferred, ErrorReason, NotRunning, VolumeInUse
from codehub.domain.judge import ContainerSeen
from codehub.domain.usage import ComputeUsage, DiskUsage
from codehub.ports.exec import ExecRequest, ExecSession
from codehub.ports.runtime import ContainerSpec, Endpoint, IsolationReport, Pulling, Resources, no_such_volume


@dataclass(slots=True)
class Volume:
    workspace_id: UUID
    content: tuple[int, ...] = ()
    stamp: tuple[str, UUID] | None = None
    job: UUID | None = None
    instance: str = "volume-0"
    disk_bytes: int | None = None
    storage_class: str | None = None
    held: bool = False
    """Whether somebody holds it who is not ours to end."""
    used_bytes: int | None = None
    """What it holds, if that is more than `content`."""


@dataclass(slots=True)
class Container:
    instance: str
    volume: str
    ready_at: float = 0.0
    running: bool = True
    deaf: bool = False
    detail: str = ""
    output: list[str] = field(default_factory=lambda: ["listening"])
    ide: Endpoint = field(default_factory=lambda: Endpoint(host="memory", port=1))
    """Where it really answers, for those who want to ask it."""
    ports: dict[int, Endpoint] = field(default_factory=dict)
    spec: ContainerSpec | None = None
    cpu_seconds: float = 0.0
    memory_bytes: int = 64 << 20
    sessions: list[MemoryExecSession] = field(default_factory=list)

    def end(self) -> None:
        """All that runs in it ends."""
        self.running = False
        for session in self.sessions:
            session.interrupt()


@dataclass(slots=True)
class RuntimeState:
    """All containers and volumes of one runtime. `identity`: no two runtimes have the same. `boot_seconds`: how long a
    container takes to answer. `bad_images` cannot be pulled. `not_isolated`: why nothing may start."""

    identity: str = field(default_factory=lambda: f"memory {uuid4().hex}")
    now: Callable[[], float] = lambda: 0.0
    boot_seconds: float = 0.0
    containers: dict[UUID, Container] = field(default_factory=dict)
    volumes: dict[str, Volume] = field(default_factory=dict)
    bad_images: set[str] = field(default_factory=set)
    pulling: set[str] = field(default_factory=set)
    not_isolated: str = ""
    capacity: Resources = field(default_factory=Resources)
    supports_sudo: bool = True
    disk_bytes: int = 100 << 30
    """The size of the file system that all volumes are on."""
    orphans: int = 0
    dies_after_start: set[UUID] = field(default_factory=set)
    started: int = 0
    made: int = 0
    listeners: list[asyncio.Queue[UUID]] = field(default_factory=list)
    watchers: list[asyncio.Queue[IsolationReport]] = field(default_factory=list)

    def hint(self, workspace_id: UUID) -> None:
        for listener in self.listeners:
            listener.put_nowait(workspace_id)

    def disturb_isolation(self, message: str, *, holds: bool) -> None:
        """Reports that what isolates workspaces was found out of order. `holds`: and put right at once."""
        self.not_isolated = "" if holds else message
        for watcher in self.watchers:
            watcher.put_nowait(IsolationReport(message, holds=holds))

    def write(self, workspace_id: UUID, value: int) -> bool:
        """A user writes into the running workspace's home."""
        container = self.containers.get(workspace_id)
        volume = self.volumes.get(container.volume) if container and container.running else None
        if volume is None:
            return False
        volume.content = (*volume.content, value)
        return True

    def listen(self, workspace_id: UUID, port: int, endpoint: Endpoint | None = None) -> None:
        """A program in the running workspace listens, until its container ends. `endpoint`: where that really is."""
        self.containers[workspace_id].ports[port] = endpoint or Endpoint(host="memory", port=port)

    def kill(self, workspace_id: UUID) -> None:
        """The container exits by itself."""
        container = self.containers.get(workspace_id)
        if container:
            container.end()
            container.detail = "exit code 137"
            self.hint(workspace_id)


class MemoryRuntime:
    name = "memory"

    @property
    def supports_sudo(self) -> bool:
        return self.state.supports_sudo

    def __init__(self, state: RuntimeState | None = None, network: Network | None = None) -> None:
        self.state = state or RuntimeState()
        self._network = network or Network()

    @effect("runtime.identity")
    def identity(self) -> str:
        return self.state.identity

    @effect("runtime.containers")
    def containers(self, ids: Collection[UUID] | None = None) -> Mapping[UUID, ContainerSeen]:
        return {
            key: ContainerSeen(c.instance, c.running, c.volume, detail=c.detail)
            for key, c in self.state.containers.items()
            if ids is None or key in ids
        }

    @effect("runtime.volumes")
    def volumes(self, ids: Collection[UUID] | None = None) -> Mapping[UUID, Mapping[str, str]]:
        found: dict[UUID, dict[str, str]] = {}
        for name, volume in self.state.volumes.items():
            if ids is None or volume.workspace_id in ids:
                found.setdefault(volume.workspace_id, {})[name] = volume.instance
        return found

    @effect("runtime.answers")
    def answers(self, workspace_id: UUID) -> bool:
        container = self.state.containers.get(workspace_id)
        awake = container is not None and container.running and not container.deaf
        if awake and container is not None:
            container.cpu_seconds += 0.01
        return awake and container is not None and self.state.now() >= container.ready_at

    async def create_volume(
        self, workspace_id: UUID, name: str, disk_bytes: int | None = None, storage_class: str | None = None
    ) -> None:
        def create() -> None:
            if name not in self.state.volumes:
                self.state.made += 1
                instance = f"volume-{self.state.made}"
                self.state.volumes[name] = Volume(
                    workspace_id, instance=instance, disk_bytes=disk_bytes, storage_class=storage_class
                )

        await self._network.call("runtime.create_volume", create, workspace_id)

    async def delete_volume(self, workspace_id: UUID, name: str) -> None:
        await self._network.call("runtime.delete_volume", lambda: self._delete_volume(workspace_id, name), workspace_id)

    def _delete_volume(self, workspace_id: UUID, name: str) -> None:
        volume = self.state.volumes.get(name)
        if volume is None or volume.workspace_id != workspace_id:
            return
        holder = self.state.containers.get(workspace_id)
        if (holder is not None and holder.volume == name) or volume.job is not None or volume.held:
            raise VolumeInUse(f"volume {name} is in use")
        del self.state.volumes[name]
        self.state.hint(workspace_id)

    async def start_container(self, spec: ContainerSpec) -> Pulling | None:
        return await self._network.call(
            "runtime.start_container", lambda: self._start_container(spec), spec.workspace_id
        )

    def _start_container(self, spec: ContainerSpec) -> Pulling | None:
        state = self.state
        present = state.containers.get(spec.workspace_id)
        if present is not None and present.running:
            return None
        if state.not_isolated:
            raise Deferred(state.not_isolated)
        if spec.image_ref in state.bad_images:
            raise BackendError(f"image {spec.image_ref!r} not found", reason=ErrorReason.IMAGE_PULL_FAILED)
        if spec.sudo and not state.supports_sudo:
            raise BackendError("no container here can be given sudo")
        if spec.image_ref in state.pulling:
            return Pulling(f"pulling {spec.image_ref}")
        if spec.volume not in state.volumes:
            raise no_such_volume(spec.volume)
        state.started += 1
        state.containers[spec.workspace_id] = Container(
            f"instance-{state.started}", spec.volume, ready_at=state.now() + state.boot_seconds, spec=spec
        )
        if spec.workspace_id in state.dies_after_start:
            state.kill(spec.workspace_id)
        state.hint(spec.workspace_id)
        return None

    async def remove_container(self, workspace_id: UUID) -> None:
        def remove() -> None:
            container = self.state.containers.pop(workspace_id, None)
            if container is not None:
                container.end()
                self.state.hint(workspace_id)

        await self._network.call("runtime.remove_container", remove, workspace_id)

    @effect("runtime.endpoint")
    def endpoint(self, workspace_id: UUID) -> Endpoint | None:
        container = self.state.containers.get(workspace_id)
        return container.ide if container else None

    @effect("runtime.port_endpoint")
    def port_endpoint(self, workspace_id: UUID, port: int) -> Endpoint | None:
        container = self.state.containers.get(workspace_id)
        return container.ports.get(port) if container and container.running else None

    @effect("runtime.exec")
    def exec(self, workspace_id: UUID, request: ExecRequest) -> ExecSession:
        container = self.state.containers.get(workspace_id)
        if container is None or not container.running:
            raise NotRunning
        spec = container.spec
        session = MemoryExecSession(request, {**spec.env, **spec.secrets.env} if spec else {})
        container.sessions.append(session)
        return session

    async def isolates(self) -> bool:
        return True

    async def watch_isolation(self) -> AsyncIterator[IsolationReport]:
        watcher: asyncio.Queue[IsolationReport] = asyncio.Queue()
        self.state.watchers.append(watcher)
        try:
            while True:
                yield await watcher.get()
        finally:
            self.state.watchers.remove(watcher)

    @effect("runtime.capacity")
    def capacity(self) -> Resources:
        return self.state.capacity

    @effect("runtime.remove_orphans")
    def remove_orphans(self) -> int:
        found, self.state.orphans = self.state.orphans, 0
        return found

    @effect("runtime.compute_usage")
    def compute_usage(self, ids: Collection[UUID]) -> Mapping[UUID, ComputeUsage]:
        return {
            key: _compute(container) for key, container in self.state.containers.items() if _runs(key, ids, container)
        }

    @effect("runtime.disk_usage")
    def disk_usage(self, ids: Collection[UUID], seconds: float) -> Mapping[UUID, DiskUsage]:  # noqa: ARG002 - no time passes
        volumes, total = self.state.volumes, self.state.disk_bytes
        free = max(0, total - sum(map(_held, volumes.values())))
        homes = {key: volumes.get(c.volume) for key, c in self.state.containers.items() if _runs(key, ids, c)}
        return {key: DiskUsage(_held(home), home.disk_bytes, total, free) for key, home in homes.items() if home}

    @effect("runtime.logs")
    def logs(self, workspace_id: UUID, tail: int) -> str:
        container = self.state.containers.get(workspace_id)
        return "".join(f"{line}\n" for line in container.output[-tail:]) if container else ""

    async def hints(self) -> AsyncIterator[UUID]:
        listener: asyncio.Queue[UUID] = asyncio.Queue()
        self.state.listeners.append(listener)
        try:
            while True:
                yield await listener.get()
        finally:
            self.state.listeners.remove(listener)


def _runs(key: UUID, ids: Collection[UUID], container: Container) -> bool:
    return key in ids and container.running


def _compute(container: Container) -> ComputeUsage:
    share = container.spec.share if container.spec else Resources()
    return ComputeUsage(
        container.instance, container.cpu_seconds, share.cpu, container.memory_bytes, share.memory_bytes
    )


def _held(volume: Volume) -> int:
    return len(volume.content) if volume.used_bytes is None else volume.used_bytes
