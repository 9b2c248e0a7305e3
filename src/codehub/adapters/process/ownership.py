"""Gives a home to the user id that its workspace runs as: homes from before workspaces had one, or from another one's
archive, belong to somebody else.

The home's own directory is given last. So one that belongs to the right user is done with, and a walk that was cut
short begins anew. Nothing but owners changes, and nothing outside the home.
"""

import os
import stat
from pathlib import Path

from codehub.job.filesystem import OPEN_DIRECTORY, mounts_below


def give(home: Path, uid: int) -> None:
    """Gives the home to `uid`. Blocks. No link is followed, and what is mounted inside the home stays as it is. Nothing
    may run in the home."""
    top = os.open(home, OPEN_DIRECTORY)
    try:
        if os.fstat(top).st_uid != uid:
            _Walk(top, uid, frozenset(mounts_below(top))).run()
            os.fchown(top, uid, uid)
    finally:
        os.close(top)


class _Walk:
    """A walk down into one directory after the other and up again by `..`: no depth needs more than two descriptors."""

    def __init__(self, top: int, uid: int, mounts: frozenset[bytes]) -> None:
        self._here = os.dup(top)
        self._uid = uid
        self._mounts = mounts
        self._path: list[bytes] = []

    def run(self) -> None:
        try:
            left = [self._given()]
            while left:
                if left[-1]:
                    self._path.append(left[-1].pop())
                    self._go(self._path[-1])
                    left.append(self._given())
                else:
                    left.pop()
                    if left:
                        self._path.pop()
                        self._go(b"..")
        finally:
            os.close(self._here)

    def _go(self, name: bytes) -> None:
        there = os.open(name, OPEN_DIRECTORY, dir_fd=self._here)
        os.close(self._here)
        self._here = there

    def _given(self) -> list[bytes]:
        """Gives away all in this directory, and returns the directories among it, which come next."""
        directories = []
        for name in map(os.fsencode, os.listdir(self._here)):  # noqa: PTH208 - a descriptor
            if self._mounts and b"/".join((*self._path, name)) in self._mounts:
                continue
            seen = os.stat(name, dir_fd=self._here, follow_symlinks=False)
            self._give(name, seen)
            if stat.S_ISDIR(seen.st_mode):
                directories.append(name)
        return directories

    def _give(self, name: bytes, seen: os.stat_result) -> None:
        if (seen.st_uid, seen.st_gid) == (self._uid, self._uid):
            return
        os.chown(name, self._uid, self._uid, dir_fd=self._here, follow_symlinks=False)
        if stat.S_ISREG(seen.st_mode) and seen.st_mode & (stat.S_ISUID | stat.S_ISGID):
            os.chmod(name, stat.S_IMODE(seen.st_mode), dir_fd=self._here)  # a new owner takes those bits away
