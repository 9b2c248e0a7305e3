"""The Runtime port on processes: any command is the IDE, the image is this machine.

The command is a template: `{socket}` and `{home}` are put in. It gets the workspace's environment and nothing of the
coordinator's, whose variables hold passwords.
"""

import asyncio
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from uuid import UUID, uuid4

import structlog

from codehub.adapters import disk_walk
from codehub.adapters.ca_bundle import ca_environment, with_system_authorities
from codehub.adapters.ends_with_parent import interpreter_environment
from codehub.adapters.process import shim
from codehub.adapters.process.exec import SessionProgram, beside_command, exec_beside
from codehub.adapters.process.sandbox import (
    CA_BUNDLE_INSIDE,
    HOME_INSIDE,
    OWN_NETWORK,
    SandboxPaths,
    SandboxTools,
    find_sandbox_tools,
    sandboxed,
    unreadable,
    write_etc,
)
from codehub.adapters.process.sockets import Sockets, address_inside, connect, own_address
from codehub.adapters.process.table import INSTANCE_VARIABLE, Busy, Command, ProcessEntry, ProcessTable, Unreadable
from codehub.adapters.process.usage import compute_usage
from codehub.adapters.process.volumes import DirectoryIdentity, Volumes, give
from codehub.adapters.readiness_probe import answers_http
from codehub.agent.secrets import behind_setup, records, variables
from codehub.domain.errors import AgentTooOld, BackendError, ErrorReason, NotRunning, VolumeInUse
from codehub.domain.judge import ContainerSeen
from codehub.domain.usage import ComputeUsage, DiskUsage
from codehub.ports.exec import ExecRequest, ExecSession
from codehub.ports.runtime import (
    ContainerSpec,
    Endpoint,
    IsolationReport,
    Pulling,
    Resources,
    no_such_volume,
)

log = structlog.get_logger(__name__)

VOLUME_LABEL = "codehub.volume"
ISOLATION_LABEL = "codehub.confinement"
"""What was put around the workspace when it was started: the words of its SandboxTools."""
EXEC_LABEL = "codehub.exec"
"""Empty if the workspace was started with the session program of commands beside it, else why not."""

_HINT_SECONDS = 0.3
_SANDBOXED, _CONNECTED = "sandboxed", "own-network"
"""Files that are there once bubblewrap, or slirp4netns, has worked: from then on nothing runs without it, for somebody
may rely on that."""
_JOB_GRACE_SECONDS = 2.0
_LONGEST_DETAIL = 300

Look = dict[UUID, tuple[str, bool, Mapping[str, str]]]


class ProcessRuntime:
    """Runs workspaces as processes below `root`. `sandbox`: None uses bubblewrap where it works, True insists, False
    does without. `own_network`: the same of a network namespace for each workspace that has a sandbox. `readable`: what
    the command needs to see of this machine besides the system's own directories. `hidden`: directories with more that
    is nobody's business, wherever they lie. `env`: variables of every workspace. `ca_bundle`: the operator's own
    authorities, as PEM. `programs`: where the program is kept that runs commands in workspaces; None: below `root`."""

    name = "process"
    supports_sudo = False

    def __init__(  # noqa: PLR0913 - what differs between installations
        self,
        root: Path,
        install_id: str,
        command: Sequence[str],
        *,
        grace_seconds: float = 10.0,
        sandbox: bool | None = None,
        own_network: bool | None = None,
        readable: Sequence[Path] = (),
        hidden: Sequence[Path] = (),
        env: Mapping[str, str] | None = None,
        ca_bundle: bytes = b"",
        programs: Path | None = None,
    ) -> None:
        root = root.absolute()
        with _reported(f"the runtime's directory {root} cannot be made"):
            root.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._root = root
        self._command = list(command)
        self._sandbox = sandbox
        self._own_network = own_network
        self._readable = list(readable)
        self._hidden = list(hidden)
        self._env = dict(env or {})
        self._ca_bundle = ca_bundle
        self._sandbox_tools: asyncio.Future[SandboxTools | None] | None = None
        self._unreadable: set[UUID] = set()
        self._identity = DirectoryIdentity(root, install_id)
        self._sockets = Sockets(root)
        self._session_program = SessionProgram(programs or root / "programs")
        self.homes = Volumes(root, install_id)
        self._containers = ProcessTable(root / "containers", install_id, grace_seconds)
        self.jobs = ProcessTable(root / "jobs", install_id, _JOB_GRACE_SECONDS)

    async def identity(self) -> str:
        return await asyncio.to_thread(self._identity.read)

    async def containers(self, ids: Collection[UUID] | None = None) -> Mapping[UUID, ContainerSeen]:
        return await asyncio.to_thread(
            lambda: {key: self._seen(key, entry) for key, entry in self._containers.list(ids).items()}
        )

    async def volumes(self, ids: Collection[UUID] | None = None) -> Mapping[UUID, Mapping[str, str]]:
        return await asyncio.to_thread(self.homes.list, ids)

    async def answers(self, workspace_id: UUID) -> bool:
        entry = self._containers.look(workspace_id)
        return entry is not None and entry.running and await answers_http(connect(self._sockets.path(workspace_id)))

    async def endpoint(self, workspace_id: UUID) -> Endpoint | None:
        entry = self._containers.look(workspace_id)
        return Endpoint(socket=str(self._sockets.path(workspace_id))) if entry and entry.running else None

    async def port_endpoint(self, workspace_id: UUID, port: int) -> Endpoint | None:
        entry = self._containers.look(workspace_id)
        if entry is None or not entry.running:
            return None
        ways_in = entry.directory / shim.WAYS_IN if OWN_NETWORK in _confined(entry) else None
        if ways_in is None:
            host = await asyncio.to_thread(own_address, entry.pid, port)
        else:
            host = await asyncio.to_thread(address_inside, ways_in, port)
        # If the same one runs still, its pid was its own all the while.
        again = self._containers.look(workspace_id) if host else None
        if again is None or not again.running or again.instance != entry.instance:
            return None
        return Endpoint(host=host, port=port, network=str(ways_in) if ways_in else None)

    async def exec(self, workspace_id: UUID, request: ExecRequest) -> ExecSession:
        entry = self._containers.look(workspace_id)
        if entry is None or not entry.running:
            raise NotRunning
        if EXEC_LABEL not in entry.labels:
            raise AgentTooOld
        if reason := entry.labels[EXEC_LABEL]:
            raise BackendError(f"no command can be run in this workspace: {reason}")
        env = {name: value for name, value in request.env.items() if name != INSTANCE_VARIABLE}

        def runs() -> bool:
            now = self._containers.look(workspace_id)
            return now is not None and now.running and now.instance == entry.instance

        return await exec_beside(self._sockets.exec_path(workspace_id), replace(request, env=env), runs)

    async def logs(self, workspace_id: UUID, tail: int) -> str:
        entry = self._containers.look(workspace_id)
        output = await asyncio.to_thread(entry.output) if entry else ""
        return "".join(output.splitlines(keepends=True)[-tail:])

    async def create_volume(
        self,
        workspace_id: UUID,
        name: str,
        disk_bytes: int | None = None,  # noqa: ARG002 - a directory has no limit
        storage_class: str | None = None,  # noqa: ARG002 - and is of one kind
    ) -> None:
        """Makes a home. `disk_bytes` is not kept: a directory cannot be held to a size."""
        with _reported(f"volume {name} cannot be made"):
            await asyncio.to_thread(self.homes.create, workspace_id, name)

    async def delete_volume(self, workspace_id: UUID, name: str) -> None:
        with _reported(f"volume {name} cannot be deleted"):
            await asyncio.to_thread(self._withdraw, workspace_id, name)
        self.homes.trash.empty_soon()

    async def start_container(self, spec: ContainerSpec) -> Pulling | None:
        entry = self._containers.look(spec.workspace_id)
        if entry is not None and entry.running:
            return None
        if self.homes.owner(spec.volume) != spec.workspace_id:
            raise no_such_volume(spec.volume)
        if spec.sudo:
            raise BackendError(
                "the template gives sudo, which only a container can have: take it out of the template, or run "
                "workspaces in Docker"
            )
        program = await asyncio.to_thread(self._made_session_program)
        command = await self._containing(spec, self._command, session_program=program)
        with _reported("the container cannot be started"):
            answer = await self._containers.start(spec.workspace_id, command)
        if answer == shim.MISSING:
            raise no_such_volume(spec.volume)
        return None

    async def remove_container(self, workspace_id: UUID) -> None:
        with _reported("the container cannot be removed"):
            await self._containers.end(workspace_id)

    async def close(self) -> None:
        """Ends what we do ourselves; workspaces go on."""
        await asyncio.to_thread(self.homes.trash.close)

    async def compute_usage(self, ids: Collection[UUID]) -> Mapping[UUID, ComputeUsage]:
        return await asyncio.to_thread(lambda: compute_usage(self._running(ids)))

    async def disk_usage(self, ids: Collection[UUID], seconds: float) -> Mapping[UUID, DiskUsage]:
        """Counts the files of homes, in a process of its own; a home is a directory and is held to no size."""
        running = await asyncio.to_thread(self._running, ids)
        homes = {str(self.homes.home(entry.labels[VOLUME_LABEL])): key for key, entry in running.items()}
        if not homes:
            return {}
        argv = [sys.executable, "-I", "-S", disk_walk.__file__, str(seconds), *homes]
        counting = Command(argv, interpreter_environment(), self._root)
        try:
            _, output = await _output_of(counting, seconds + disk_walk.SPARE_SECONDS)
        except TimeoutError:
            return {}
        found = disk_walk.parsed(output)
        sizes = {key: found[home] for home, key in homes.items() if home in found}
        return {key: DiskUsage(used, None, total, free) for key, (used, total, free) in sizes.items()}

    def _running(self, ids: Collection[UUID]) -> dict[UUID, ProcessEntry]:
        entries = self._containers.list(ids)
        return {key: entry for key, entry in entries.items() if isinstance(entry, ProcessEntry) and entry.running}

    async def watch_isolation(self) -> AsyncIterator[IsolationReport]:
        """Never yields: a sandbox is a process's own from its start to its end, and nobody can take it away
        meanwhile."""
        await asyncio.Event().wait()
        yield IsolationReport("", holds=True)

    async def capacity(self) -> Resources:
        """No limits: a process is held to none."""
        return Resources()

    async def remove_orphans(self) -> int:
        """Nothing to do: what was left is in the trash, which is emptied by itself."""
        return 0

    async def hints(self) -> AsyncIterator[UUID]:
        self.homes.trash.empty_soon()  # a leader begins: what one before was killed at is there still
        before = await asyncio.to_thread(self._look)
        while True:
            await asyncio.sleep(_HINT_SECONDS)
            now = await asyncio.to_thread(self._look)
            for workspace_id in before.keys() | now.keys():
                if before.get(workspace_id) != now.get(workspace_id):
                    yield workspace_id
            before = now

    async def run_inside(self, spec: ContainerSpec, argv: Sequence[str], seconds: float = 60.0) -> tuple[int, str]:
        """Runs a command confined exactly as the workspace's IDE is, in a network of its own beside it: its exit code
        and output."""
        sockets = self._sockets.directory(spec.workspace_id)
        made = not sockets.is_dir()  # it has one while its IDE runs
        with tempfile.TemporaryDirectory(dir=self._root) as place:
            command = await self._containing(spec, argv, Path(place, shim.WAYS_IN))
            sockets.mkdir(mode=0o700, exist_ok=True)
            if command.owner is not None:
                os.chown(sockets, command.owner, command.owner)
            try:
                return await _output_of(command, seconds)
            finally:
                if made:
                    with suppress(OSError):
                        sockets.rmdir()

    async def isolates(self) -> bool:
        """Whether workspaces are kept from each other and from the front door's port. If not, only one account may use
        this runtime."""
        sandbox_tools = await self.sandbox_tools()
        return sandbox_tools is not None and sandbox_tools.guards_ports

    async def sandbox_tools(self) -> SandboxTools | None:
        """What is put around workspaces here. None: nothing, or they do not start at all."""
        try:
            return await self._required_tools()
        except BackendError:
            return None

    async def started_with_less(self) -> list[UUID]:
        """The workspaces that run since before they got all the isolation that they would get now."""
        sandbox_tools = await self.sandbox_tools()
        wanted = set(sandbox_tools.words if sandbox_tools else ())
        entries = await asyncio.to_thread(self._containers.list)
        return [
            key
            for key, entry in entries.items()
            if isinstance(entry, ProcessEntry) and entry.running and wanted - set(_confined(entry))
        ]

    def _seen(self, workspace_id: UUID, entry: ProcessEntry | Unreadable) -> ContainerSeen:
        if isinstance(entry, ProcessEntry):
            self._unreadable.discard(workspace_id)
            volume = entry.labels.get(VOLUME_LABEL, "")
            return ContainerSeen(entry.instance, entry.running, volume, detail=_detail(entry))
        if workspace_id not in self._unreadable:
            log.warning("container_not_known", workspace=str(workspace_id), error=str(entry))
        self._unreadable.add(workspace_id)
        return ContainerSeen("", running=False, detail=str(entry)[:_LONGEST_DETAIL], known=False)

    def _look(self) -> Look:
        volumes = self.homes.list(None)
        entries = self._containers.list()
        nothing: Mapping[str, str] = {}
        return {key: (*_state(entries.get(key)), volumes.get(key, nothing)) for key in volumes.keys() | entries.keys()}

    def _withdraw(self, workspace_id: UUID, name: str) -> None:
        if self.homes.owner(name) != workspace_id:
            return
        with ExitStack() as nobody_begins:
            container = self._idle(nobody_begins, self._containers, workspace_id, name)
            if container is not None and container.labels.get(VOLUME_LABEL) == name:
                raise VolumeInUse(f"volume {name} is in use by a container")
            self._idle(nobody_begins, self.jobs, workspace_id, name)
            self.homes.withdraw(name)

    @staticmethod
    def _idle(stack: ExitStack, table: ProcessTable, workspace_id: UUID, name: str) -> ProcessEntry | None:
        try:
            return stack.enter_context(table.idle(workspace_id))
        except Busy:
            entry = table.look(workspace_id)
            if entry is None or not entry.running or entry.labels.get(VOLUME_LABEL) == name:
                raise VolumeInUse(f"volume {name} is in use by a running process") from None
            return entry  # it has another volume, and as long as it runs nothing else begins

    def _made_session_program(self) -> Path | str:
        """The directory of the session program, or why it cannot be had: a workspace starts without it too."""
        try:
            return self._session_program.directory()
        except (OSError, subprocess.CalledProcessError) as error:
            log.warning("commands_cannot_run_in_workspaces", error=str(error))
            return str(error)[:_LONGEST_DETAIL]

    async def _containing(
        self,
        spec: ContainerSpec,
        words: Sequence[str],
        ways_in: Path | None = None,
        session_program: Path | str = "it is a probe",
    ) -> Command:
        home, sockets = self.homes.home(spec.volume), self._sockets.directory(spec.workspace_id)
        sandbox_tools = await self._required_tools()
        home_seen = HOME_INSIDE if sandbox_tools else home
        socket = str(self._sockets.path(spec.workspace_id))
        argv = [word.replace("{socket}", socket).replace("{home}", str(home_seen)) for word in words]
        ca_bundle = await asyncio.to_thread(self._written_ca_bundle)
        env = _environment(home_seen) | self._env
        if ca_bundle is not None:
            env |= ca_environment(CA_BUNDLE_INSIDE if sandbox_tools else ca_bundle)
        env |= dict(spec.env) | {"HOME": str(home_seen)}
        if shutil.which(argv[0], path=env["PATH"]) is None:
            raise BackendError(f"the command {argv[0]!r} is not there", reason=ErrorReason.IMAGE_PULL_FAILED)
        env |= spec.secrets.env
        has_sessions = isinstance(session_program, Path)
        if isinstance(session_program, Path):
            argv = beside_command(argv, session_program, self._sockets.exec_path(spec.workspace_id))
        credentials = [(one.host, one.username, one.token) for one in spec.secrets.git_credentials]
        plain = Command(
            behind_setup(argv, str(sockets)),
            env,
            directory=home,
            labels={VOLUME_LABEL: spec.volume, EXEC_LABEL: "" if has_sessions else str(session_program)},
            requires=home,
            sockets=sockets,
            given=records(credentials, spec.secrets.ssh_keys).decode(),
        )
        if sandbox_tools is None:
            return plain
        env.pop(INSTANCE_VARIABLE, None)
        inside = SandboxPaths(
            uid=sandbox_tools.uid(spec.workspace_id),
            home=home,
            sockets=sockets,
            etc=self.homes.beside(spec.volume, "etc"),
            ways_in=ways_in or self._containers.entry(spec.workspace_id) / shim.WAYS_IN,
            root=self._root,
            readable=self._readable,
            hidden=[path for path in self._hidden if path.is_dir()],
            ca_bundle=ca_bundle,
            session_program=session_program if isinstance(session_program, Path) else None,
        )
        with _reported(f"the home {home} cannot be made ready"):
            await asyncio.to_thread(self._make_ready, sandbox_tools, inside)
        return replace(
            plain,
            argv=sandboxed(sandbox_tools, plain.argv, inside),
            env=interpreter_environment(),
            given=variables(env).decode() + plain.given,
            labels={**plain.labels, ISOLATION_LABEL: " ".join(sandbox_tools.words)},
            sandboxed=True,
            owner=inside.uid if sandbox_tools.setpriv else None,
        )

    def _written_ca_bundle(self) -> Path | None:
        """The file with this machine's authorities of now and the operator's; None if the operator named none."""
        if not self._ca_bundle:
            return None
        place, fresh = self._root / "ca-bundle.pem", self._root / f".ca-bundle.{uuid4().hex}"
        with _reported("the file of certificate authorities cannot be written"):
            fresh.write_bytes(with_system_authorities(self._ca_bundle))
            fresh.chmod(0o644)
            fresh.rename(place)
        return place

    def _make_ready(self, sandbox_tools: SandboxTools, inside: SandboxPaths) -> None:
        """Makes the files on the disk ready for the workspace's user."""
        write_etc(inside.etc, sandbox_tools, inside.uid)
        if sandbox_tools.setpriv is None:
            return
        if (place := unreadable(path for path in inside.readable if path not in inside.hidden)) is not None:
            advice = f"let everybody read it (chmod -R o+rX {place}), or move the IDE to where everybody may"
            raise BackendError(f"workspaces have users of their own, who cannot read {place}: {advice}")
        give(inside.home, inside.uid)

    async def _required_tools(self) -> SandboxTools | None:
        if self._sandbox is False:
            return None
        if self._sandbox_tools is None:
            looking = asyncio.to_thread(find_sandbox_tools, own_network=self._own_network is not False)
            self._sandbox_tools = asyncio.ensure_future(looking)
        found = await asyncio.shield(self._sandbox_tools)
        if found is None or found.slirp4netns is None:
            self._sandbox_tools = None  # it may work the next time
        self._hold_to(_SANDBOXED, "bubblewrap (bwrap)", works=found is not None, insist=bool(self._sandbox))
        if found is not None and self._own_network is not False:
            connected = found.slirp4netns is not None
            self._hold_to(_CONNECTED, "slirp4netns", works=connected, insist=bool(self._own_network))
        return found

    def _hold_to(self, name: str, program: str, *, works: bool, insist: bool = False) -> None:
        marker = self._root / name
        if works:
            with _reported("the runtime's directory cannot be written"):
                marker.touch()
        elif insist or marker.exists():
            why = "worked here before and does not now" if marker.exists() else "is asked for and does not work"
            raise BackendError(f"{program} {why}: mend it, workspaces do not start without their isolation")


async def _output_of(command: Command, seconds: float) -> tuple[int, str]:
    process = await asyncio.create_subprocess_exec(
        *command.argv,
        env=command.env,
        cwd=command.directory,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        async with asyncio.timeout(seconds):
            output, _ = await process.communicate(command.given.encode())
    except BaseException:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()
        raise
    return process.returncode or 0, output.decode(errors="replace")


def _state(entry: ProcessEntry | Unreadable | None) -> tuple[str, bool]:
    return (entry.instance, entry.running) if isinstance(entry, ProcessEntry) else ("", False)


def _confined(entry: ProcessEntry) -> list[str]:
    return entry.labels.get(ISOLATION_LABEL, "").split()


def _detail(entry: ProcessEntry) -> str:
    if entry.running:
        return ""
    last = entry.output().strip().splitlines()[-1:]
    return ": ".join([entry.ending(), *last])[:_LONGEST_DETAIL]


def _environment(home: Path) -> dict[str, str]:
    kept = {name: os.environ[name] for name in ("LANG", "LC_ALL", "TZ") if name in os.environ}
    path = os.environ.get("PATH", os.defpath)
    shell = shutil.which("bash") or "/bin/sh"
    # A service manager names no language, and without one a terminal takes no letter beyond ASCII.
    return {"PATH": path, "HOME": str(home), "SHELL": shell, "USER": "coder", "LANG": "C.UTF-8", **kept}


@contextmanager
def _reported(failure: str) -> Iterator[None]:
    """Turns the file system's errors into the backend's: a full disk is an ActionFailed that people can read."""
    try:
        yield
    except OSError as error:
        raise BackendError(f"{failure}: {error.strerror or error}") from error
