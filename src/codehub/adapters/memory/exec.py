"""Commands inside a workspace that is in memory: an interpreter of a few words, with the streams, the terminal and the
endings of real ones. It has no files and no processes; a program that it does not know is not found.

It knows echo, cat, pwd, printenv, sleep, stty size, true, false, and `sh -c` of a list of these with `;`, `>&2`, `exit
N` and `kill -NAME $$`. An empty command is a shell that echoes what is typed and ends with its input.
"""

import asyncio
import shlex
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from signal import Signals

from codehub.domain.errors import ExecInterrupted, Invalid
from codehub.ports.exec import SIGNALS, ExecRequest, ExitStatus, Output, OutputStream, TerminalSize

HOME = "/home/coder"
_WRONG_USAGE, _NOT_FOUND, _SIGNALLED = 2, 127, 128
_MOST_CHUNKS = 4
_HARMLESS = frozenset(("CONT", "WINCH"))

Program = Callable[["MemoryExecSession", list[str]], Awaitable[int]]


class _Killed(Exception):
    """The command sends itself a signal."""


class MemoryExecSession:
    """`env`: the workspace's variables."""

    def __init__(self, request: ExecRequest, env: Mapping[str, str]) -> None:
        self.env = {"HOME": HOME, "SHELL": "/bin/sh", **env, **request.env}
        self.cwd = request.cwd or HOME
        self.size = request.terminal
        self._input: asyncio.Queue[bytes | None] = asyncio.Queue(_MOST_CHUNKS)
        self._output: asyncio.Queue[Output | None] = asyncio.Queue(_MOST_CHUNKS)
        self._ended: asyncio.Future[ExitStatus] = asyncio.get_running_loop().create_future()
        self._running = asyncio.create_task(self._run(list(request.argv)))

    # ── for its caller ───────────────────────────────────────────────────────────────────────────────────────────────

    async def read(self) -> Output | None:
        if self._ended.done() and self._output.empty():
            self._ended.result()
            return None
        output = await self._output.get()
        return output if output is not None else await self.read()

    async def write(self, data: bytes) -> None:
        if data:
            await self._give(data)

    async def write_eof(self) -> None:
        await self._give(None)

    async def resize(self, size: TerminalSize) -> None:
        if self.size is not None:
            self.size = size

    async def signal(self, name: str) -> None:
        if name not in SIGNALS:
            raise Invalid(f"There is no signal {name}: use one of {', '.join(sorted(SIGNALS))}.")
        if name not in _HARMLESS:
            await self._end(_signalled(name))

    async def wait(self) -> ExitStatus:
        return await asyncio.shield(self._ended)

    async def close(self) -> None:
        self.interrupt("The session was closed before its command had ended.")
        with suppress(asyncio.CancelledError):
            await self._running

    def interrupt(self, message: str = "The workspace was stopped.") -> None:
        """The command ends with its workspace, without a word."""
        if not self._ended.done():
            self._ended.set_exception(ExecInterrupted(message))
            self._ended.exception()
            self._running.cancel()
            while not self._output.empty():
                self._output.get_nowait()
            self._output.put_nowait(None)

    async def _give(self, data: bytes | None) -> None:
        giving = asyncio.ensure_future(self._input.put(data))
        await asyncio.wait({giving, self._running}, return_when=asyncio.FIRST_COMPLETED)
        giving.cancel()  # a command that has ended takes nothing more

    # ── for its command ──────────────────────────────────────────────────────────────────────────────────────────────

    async def say(self, data: bytes, stream: OutputStream = OutputStream.STDOUT) -> None:
        together = stream if self.size is None else OutputStream.STDOUT
        await self._output.put(Output(together, data))

    async def given(self) -> bytes | None:
        return await self._input.get()

    async def _run(self, argv: list[str]) -> None:
        try:
            status = ExitStatus(await _run(self, argv or ["cat"]))
        except _Killed as killed:
            status = _signalled(str(killed))
        except (ValueError, LookupError):  # it was told something that a real one would complain of
            status = ExitStatus(_WRONG_USAGE)
        self._ended.set_result(status)
        await self._output.put(None)

    async def _end(self, status: ExitStatus) -> None:
        if not self._ended.done():
            self._running.cancel()
            self._ended.set_result(status)
            with suppress(asyncio.QueueFull):  # else who reads finds the end by itself
                self._output.put_nowait(None)


def _signalled(name: str) -> ExitStatus:
    return ExitStatus(_SIGNALLED + Signals[f"SIG{name}"], name)


async def _run(session: MemoryExecSession, argv: list[str]) -> int:
    program = _PROGRAMS.get(argv[0])
    if program is None:
        message = f"codehub: cannot run {argv[0]}: No such file or directory\n"
        await session.say(message.encode(), OutputStream.STDERR)
        return _NOT_FOUND
    return await program(session, argv[1:])


async def _echo(session: MemoryExecSession, words: list[str]) -> int:
    errors = words[-1:] == [">&2"]
    text = " ".join(words[:-1] if errors else words) + "\n"
    await session.say(text.encode(errors="surrogateescape"), OutputStream.STDERR if errors else OutputStream.STDOUT)
    return 0


async def _cat(session: MemoryExecSession, _words: list[str]) -> int:
    while (data := await session.given()) is not None:
        await session.say(data)
    return 0


async def _pwd(session: MemoryExecSession, _words: list[str]) -> int:
    return await _echo(session, [session.cwd])


async def _printenv(session: MemoryExecSession, words: list[str]) -> int:
    value = session.env.get(words[0])
    return 1 if value is None else await _echo(session, [value])


async def _sleep(_session: MemoryExecSession, words: list[str]) -> int:
    await asyncio.sleep(float(words[0]))
    return 0


async def _stty(session: MemoryExecSession, _words: list[str]) -> int:
    if session.size is None:
        await session.say(b"stty: 'standard input': Inappropriate ioctl for device\n", OutputStream.STDERR)
        return 1
    return await _echo(session, [f"{session.size.rows} {session.size.columns}"])


async def _sh(session: MemoryExecSession, words: list[str]) -> int:
    code = 0
    for line in words[1].split(";"):
        argv = shlex.split(line)
        if argv[:1] == ["exit"]:
            return int(argv[1])
        if argv[:1] == ["kill"]:
            raise _Killed(argv[1].removeprefix("-"))
        code = await _run(session, argv) if argv else code
    return code


async def _true(_session: MemoryExecSession, _words: list[str]) -> int:
    return 0


async def _false(_session: MemoryExecSession, _words: list[str]) -> int:
    return 1


_PROGRAMS: Mapping[str, Program] = {
    "echo": _echo,
    "cat": _cat,
    "pwd": _pwd,
    "printenv": _printenv,
    "sleep": _sleep,
    "stty": _stty,
    "sh": _sh,
    "true": _true,
    "false": _false,
}
