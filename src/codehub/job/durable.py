"""Asking the kernel to put things on disk, where losing power must not lose what we said was done."""

import ctypes
import os
from pathlib import Path

_libc = ctypes.CDLL(None, use_errno=True)


def sync_file(path: Path, *, up_to: Path) -> None:
    """The file, and the directories that lead to it from `up_to`."""
    _sync(path)
    for directory in path.parents:
        _sync(directory)
        if directory == up_to:
            return


def sync_filesystem(descriptor: int) -> None:
    """Everything written so far to the filesystem that `descriptor` is on."""
    if _libc.syncfs(descriptor) != 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
