"""The program that measures homes: what each holds, and what its file system has left.

It runs as a process of its own with the lowest priority, so that a home with a million files delays nobody, and prints
a line of JSON per home: its name, the bytes that it holds (null if there was no time to count them), and the size and
the free space of its file system. Arguments: the seconds that it may take, then the path of each home, behind a `=` if
a quota holds that home to a size: then the file system itself knows what it holds. Only the standard library.
"""

import json
import os
import stat
import sys
import time

OPEN_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
DEEPEST = 400
"""Each directory on the way down is held open."""
MOST_NAMES = 50_000
"""How many names of directories are held at once, on all levels. Docker gives the program 128 MiB, and a name may take
half a KiB."""
MOST_LINKS = 100_000
"""How many files with several names are remembered; of those beyond, each name is counted."""
SPARE_SECONDS = 10.0
"""How much longer than its own time whoever runs the program waits for it."""
_BLOCK = 512


class OutOfTime(Exception):
    """There is no time left to count, or the tree is too deep or too wide to be followed."""


def main(seconds: str, *homes: str) -> None:
    os.nice(19)
    until = time.monotonic() + float(seconds)
    for home in homes:
        try:
            found: tuple[object, ...] = measured(home, until)
        except OSError as error:
            found = (str(error),)
        sys.stdout.write(json.dumps([home.removeprefix("="), *found]) + "\n")
        sys.stdout.flush()


def parsed(output: str) -> dict[str, tuple[int | None, int, int]]:
    """What the program printed, by the path of each home; homes that could not be measured are left out."""
    found = {}
    for line in output.splitlines():
        try:
            path, used, total, free = json.loads(line)
            found[str(path)] = (None if used is None else int(used), int(total), int(free))
        except (TypeError, ValueError):
            continue
    return found


def measured(home: str, until: float) -> tuple[int | None, int, int]:
    path = home.removeprefix("=")
    root = os.open(path, OPEN_DIRECTORY)
    try:
        found = os.fstatvfs(root)
        used: int | None = (found.f_blocks - found.f_bfree) * found.f_frsize
        if path == home:
            try:
                used = Walk(root, until).bytes
            except OutOfTime:
                used = None
        return used, found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize
    finally:
        os.close(root)


class Walk:
    """The sum of what the files below a directory take on the disk, each once however many names it has. No link is
    followed and no other file system entered; what may not be read is not counted."""

    def __init__(self, root: int, until: float) -> None:
        self.bytes = 0
        self._until = until
        self._device = os.fstat(root).st_dev
        self._linked: set[int] = set()
        self._names = 0
        self._count(root, 0)

    def _count(self, directory: int, depth: int) -> None:
        inner = self._inner(directory)
        for name in inner:
            if depth >= DEEPEST:
                raise OutOfTime
            try:
                descriptor = os.open(name, OPEN_DIRECTORY, dir_fd=directory)
            except OSError:  # gone meanwhile, or not for us to read
                continue
            try:
                self._count(descriptor, depth + 1)
            finally:
                os.close(descriptor)
        self._names -= len(inner)

    def _inner(self, directory: int) -> list[str]:
        """Counts what is in a directory, and returns the names of the directories in it."""
        found = []
        with os.scandir(directory) as entries:
            for entry in entries:
                if time.monotonic() > self._until:
                    raise OutOfTime
                try:
                    seen = entry.stat(follow_symlinks=False)
                except OSError:
                    continue
                if seen.st_dev != self._device or self._is_counted(seen):
                    continue
                self.bytes += seen.st_blocks * _BLOCK
                if entry.is_dir(follow_symlinks=False):
                    self._names += 1
                    if self._names > MOST_NAMES:
                        raise OutOfTime
                    found.append(entry.name)
        return found

    def _is_counted(self, seen: os.stat_result) -> bool:
        """Whether this file was counted by another of its names. Directories have one name, and many links."""
        if seen.st_nlink == 1 or stat.S_ISDIR(seen.st_mode):
            return False
        if seen.st_ino in self._linked:
            return True
        if len(self._linked) < MOST_LINKS:
            self._linked.add(seen.st_ino)
        return False


if __name__ == "__main__":
    main(*sys.argv[1:])
