"""Every way in which an embedded server does not come up, as one line that says what to do about it."""

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_ADVICE = {
    errno.EACCES: "run as the user it belongs to, or choose another data directory",
    errno.EPERM: "run as the user it belongs to, or choose another data directory",
    errno.EROFS: "choose a data directory on a writable disk",
    errno.ENOSPC: "free some space on that disk, or choose another data directory",
    errno.EDQUOT: "free some of your quota, or choose another data directory",
    errno.ENOTDIR: "choose a data directory that is not below a file",
    errno.EEXIST: "a file stands where a directory is needed; choose another data directory",
}


class EmbeddedError(Exception):
    """An embedded server does not come up. The message is meant for the person who started us; after its first line
    comes the end of the server's own log."""


@contextmanager
def explained(where: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        advice = _ADVICE.get(error.errno or 0)
        what = f"{error.filename or where}: {error.strerror or error}"
        raise EmbeddedError(f"{what}; {advice}" if advice else what) from error


def did_not_start(title: str, why: str, log: Path, words: str) -> EmbeddedError:
    if "No space left on device" in words or "Check free disk space" in words:
        why = "the disk is full; free some space and start again"
    return EmbeddedError(f"{title} did not start: {why} (log: {log})\n{words}".rstrip())
