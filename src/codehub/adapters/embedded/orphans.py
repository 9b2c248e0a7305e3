"""Servers that outlived their owner. Normally none, for they end with it; this is for those that do not end at once.

A server and all its children hold `server.lock` by inheritance, so a free lock proves that nobody serves this
directory. A held one is waited for, and its holders are signalled only when the kernel says that the process bears the
server's name and has this very directory as its working directory, or, where it says nothing about that, the start time
that was recorded; a recycled pid never fits.
"""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple

from codehub.adapters.embedded.directory import Home, try_lock
from codehub.adapters.embedded.errors import EmbeddedError

_LOOK_AGAIN_SECONDS = 0.02
_STARTED = 19  # among the fields of /proc/PID/stat that follow the name


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
    for number, patience in home.service.stop:
        if lock is not None:
            return lock
        # Only the server itself understands the gentle signals; to its children they mean other things.
        for pid in _recorded(home) | (servers_in(home) if number is signal.SIGKILL else set()):
            _signal(home, pid, number)
        lock = await _lock_within(home.server_lock, patience)
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
