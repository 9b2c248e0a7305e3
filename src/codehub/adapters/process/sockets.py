"""Where a workspace's IDE listens, and which loopback address leads to a workspace's port and to nobody else's.

The IDE's socket is `s` in a 0700 directory of its own: an open loopback port would be anyone's on this machine. A unix
socket's path has at most 107 bytes, so below a long root the sockets live in a short private directory made from the
root's hash. On 127.0.0.1:8080 a neighbour's program, or a service of the machine, may listen as well as ours, so an
address counts only if every socket that the kernel could hand a connection to is held by the workspace's process tree.
The cost grows with that tree, not with the machine: no other process is looked at.
"""

import asyncio
import errno
import hashlib
import os
import socket
import stat
import struct
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import suppress
from ipaddress import ip_address
from pathlib import Path
from uuid import UUID

from codehub.adapters.process import shim
from codehub.adapters.readiness_probe import Streams
from codehub.domain.errors import BackendError
from codehub.job.filesystem import opened

_LONGEST = 107  # bytes, of the kernel's 108 with the closing zero
_OUR_NETWORK = "/proc/net"
_TABLES, _ADDRESSES_6 = ("tcp", "tcp6"), "if_inet6"
_CREDENTIALS = struct.Struct("3i")  # pid, user, group
_OWN_CHILDREN = Path("/proc/thread-self/children")  # not in every kernel
_LISTENING = b"0A"
_LOCAL, _STATE, _INODE = 1, 3, 9  # columns of a table

Listeners = Mapping[str, frozenset[int]]
"""Address → the inodes of the sockets that listen there."""


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

    def exec_path(self, workspace_id: UUID) -> Path:
        """Where the session program of the workspace's commands listens."""
        return self.directory(workspace_id) / "x"


async def connect(socket: Path) -> Streams:
    # No link is followed: the workspace may write here, and must not lead us to another's socket.
    with opened(socket, os.O_PATH | os.O_NOFOLLOW) as found:
        if not stat.S_ISSOCK(os.fstat(found).st_mode):
            raise OSError(errno.ENOTSOCK, "not a socket", str(socket))
        return await asyncio.open_unix_connection(f"/proc/self/fd/{found}")


def _make_private(directory: Path) -> None:
    try:
        directory.mkdir(mode=0o700, parents=True)
    except FileExistsError:
        found = directory.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
            raise BackendError(f"{directory} is not a private directory of this user: remove it") from None


def own_address(root: int, port: int) -> str | None:
    """The loopback address behind which the port is one tree's alone. `root`: the pid whose descendants are the tree.
    None if nobody of it listens on loopback or on every address, or if somebody else does too."""
    listeners = _listeners(port, _OUR_NETWORK)
    choices = list(_choices(listeners, _OUR_NETWORK))
    if not choices:
        return None
    ours = _held(root, frozenset().union(*listeners.values()))
    return next((host for host, receivers in choices if receivers <= ours), None)


def address_inside(ways_in: Path, port: int) -> str | None:
    """The loopback address of the port in a network of the workspace's own, where every listener is the workspace's.
    `ways_in`: where a process of that network hands out sockets of it."""
    try:
        pid = _served_by(ways_in)
    except OSError:
        return None
    inside = f"/proc/{pid}/net"
    return next((host for host, _ in _choices(_listeners(port, inside), inside)), None)


def _served_by(path: Path) -> int:
    # Through a descriptor of its directory: the path of a unix socket has at most 107 bytes.
    with opened(path.parent, os.O_PATH | os.O_DIRECTORY) as directory, socket.socket(socket.AF_UNIX) as asking:
        asking.connect(f"/proc/self/fd/{directory}/{path.name}")
        found = asking.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid: int = _CREDENTIALS.unpack(found)[0]
    return pid


def _choices(listeners: Listeners, network: str) -> Iterator[tuple[str, frozenset[int]]]:
    """Yields where to connect to, the likeliest first, each with all who might accept: an exact address wins over every
    address, and one for IPv6 may take IPv4 too."""

    def at(*addresses: str) -> frozenset[int]:
        return frozenset().union(*(listeners.get(address, frozenset()) for address in addresses))

    exact, every, every_6 = at("127.0.0.1", "::ffff:127.0.0.1"), at("0.0.0.0", "::ffff:0.0.0.0"), at("::")  # noqa: S104
    receivers, receivers_6 = exact or every | every_6, at("::1") or every_6
    if exact or every:
        yield "127.0.0.1", receivers
    if receivers_6 and _has_loopback_6(network):
        yield "::1", receivers_6
    if every_6:
        yield "127.0.0.1", receivers


def _listeners(port: int, network: str) -> Listeners:
    found: dict[str, set[int]] = {}
    for table in _TABLES:
        with suppress(OSError), open(f"{network}/{table}", "rb") as file:  # noqa: PTH123 - lines, of which we read the first
            next(file, None)
            for line in file:
                columns = line.split()
                if columns[_STATE] != _LISTENING:
                    break  # listeners come first; after them there may be many thousands
                address, _, number = columns[_LOCAL].partition(b":")
                if int(number, 16) == port:
                    found.setdefault(_readable(address), set()).add(int(columns[_INODE]))
    return {address: frozenset(inodes) for address, inodes in found.items()}


def _readable(shown: bytes) -> str:
    """An address as people write it: the kernel shows its words as numbers in this machine's byte order."""
    words = [int(shown[at : at + 8], 16) for at in range(0, len(shown), 8)]
    address = ip_address(struct.pack(f"={len(words)}I", *words))
    mapped = getattr(address, "ipv4_mapped", None)
    return f"::ffff:{mapped}" if mapped else str(address)


def _has_loopback_6(network: str) -> bool:
    with suppress(OSError):
        lines = Path(network, _ADDRESSES_6).read_text().splitlines()
        return any(line.startswith("0" * 31 + "1 ") for line in lines)
    return False


def _held(root: int, inodes: frozenset[int]) -> frozenset[int]:
    wanted = {f"socket:[{inode}]": inode for inode in inodes}
    found: set[int] = set()
    for pid in _tree(root):
        found.update(wanted[target] for target in _descriptors(pid) if target in wanted)
        if len(found) == len(wanted):
            break
    return frozenset(found)


def _descriptors(pid: int) -> Iterator[str]:
    directory = f"/proc/{pid}/fd"
    with suppress(OSError):  # gone, or it hides itself
        for name in os.listdir(directory):  # noqa: PTH208 - some hundreds per look
            with suppress(OSError):
                yield os.readlink(f"{directory}/{name}")  # noqa: PTH115 - as above


def _tree(root: int) -> Iterator[int]:
    if not _OWN_CHILDREN.exists():
        yield from (pid for pid, _started_at in shim.descendants(root))
        return
    found, seen = [root], {root}
    while found:
        for child in _children(found.pop()):
            if child not in seen:
                seen.add(child)
                found.append(child)
                yield child


def _children(pid: int) -> Iterator[int]:
    """Yields the children of all threads of a process: each belongs to the thread that made it."""
    with suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):  # noqa: PTH208 - as above
            with suppress(OSError), open(f"/proc/{pid}/task/{thread}/children", "rb") as file:  # noqa: PTH123
                yield from map(int, file.read().split())
