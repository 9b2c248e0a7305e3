"""Asking the kernel to put things on disk, where losing power must not lose what we said was done."""

import ctypes
import os
from contextlib import suppress
from pathlib import Path

_SYNC_FILE_RANGE_WRITE = 2
_libc = ctypes.CDLL(None, use_errno=True)


def sync_file(path: Path, *, up_to: Path) -> None:
    """The file, and the directories that lead to it from `up_to`."""
    _sync(path)
    for directory in path.parents:
        _sync(directory)
        if directory == up_to:
            return


def start_writing(path: Path) -> None:
    """A hint: what the file has in memory may go to disk now, so that there is less to wait for at the end."""
    with suppress(OSError):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            _libc.sync_file_range(descriptor, ctypes.c_int64(0), ctypes.c_int64(0), _SYNC_FILE_RANGE_WRITE)
        finally:
            os.close(descriptor)


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
