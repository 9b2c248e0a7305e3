"""Commands inside a workspace that is a process: the session program runs beside the workspace's own command, in the
same sandbox and with the same variables, and listens at a unix socket next to the IDE's.

It brings its own interpreter, as a container's agent does: what a sandbox shows of this machine need not include ours.
"""

import asyncio
import errno
import hashlib
import os
import shlex
import shutil
import stat
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from socket import AF_UNIX, socket
from uuid import uuid4

import codehub.agent
from codehub.adapters.agent_exec import CONNECT_SECONDS, opened, opening_frame
from codehub.agent import bundle, exec_session
from codehub.agent.secrets import SHELL
from codehub.domain.errors import NotRunning, Unreachable
from codehub.job.filesystem import opened as opened_file
from codehub.ports.exec import ExecRequest, ExecSession

_BESIDE = 'eval "$1" & shift; exec "$@"'
_UNFINISHED = ".agent-"
_AGAIN_SECONDS = 0.02


class SessionProgram:
    """The session program with its interpreter, in a directory below `place` that is made when it is first asked
    for."""

    def __init__(self, place: Path) -> None:
        self._place = place
        self._found: Path | None = None

    def directory(self) -> Path:
        """Blocks. Raises OSError or subprocess.CalledProcessError if it cannot be made here."""
        if self._found is None or not self._found.is_dir():
            self._found = self._made(self._place / f"agent-{_version()}")
        return self._found

    def _made(self, directory: Path) -> Path:
        if directory.is_dir():
            return directory
        self._place.mkdir(mode=0o755, parents=True, exist_ok=True)
        fresh = self._place / f"{_UNFINISHED}{uuid4().hex}"
        try:
            bundle.bundle(fresh)
            for path in (fresh, *fresh.rglob("*")):  # the workspaces of root have users of their own
                path.chmod(path.stat().st_mode | (0o555 if path.is_dir() else 0o444))
            with suppress(FileExistsError, OSError):  # another process of ours was faster
                fresh.rename(directory)
        finally:
            shutil.rmtree(fresh, ignore_errors=True)
        self._remove_others(directory)
        return directory

    def _remove_others(self, directory: Path) -> None:
        """Removes the directories of other versions: what runs from them has loaded all that it needs."""
        for other in self._place.glob("agent-*"):
            if other != directory:
                shutil.rmtree(other, ignore_errors=True)


def _version() -> str:
    found = hashlib.sha256(f"{sys.version} {sys.executable}".encode())
    for path in sorted(Path(codehub.agent.__file__).parent.glob("*.py")):
        found.update(path.read_bytes())
    return found.hexdigest()[:16]


def beside_command(argv: Sequence[str], directory: Path, place: Path) -> list[str]:
    """The command line that starts the session program and becomes `argv`. `directory`: the session program's.
    `place`: the socket that it listens at."""
    words = [*bundle.command(str(directory), exec_session.__name__), str(place)]
    return [SHELL, "-c", _BESIDE, "codehub-exec", f"exec {shlex.join(words)} </dev/null", *argv]


async def exec_beside(place: Path, request: ExecRequest, runs: Callable[[], bool]) -> ExecSession:
    """Starts a command in the workspace whose session program listens at `place`, or will in a moment. `runs`: whether
    the workspace still does."""
    opening = opening_frame(request)
    try:
        async with asyncio.timeout(CONNECT_SECONDS):
            sock = await _connected_soon(place, runs)
    except (OSError, TimeoutError) as error:
        raise Unreachable(f"commands cannot reach the workspace: {error or 'no answer in time'}") from error
    return await opened(sock, opening)


async def _connected_soon(place: Path, runs: Callable[[], bool]) -> socket:
    while runs():
        try:
            return await _connected(place)
        except (FileNotFoundError, ConnectionRefusedError):  # it does not listen yet
            await asyncio.sleep(_AGAIN_SECONDS)
    raise NotRunning


async def _connected(place: Path) -> socket:
    # No link is followed: the workspace may write here, and must not lead us to another's socket.
    with opened_file(place, os.O_PATH | os.O_NOFOLLOW) as found:
        if not stat.S_ISSOCK(os.fstat(found).st_mode):
            raise OSError(errno.ENOTSOCK, "not a socket", str(place))
        sock = socket(AF_UNIX)
        try:
            sock.setblocking(False)
            await asyncio.get_running_loop().sock_connect(sock, f"/proc/self/fd/{found}")
        except BaseException:
            sock.close()
            raise
    return sock
