"""A command that runs inside a running workspace, as the workspace's own user, with its environment and secrets.

`Runtime.exec` starts one and gives a session: the command's standard streams, its terminal if it has one, and its end.
Bytes are never lost and never kept without bound: whoever does not read holds the command up, and a command that does
not read holds the writer up. A session belongs to one task that reads and one that writes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple, Protocol

from codehub.domain.errors import Invalid

SIGNALS = frozenset(
    ("ABRT", "ALRM", "CONT", "HUP", "INT", "KILL", "PIPE", "QUIT", "STOP", "TERM", "TSTP", "USR1", "USR2", "WINCH")
)
"""The signals that a caller may send to a command, named as SSH names them."""


@dataclass(frozen=True, slots=True)
class TerminalSize:
    columns: int
    rows: int


@dataclass(frozen=True, slots=True)
class ExecRequest:
    """What is run. `argv` empty: the user's login shell. `env`: besides the workspace's own variables, or instead of
    those of the same name. `cwd`: an absolute path, or one below the home; None is the home. `terminal`: the command
    gets a terminal of this size, on which its standard error is one with its standard output; None: it gets pipes.
    `TERM` is the caller's to say in `env`. Bytes that are no text are surrogates, as in file names. Invalid if it
    cannot be run anywhere."""

    argv: Sequence[str] = ()
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    cwd: str | None = None
    terminal: TerminalSize | None = None

    def __post_init__(self) -> None:
        for word in (*self.argv, *self.env.keys(), *self.env.values(), self.cwd or ""):
            if not _is_passable(word):
                raise Invalid("An argument, variable or directory of a command is not text, or holds a zero byte.")
        if any(not name or "=" in name for name in self.env):
            raise Invalid("The name of a variable is not empty and holds no '='.", "env")
        if self.argv and not self.argv[0]:
            raise Invalid("The program has no name.", "argv")


def _is_passable(word: str) -> bool:
    try:
        return b"\0" not in word.encode(errors="surrogateescape")
    except UnicodeEncodeError:
        return False


class OutputStream(StrEnum):
    STDOUT = "stdout"
    STDERR = "stderr"


class Output(NamedTuple):
    stream: OutputStream
    data: bytes


@dataclass(frozen=True, slots=True)
class ExitStatus:
    """How a command ended. `code`: its exit code; of one that a signal ended, 128 and the signal's number, as shells
    say it. `signal_name`: that signal, without SIG. A program that cannot be run ends with 127 (there is none) or 126,
    and a line on its standard error."""

    code: int
    signal_name: str | None = None


class ExecSession(Protocol):
    async def read(self) -> Output | None:
        """The next output; None once all was read. Raises domain.errors.ExecInterrupted if the connection ended before
        the command did: the workspace was stopped, or its machine is gone."""
        ...

    async def write(self, data: bytes) -> None:
        """Gives the command input. Returns when it may be given more. A command that has closed its input or has ended
        takes it without effect."""
        ...

    async def write_eof(self) -> None:
        """Ends the command's input. On a terminal, this is what its end-of-file character does."""
        ...

    async def resize(self, size: TerminalSize) -> None:
        """Changes the size of the terminal; nothing without one."""
        ...

    async def signal(self, name: str) -> None:
        """Sends a signal to the command and what it runs: to its process group, or the foreground group of its
        terminal. `name`: one of SIGNALS, else Invalid. One that has ended is left alone."""
        ...

    async def wait(self) -> ExitStatus:
        """How the command ended. It ends only if its output is read: after the last of it, `read` gives None and this
        returns. Raises ExecInterrupted as `read` does."""
        ...

    async def close(self) -> None:
        """Leaves the session. A command that still runs is hung up: its group gets SIGHUP, and SIGKILL a moment later.
        What left the group, as nohup with setsid does, goes on. May be called again."""
        ...
