"""Runs between fork and exec of a program that installs: it dies with its owner and keeps the owner's lock.

A program of its own, because code between fork and exec of a process with threads may deadlock. Arguments: owner,
lock, program, its arguments.
"""

import ctypes
import os
import signal
import sys

_SET_PDEATHSIG = 1


def main() -> None:
    owner, lock = map(int, sys.argv[1:3])
    ctypes.CDLL(None).prctl(_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != owner:
        sys.exit("the owner ended before its program began")
    for ignored_by_python in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(ignored_by_python, signal.SIG_DFL)
    # What the program starts in turn is not tied but keeps the lock, so nobody builds beside it.
    os.set_inheritable(lock, True)
    os.execv(sys.argv[3], sys.argv[3:])  # noqa: S606 - that is the whole purpose


if __name__ == "__main__":
    main()
