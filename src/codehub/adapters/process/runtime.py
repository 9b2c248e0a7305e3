"""The Runtime port on processes: any command is the IDE, the image is this machine.

The command is a template: `{socket}` and `{home}` are put in. It gets the workspace's environment and nothing of the
coordinator's, whose variables hold passwords.
"""

import asyncio
import os
import shutil
from collections.abc import AsyncIterator, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from uuid import UUID

import structlog

from codehub.adapters.process import shim
from codehub.adapters.process.identity import Identity
from codehub.adapters.process.listeners import own_address
from codehub.adapters.process.locks import Busy
from codehub.adapters.process.sandbox import HOME_INSIDE, find_bubblewrap, sandboxed
from codehub.adapters.process.sockets import Sockets, answers_http
from codehub.adapters.process.table import Command, Entry, ProcessTable, Unreadable
from codehub.adapters.process.volumes import Volumes
from codehub.domain.errors import BackendError, ErrorReason, VolumeInUse
from codehub.domain.judge import ContainerSeen
from codehub.ports.runtime import ContainerSpec, Endpoint, IsolationReport, Pulling, Share

log = structlog.get_logger(__name__)

VOLUME_LABEL = "codehub.volume"

_HINT_SECONDS = 0.3
_SANDBOXED = "sandboxed"
"""There once bubblewrap has worked: from then on nothing runs without it, for somebody may rely on that."""
_JOB_GRACE_SECONDS = 2.0
_LONGEST_DETAIL = 300

Look = dict[UUID, tuple[str, bool, Mapping[str, str]]]


class ProcessRuntime:
    """`sandbox`: None uses bubblewrap where it works, True insists, False does without. `readable`: what the command
    needs to see of this machine besides the system's own directories. `hidden`: directories with more that is nobody's
    business, wherever they lie."""

    name = "process"

    def __init__(
        self,
        root: Path,
        install_id: str,
        command: Sequence[str],
        *,
        grace_seconds: float = 10.0,
        sandbox: bool | None = None,
        readable: Sequence[Path] = (),
        hidden: Sequence[Path] = (),
    ) -> None:
        root = root.absolute()
        with _reported(f"the runtime's directory {root} cannot be made"):
            root.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._root = root
        self._command = list(command)
        self._sandbox = sandbox
        self._readable = list(readable)
        self._hidden = list(hidden)
        self._bubblewrap: asyncio.Future[str | None] | None = None
        self._unreadable: set[UUID] = set()
        self._identity = Identity(root, install_id)
        self._sockets = Sockets(root)
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
        return entry is not None and entry.running and await answers_http(self._sockets.path(workspace_id))

    async def endpoint(self, workspace_id: UUID) -> Endpoint | None:
        entry = self._containers.look(workspace_id)
        return Endpoint(socket=str(self._sockets.path(workspace_id))) if entry and entry.running else None

    async def port_endpoint(self, workspace_id: UUID, port: int) -> Endpoint | None:
        entry = self._containers.look(workspace_id)
        if entry is None or not entry.running:
            return None
        host = await asyncio.to_thread(own_address, entry.pid, port)
        # If the same one runs still, its pid was its own all the while.
        again = self._containers.look(workspace_id) if host else None
        if again is None or not again.running or again.instance != entry.instance:
            return None
        return Endpoint(host=host, port=port)

    async def logs(self, workspace_id: UUID, tail: int) -> str:
        entry = self._containers.look(workspace_id)
        output = await asyncio.to_thread(entry.output) if entry else ""
        return "".join(output.splitlines(keepends=True)[-tail:])

    async def create_volume(self, workspace_id: UUID, name: str, disk_bytes: int | None = None) -> None:  # noqa: ARG002
        """A directory cannot be held to a size."""
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
            raise _no_volume(spec.volume)
        command = await self._containing(spec, self._command)
        with _reported("the container cannot be started"):
            answer = await self._containers.start(spec.workspace_id, command)
        if answer == shim.MISSING:
            raise _no_volume(spec.volume)
        return None

    async def remove_container(self, workspace_id: UUID) -> None:
        with _reported("the container cannot be removed"):
            await self._containers.end(workspace_id)

    async def close(self) -> None:
        """Workspaces go on; only what we do ourselves ends."""
        await asyncio.to_thread(self.homes.trash.close)

    async def watch_isolation(self) -> AsyncIterator[IsolationReport]:
        """A sandbox is a process's own from its start to its end: nobody can take it away meanwhile."""
        await asyncio.Event().wait()
        yield IsolationReport("", holds=True)

    async def capacity(self) -> Share:
        """A process is held to no limit."""
        return Share()

    async def remove_leftovers(self) -> int:
        """What was left is the trash's, which is emptied by itself."""
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
        """A command confined exactly as the workspace's IDE is: its exit code and output."""
        command = await self._containing(spec, argv)
        sockets = self._sockets.directory(spec.workspace_id)
        made = not sockets.is_dir()  # it has one while its IDE runs
        sockets.mkdir(mode=0o700, exist_ok=True)
        process = await asyncio.create_subprocess_exec(
            *command.argv,
            env=command.env,
            cwd=command.directory,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        try:
            async with asyncio.timeout(seconds):
                output, _ = await process.communicate()
        except BaseException:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()
            raise
        finally:
            if made:
                with suppress(OSError):
                    sockets.rmdir()
        return process.returncode or 0, output.decode(errors="replace")

    async def isolates(self) -> bool:
        """Are workspaces kept from each other? Without that, only one account may use this runtime."""
        try:
            return await self._find_bubblewrap() is not None
        except BackendError:
            return False

    def _seen(self, workspace_id: UUID, entry: Entry | Unreadable) -> ContainerSeen:
        if isinstance(entry, Entry):
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
    def _idle(stack: ExitStack, table: ProcessTable, workspace_id: UUID, name: str) -> Entry | None:
        try:
            return stack.enter_context(table.idle(workspace_id))
        except Busy:
            entry = table.look(workspace_id)
            if entry is None or not entry.running or entry.labels.get(VOLUME_LABEL) == name:
                raise VolumeInUse(f"volume {name} is in use by a running process") from None
            return entry  # it has another volume, and as long as it runs nothing else begins

    async def _containing(self, spec: ContainerSpec, words: Sequence[str]) -> Command:
        home, sockets = self.homes.home(spec.volume), self._sockets.directory(spec.workspace_id)
        bubblewrap = await self._find_bubblewrap()
        home_seen = HOME_INSIDE if bubblewrap else home
        socket = str(self._sockets.path(spec.workspace_id))
        argv = [word.replace("{socket}", socket).replace("{home}", str(home_seen)) for word in words]
        env = _environment(home_seen) | dict(spec.env) | {"HOME": str(home_seen)}
        if shutil.which(argv[0], path=env["PATH"]) is None:
            raise BackendError(f"the command {argv[0]!r} is not there", reason=ErrorReason.IMAGE_PULL_FAILED)
        if bubblewrap:
            argv = sandboxed(
                bubblewrap,
                argv,
                home=home,
                sockets=sockets,
                root=self._root,
                readable=self._readable,
                hidden=[path for path in self._hidden if path.is_dir()],
            )
        return Command(
            argv,
            env,
            directory=home,
            labels={VOLUME_LABEL: spec.volume},
            requires=home,
            sockets=sockets,
            sandboxed=bubblewrap is not None,
        )

    async def _find_bubblewrap(self) -> str | None:
        if self._sandbox is False:
            return None
        if self._bubblewrap is None:
            self._bubblewrap = asyncio.ensure_future(asyncio.to_thread(find_bubblewrap))
        found = await asyncio.shield(self._bubblewrap)
        marker = self._root / _SANDBOXED
        if found is not None:
            with _reported("the runtime's directory cannot be written"):
                marker.touch()
            return found
        self._bubblewrap = None  # it may work the next time
        if self._sandbox or marker.exists():
            why = "worked here before and does not now" if marker.exists() else "is asked for and does not work"
            raise BackendError(f"bubblewrap (bwrap) {why}: mend it, workspaces do not start without their walls")
        return None


def _state(entry: Entry | Unreadable | None) -> tuple[str, bool]:
    return (entry.instance, entry.running) if isinstance(entry, Entry) else ("", False)


def _detail(entry: Entry) -> str:
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


def _no_volume(name: str) -> BackendError:
    return BackendError(f"volume {name} does not exist", reason=ErrorReason.MISMATCH)


@contextmanager
def _reported(failure: str) -> Iterator[None]:
    """The file system's errors are the backend's: a full disk is an ActionFailed that people can read."""
    try:
        yield
    except OSError as error:
        raise BackendError(f"{failure}: {error.strerror or error}") from error
