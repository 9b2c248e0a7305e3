"""A server as a supervised child: started so that it ends with us, waited for until it answers, noticed when it dies,
stopped; and the orphans that outlived their owner, which are normally none.

A server and all its children hold `server.lock` by inheritance, so a free lock proves that nobody serves this
directory. A held one is waited for, and its holders are signalled only when the kernel says that the process bears the
server's name and has this very directory as its working directory, or, where it says nothing about that, the start time
that was recorded; a recycled pid never fits.
"""

import asyncio
import os
import signal
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, NamedTuple

from codehub.adapters import ends_with_parent
from codehub.adapters.embedded.directory import Home, try_lock
from codehub.adapters.embedded.errors import EmbeddedError, did_not_start

START_SECONDS = 120.0  # recovery after a power loss may take its time
_LOOK_AGAIN_SECONDS = 0.02
_LOG_BYTES = 5_000_000
_LAST_LINES = 12
_STARTED = 19  # among the fields of /proc/PID/stat that follow the name


@dataclass(frozen=True)
class EmbeddedServer:
    url: str = field(repr=False)  # it holds the password
    pid: int
    log: Path
    process: asyncio.subprocess.Process = field(repr=False, compare=False)

    async def exited(self) -> int:
        """Returns when the server has ended, wanted or not; negative means by that signal."""
        return await self.process.wait()


async def launch(
    home: Home, *command: str | Path, lock: int, directory: Path | None = None, stdin: IO[bytes] | None = None
) -> asyncio.subprocess.Process:
    account = f"{home.account.uid}:{home.account.gid}" if home.account else "self"
    tied = ends_with_parent.command(*command, number=home.service.stop[0][0], lock=lock, account=account)
    log = os.open(home.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        return await asyncio.create_subprocess_exec(
            *tied,
            cwd=directory or home.data,
            env=ends_with_parent.interpreter_environment() | {"LC_ALL": "C"},
            stdin=stdin or asyncio.subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            pass_fds=(lock,),
            start_new_session=True,
        )
    finally:
        os.close(log)


async def run(home: Home, *command: str | Path, lock: int, directory: Path | None = None, stdin: IO[bytes]) -> None:
    begin = _end_of_log(home)
    process = await launch(home, *command, lock=lock, directory=directory, stdin=stdin)
    try:
        await process.wait()
    finally:
        await stop(process, home)
    if process.returncode:
        name = Path(command[0]).name
        raise did_not_start(home.service.title, f"{name} {_ending(process)}", home.log, _log_since(home, begin))


async def start(
    home: Home, *command: str | Path, lock: int, answers: Callable[[], Awaitable[bool]], stdin: IO[bytes] | None = None
) -> asyncio.subprocess.Process:
    begin = _end_of_log(home)
    process = await launch(home, *command, lock=lock, stdin=stdin)
    try:
        await _until_it_answers(home, process, answers, begin)
    except BaseException:
        await stop(process, home)
        raise
    return process


async def stop(process: asyncio.subprocess.Process, home: Home) -> None:
    for number, seconds in home.service.stop:
        if process.returncode is not None:
            return
        with suppress(ProcessLookupError):
            process.send_signal(number)
        with suppress(TimeoutError):
            await asyncio.wait_for(process.wait(), seconds)


@contextmanager
def private_stdin(home: Home, text: str) -> Iterator[IO[bytes]]:
    """A file for standard input that the server's account may open again by name, and that leaves no name on the
    disk."""
    with tempfile.TemporaryFile(dir=home.root) as file:
        file.write(text.encode())
        file.seek(0)
        if home.account:
            os.fchown(file.fileno(), home.account.uid, home.account.gid)
        yield file


async def _until_it_answers(
    home: Home, process: asyncio.subprocess.Process, answers: Callable[[], Awaitable[bool]], begin: int
) -> None:
    loop = asyncio.get_running_loop()
    deadline = loop.time() + START_SECONDS
    while process.returncode is None and loop.time() < deadline:
        if await answers():
            return
        await asyncio.sleep(_LOOK_AGAIN_SECONDS)
    raise did_not_start(home.service.title, _ending(process), home.log, _log_since(home, begin))


def _end_of_log(home: Home) -> int:
    """Where the server will write; a large log is put aside before."""
    try:
        size = home.log.stat().st_size
    except FileNotFoundError:
        return 0
    if size <= _LOG_BYTES:
        return size
    home.log.replace(home.log.with_suffix(".log.1"))
    return 0


def _log_since(home: Home, begin: int) -> str:
    with suppress(OSError), home.log.open("rb") as file:
        file.seek(begin)
        lines = file.read(_LOG_BYTES).decode(errors="replace").splitlines()
        return "\n".join(f"  {line}" for line in lines[-_LAST_LINES:])
    return ""


def _ending(process: asyncio.subprocess.Process) -> str:
    if process.returncode is None:
        return f"no answer within {START_SECONDS:.0f} s"
    if process.returncode < 0:
        return f"ended by {signal.Signals(-process.returncode).name}"
    return f"ended with code {process.returncode}"


class _Process(NamedTuple):
    name: str
    dead: bool
    started: str


@asynccontextmanager
async def nobody_serves(home: Home) -> AsyncIterator[int]:
    """Ends orphans and yields the lock for the server to inherit; ours is given up at the end."""
    lock = await _claim(home)
    try:
        yield lock
    finally:
        os.close(lock)


async def _claim(home: Home) -> int:
    lock = try_lock(home.server_lock)
    for number, seconds in home.service.stop:
        if lock is not None:
            return lock
        # Only the server itself understands the gentle signals; to its children they mean other things.
        for pid in _recorded(home) | (servers_in(home) if number is signal.SIGKILL else set()):
            _signal(home, pid, number)
        lock = await _lock_within(home.server_lock, seconds)
    if lock is None:
        ours = {pid for pid in servers_in(home) | _recorded(home) if _ours(home, pid)}
        who = ", ".join(map(str, sorted(ours))) or "unknown"
        raise EmbeddedError(
            f"a {home.service.title} of an earlier run (process {who}) still uses {home.data} and does not end: "
            "end it by hand, then start again"
        )
    return lock


def servers_in(home: Home) -> set[int]:
    pids = (int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit())
    return {pid for pid in pids if lives_in(home, pid)}


def lives_in(home: Home, pid: int) -> bool | None:
    """Whether the process is a server in this directory; None: the kernel does not let us look."""
    try:
        process = _look(pid)
        if process.name != home.service.process or process.dead:
            return False
        return os.path.samestat(Path(f"/proc/{pid}/cwd").stat(), home.data.stat())
    except PermissionError:
        return None
    except OSError:  # it is gone
        return False


def _ours(home: Home, pid: int) -> bool:
    lives = lives_in(home, pid)
    # Root in a container is often not allowed to look at another account's process; then the record must do.
    return pid in _recorded(home) if lives is None else lives


def _recorded(home: Home) -> set[int]:
    match home.server_lock.read_text().split():
        case [pid, started] if started == _start_time(int(pid)):
            return {int(pid)}
    return set()


def _start_time(pid: int) -> str | None:
    try:
        return _look(pid).started
    except OSError:
        return None


def _look(pid: int) -> _Process:
    head, _, tail = Path(f"/proc/{pid}/stat").read_text().rpartition(")")
    fields = tail.split()
    # A zombie waits for a parent that may never ask, as in a container without an init.
    return _Process(name=head.partition("(")[2], dead=fields[0] in {"Z", "X"}, started=fields[_STARTED])


def _signal(home: Home, pid: int, number: signal.Signals) -> None:
    # The descriptor pins the process first, so what is checked is what is signalled.
    try:
        process = os.pidfd_open(pid)
    except OSError:
        return
    try:
        if _ours(home, pid):
            signal.pidfd_send_signal(process, number)
    except ProcessLookupError:
        pass
    finally:
        os.close(process)


async def _lock_within(path: Path, seconds: float) -> int | None:
    loop = asyncio.get_running_loop()
    deadline = loop.time() + seconds
    while loop.time() < deadline:
        lock = try_lock(path)
        if lock is not None:
            return lock
        await asyncio.sleep(_LOOK_AGAIN_SECONDS)
    return None
