"""A server as a supervised child: started so that it ends with us, waited for until it answers, noticed when it dies,
stopped.
"""

import asyncio
import os
import signal
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from codehub.adapters import ends_with_parent
from codehub.adapters.embedded.directory import Home, log_size, log_tail, open_log
from codehub.adapters.embedded.errors import did_not_start

START_SECONDS = 120.0  # recovery after a power loss may take its time
_LOOK_AGAIN_SECONDS = 0.02


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
    log = open_log(home)
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
    begin = log_size(home)
    process = await launch(home, *command, lock=lock, directory=directory, stdin=stdin)
    try:
        await process.wait()
    finally:
        await stop(process, home)
    if process.returncode:
        name = Path(command[0]).name
        raise did_not_start(home.service.title, f"{name} {_ending(process)}", home.log, log_tail(home, begin))


async def start(
    home: Home,
    *command: str | Path,
    lock: int,
    answers: Callable[[], Awaitable[bool]],
    stdin: IO[bytes] | None = None,
) -> asyncio.subprocess.Process:
    begin = log_size(home)
    process = await launch(home, *command, lock=lock, stdin=stdin)
    try:
        await _until_it_answers(home, process, answers, begin)
    except BaseException:
        await stop(process, home)
        raise
    return process


async def stop(process: asyncio.subprocess.Process, home: Home) -> None:
    for number, patience in home.service.stop:
        if process.returncode is not None:
            return
        with suppress(ProcessLookupError):
            process.send_signal(number)
        with suppress(TimeoutError):
            await asyncio.wait_for(process.wait(), patience)


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
    raise did_not_start(home.service.title, _ending(process), home.log, log_tail(home, begin))


def _ending(process: asyncio.subprocess.Process) -> str:
    if process.returncode is None:
        return f"no answer within {START_SECONDS:.0f} s"
    if process.returncode < 0:
        return f"ended by {signal.Signals(-process.returncode).name}"
    return f"ended with code {process.returncode}"
