"""Where a workspace's IDE listens: `s` in a 0700 directory of its own, and how to ask it whether it is awake.

An open loopback port would be anyone's on this machine. A unix socket's path has at most 107 bytes, so below a long
root the sockets live in a short private directory made from the root's hash.
"""

import asyncio
import hashlib
import os
import stat
import tempfile
from contextlib import suppress
from pathlib import Path
from uuid import UUID

from codehub.domain.errors import BackendError

_LONGEST = 107  # bytes, of the kernel's 108 with the closing zero
_ANSWER_SECONDS = 2.0
_QUESTION = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"


class Sockets:
    def __init__(self, root: Path) -> None:
        self._directory = root / "sockets"
        if len(os.fsencode(self.path(UUID(int=0)))) > _LONGEST:
            digest = hashlib.sha256(os.fsencode(root)).hexdigest()[:12]
            self._directory = Path(tempfile.gettempdir(), f"codehub-{os.geteuid()}-{digest}")
        _make_private(self._directory)
        if len(os.fsencode(self.path(UUID(int=0)))) > _LONGEST:
            raise BackendError(f"{self._directory} is too long a path for unix sockets: choose a shorter directory")

    def directory(self, workspace_id: UUID) -> Path:
        return self._directory / workspace_id.hex

    def path(self, workspace_id: UUID) -> Path:
        return self.directory(workspace_id) / "s"


async def answers_http(socket: Path) -> bool:
    """Any HTTP status line counts: a login page, even an error, is an IDE that is up."""
    try:
        async with asyncio.timeout(_ANSWER_SECONDS):
            return await _ask(socket)
    except (OSError, TimeoutError):
        return False


async def _ask(socket: Path) -> bool:
    # No link is followed: the workspace may write here, and must not lead us to another's socket.
    found = os.open(socket, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        if not stat.S_ISSOCK(os.fstat(found).st_mode):
            return False
        reader, writer = await asyncio.open_unix_connection(f"/proc/self/fd/{found}")
    finally:
        os.close(found)
    try:
        writer.write(_QUESTION)
        return (await reader.read(5)).startswith(b"HTTP/")
    finally:
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()


def _make_private(directory: Path) -> None:
    try:
        directory.mkdir(mode=0o700, parents=True)
    except FileExistsError:
        found = directory.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
            raise BackendError(f"{directory} is not a private directory of this user: remove it") from None
