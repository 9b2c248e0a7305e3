"""The one exception that ends a job, and the translation of operating system errors into it.

`transient` marks what may pass by itself: the verbs try those again before they give up. `evidence` is what two
failures with the same words must have in common to be the same finding.
"""

import errno

from codehub.job.exit_codes import ExitCode

_NO_SPACE = {errno.ENOSPC, errno.EDQUOT}


class JobFailed(Exception):
    def __init__(self, code: ExitCode, message: str, *, transient: bool = False, evidence: str = "") -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.transient = transient
        self.evidence = evidence


def refused(message: str) -> JobFailed:
    return JobFailed(ExitCode.REFUSED_MEMBER, f"archive refused: {message}")


def corrupted(message: str, evidence: str = "") -> JobFailed:
    return JobFailed(ExitCode.ARCHIVE_CORRUPTED, message, evidence=evidence)


def unreachable(message: str) -> JobFailed:
    return JobFailed(ExitCode.UNREACHABLE, message, transient=True)


def changed(path: bytes) -> JobFailed:
    return JobFailed(ExitCode.ACTION_FAILED, f"{show(path)} changed while it was read", transient=True)


def from_os_error(error: OSError, doing: str) -> JobFailed:
    text = f"{doing}: {error.strerror or error}"
    return JobFailed(ExitCode.DISK_FULL if error.errno in _NO_SPACE else ExitCode.ACTION_FAILED, text)


def show(path: bytes) -> str:
    """A file name for people: readable, on one line, bounded, whatever bytes it holds."""
    text = path.decode("utf-8", "backslashreplace")
    text = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
    return f"“{text}”" if len(text) <= 200 else f"“{text[:120]}…{text[-60:]}”"
