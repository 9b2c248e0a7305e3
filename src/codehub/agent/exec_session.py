"""A command inside a workspace for a caller outside: `python -m codehub.agent.exec_session SOCKET`.

Each session is a process of its own, forked for one connection: it starts the command with pipes or a terminal and
passes frames (exec_frames.py) until the command has ended and all its output is sent. In a container the agent forks
it after the handshake; beside a workspace without an agent, this program listens at a unix socket and does. Nothing is
imported later: the files may have been replaced by then.
"""

import os
import select
import signal
import socket
import struct
import sys
import termios
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from errno import ENOENT
from fcntl import ioctl
from typing import NamedTuple, NoReturn

from codehub.agent.exec_frames import (
    MOST_DATA_BYTES,
    WINDOW_BYTES,
    Frame,
    Frames,
    OpenFrame,
    count_payload,
    exit_payload,
    frame,
    parsed_open,
    parsed_size,
)

_CANNOT_RUN, _NOT_FOUND, _SIGNALLED = 126, 127, 128
_MOST_UNSENT_BYTES = 256 << 10
_LINGER_SECONDS = 1.0
"""How long after a command's end its output is waited for while something that it left holds the pipes open."""
GRACE_SECONDS = 5.0
"""How long a command that was hung up may take to end."""
_END_OF_FILE = b"\x04"
_LOCAL_FLAGS = 3  # in what tcgetattr gives
_BACKLOG = 128
_KEEPALIVE = ((socket.TCP_KEEPIDLE, 30), (socket.TCP_KEEPINTVL, 10), (socket.TCP_KEEPCNT, 3))
_RESET = (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGCHLD)
_SHELLS = ("/bin/bash", "/bin/sh")


class Command(NamedTuple):
    """A started command. `stdin` and `stdout` are the same descriptor for one with a terminal, which has no `stderr`;
    `ended` becomes readable at its end."""

    pid: int
    ended: int
    stdin: int
    stdout: int
    stderr: int = -1

    @property
    def has_terminal(self) -> bool:
        return self.stdin == self.stdout


# ── starting ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def start(request: OpenFrame, environ: Mapping[bytes, bytes]) -> Command:
    """Starts the command in a process session of its own, so that its group is all that it did not let go of."""
    return _start_with_pipes(request, environ) if request.terminal is None else _start_with_terminal(request, environ)


def _start_with_pipes(request: OpenFrame, environ: Mapping[bytes, bytes]) -> Command:
    given, output, errors = os.pipe(), os.pipe(), os.pipe()

    def become() -> None:
        os.setsid()
        for descriptor, number in ((given[0], 0), (output[1], 1), (errors[1], 2)):
            os.dup2(descriptor, number)
        _execute(request, environ)

    pid = _forked(become)
    for descriptor in (given[0], output[1], errors[1]):
        os.close(descriptor)
    for descriptor in (given[1], output[0], errors[0]):
        os.set_blocking(descriptor, False)
    return Command(pid, os.pidfd_open(pid), given[1], output[0], errors[0])


def _start_with_terminal(request: OpenFrame, environ: Mapping[bytes, bytes]) -> Command:
    ours, theirs = os.openpty()
    _resize(ours, request.terminal or (80, 24))

    def become() -> None:
        os.login_tty(theirs)
        _execute(request, environ)

    pid = _forked(become)
    os.close(theirs)
    os.set_blocking(ours, False)
    return Command(pid, os.pidfd_open(pid), ours, ours)


def _forked(become: Callable[[], None]) -> int:
    """A child that becomes the command. It has its group and its signals when this returns, so that no signal for it is
    lost."""
    told, tell = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            become()
        finally:
            os._exit(_CANNOT_RUN)
    os.close(tell)
    os.read(told, 1)
    os.close(told)
    return pid


def _execute(request: OpenFrame, environ: Mapping[bytes, bytes]) -> NoReturn:
    """Becomes the command, or says on its standard error why not."""
    code, what = _CANNOT_RUN, b"the command"
    try:
        for number in _RESET:
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        env = _environment(request, environ)
        home = env.get(b"HOME", b"/")
        what = os.path.join(home, request.cwd)  # noqa: PTH118 - pathlib is a third of our memory
        os.chdir(what)
        shell = env[b"SHELL"]
        program = request.argv[0] if request.argv else shell
        argv = list(request.argv) or [b"-" + os.path.basename(shell)]  # noqa: PTH119 - as above
        what = program
        os.closerange(3, os.sysconf("SC_OPEN_MAX"))
        os.execvpe(program, argv, env)  # noqa: S606 - that is the whole purpose
    except OSError as error:
        code = _NOT_FOUND if error.errno == ENOENT and what in (request.argv or ())[:1] else _CANNOT_RUN
        os.write(2, b"codehub: cannot run " + what + b": " + os.strerror(error.errno or 0).encode() + b"\n")
    finally:
        os._exit(code)


def _environment(request: OpenFrame, environ: Mapping[bytes, bytes]) -> dict[bytes, bytes]:
    env = {**environ, **request.env}
    if request.terminal is not None:
        env.setdefault(b"TERM", b"xterm-256color")
    user, shell = _account()
    env.setdefault(b"SHELL", shell)
    env.setdefault(b"USER", user)
    env.setdefault(b"LOGNAME", env[b"USER"])
    return env


def _account() -> tuple[bytes, bytes]:
    """The name and login shell of our user, by /etc/passwd; not every image has an entry for it."""
    user, shell, number = b"coder", b"", str(os.getuid()).encode()
    with suppress(OSError), open("/etc/passwd", "rb") as file:  # noqa: PTH123 - as above
        for line in file:
            fields = line.rstrip(b"\n").split(b":")
            if fields[2:3] == [number]:
                user, shell = fields[0], fields[-1]
                break
    found = (one for one in (os.fsdecode(shell), *_SHELLS) if one and os.access(one, os.X_OK))
    return user, os.fsencode(next(found, _SHELLS[-1]))


def environment_of(pid: int) -> dict[bytes, bytes]:
    """The variables that a process was started with; none if it cannot be told."""
    with suppress(OSError), open(f"/proc/{pid}/environ", "rb") as file:  # noqa: PTH123 - as above
        pairs = (line.partition(b"=") for line in file.read().split(b"\0") if line)
        return {name: value for name, _, value in pairs}
    return {}


def _resize(terminal: int, size: tuple[int, int]) -> None:
    columns, rows = size
    with suppress(OSError):
        ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))


# ── passing frames ───────────────────────────────────────────────────────────────────────────────────────────────────


class Gone(Exception):
    """The caller's connection has ended before the command did."""


class Session:
    """One connection and one command. `_unsent`: frames for the caller. `_input`: what the command has not read."""

    def __init__(self, sock: socket.socket, command: Command, frames: Frames) -> None:
        self._sock = sock
        self._command = command
        self._frames = frames
        self._unsent = bytearray()
        self._input = bytearray()
        self._input_ends = False
        self._stdin = command.stdin
        self._outputs = {command.stdout: Frame.STDOUT}
        if command.stderr >= 0:
            self._outputs[command.stderr] = Frame.STDERR
        self._status: int | None = None
        self._quiet_since = 0.0
        """Since when the command has ended and nothing of its output was left to read or to send."""

    def run(self, first: list[tuple[int, bytes]]) -> None:
        """Passes frames until all is said. Raises Gone."""
        for kind, payload in first:
            self._heard(kind, payload)
        while self._goes_on():
            self._pass_on()
        code = os.waitstatus_to_exitcode(self._status or 0)
        name = "" if code >= 0 else signal.Signals(-code).name.removeprefix("SIG")
        self._unsent += frame(Frame.EXIT, exit_payload(code if code >= 0 else _SIGNALLED - code, name))
        self._sock.setblocking(True)
        with suppress(OSError):
            self._sock.sendall(self._unsent)
            self._sock.shutdown(socket.SHUT_WR)
            # Closing while input is unread would be a reset, and would take back what was sent.
            while self._sock.recv(MOST_DATA_BYTES):
                pass

    def _goes_on(self) -> bool:
        if self._status is None:
            return True
        if self._unsent:
            self._quiet_since = time.monotonic()
        return bool(self._outputs) and time.monotonic() - self._quiet_since < _LINGER_SECONDS

    def _pass_on(self) -> None:
        poll = select.poll()
        wanted = {self._sock.fileno(): select.POLLIN | (select.POLLOUT if self._unsent else 0)}
        if len(self._unsent) < _MOST_UNSENT_BYTES:
            wanted |= dict.fromkeys(self._outputs, select.POLLIN)
        if self._stdin >= 0 and self._input:
            wanted[self._stdin] = wanted.get(self._stdin, 0) | select.POLLOUT
        if self._status is None:
            wanted[self._command.ended] = select.POLLIN
        for descriptor, events in wanted.items():
            poll.register(descriptor, events)
        for descriptor, events in poll.poll(None if self._status is None else _LINGER_SECONDS * 1000):
            self._ready(descriptor, events, wanted[descriptor])
        self._flush()

    def _ready(self, descriptor: int, events: int, wanted: int) -> None:
        if descriptor == self._sock.fileno():
            if events & ~select.POLLOUT:
                self._receive()
        elif descriptor == self._command.ended:
            self._status = os.waitpid(self._command.pid, 0)[1]
            self._quiet_since = time.monotonic()
        else:
            if descriptor == self._stdin and self._input and events & ~select.POLLIN:
                self._feed()
            if descriptor in self._outputs and wanted & select.POLLIN and events & ~select.POLLOUT:
                self._read(descriptor)

    def _read(self, descriptor: int) -> None:
        try:
            data = os.read(descriptor, MOST_DATA_BYTES)
        except BlockingIOError:
            return
        except OSError:  # a terminal that nobody has open any more
            data = b""
        if data:
            self._quiet_since = time.monotonic()
            self._unsent += frame(self._outputs[descriptor], data)
            self._flush()
            return
        del self._outputs[descriptor]
        if descriptor != self._stdin:
            os.close(descriptor)

    def _flush(self) -> None:
        try:
            while self._unsent:
                del self._unsent[: self._sock.send(self._unsent)]
        except BlockingIOError:
            return
        except OSError:
            raise Gone from None

    def _receive(self) -> None:
        try:
            data = self._sock.recv(WINDOW_BYTES)
            frames = self._frames.feed(data)
        except BlockingIOError:
            return
        except (OSError, ValueError):
            raise Gone from None
        if not data:
            raise Gone
        for kind, payload in frames:
            self._heard(kind, payload)

    def _heard(self, kind: int, payload: bytes) -> None:
        if kind == Frame.STDIN:
            self._input += payload
            if len(self._input) > WINDOW_BYTES:
                raise Gone
            self._feed()
        elif kind == Frame.STDIN_EOF:
            self._input_ends = True
            self._feed()
        elif kind == Frame.RESIZE and self._command.has_terminal:
            with suppress(struct.error):
                _resize(self._command.stdin, parsed_size(payload))
        elif kind == Frame.SIGNAL:
            number = getattr(signal, "SIG" + payload.decode(errors="replace"), None)
            if isinstance(number, signal.Signals) and self._status is None:
                _signal(self._command, number)

    # ── input ────────────────────────────────────────────────────────────────────────────────────────────────────────

    def _feed(self) -> None:
        """Gives the command what it takes of its input now."""
        taken = 0
        try:
            while self._input and self._stdin >= 0:
                written = os.write(self._stdin, self._input)
                del self._input[:written]
                taken += written
        except BlockingIOError:
            pass
        except OSError:  # it reads no more
            self._end_input()
        if self._stdin < 0:
            taken += len(self._input)
            self._input.clear()
        if taken:
            self._unsent += frame(Frame.TAKEN, count_payload(taken))
        if self._input_ends and not self._input and self._stdin >= 0:
            self._end_input()

    def _end_input(self) -> None:
        terminal, self._stdin = self._stdin, -1
        if not self._command.has_terminal:
            os.close(terminal)
            return
        with suppress(OSError, termios.error):
            if termios.tcgetattr(terminal)[_LOCAL_FLAGS] & termios.ICANON:
                os.write(terminal, _END_OF_FILE)

    # ── the caller is gone ───────────────────────────────────────────────────────────────────────────────────────────

    def hang_up(self) -> None:
        """Ends the command as a terminal that is closed does: SIGHUP for its group, and SIGKILL for one that is still
        there a while later. What it left running in the background may ignore that, as nohup makes it."""
        command = self._command
        if self._status is not None:
            return
        groups = {command.pid, _foreground(command)}
        for descriptor in {self._stdin, *self._outputs} - {-1}:
            os.close(descriptor)
        _send(groups, signal.SIGHUP)
        _send(groups, signal.SIGCONT)
        poll = select.poll()
        poll.register(command.ended, select.POLLIN)
        if not poll.poll(GRACE_SECONDS * 1000):
            _send(groups, signal.SIGKILL)
        os.waitpid(command.pid, 0)


def _signal(command: Command, number: signal.Signals) -> None:
    _send({_foreground(command)}, number)


def _foreground(command: Command) -> int:
    """The group that a terminal's keys would signal; without one, the command's own."""
    if command.has_terminal:
        with suppress(OSError):
            return os.tcgetpgrp(command.stdin) or command.pid
    return command.pid


def _send(groups: set[int], number: signal.Signals) -> None:
    for group in groups:
        with suppress(ProcessLookupError, PermissionError):  # a command of another user's, such as sudo's
            os.killpg(group, number)


# ── serving ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def serve_session(sock: socket.socket, environ: Callable[[], Mapping[bytes, bytes]]) -> NoReturn:
    """Serves one connection in a process of its own, which ends with it. `environ`: the workspace's variables."""
    try:
        for number in (signal.SIGCHLD, signal.SIGALRM, signal.SIGUSR1, signal.SIGUSR2):
            signal.signal(number, signal.SIG_DFL)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGPIPE):
            signal.signal(number, signal.SIG_IGN)  # the command gets these by itself, and we say how it ended
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        os.closerange(3, sock.fileno())
        os.closerange(sock.fileno() + 1, os.sysconf("SC_OPEN_MAX"))
        os.setsid()
        _serve(sock, environ)
    finally:
        os._exit(0)


def _serve(sock: socket.socket, environ: Callable[[], Mapping[bytes, bytes]]) -> None:
    sock.setblocking(True)
    if sock.family != socket.AF_UNIX:
        for option, value in _KEEPALIVE:
            sock.setsockopt(socket.IPPROTO_TCP, option, value)
    frames = Frames()
    found: list[tuple[int, bytes]] = []
    while not found:
        data = sock.recv(MOST_DATA_BYTES)
        if not data:
            return
        found = frames.feed(data)
    (kind, payload), *rest = found
    if kind != Frame.OPEN:
        return
    command = start(parsed_open(payload), environ())
    sock.setblocking(False)
    session = Session(sock, command, frames)
    try:
        session.run(rest)
    except Gone:
        session.hang_up()


def listen(path: str) -> NoReturn:
    """Serves sessions at a unix socket for ever, with our own variables as the workspace's."""
    with suppress(OSError), open("/proc/self/comm", "w") as name:  # noqa: PTH123 - as above
        name.write("codehub-agent")
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # sessions that have ended are nobody's to wait for
    with suppress(FileNotFoundError):
        os.unlink(path)  # noqa: PTH108 - as above
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen(_BACKLOG)
        while True:
            try:
                sock, _ = listener.accept()
                with sock:
                    if os.fork() == 0:
                        serve_session(sock, lambda: os.environb)
            except OSError:  # as many files or processes as we may have: one may end within a moment
                time.sleep(0.05)


if __name__ == "__main__":
    listen(sys.argv[1])
