"""What the job says while it works: JSON lines on stdout, nothing else; and the back-off between its tries.

The reader may be slow or gone (a coordinator that died is no reason to lose an archive), so a line that cannot be
written is dropped and the work goes on.
"""

import json
import os
import select
import time
from collections.abc import Callable
from typing import Any, TypeVar

from codehub.job.errors import JobFailed

T = TypeVar("T")

TRIES = 3
INTERVAL_SECONDS = 0.5
LAST_LINE_WAIT_SECONDS = 5.0


class ProgressReporter:
    """Writes progress lines at most twice a second. `bytes` and `files` grow within a `step`; `total_bytes` is an
    estimate."""

    def __init__(self, descriptor: int = 1) -> None:
        self._descriptor = descriptor
        self._due = 0.0
        self._step = ""
        self._total = 0
        self.bytes = 0
        self.files = 0

    def start(self, step: str, total_bytes: int) -> None:
        self._step, self._total, self.bytes, self.files, self._due = step, total_bytes, 0, 0, 0.0
        self.tick()

    def advance(self, bytes_: int, files: int = 0) -> None:
        self.bytes += bytes_
        self.files += files
        if time.monotonic() >= self._due:
            self.tick()

    def tick(self) -> None:
        self._due = time.monotonic() + INTERVAL_SECONDS
        self._write_line(
            {
                "event": "progress",
                "step": self._step,
                "bytes": self.bytes,
                "files": self.files,
                "total_bytes": max(self._total, self.bytes),
            },
            wait_seconds=0.0,
        )

    def done(self, **values: object) -> None:
        self._write_line({"event": "done", **values}, wait_seconds=LAST_LINE_WAIT_SECONDS)

    def failed(self, *, reason: str, detail: str, message: str) -> None:
        line = {"event": "failed", "reason": reason, "detail": detail, "message": message[:1000]}
        self._write_line(line, wait_seconds=LAST_LINE_WAIT_SECONDS)

    def warn(self, message: str) -> None:
        self._write_line({"event": "warning", "message": message[:1000]}, wait_seconds=0.0)

    def _write_line(self, line: dict[str, Any], wait_seconds: float) -> None:
        try:
            # A full pipe would block us for as long as its reader sleeps.
            if select.select([], [self._descriptor], [], wait_seconds)[1]:
                os.write(self._descriptor, json.dumps(line).encode() + b"\n")
        except OSError:
            pass


def with_tries(attempt: Callable[[int], T], progress: ProgressReporter, backoff_seconds: float) -> T:
    """Runs `attempt` up to three times, with back-off, if its failure may pass by itself; every other failure is raised
    at once. `attempt` gets its number, from 0."""
    for number in range(TRIES):
        try:
            return attempt(number)
        except JobFailed as failure:
            if not failure.transient or number == TRIES - 1:
                raise
            progress.warn(f"{failure.message}; trying again")
            time.sleep(backoff_seconds * 4**number)
    raise AssertionError("unreachable")
