"""What is mounted inside a home belongs to somebody else: it is neither archived nor deleted with it.

The kernel's table is asked once, before the work begins: what is mounted meanwhile is not seen, but nothing is paid for
each directory. Device numbers could not tell: a bind mount has the home's own, and a btrfs subvolume has another.
"""

import errno
import re
from pathlib import Path

from codehub.job.exit_codes import ExitCode
from codehub.job.failure import JobFailed, show

_TABLE = Path("/proc/self/mountinfo")
_ESCAPED = re.compile(rb"\\([0-7]{3})")


def mounts_below(directory: int | Path) -> list[bytes]:
    """Where, relative to the directory; also files, which can be mounted on too."""
    path = Path(f"/proc/self/fd/{directory}").readlink() if isinstance(directory, int) else directory.resolve()
    inside = bytes(path) + b"/"
    points = (_unescaped(line.split(b" ")[4]) for line in _TABLE.read_bytes().split(b"\n") if line)
    return sorted(point.removeprefix(inside) for point in points if point.startswith(inside))


def refuse_mounts(volume: int) -> None:
    for mount in mounts_below(volume):
        raise JobFailed(ExitCode.ACTION_FAILED, _said(mount))


def keep_mounts(parent: int, name: bytes) -> None:
    """An OSError if `name`, which is about to be removed, is or holds a mount."""
    for mount in mounts_below(parent):
        if mount == name or mount.startswith(name + b"/"):
            raise OSError(errno.EBUSY, _said(mount))


def _said(mount: bytes) -> str:
    return f"another filesystem is mounted at {show(mount)}; unmount it first"


def _unescaped(path: bytes) -> bytes:
    """Spaces, tabs, line ends and backslashes are written as octal numbers there."""
    return _ESCAPED.sub(lambda found: bytes([int(found[1], 8)]), path)
