"""`.codehubignore` at the top of a home: what its owner does not want archived.

Patterns are gitignore's, matched by pathspec. As in git, nothing below an ignored directory can be taken back by a
later `!` pattern: the directory is not entered. The file itself is archived like any other.
"""

import os
import stat

from pathspec import GitIgnoreSpec
from pathspec.patterns.gitignore.spec import GitIgnoreSpecPattern

from codehub.job.layout import IGNORE_FILE

LARGEST_FILE = 1 << 20


class Ignore:
    def __init__(self, patterns: list[GitIgnoreSpecPattern], invalid: list[str]) -> None:
        self._spec = GitIgnoreSpec(patterns) if patterns else None
        self.invalid = invalid

    def matches(self, path: bytes, *, is_directory: bool) -> bool:
        if self._spec is None:
            return False
        text = os.fsdecode(path)
        return self._spec.match_file(text + "/" if is_directory else text)


def read_ignore(volume: int) -> Ignore:
    try:
        # Non-blocking: a fifo of this name must not hang the job.
        descriptor = os.open(IGNORE_FILE, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=volume)
    except OSError:
        return Ignore([], [])
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return Ignore([], [])
        return parse_ignore(file.read(LARGEST_FILE))


def parse_ignore(content: bytes) -> Ignore:
    """A line that is no pattern is left out and named: it must not keep a home from being archived."""
    patterns, invalid = [], []
    for line in os.fsdecode(content).split("\n"):
        try:
            pattern = GitIgnoreSpecPattern(line.rstrip("\r"))
        except ValueError:
            invalid.append(line)
            continue
        if pattern.include is not None:
            patterns.append(pattern)
    return Ignore(patterns, invalid)
