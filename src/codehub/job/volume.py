"""Opening a volume, and getting rid of trees inside it."""

import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from codehub.job.failure import from_os_error
from codehub.job.mounts import keep_mounts

OPEN_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW


@contextmanager
def opened(path: Path) -> Iterator[int]:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise from_os_error(error, f"cannot open the volume {path}") from error
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@contextmanager
def opened_inside(parent: int, name: bytes) -> Iterator[int]:
    descriptor = os.open(name, OPEN_DIRECTORY, dir_fd=parent)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def remove_tree(parent: int, name: bytes, *, enough: Callable[[], bool] = lambda: False) -> None:
    """Whatever `name` is, it is gone afterwards. Read-only directories and any depth included; no link followed.

    Unless something is mounted in it: then nothing is removed. Asked before each directory, `enough` may end it early;
    the rest can be removed another time."""
    if not _is_directory(parent, name):
        _unlink(parent, name)
        return
    keep_mounts(parent, name)
    stack = [_Doomed(parent, name)]
    try:
        while stack and not enough():
            directory = stack[-1]
            if directory.inner:
                stack.append(_Doomed(directory.descriptor, directory.inner.pop()))
            else:
                stack.pop()
                os.close(directory.descriptor)
                os.rmdir(directory.name, dir_fd=directory.parent)
    finally:
        for directory in stack:
            os.close(directory.descriptor)


class _Doomed:
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
