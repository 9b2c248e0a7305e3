"""One lock file per entry. While the kernel says that a shim holds it, the entry's processes live; a coordinator takes
it to look at or tidy what is dead. Whoever holds it, and nobody else, may write the entry.

Shims hold POSIX locks (the kernel names the holder's pid, which therefore cannot be a recycled one), coordinators hold
open-file-description locks (they exclude each other even inside one process); the two kinds exclude one another.
"""

import fcntl
import os
import signal
import struct
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

COORDINATOR = -1

_FLOCK = "hhqqi0q"  # struct flock of 64-bit Linux: type, whence, start, length, pid


class Busy(Exception):
    """Somebody else holds the lock now."""


def holder(path: Path) -> int | None:
    """The pid of the shim that holds it, COORDINATOR, or None. Asking takes nothing, so it hinders nobody."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        answer = fcntl.fcntl(descriptor, fcntl.F_OFD_GETLK, struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0))
    finally:
        os.close(descriptor)
    kind, _, _, _, pid = struct.unpack(_FLOCK, answer)
    return None if kind == fcntl.F_UNLCK else pid


@contextmanager
def held(path: Path) -> Iterator[None]:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        _set(descriptor, fcntl.F_WRLCK)
        try:
            if not _still_named(path, descriptor):
                raise Busy
            yield
        finally:
            # By hand: a child between fork and exec shares the description and would keep it locked.
            _set(descriptor, fcntl.F_UNLCK)
    finally:
        os.close(descriptor)


def _set(descriptor: int, kind: int) -> None:
    try:
        fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, struct.pack(_FLOCK, kind, os.SEEK_SET, 0, 0, 0))
    except BlockingIOError:
        raise Busy from None


def _still_named(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


def signal_holder(path: Path, pid: int, number: signal.Signals) -> None:
    # The descriptor pins the process first, so the one that holds the lock is the one that is signalled.
    try:
        pinned = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        if holder(path) == pid:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(pinned, number)
    finally:
        os.close(pinned)
