"""One SSH session: a shell, a command or a subsystem, run inside the workspace and connected to the client.

Both directions hold each other up: a client that does not read stops the command, and a command that does not read
stops the client. Signals and changes of the terminal's size pass a writer that waits. Output comes before the end, and
the end is the command's own: its exit code, or the signal that ended it.
"""

import asyncio
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, Final, Protocol
from uuid import UUID

import asyncssh

from codehub.domain.errors import CodeHubError, ExecInterrupted, Invalid
from codehub.ports.exec import ExecRequest, ExecSession, ExitStatus, OutputStream, TerminalSize
from codehub.ssh.presence import KeystrokeFilter, WorkSign, work_sign
from codehub.telemetry import get_logger
from codehub.usecases.ssh_access import Tell, refusal

log = get_logger(__name__)

REFUSED: Final = 255
"""The exit code of a session that could not begin, as OpenSSH's own failures have it."""
INTERRUPTED: Final = "HUP"
"""The signal that a client is told of when the connection to its command was lost."""
MOST_QUEUED: Final = 1 << 20
MOST_PENDING_SIGNALS: Final = 8
"""How many signals wait to be passed on; more are dropped."""
_DEFAULT_SIZE: Final = TerminalSize(80, 24)
_LONGEST_VALUE: Final = 4096
_MOST_VARIABLES: Final = 64
_VARIABLES: Final = ("LANG", "LANGUAGE", "COLORTERM", "TZ")
_PREFIXES: Final = ("LC_", "GIT_")
_SFTP: Final = (
    "for p in /usr/lib/openssh /usr/lib/ssh /usr/libexec/openssh /usr/libexec; do "
    '[ -x "$p/sftp-server" ] && exec "$p/sftp-server"; done; '
    "echo 'codehub: there is no sftp-server in this workspace: install openssh-sftp-server there' >&2; exit 127"
)
_COMMAND: Final = 'exec "${SHELL:-/bin/sh}" -c "$0"'


class SessionOwner(Protocol):
    """The connection that a session belongs to. `is_read`: set while the client reads what it is sent."""

    is_read: asyncio.Event

    async def start(self, request: ExecRequest, said: str, tell: Tell) -> tuple[UUID, ExecSession]:
        """Starts the command in the connection's workspace, which is woken if it sleeps. `said`: what the audit log
        says of it. Raises CodeHubError."""
        ...

    def closed(self, session: "WorkspaceSession") -> None: ...

    def worked(self, workspace_id: UUID) -> None:
        """Somebody was seen at work in the workspace."""
        ...


def accepted_variables(offered: "dict[str, str]") -> dict[str, str]:
    """Those variables of the client that a session is given."""
    chosen = {
        name: value
        for name, value in offered.items()
        if (name in _VARIABLES or name.startswith(_PREFIXES)) and len(value) <= _LONGEST_VALUE
    }
    return dict(list(chosen.items())[:_MOST_VARIABLES])


class WorkspaceSession(asyncssh.SSHServerSession[bytes]):
    def __init__(self, owner: SessionOwner) -> None:
        self._owner = owner
        self._command: str | None = None
        self._subsystem: str | None = None
        self._terminal: TerminalSize | None = None
        self._input: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._queued = 0
        self._may_write = asyncio.Event()
        self._may_write.set()
        self._keystrokes = KeystrokeFilter()
        self._exec: ExecSession | None = None
        self._is_resizing = False
        self._pending_signals = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self.workspace_id: UUID | None = None
        self.sign = WorkSign.RUNNING

    # ── what the client asks for ─────────────────────────────────────────────────────────────────────────────────────

    def connection_made(self, chan: "asyncssh.SSHServerChannel[bytes]") -> None:
        self._chan = chan

    def pty_requested(self, _term_type: str, term_size: tuple[int, int, int, int], _term_modes: Any) -> bool:  # noqa: ANN401 - the library's
        self._terminal = _size(*term_size[:2])
        return True

    def shell_requested(self) -> bool:
        return True

    def exec_requested(self, command: str) -> bool:
        self._command = command
        return True

    def subsystem_requested(self, subsystem: str) -> bool:
        self._subsystem = subsystem
        return subsystem == "sftp"

    def session_started(self) -> None:
        self.sign = work_sign(has_terminal=self._terminal is not None, command=self._command, subsystem=self._subsystem)
        self._begin(self._run())

    def data_received(self, data: bytes, _datatype: asyncssh.DataType) -> None:
        self._note_input(data)
        self._queued += len(data)
        self._input.put_nowait(data)
        if self._queued > MOST_QUEUED:
            self._chan.pause_reading()

    def eof_received(self) -> bool:
        self._input.put_nowait(None)
        return True

    def terminal_size_changed(self, width: int, height: int, _pixwidth: int, _pixheight: int) -> None:
        self._terminal = _size(width, height)
        if self._exec is not None and not self._is_resizing:
            self._is_resizing = True
            self._begin(self._resize(self._exec))

    def signal_received(self, signal: str) -> None:
        if self._exec is not None and self._pending_signals < MOST_PENDING_SIGNALS:
            self._pending_signals += 1
            self._begin(self._signal(self._exec, signal))

    def break_received(self, _msec: int) -> bool:
        return False

    def pause_writing(self) -> None:
        self._may_write.clear()

    def resume_writing(self) -> None:
        self._may_write.set()

    def connection_lost(self, _exc: Exception | None) -> None:
        self._owner.closed(self)
        for task in self._tasks:
            task.cancel()

    # ── what is done ─────────────────────────────────────────────────────────────────────────────────────────────────

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run(self) -> None:
        try:
            await self._serve()
        except CodeHubError as error:
            self._tell(refusal(error))
            self._chan.exit(REFUSED)
        except Exception:
            log.exception("ssh session failed")
            self._tell("this went wrong on our side; the gateway's log says how")
            self._chan.exit(REFUSED)

    async def _serve(self) -> None:
        """Runs the session to its end. Raises CodeHubError if it cannot begin."""
        asked = self._request()
        self.workspace_id, self._exec = await self._owner.start(asked, self._said(), self._tell)
        writing = asyncio.create_task(self._write_input(self._exec))
        try:
            if self._terminal is not None and self._terminal != asked.terminal:
                await self._exec.resize(self._terminal)  # it was changed meanwhile
            await self._finish(await self._copy_output(self._exec))
        except ExecInterrupted as error:
            self._tell(str(error))
            self._chan.exit_with_signal(INTERRUPTED, msg=str(error))
        finally:
            writing.cancel()
            await asyncio.shield(self._exec.close())

    async def _finish(self, status: ExitStatus) -> None:
        if status.signal_name is None:
            self._chan.exit(status.code)
        else:
            self._chan.exit_with_signal(status.signal_name)

    async def _copy_output(self, session: ExecSession) -> ExitStatus:
        while (output := await session.read()) is not None:
            await self._may_write.wait()
            await self._owner.is_read.wait()
            if self.sign is WorkSign.BYTES:
                self._work()
            if output.stream is OutputStream.STDERR:
                self._chan.write_stderr(output.data)
            else:
                self._chan.write(output.data)
        return await session.wait()

    async def _write_input(self, session: ExecSession) -> None:
        while True:
            data = await self._input.get()
            if data is None:
                await session.write_eof()
                continue
            await session.write(data)
            self._queued -= len(data)
            if self._queued <= MOST_QUEUED // 2:
                self._chan.resume_reading()

    async def _resize(self, session: ExecSession) -> None:
        """Passes on the terminal's size; of those that come meanwhile, the last."""
        passed: TerminalSize | None = None
        try:
            while self._terminal is not None and self._terminal != passed:
                passed = self._terminal
                await session.resize(passed)
        finally:
            self._is_resizing = False

    async def _signal(self, session: ExecSession, name: str) -> None:
        try:
            with suppress(Invalid):  # one that we do not pass on, as OpenSSH's server does not
                await session.signal(name)
        finally:
            self._pending_signals -= 1

    def _note_input(self, data: bytes) -> None:
        if self.sign is WorkSign.KEYSTROKES:
            if self._keystrokes.has_keystrokes(data):
                self._work()
        elif self.sign is not WorkSign.RUNNING:
            self._work()

    def _work(self) -> None:
        if self.workspace_id is not None:
            self._owner.worked(self.workspace_id)

    def tick(self) -> None:
        """Called regularly: a command without a terminal counts as work while it runs."""
        if self.sign is WorkSign.RUNNING and self._exec is not None:
            self._work()

    def _request(self) -> ExecRequest:
        env = accepted_variables({str(name): str(value) for name, value in self._chan.get_environment().items()})
        if term := self._chan.get_terminal_type():
            env["TERM"] = term
        return ExecRequest(self._argv(), env, terminal=self._terminal)

    def _argv(self) -> tuple[str, ...]:
        if self._subsystem is not None:
            return ("/bin/sh", "-c", _SFTP)
        return () if self._command is None else ("/bin/sh", "-c", _COMMAND, self._command)

    def _said(self) -> str:
        return self._subsystem or self._command or "shell"

    def _tell(self, text: str) -> None:
        """Shows a line to the person, apart from the command's own output where there is no terminal."""
        line = "".join(character for character in text if character.isprintable())
        self._chan.write_stderr(f"codehub: {line}\r\n".encode() if self._terminal else f"codehub: {line}\n".encode())


def _size(columns: int, rows: int) -> TerminalSize:
    return TerminalSize(columns, rows) if 0 < columns < 65536 and 0 < rows < 65536 else _DEFAULT_SIZE
