"""Supervised processes, at most one per workspace in a table: what runs, what ended, and how to begin and end one.

The entry `ID/` with its record is written only by who holds `ID.lock`: a shim while its processes live, or a
coordinator that tidies what is dead. So a coordinator killed at any instant leaves either nothing or an entry that the
next one finds. Shims hold POSIX locks (the kernel names the holder's pid, which therefore cannot be a recycled one),
coordinators open-file-description locks (they exclude each other even inside one process); the two kinds exclude one
another. Orphans are processes whose shim was killed; they are found by the instance id in their environment.
"""

import asyncio
import fcntl
import json
import math
import os
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

from codehub.adapters.ends_with_parent import interpreter_environment
from codehub.adapters.process import shim
from codehub.domain.errors import BackendError, Unreachable
from codehub.domain.naming import INSTALL_LABEL
from codehub.job.filesystem import opened

COORDINATOR = -1

INSTANCE_VARIABLE = "CODEHUB_INSTANCE"

_FLOCK = "hhqqi0q"  # struct flock of 64-bit Linux: type, whence, start, length, pid
_ORPHANS_END_SECONDS = 5.0
_LOOK_AGAIN_SECONDS = 0.02
_START_SECONDS = 30.0
_KILL_SECONDS = 10.0
_RECORD_LOOKS = 100  # two seconds: a shim writes its record at once, yet the machine may be busy
_TAIL_BYTES = 64 << 10


class Busy(Exception):
    """Somebody else holds the lock now."""


def holder(path: Path) -> int | None:
    """The pid of the shim that holds the lock, COORDINATOR, or None. Asking does not take the lock, so it hinders
    nobody."""
    asked = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
    try:
        with opened(path, os.O_RDWR) as descriptor:
            answer = fcntl.fcntl(descriptor, fcntl.F_OFD_GETLK, asked)
    except FileNotFoundError:
        return None
    kind, _, _, _, pid = struct.unpack(_FLOCK, answer)
    return None if kind == fcntl.F_UNLCK else pid


@contextmanager
def held(path: Path) -> Iterator[None]:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        _set(descriptor, fcntl.F_WRLCK)
        try:
            if not _still_named(path, descriptor):
                raise Busy
            yield
        finally:
            # By hand: a child between fork and exec shares the description and would keep it locked.
            _set(descriptor, fcntl.F_UNLCK)
    finally:
        os.close(descriptor)


def _set(descriptor: int, kind: int) -> None:
    try:
        fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, struct.pack(_FLOCK, kind, os.SEEK_SET, 0, 0, 0))
    except BlockingIOError:
        raise Busy from None


def _still_named(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


def end_orphans(instance: str) -> None:
    """Kills the orphans of an instance, and blocks until none is left."""
    deadline = time.monotonic() + _ORPHANS_END_SECONDS
    while found := list(orphans(instance)):
        if time.monotonic() > deadline:
            raise BackendError(f"processes {', '.join(map(str, found))} of instance {instance} do not end")
        for pid in found:
            shim.send_if(pid, signal.SIGKILL, partial(_belongs, pid, instance))
        time.sleep(_LOOK_AGAIN_SECONDS)


def orphans(instance: str) -> Iterator[int]:
    for name in os.listdir("/proc"):  # noqa: PTH208 - names are all we need
        if name.isdigit() and _belongs(int(name), instance):
            yield int(name)


def _belongs(pid: int, instance: str) -> bool:
    try:
        environment = Path("/proc", str(pid), "environ").read_bytes()
    except OSError:  # gone, or another user's
        return False
    return f"{INSTANCE_VARIABLE}={instance}".encode() in environment.split(b"\0")


class Unreadable(BackendError):
    """Something is there, and what it is cannot be told: the disk refuses it, or somebody wrote over its record."""


@dataclass(frozen=True, slots=True)
class ProcessEntry:
    workspace_id: UUID
    directory: Path
    pid: int
    """The shim's: what runs descends from it. Somebody else's, perhaps, once it has ended."""
    instance: str
    labels: Mapping[str, str]
    sockets: Path | None
    running: bool
    exit_code: int | None
    """None while it runs, and for ever if its shim was killed."""

    def output(self) -> str:
        return _tail(self.directory / shim.OUTPUT)

    def errors(self) -> str:
        return _tail(self.directory / shim.ERRORS)

    def ending(self) -> str:
        if self.exit_code is None:
            return "ended from outside"
        if self.exit_code < 0:
            return f"ended by {_signal_name(-self.exit_code)}"
        return f"ended with exit code {self.exit_code}"


@dataclass(frozen=True, slots=True)
class Command:
    """What a shim runs. `requires`: a directory that must be there. `once`: an ended one is not replaced. `apart`:
    errors have a file of their own, and neither file is ever cut. `owner`: the user id that it changes to, whose its
    sockets are. `given`: what it finds on its standard input, which no file holds."""

    argv: list[str]
    env: Mapping[str, str] = field(repr=False)
    directory: Path
    labels: Mapping[str, str] = field(default_factory=dict)
    requires: Path | None = None
    sockets: Path | None = None
    once: bool = False
    apart: bool = False
    sandboxed: bool = False
    owner: int | None = None
    given: str = field(default="", repr=False)


class ProcessTable:
    def __init__(self, directory: Path, install_id: str, grace_seconds: float) -> None:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._directory = directory
        self._install_id = install_id
        self._grace = grace_seconds

    def lock(self, workspace_id: UUID) -> Path:
        return self._directory / f"{workspace_id}.lock"

    def entry(self, workspace_id: UUID) -> Path:
        """The directory of a workspace's record, whether it is there or not."""
        return self._directory / str(workspace_id)

    def list(self, ids: Collection[UUID] | None = None) -> dict[UUID, ProcessEntry | Unreadable]:
        """All entries, or those of `ids`. One that cannot be read spoils no look at the others."""
        found: dict[UUID, ProcessEntry | Unreadable] = {}
        for workspace_id in self._ids() if ids is None else ids:
            try:
                entry = self.look(workspace_id)
            except Unreadable as unreadable:
                found[workspace_id] = unreadable
            else:
                if entry is not None:
                    found[workspace_id] = entry
        return found

    def look(self, workspace_id: UUID) -> ProcessEntry | None:
        """The entry of a workspace; None for what is not there and for what another installation has there."""
        directory = self.entry(workspace_id)
        record = self._record(workspace_id)
        if record is None:
            # A missing entry is an answer only while its table is there: the disk may be gone.
            if not self._directory.is_dir():
                raise Unreachable(f"{self._directory} is not there")
            return None
        if record.labels.get(INSTALL_LABEL) != self._install_id:
            return None
        # The record of one that was just replaced must not be believed to run: the pid tells them apart.
        running = holder(self.lock(workspace_id)) == record.pid
        exit_code = None if running else _exit_code(directory / shim.EXIT)
        return ProcessEntry(
            workspace_id, directory, record.pid, record.instance, record.labels, record.sockets, running, exit_code
        )

    async def start(self, workspace_id: UUID, command: Command) -> str:
        """Starts a command and returns one of the shim's answers: STARTED, BUSY (one runs), EXISTS (one was there) or
        MISSING."""
        before = self.look(workspace_id)
        if before is not None and not before.running and before.exit_code is None:
            await asyncio.to_thread(end_orphans, before.instance)
        self._refuse_foreign(workspace_id)
        answer = await asyncio.to_thread(self._launch, self._order(workspace_id, command))
        if answer == shim.BUSY:
            await self._find_who_is_busy(workspace_id)
        return answer

    async def end(self, workspace_id: UUID) -> None:
        """Ends the whole process tree, gently and then not, and removes its entry. Gone is success."""
        loop = asyncio.get_running_loop()
        kill_at, give_up_at = loop.time() + self._grace + _KILL_SECONDS, math.inf
        asked: set[tuple[int, signal.Signals]] = set()
        while not await self._forget(workspace_id):
            now, number = loop.time(), signal.SIGTERM
            if now > give_up_at:
                raise BackendError(f"the processes of {workspace_id} do not end")
            if now >= kill_at:
                # The shim does the gentle part and the killing; only one that is stuck itself is killed by us. It is
                # given up so long after that, whenever that was: the machine may have stood still before.
                number, give_up_at = signal.SIGKILL, min(give_up_at, now + _KILL_SECONDS)
            pid = holder(self.lock(workspace_id)) or 0
            if pid > 0 and (pid, number) not in asked:
                asked.add((pid, number))
                self._signal_holder(workspace_id, pid, number)
            await asyncio.sleep(_LOOK_AGAIN_SECONDS)

    def _signal_holder(self, workspace_id: UUID, pid: int, number: signal.Signals) -> None:
        shim.send_if(pid, number, lambda: holder(self.lock(workspace_id)) == pid)

    @contextmanager
    def idle(self, workspace_id: UUID) -> Iterator[ProcessEntry | None]:
        """Nothing of this entry runs or begins inside the block; Busy if something does already."""
        lock = self.lock(workspace_id)
        with held(lock):
            yield self.look(workspace_id)
            if not (self._directory / str(workspace_id)).exists():
                lock.unlink(missing_ok=True)

    async def _forget(self, workspace_id: UUID) -> bool:
        """Removes an entry whose processes have ended; False while somebody holds it."""
        lock = self.lock(workspace_id)
        if self._is_foreign(workspace_id):
            return True
        if not lock.exists() and self.look(workspace_id) is None:
            return True
        try:
            await asyncio.to_thread(self._tidy, workspace_id)
        except Busy:
            return False
        return True

    def _tidy(self, workspace_id: UUID) -> None:
        """Removes the entry in a thread, with the lock: if nobody waits any more, it is still held until the last file
        is gone."""
        lock = self.lock(workspace_id)
        with held(lock):
            entry = self.look(workspace_id)
            if entry is not None:
                if entry.exit_code is None:
                    end_orphans(entry.instance)
                _remove(entry)
            lock.unlink(missing_ok=True)

    def _ids(self) -> Iterator[UUID]:
        try:
            with os.scandir(self._directory) as entries:
                names = [entry.name for entry in entries if not entry.name.endswith((".lock", ".new"))]
        except FileNotFoundError as error:
            raise Unreachable(f"{self._directory} is not there") from error
        for name in names:
            with suppress(ValueError):  # somebody else's file
                yield UUID(name)

    def _record(self, workspace_id: UUID) -> "_Record | None":
        path = self._directory / str(workspace_id) / shim.RECORD
        try:
            return _parsed(json.loads(path.read_bytes()))
        except (FileNotFoundError, NotADirectoryError):
            return None
        except ValueError as error:
            # Power was lost before it was written, and nothing of it lives; unless somebody wrote over a shim's.
            if (holder(self.lock(workspace_id)) or 0) <= 0:
                return None
            raise Unreadable(f"the record {path} is spoilt: {error}") from error
        except OSError as error:
            raise Unreadable(f"the record {path} cannot be read: {error.strerror}") from error

    def _is_foreign(self, workspace_id: UUID) -> bool:
        record = self._record(workspace_id)
        return record is not None and record.labels.get(INSTALL_LABEL) != self._install_id

    def _refuse_foreign(self, workspace_id: UUID) -> None:
        if self._is_foreign(workspace_id):
            raise BackendError(f"{self._directory / str(workspace_id)} belongs to another installation")

    def _order(self, workspace_id: UUID, command: Command) -> dict[str, object]:
        instance = uuid4().hex
        labels = {**command.labels, INSTALL_LABEL: self._install_id}
        sockets = str(command.sockets) if command.sockets else None
        return {
            "lock": str(self.lock(workspace_id)),
            "entry": str(self.entry(workspace_id)),
            "record": {"instance": instance, "labels": labels, "sockets": sockets},
            "argv": command.argv,
            "env": {**command.env, INSTANCE_VARIABLE: instance},
            "directory": str(command.directory),
            "requires": str(command.requires) if command.requires else None,
            "sockets": sockets,
            "once": command.once,
            "apart": command.apart,
            "sandboxed": command.sandboxed,
            "owner": command.owner,
            "given": command.given,
            "grace": self._grace,
        }

    def _launch(self, order: dict[str, object]) -> str:
        # The order goes through a pipe: arguments could be read by anyone on the machine.
        try:
            done = subprocess.run(
                [sys.executable, "-I", "-S", shim.__file__],
                input=json.dumps(order),
                capture_output=True,
                text=True,
                timeout=_START_SECONDS,
                check=False,
                cwd=self._directory,
                env=interpreter_environment(),
                start_new_session=True,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise BackendError(f"a process could not be started: {error}") from error
        if done.stdout not in {shim.STARTED, shim.BUSY, shim.EXISTS, shim.MISSING}:
            last = done.stderr.strip().splitlines() or ["no answer"]
            raise BackendError(f"a process could not be started: {last[-1][:300]}")
        return done.stdout

    async def _find_who_is_busy(self, workspace_id: UUID) -> None:
        """Ends processes whose record was removed by hand, which would never be found again, before others may come."""
        for _ in range(_RECORD_LOOKS):
            if self.look(workspace_id) is not None:
                return
            await asyncio.sleep(_LOOK_AGAIN_SECONDS)
        pid = holder(self.lock(workspace_id)) or 0
        if pid > 0:
            self._signal_holder(workspace_id, pid, signal.SIGTERM)
        raise BackendError(f"something of {workspace_id} is there without a record; it is asked to end")


@dataclass(frozen=True, slots=True)
class _Record:
    pid: int
    instance: str
    labels: Mapping[str, str]
    sockets: Path | None


def _parsed(value: Any) -> _Record:  # noqa: ANN401 - it may be anything
    """The record as a value; ValueError for what no shim wrote."""
    try:
        sockets = Path(value["sockets"]) if value["sockets"] else None
        return _Record(int(value["pid"]), str(value["instance"]), dict(value["labels"]), sockets)
    except (KeyError, TypeError) as error:
        raise ValueError("it is no record") from error


def _exit_code(path: Path) -> int | None:
    try:
        return int(json.loads(path.read_bytes())["code"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _signal_name(number: int) -> str:
    """The name of a signal; those for real time have none."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _remove(entry: ProcessEntry) -> None:
    """Removes an entry, the record last: until then the entry is found, and whoever comes after us goes on with its
    removal."""
    try:
        if entry.sockets is not None:
            shim.clear(entry.sockets)
        for path in entry.directory.iterdir():
            if path.name != shim.RECORD:
                shim.clear(path)
        shim.clear(entry.directory)
    except OSError as error:
        raise BackendError(f"what {entry.workspace_id} left cannot be removed: {error}") from error


def _tail(path: Path) -> str:
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - _TAIL_BYTES))
            return file.read().decode(errors="replace")
    except OSError:  # not there, or somebody put something else there: it is only what people read
        return ""
