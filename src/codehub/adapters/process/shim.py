"""The small program between us and each process of ours: supervises it, and needs nobody to supervise itself.

It takes the entry's lock, writes the record, starts the command and reaps whatever that leaves. So there is never a
process without a record, never two of one entry, and the lock is held exactly as long as anything of it lives. Run by
path without site-packages: only the standard library, few imports, because every start waits for it.
"""

import ctypes
import fcntl
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

STARTED, BUSY, EXISTS, MISSING = "started", "busy", "exists", "missing"
RECORD, EXIT, OUTPUT, ERRORS = "record.json", "exit.json", "output", "errors"
WAYS_IN = "network"
"""The socket beside the record where sockets of the command's own network are handed out."""

_LOCK_SECONDS = 1.0
_LOOK_AGAIN_SECONDS = 0.05
_TRIM_SECONDS = 15.0
_LARGEST_OUTPUT = 8 << 20
_CANNOT_RUN = 127
_SET_PDEATHSIG, _SET_CHILD_SUBREAPER = 1, 36
_SAVE_SECONDS = 3.0
_CONNECTED = b"03"  # in the sixth column of /proc/net/unix
_PARENT, _STARTED_AT = 1, 19  # fields of /proc/PID/stat, counted after the name

_libc = ctypes.CDLL(None)


def main() -> None:
    # An order that is cut off is no JSON: whoever gave it died, and nothing has happened.
    order = json.load(sys.stdin)
    if os.fork():
        os._exit(0)
    os.setsid()
    os.umask(0o077)
    # Orphans of the command become our children instead of init's, so that none can hide.
    _libc.prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    watched = {signal.SIGTERM, signal.SIGCHLD}
    signal.pthread_sigmask(signal.SIG_BLOCK, watched)
    status, lock = _prepare(order)
    if status != STARTED:
        _answer(status)
        return
    child = _start(order)
    _answer(STARTED)
    _let_go(order)
    code = Supervisor(child, order, lock).run(watched)
    if Path(order["entry"]).is_dir():
        _write(Path(order["entry"], EXIT), {"code": code})
    os.close(lock)


def _answer(status: str) -> None:
    with suppress(OSError):  # whoever asked is dead; its successor will find us
        os.write(1, status.encode())


def _prepare(order: dict[str, Any]) -> tuple[str, int]:
    """Under the lock, decides whether the entry is ours to start; then it stands there with its record, in one
    instant."""
    entry = Path(order["entry"])
    lock = _take(Path(order["lock"]))
    if lock is None:
        return BUSY, -1
    if order["once"] and _recorded(entry):
        return EXISTS, -1
    if order["requires"] and not Path(order["requires"]).is_dir():
        return MISSING, -1
    fresh = entry.with_name(f".{entry.name}.new")
    clear(fresh)
    fresh.mkdir()
    _write(fresh / RECORD, _record_of(order))
    clear(entry)
    fresh.rename(entry)
    if order["sockets"]:
        clear(Path(order["sockets"]))
        Path(order["sockets"]).mkdir(mode=0o700)
        if order["owner"] is not None:
            os.chown(order["sockets"], order["owner"], order["owner"])
    return STARTED, lock


def _record_of(order: dict[str, Any]) -> dict[str, Any]:
    record: dict[str, Any] = order["record"]
    return record | {"pid": os.getpid()}


def _recorded(entry: Path) -> bool:
    try:
        return bool(json.loads((entry / RECORD).read_bytes()))
    except (OSError, ValueError):  # what lost power before it was written is as good as not there
        return False


def _take(path: Path) -> int | None:
    deadline = time.monotonic() + _LOCK_SECONDS
    while time.monotonic() < deadline:
        lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            # A POSIX lock: the kernel tells others our pid, and no child of ours inherits it.
            fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(lock), path.stat()):
                return lock
        except OSError:  # held, or unlinked by one who just tidied up
            pass
        os.close(lock)
        time.sleep(_LOOK_AGAIN_SECONDS)
    return None


def clear(path: Path) -> None:
    """Removes a path and all in it, however deep; no link is followed. Gone is success."""
    try:
        top = _enter(path)
    except FileNotFoundError:
        return
    except NotADirectoryError:
        path.unlink()
        return
    try:
        while names := _directories_left(top):
            for name in names:
                _flatten(name, top)
    finally:
        os.close(top)
    path.rmdir()


def _flatten(name: str, top: int) -> None:
    # What is inside comes up beside it, so that no depth needs more than two descriptors. Nobody can guess the new
    # name, so nothing is in its way.
    directory = _enter(name, top)
    try:
        for inner in _directories_left(directory):
            os.close(_enter(inner, directory))  # only what may be written can be moved
            os.rename(inner, os.urandom(16).hex(), src_dir_fd=directory, dst_dir_fd=top)
    finally:
        os.close(directory)
    os.rmdir(name, dir_fd=top)


def _directories_left(directory: int) -> list[str]:
    """Removes all but the directories in it, and returns their names."""
    names = []
    with os.scandir(directory) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                names.append(entry.name)
            else:
                os.unlink(entry.name, dir_fd=directory)
    return names


def _enter(path: str | Path, within: int | None = None) -> int:
    """Opens a directory, also one whose owner took their own access away."""
    found = os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=within)
    try:
        with suppress(PermissionError):  # not ours: what may not be done will say so
            os.chmod(f"/proc/self/fd/{found}", 0o700)  # noqa: PTH101 - few imports
        return os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=found)
    finally:
        os.close(found)


def _write(path: Path, value: dict[str, Any]) -> None:
    unfinished = path.with_suffix(".new")
    unfinished.write_text(json.dumps(value))
    unfinished.rename(path)


def _start(order: dict[str, Any]) -> int:
    entry, owner = Path(order["entry"]), os.getpid()
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    output = os.open(entry / OUTPUT, flags, 0o600)
    errors = os.open(entry / ERRORS, flags, 0o600) if order["apart"] else output
    if order["owner"] is not None:  # who writes to /dev/stderr opens it once more
        os.fchown(output, order["owner"], order["owner"])
    child = os.fork()
    if child == 0:
        _become(order, owner, output, errors)
    os.close(output)
    if errors != output:
        os.close(errors)
    return child


def _become(order: dict[str, Any], owner: int, output: int, errors: int) -> None:
    try:
        os.setsid()
        _libc.prctl(_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != owner:
            return
        os.dup2(_in_memory(order["given"].encode()), 0)
        os.dup2(output, 1)
        os.dup2(errors, 2)
        os.umask(0o022)
        os.chdir(order["directory"])
        for ignored_by_python in (signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(ignored_by_python, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, set())
        os.execvpe(order["argv"][0], order["argv"], order["env"])  # noqa: S606 - that is the whole purpose
    except OSError as error:
        os.write(2, f"cannot run {order['argv'][0]}: {error.strerror}\n".encode())
    finally:
        os._exit(_CANNOT_RUN)


def _in_memory(text: bytes) -> int:
    """A file without a name that holds the text and is read from its beginning."""
    file = os.memfd_create("codehub")
    os.write(file, text)
    os.lseek(file, 0, os.SEEK_SET)
    return file


def _let_go(order: dict[str, Any]) -> None:
    """Lets go of everybody's pipes, terminal and directory; a fault of our own is written beside the record."""
    nothing = os.open(os.devnull, os.O_RDWR)
    faults = os.open(Path(order["entry"], "shim.log"), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for descriptor, target in ((nothing, 0), (nothing, 1), (faults, 2)):
        os.dup2(descriptor, target)
    os.close(nothing)
    os.close(faults)
    os.chdir("/")


class Supervisor:
    def __init__(self, child: int, order: dict[str, Any], lock: int) -> None:
        self._child = child
        self._lock, self._lock_path = lock, Path(order["lock"])
        self._record = Path(order["entry"], RECORD)
        self._recorded = _record_of(order)
        self._code: int | None = None
        self._grace: float = order["grace"]
        self._sockets: str | None = order["sockets"]
        # What holds a sandbox from outside does not pass the signal on but takes everyone with it: spare it the gentle
        # one.
        self._sandboxed: bool = order["sandboxed"]
        self._output = None if order["apart"] else Path(order["entry"], OUTPUT)

    def run(self, watched: set[signal.Signals]) -> int:
        while True:
            event = signal.sigtimedwait(watched, _TRIM_SECONDS)
            self._reap()
            if self._code is not None or (event is not None and event.si_signo == signal.SIGTERM):
                break
            if self._disowned():
                break
            self._mend_record()
            self._trim()
        if self._code is None:
            self._let_editors_save(watched)
        self._end(watched)
        return self._code if self._code is not None else -signal.SIGKILL

    def _let_editors_save(self, watched: set[signal.Signals]) -> None:
        """Waits a moment while anybody is connected: editors hear of the stop at the same time as we do, and save what
        was typed. Being asked once more ends it."""
        deadline = time.monotonic() + min(_SAVE_SECONDS, self._grace)
        while self._reap() and self._code is None and time.monotonic() < deadline and self._is_used():
            event = signal.sigtimedwait(watched, _LOOK_AGAIN_SECONDS)
            if event is not None and event.si_signo == signal.SIGTERM:
                break

    def _is_used(self) -> bool:
        """Whether the socket at which the command serves has a connection, by the kernel's list."""
        if self._sockets is None:
            return False
        name = os.fsencode(os.path.basename(self._sockets)) + b"/s"  # noqa: PTH119 - as above
        with suppress(OSError), open("/proc/self/net/unix", "rb") as file:  # noqa: PTH123 - as above
            return any(line.rstrip().endswith(name) and line.split()[5] == _CONNECTED for line in file)
        return False

    def _end(self, watched: set[signal.Signals]) -> None:
        deadline = time.monotonic() + self._grace
        asked: set[tuple[int, bytes]] = set()
        ours = _namespaces(os.getpid())
        while self._reap():
            patient = time.monotonic() < deadline
            for process in descendants(os.getpid()):
                if not patient:
                    send(process, signal.SIGKILL)
                elif process not in asked and not (self._sandboxed and _namespaces(process[0]) <= ours):
                    asked.add(process)
                    send(process, signal.SIGTERM)
            signal.sigtimedwait(watched, _LOOK_AGAIN_SECONDS)

    def _reap(self) -> bool:
        """Reaps what has ended, and says whether anyone is left."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if pid == 0:
                return True
            if pid == self._child:
                self._code = os.waitstatus_to_exitcode(status)

    def _disowned(self) -> bool:
        """Whether somebody removed our files by hand: nobody can find us any more, so we must not go on."""
        try:
            return not (self._record.exists() and os.path.samestat(os.fstat(self._lock), self._lock_path.stat()))
        except FileNotFoundError:
            return True

    def _mend_record(self) -> None:
        """Writes the record again if somebody wrote over it or the disk lost it: we alone know what we are."""
        with suppress(OSError):
            if self._record.read_bytes() != json.dumps(self._recorded).encode():
                _write(self._record, self._recorded)

    def _trim(self) -> None:
        """Cuts a long output: a command must not fill the disk in a month. It appends, so cutting under its feet is
        safe."""
        if self._output is not None and self._output.exists() and self._output.stat().st_size > _LARGEST_OUTPUT:
            os.truncate(self._output, 0)


def descendants(root: int) -> Iterator[tuple[int, bytes]]:
    """Yields (pid, start time) of each descendant: together they name a process for ever."""
    children: dict[int, list[tuple[int, bytes]]] = {}
    for name in os.listdir("/proc"):  # noqa: PTH208 - some hundreds per look
        if name.isdigit() and (fields := _stat(int(name))):
            children.setdefault(int(fields[_PARENT]), []).append((int(name), fields[_STARTED_AT]))
    found = list(children.get(root, ()))
    while found:
        process = found.pop()
        yield process
        found.extend(children.get(process[0], ()))


def send(process: tuple[int, bytes], number: signal.Signals) -> None:
    pid, started_at = process
    send_if(pid, number, lambda: _stat(pid)[_STARTED_AT : _STARTED_AT + 1] == [started_at])


def send_if(pid: int, number: signal.Signals, is_meant: Callable[[], bool]) -> None:
    """Signals a process if `is_meant` still says so once a descriptor pins it: what is checked is what is signalled."""
    try:
        pinned = os.pidfd_open(pid)
    except OSError:
        return
    try:
        if is_meant():
            signal.pidfd_send_signal(pinned, number)
    except OSError:  # gone, or not ours to end; whoever waits for the lock will say so
        pass
    finally:
        os.close(pinned)


def _namespaces(pid: int) -> int:
    """How many process namespaces the process is in, as far as we see: more than we are, if it is inside a sandbox."""
    try:
        with open(f"/proc/{pid}/status", "rb") as file:  # noqa: PTH123 - as above
            return next(len(line.split()) for line in file if line.startswith(b"NSpid:"))
    except (OSError, StopIteration):
        return 0


def _stat(pid: int) -> list[bytes]:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:  # noqa: PTH123 - as above
            return file.read().rpartition(b")")[2].split()
    except OSError:
        return []


if __name__ == "__main__":
    main()
