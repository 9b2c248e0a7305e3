"""How the job ends: its exit codes, which the control plane can read even when nothing was printed, and the one
exception that ends it.

The table below is the whole contract: each exit code has one detail word and one ErrorReason of the control plane.
Codes are never reused for another meaning.
"""

import errno
from enum import IntEnum
from typing import NamedTuple

_NO_SPACE = {errno.ENOSPC, errno.EDQUOT}


class ExitCode(IntEnum):
    DONE = 0
    INTERNAL = 1
    USAGE = 2
    ACTION_FAILED = 10
    DISK_FULL = 11
    REFUSED_MEMBER = 12
    CONFLICT = 13
    UNREACHABLE = 20
    ACCESS_DENIED = 21
    OTHER_STORE = 22
    ARCHIVE_NOT_FOUND = 30
    ARCHIVE_CORRUPTED = 31
    STOPPED = 143


class Outcome(NamedTuple):
    reason: str
    """The ErrorReason; empty where the exit is no error of the workspace."""
    detail: str
    meaning: str


OUTCOMES: dict[ExitCode, Outcome] = {
    ExitCode.DONE: Outcome("", "done", "the archive is proven, or the home is restored"),
    ExitCode.INTERNAL: Outcome("ActionFailed", "internal", "a fault in the job itself; stderr has the traceback"),
    ExitCode.USAGE: Outcome("ActionFailed", "usage", "wrong arguments or configuration"),
    ExitCode.ACTION_FAILED: Outcome("ActionFailed", "action_failed", "the volume could not be read or written"),
    ExitCode.DISK_FULL: Outcome(
        "ActionFailed", "disk_full", "no space or quota left in the volume or archive directory"
    ),
    ExitCode.REFUSED_MEMBER: Outcome("ActionFailed", "refused_member", "the archive holds something a home may not"),
    ExitCode.CONFLICT: Outcome("ActionFailed", "conflict", "someone else's proven data is in the way; nothing changed"),
    ExitCode.UNREACHABLE: Outcome("Unreachable", "unreachable", "the object store did not answer"),
    ExitCode.ACCESS_DENIED: Outcome("Unreachable", "access_denied", "the object store refuses these credentials"),
    ExitCode.OTHER_STORE: Outcome("Unreachable", "other_store", "the store is not the one it should be; untouched"),
    ExitCode.ARCHIVE_NOT_FOUND: Outcome("ArchiveAccessError", "not_found", "the object or its .meta is not there"),
    ExitCode.ARCHIVE_CORRUPTED: Outcome("ArchiveCorrupted", "corrupted", "the object is not what .meta says"),
    ExitCode.STOPPED: Outcome("Unreachable", "stopped", "ended by SIGTERM; run it again to go on"),
}


def outcome_of(exit_code: int) -> Outcome:
    """The outcome of any exit code, also of those the job did not choose (137 after an OOM kill)."""
    try:
        return OUTCOMES[ExitCode(exit_code)]
    except ValueError:
        return Outcome("ActionFailed", f"exit_{exit_code}", "ended from outside")


class JobFailed(Exception):
    """The failure that ends the job with `code`. `transient`: it may pass by itself, so it is tried again. `evidence`:
    what two failures with the same words must have in common to be the same finding."""

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
