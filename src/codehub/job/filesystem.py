"""Directories by descriptor: opening, listing and removing them, what is mounted inside, and putting data on disk.

What is mounted inside a home belongs to somebody else: it is neither archived nor deleted with it. The kernel's table
is read once, before the work begins: what is mounted meanwhile is not seen, but nothing is paid for each directory.
Device numbers could not tell: a bind mount has the home's own, and a btrfs subvolume has another.
"""

import ctypes
import errno
import os
import re
import stat
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path

from codehub.job.errors import ExitCode, JobFailed, from_os_error, show

OPEN_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
_TABLE = Path("/proc/self/mountinfo")
_ESCAPED = re.compile(rb"\\([0-7]{3})")
_SYNC_FILE_RANGE_WRITE = 2
_libc = ctypes.CDLL(None, use_errno=True)


@contextmanager
def opened(path: Path | bytes, flags: int, parent: int | None = None) -> Iterator[int]:
    descriptor = os.open(path, flags, dir_fd=parent)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def opened_inside(parent: int, name: bytes) -> AbstractContextManager[int]:
    return opened(name, OPEN_DIRECTORY, parent)


@contextmanager
def opened_volume(path: Path) -> Iterator[int]:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise from_os_error(error, f"cannot open the volume {path}") from error
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def listed(directory: int) -> list[bytes]:
    return sorted(os.fsencode(name) for name in os.listdir(directory))


def mounts_below(directory: int | Path) -> list[bytes]:
    """The mount points below a directory, relative to it; a file can be one too."""
    path = Path(f"/proc/self/fd/{directory}").readlink() if isinstance(directory, int) else directory.resolve()
    inside = bytes(path) + b"/"
    points = (_unescaped(line.split(b" ")[4]) for line in _TABLE.read_bytes().split(b"\n") if line)
    return sorted(point.removeprefix(inside) for point in points if point.startswith(inside))


def refuse_mounts(volume: int) -> None:
    for mount in mounts_below(volume):
        raise JobFailed(ExitCode.ACTION_FAILED, _said(mount))


def keep_mounts(parent: int, name: bytes) -> None:
    """Raise OSError if `name`, which is about to be removed, is or holds a mount."""
    for mount in mounts_below(parent):
        if mount == name or mount.startswith(name + b"/"):
            raise OSError(errno.EBUSY, _said(mount))


def _said(mount: bytes) -> str:
    return f"another filesystem is mounted at {show(mount)}; unmount it first"


def _unescaped(path: bytes) -> bytes:
    """A path as the mount table has it: spaces, tabs, line ends and backslashes are octal numbers there."""
    return _ESCAPED.sub(lambda found: bytes([int(found[1], 8)]), path)


def remove_tree(parent: int, name: bytes, *, enough: Callable[[], bool] = lambda: False) -> None:
    """Remove `name`, whatever it is: read-only directories and any depth included, no link followed.

    Unless something is mounted in it: then nothing is removed. Asked before each directory, `enough` may end it early;
    the rest can be removed another time."""
    if not _is_directory(parent, name):
        _unlink(parent, name)
        return
    keep_mounts(parent, name)
    stack = [_DirectoryToRemove(parent, name)]
    try:
        while stack and not enough():
            directory = stack[-1]
            if directory.inner:
                stack.append(_DirectoryToRemove(directory.descriptor, directory.inner.pop()))
            else:
                stack.pop()
                os.close(directory.descriptor)
                os.rmdir(directory.name, dir_fd=directory.parent)
    finally:
        for directory in stack:
            os.close(directory.descriptor)


class _DirectoryToRemove:
    """A directory whose files are gone and whose directories are still to go."""

    def __init__(self, parent: int, name: bytes) -> None:
        self.parent, self.name = parent, name
        self.descriptor = _open_for_removal(parent, name)
        self.inner: list[bytes] = []
        try:
            self._remove_files()
        except OSError:
            os.close(self.descriptor)
            raise

    def _remove_files(self) -> None:
        with os.scandir(self.descriptor) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    self.inner.append(os.fsencode(entry.name))
                else:
                    os.unlink(entry.name, dir_fd=self.descriptor)


def _open_for_removal(parent: int, name: bytes) -> int:
    if os.geteuid() != 0:
        os.chmod(name, 0o700, dir_fd=parent)
    return os.open(name, OPEN_DIRECTORY, dir_fd=parent)


def _is_directory(parent: int, name: bytes) -> bool:
    try:
        return stat.S_ISDIR(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode)
    except FileNotFoundError:
        return False


def _unlink(parent: int, name: bytes) -> None:
    with suppress(FileNotFoundError):
        os.unlink(name, dir_fd=parent)


def sync_file(path: Path, *, up_to: Path) -> None:
    """Put a file on disk, and the directories that lead to it from `up_to`."""
    sync(path)
    for directory in path.parents:
        sync(directory)
        if directory == up_to:
            return


def sync(path: Path) -> None:
    """Put a file's content, or a directory's names, on disk."""
    with opened(path, os.O_RDONLY) as descriptor:
        os.fsync(descriptor)


def start_writeback(path: Path) -> None:
    """Hint that the file's pages in memory may go to disk now, so that there is less to wait for at the end."""
    with suppress(OSError), opened(path, os.O_RDONLY) as descriptor:
        _libc.sync_file_range(descriptor, ctypes.c_int64(0), ctypes.c_int64(0), _SYNC_FILE_RANGE_WRITE)


def sync_filesystem(descriptor: int) -> None:
    """Put on disk everything written so far to the filesystem that `descriptor` is on."""
    if _libc.syncfs(descriptor) != 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
