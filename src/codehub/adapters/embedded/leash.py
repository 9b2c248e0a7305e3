"""Runs between fork and exec of a server: takes the account, ties its life to its owner's, becomes the server.

A program of its own, because the kernel forgets the tie when the user id changes, and because code between fork and
exec of a process with threads may deadlock. Arguments: owner, signal, lock, uid, gid (or -1 -1), program, arguments.
"""

import ctypes
import os
import signal
import sys
from pathlib import Path

_SET_PDEATHSIG = 1
_SET_NO_NEW_PRIVS = 38


def main() -> None:
    owner, farewell, lock, uid, gid = map(int, sys.argv[1:6])
    _record(lock)
    if uid >= 0:
        os.setgroups([])
        os.setgid(gid)
        os.setuid(uid)
    libc = ctypes.CDLL(None)
    libc.prctl(_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    libc.prctl(_SET_PDEATHSIG, farewell, 0, 0, 0)
    if os.getppid() != owner:
        sys.exit("the owner ended before its server began")
    os.umask(0o077)
    for ignored_by_python in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(ignored_by_python, signal.SIG_DFL)
    os.set_inheritable(lock, True)
    os.execv(sys.argv[6], sys.argv[6:])  # noqa: S606 - that is the whole purpose


def _record(lock: int) -> None:
    """Pid and start time name a process for ever. The server inherits the lock read-only and cannot change it."""
    started = Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19]
    Path(f"/proc/self/fd/{lock}").write_text(f"{os.getpid()} {started}\n")


if __name__ == "__main__":
    main()
