"""Where workspaces run: containers and volumes, by any backend.

Every effect is idempotent, and "already so" is success. A backend that does not answer raises Unreachable: then
nothing is known, and the effect may yet happen. Only resources with our install label are seen or touched.
"""

from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol
from uuid import UUID

from codehub.domain.errors import BackendError, ErrorReason
from codehub.domain.judge import ContainerSeen
from codehub.domain.template import NO_KUBERNETES_OPTIONS, KubernetesOptions
from codehub.domain.usage import ComputeUsage, DiskUsage
from codehub.ports.exec import ExecRequest, ExecSession


@dataclass(frozen=True, slots=True)
class Resources:
    """How much of the machine a workspace may take, as its template says; None is the runtime's own. A runtime that
    cannot limit something does not."""

    cpu: float | None = None
    memory_bytes: int | None = None
    disk_bytes: int | None = None
    pids: int | None = None

    def filled(self, own: "Resources") -> "Resources":
        return Resources(
            self.cpu or own.cpu,
            self.memory_bytes or own.memory_bytes,
            self.disk_bytes or own.disk_bytes,
            self.pids or own.pids,
        )


@dataclass(frozen=True, slots=True)
class GitCredential:
    """The user name and token with which git signs in at a host over https."""

    host: str
    username: str
    token: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class StartSecrets:
    """What a workspace is given at its start through memory alone, and what the backend's own description of a
    container never shows: environment variables, git credentials, and private SSH keys in OpenSSH's format."""

    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    git_credentials: Sequence[GitCredential] = ()
    ssh_keys: Sequence[str] = field(default=(), repr=False)


@dataclass(frozen=True, slots=True)
class ContainerSpec:
    """What a container is started with. `image_ref` empty: the runtime's own image. `sudo`: its user may become root
    inside. `kubernetes`: what only a cluster looks at."""

    workspace_id: UUID
    volume: str
    image_ref: str
    env: Mapping[str, str] = field(default_factory=dict)
    share: Resources = Resources()
    secrets: StartSecrets = StartSecrets()
    sudo: bool = False
    kubernetes: KubernetesOptions = NO_KUBERNETES_OPTIONS


@dataclass(frozen=True, slots=True)
class Pulling:
    """The image is on its way: not an attempt, not counted against the deadline. `total_bytes` 0: not known yet."""

    detail: str
    bytes: int = 0
    total_bytes: int = 0


@dataclass(frozen=True, slots=True)
class IsolationReport:
    """The isolation of workspaces was found broken. `holds`: it has been put right by now; else nothing starts."""

    message: str
    holds: bool


@dataclass(frozen=True, slots=True)
class AgentPort:
    """A port inside a workspace, behind the agent that runs there. `key`: of this very start, by which the agent proves
    whose it is and we prove who we are; it is shown nowhere."""

    port: int
    key: bytes = field(repr=False)


class Endpoint(NamedTuple):
    """Where the IDE, or a port inside, answers: a unix socket path or host and port. `network`: the path of a unix
    socket whose server hands out, to each who connects, an IPv4 and an IPv6 socket of the network that `host` is in.
    With `inside`, host and port are the agent's, and nothing passes before it has proven itself."""

    socket: str | None = None
    host: str | None = None
    port: int | None = None
    network: str | None = None
    inside: AgentPort | None = None
    instance: str | None = None
    """Of a container without an agent: whoever has connected looks once more whether it is still this one's address."""


class Runtime(Protocol):
    name: str

    @property
    def supports_sudo(self) -> bool:
        """Whether a container can be started whose user may become root inside; else such a start raises
        BackendError."""
        ...

    async def identity(self) -> str:
        """Which backend this is: the same for as long as its volumes are the same ones, and never another's. One that
        was emptied, or made anew in its place, is another. Raises Unreachable if it cannot be said."""
        ...

    async def containers(self, ids: Collection[UUID] | None = None) -> Mapping[UUID, ContainerSeen]:
        """The containers of all workspaces in one call, or of `ids` alone. `answered` is not probed here: it is false.
        The look at all may miss what somebody else did in the last moments; the look at `ids` does not. What cannot be
        told of one workspace is said of that one (`known` is false) and keeps nobody else from being seen."""
        ...

    async def volumes(self, ids: Collection[UUID] | None = None) -> Mapping[UUID, Mapping[str, str]]:
        """The volumes of each workspace that has some: the name of each, and a mark that is this very volume's for as
        long as it lives and never another's, so that one removed and made again by hand is not taken for the home."""
        ...

    async def answers(self, workspace_id: UUID) -> bool:
        """Whether the container's IDE answers HTTP now; False also if there is no container."""
        ...

    async def create_volume(
        self, workspace_id: UUID, name: str, disk_bytes: int | None = None, storage_class: str | None = None
    ) -> None:
        """Create a volume. `disk_bytes`: what it may hold, where the backend can hold it to that; elsewhere as much as
        there is. `storage_class`: which kind of storage, where the backend has several; None: its own choice."""
        ...

    async def delete_volume(self, workspace_id: UUID, name: str) -> None:
        """Delete a volume. Gone is success. VolumeInUse, having deleted nothing, if a container or job has it."""
        ...

    async def start_container(self, spec: ContainerSpec) -> Pulling | None:
        """Start the workspace's container. A running one stays as it is; an exited one is replaced. Never creates the
        volume: Mismatch without it. ImagePullFailed if the image is not to be had, and only then: a registry that does
        not answer is waited for. Deferred while it is not certain that workspaces are isolated."""
        ...

    async def remove_container(self, workspace_id: UUID) -> None:
        """End the container, gracefully and then not, and remove it. Gone is success."""
        ...

    async def endpoint(self, workspace_id: UUID) -> Endpoint | None: ...

    async def port_endpoint(self, workspace_id: UUID, port: int) -> Endpoint | None:
        """Where that port inside the workspace answers: of its own processes alone. None if nobody of the workspace's
        own listens there, or it does not run."""
        ...

    async def exec(self, workspace_id: UUID, request: ExecRequest) -> ExecSession:
        """Runs a command inside the running workspace, as its user and with its environment; whoever leaves the session
        hangs the command up. NotRunning if the workspace does not run, AgentTooOld if it was started by a version that
        could not do this. Invalid. Raises Unreachable."""
        ...

    async def logs(self, workspace_id: UUID, tail: int) -> str:
        """The last lines that the IDE printed, at most `tail`, also of one that has ended. Empty without a container:
        the output goes with it. What was printed long ago may be gone."""
        ...

    async def compute_usage(self, ids: Collection[UUID]) -> Mapping[UUID, ComputeUsage]:
        """CPU and memory of those of the workspaces that run. What cannot be told of one is None, or leaves it out, and
        keeps nobody else from being measured. Raises Unreachable."""
        ...

    async def disk_usage(self, ids: Collection[UUID], seconds: float) -> Mapping[UUID, DiskUsage]:
        """What the homes of those workspaces hold that run, counted for at most about `seconds`, in the order of `ids`;
        what was not reached by then is left out. Costly: files are counted where no quota counts them. Raises
        Unreachable."""
        ...

    async def isolates(self) -> bool:
        """Whether workspaces are kept from each other and from the ports of this machine. Where they are not, one
        person alone may have them."""
        ...

    def watch_isolation(self) -> AsyncIterator[IsolationReport]:
        """The leader listens for as long as it leads: meanwhile what isolates workspaces is looked at again and again
        and put right, and each disorder is told. Raises if nobody can look."""
        ...

    async def capacity(self) -> Resources:
        """The most that one workspace could be given; None is as much as one likes. Raises Unreachable."""
        ...

    async def remove_orphans(self) -> int:
        """Remove helper containers and the like that were left behind by a killed process; returns how many. Called by
        the leader now and then: what is young, or belongs to a workspace's run, is not touched."""
        ...

    def hints(self) -> AsyncIterator[UUID]:
        """Ids whose container or volume may have changed. May miss some and repeat some; raises Unreachable on a
        gap. The periodic pass is the truth."""
        ...


def no_such_volume(name: str) -> BackendError:
    """The error of a start whose volume is not there."""
    message, expected = f"volume {name} does not exist", f"volume {name}"
    return BackendError(message, reason=ErrorReason.MISMATCH, expected=expected, actual="no such volume")
