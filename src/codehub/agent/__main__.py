"""`codehub-agent COMMAND …`: runs a workspace's command and leads CodeHub's connections to its ports and to further
commands.

The command is the image's own. It gets our environment without the key, and the secrets of this start, for which we
wait if there are any. Our signals are passed on to it, and its end is ours, with its exit code. While anybody is
connected, the signal to end is passed on a moment later: editors hear of the stop at the same time as we do, and save
what was typed.
"""

import os
import signal
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from types import FrameType

from codehub.agent.exec_session import environment_of, serve_session
from codehub.agent.handshake import AGENT_PORT, KEY_BYTES, KEY_VARIABLE
from codehub.agent.relay import Relay, listen
from codehub.agent.secrets import AGENT_DIRECTORY, SECRETS_VARIABLE, SHELL, behind_setup, decode

_PASSED_ON = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
_IGNORED_BY_PYTHON = (signal.SIGPIPE, signal.SIGXFSZ)
_NOT_FOUND, _SIGNALLED, _NOT_WRITABLE = 127, 128, 73
SAVE_SECONDS = 3.0


class WorkspaceCommand:
    """The workspace's own command, as a child of the agent."""

    def __init__(
        self, words: Sequence[str], environ: Mapping[str, str], is_used: Callable[[], bool], given: bytes = b""
    ) -> None:
        """`given`: what the command finds on its standard input."""
        signal.signal(signal.SIGCHLD, self._ended)
        for number in _PASSED_ON:
            signal.signal(number, self._pass_on)
        signal.signal(signal.SIGTERM, self._end_soon)
        signal.signal(signal.SIGALRM, self._end_now)
        self._is_used = is_used
        self._environ = {os.fsencode(name): os.fsencode(value) for name, value in environ.items()}
        self._pid = 0
        defaults = [*_PASSED_ON, *_IGNORED_BY_PYTHON, signal.SIGCHLD, signal.SIGALRM]
        # A child that ends at once would be asked for before it has a number here.
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD, *_PASSED_ON])
        file = _in_memory(given)
        try:
            actions = [(os.POSIX_SPAWN_DUP2, file, 0)]
            self._pid = os.posix_spawnp(
                words[0], list(words), dict(environ), file_actions=actions, setsigmask=[], setsigdef=defaults
            )
        except OSError as error:
            sys.stderr.write(f"codehub-agent: the command {words[0]} cannot be run: {error.strerror}\n")
            sys.stderr.flush()
            os._exit(_NOT_FOUND)
        os.close(file)
        signal.pthread_sigmask(signal.SIG_SETMASK, [])

    def _pass_on(self, number: int, _frame: FrameType | None) -> None:
        with suppress(ProcessLookupError):
            os.kill(self._pid, number)

    def _end_soon(self, number: int, frame: FrameType | None) -> None:
        """Passes the signal on after a while if somebody is connected; at once if it is asked for a second time."""
        if self._is_used():
            signal.signal(signal.SIGTERM, self._end_now)
            signal.setitimer(signal.ITIMER_REAL, SAVE_SECONDS)
        else:
            self._pass_on(number, frame)

    def _end_now(self, _number: int, frame: FrameType | None) -> None:
        self._pass_on(signal.SIGTERM, frame)

    def _ended(self, _number: int, _frame: FrameType | None) -> None:
        """Reaps whatever has ended: the command, sessions of further commands, and orphans if we are the first
        process."""
        with suppress(ChildProcessError):
            while (found := os.waitpid(-1, os.WNOHANG))[0]:
                if found[0] == self._pid:
                    code = os.waitstatus_to_exitcode(found[1])
                    os._exit(code if code >= 0 else _SIGNALLED - code)

    def fork_exec(self, sock: socket.socket) -> None:
        """Forks a session for the caller of a connection: its commands get the variables that our command has."""
        if os.fork() == 0:
            serve_session(sock, lambda: environment_of(self._pid) or self._environ)


def _in_memory(text: bytes) -> int:
    """A file without a name that holds the text and is read from its beginning; children do not inherit it."""
    file = os.memfd_create("codehub-agent")
    os.write(file, text)
    os.lseek(file, 0, os.SEEK_SET)
    return file


def _run(words: Sequence[str], relay: Relay, secrets: bytes) -> None:
    """Runs the command behind the script that sets git and SSH up; in an image without a shell, the command alone."""
    env, given = decode(secrets) if secrets else ({}, b"")
    command = (
        behind_setup(words, os.environ.get("CODEHUB_AGENT_DIRECTORY", AGENT_DIRECTORY))
        if os.access(SHELL, os.X_OK)
        else words
    )
    relay.fork_exec = WorkspaceCommand(command, {**os.environ, **env}, relay.is_used, given).fork_exec


def _check_home() -> None:
    """End here, with the reason, if the home cannot be written to: an editor that cannot save would say so much later,
    and not why."""
    home = os.environ.get("HOME", "")
    if home and os.path.isdir(home) and not os.access(home, os.W_OK | os.X_OK):  # noqa: PTH112 - pathlib is a third of our memory
        sys.stderr.write(
            f"codehub-agent: the home {home} cannot be written to by user {os.getuid()}: its volume belongs to others. "
            "On Kubernetes, choose a storage class that gives volumes to a pod's fsGroup\n"
        )
        sys.stderr.flush()
        os._exit(_NOT_WRITABLE)


def main() -> None:
    key = bytes.fromhex(os.environ.pop(KEY_VARIABLE, ""))
    waits = os.environ.pop(SECRETS_VARIABLE, "")
    if len(key) != KEY_BYTES or len(sys.argv) == 1:
        sys.exit(
            f"codehub-agent: {KEY_VARIABLE} must hold {KEY_BYTES} bytes in hexadecimal digits, and a command follow"
        )
    # Not `python3`, which people end by that name.
    with suppress(OSError), open("/proc/self/comm", "w") as name:  # noqa: PTH123 - pathlib is a third of our memory
        name.write("codehub-agent")
    _check_home()
    listener = listen("0.0.0.0", AGENT_PORT)  # noqa: S104 - the container's own addresses
    relay = Relay(listener, key, (lambda secrets: _run(sys.argv[1:], relay, secrets)) if waits else None)
    if not waits:
        _run(sys.argv[1:], relay, b"")
    relay.serve()


if __name__ == "__main__":
    main()
