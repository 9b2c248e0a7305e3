"""`.codehubignore` at the top of a home: what its owner does not want archived.

Patterns are gitignore's. As in git, the last that matches decides, and nothing below an ignored directory can be taken
back by a later `!` pattern: the directory is not entered. The file itself is archived like any other. What is left out
is lost when the volume goes, so a file that cannot be understood as a whole leaves out nothing.
"""

import os
import stat

from codehub.job.ignore_pattern import Pattern, parse_pattern
from codehub.job.layout import IGNORE_FILE

LARGEST_FILE = 1 << 20


class Ignore:
    def __init__(self, patterns: list[Pattern], oddities: list[str]) -> None:
        self._last_first = patterns[::-1]
        self.oddities = oddities

    def matches(self, path: bytes, *, is_directory: bool) -> bool:
        if not self._last_first:
            return False
        names = os.fsdecode(path).split("/")
        for pattern in self._last_first:
            if pattern.matches(names, is_directory=is_directory):
                return not pattern.takes_back
        return False


def read_ignore(volume: int) -> Ignore:
    try:
        # Non-blocking: a fifo of this name must not hang the job.
        descriptor = os.open(IGNORE_FILE, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=volume)
        with os.fdopen(descriptor, "rb", closefd=True) as file:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                return _nothing("it is no file")
            content = file.read(LARGEST_FILE + 1)
    except FileNotFoundError:
        return Ignore([], [])
    except OSError as error:
        return _nothing(f"it cannot be read ({error.strerror})")
    return parse_ignore(content)


def parse_ignore(content: bytes) -> Ignore:
    """A line that is no pattern is left out and named: it must not keep a home from being archived.

    Unless it would take something back, which without it would be lost."""
    if len(content) > LARGEST_FILE:
        return _nothing(f"it is longer than {LARGEST_FILE} bytes")
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError:
        return _nothing("it is not UTF-8 text")
    patterns, oddities = [], []
    for line in text.split("\n"):
        try:
            pattern = parse_pattern(line.rstrip("\r"))
        except ValueError:
            if len(line.strip()) > 1 and line.startswith("!"):
                return _nothing(f"what shall be kept by “{line.strip()[:200]}” cannot be understood")
            oddities.append(f"not a pattern: {line[:200]}")
            continue
        if pattern is not None:
            patterns.append(pattern)
    return Ignore(patterns, oddities)


def _nothing(why: str) -> Ignore:
    return Ignore([], [f"{why}, so nothing is left out"])
