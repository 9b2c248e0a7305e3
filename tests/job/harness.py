"""Running the job in a test: in this process for speed, or as the real program.

`JobHarness` is one home, one archive directory and one key.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import UUID

from codehub.job.archive import ArchiveRequest, archive, checked_meta, diagnose_hash_mismatch, matches_hash
from codehub.job.compress import decompressed
from codehub.job.errors import ExitCode, JobFailed
from codehub.job.progress import ProgressReporter
from codehub.job.restore import RestoreRequest, restore
from codehub.job.store import ArchiveStore, Meta, open_store
from codehub.job.tar_format import Member
from codehub.job.tar_reader import TarReader
from tests.job.trees import Snapshot, snapshot

KEY = "homes/7f1c/op-1/home.tar.zst"
Event = dict[str, Any]


def operation(number: int) -> str:
    return str(UUID(int=number))


def verify(store: ArchiveStore) -> Meta:
    """Reads the whole archive: its hash, and every header in it."""
    meta = checked_meta(store)
    if not matches_hash(store, meta.sha256):
        raise diagnose_hash_mismatch(store, meta)
    return meta


def members(store: ArchiveStore) -> Iterator[Member]:
    with store.read() as chunks:
        yield from TarReader(decompressed(chunks))


class RecordedProgress(ProgressReporter):
    def __init__(self) -> None:
        super().__init__()
        self.events: list[Event] = []

    def _write_line(self, line: Event, wait_seconds: float) -> None:
        self.events.append(line)


@dataclass
class Outcome:
    code: int
    events: list[Event] = field(default_factory=list)
    message: str = ""

    @property
    def last(self) -> Event:
        return self.events[-1]

    @property
    def warnings(self) -> list[str]:
        return [event["message"] for event in self.events if event["event"] == "warning"]


class JobHarness:
    def __init__(self, directory: Path) -> None:
        self.home = directory / "home"
        self.archives = directory / "archives"
        self.restored = directory / "restored"
        for made in (self.home, self.archives, self.restored):
            made.mkdir()
        self.store_url = self.archives.as_uri()
        self.key = KEY
        self.op_id = operation(1)

    @property
    def object(self) -> Path:
        return self.archives / self.key

    @property
    def meta(self) -> Path:
        return self.archives / (self.key + ".meta")

    def store(self) -> ArchiveStore:
        return open_store(self.store_url, self.key)

    def archive(self) -> Outcome:
        heard = RecordedProgress()
        try:
            archive(ArchiveRequest(self.home, self.store_url, self.key, backoff_seconds=0.01), heard)
        except JobFailed as failure:
            return Outcome(failure.code, heard.events, failure.message)
        return Outcome(ExitCode.DONE, heard.events)

    def restore(self, *, max_bytes: int | None = 0) -> Outcome:
        heard = RecordedProgress()
        request = RestoreRequest(
            self.restored, self.store_url, self.key, self.op_id, max_bytes=max_bytes, backoff_seconds=0.01
        )
        try:
            restore(request, heard)
        except JobFailed as failure:
            return Outcome(failure.code, heard.events, failure.message)
        return Outcome(ExitCode.DONE, heard.events)

    def archive_arguments(self) -> list[str]:
        return ["archive", "--volume", str(self.home), "--store", self.store_url, "--key", self.key]

    def restore_arguments(self) -> list[str]:
        place = ["--volume", str(self.restored), "--store", self.store_url, "--key", self.key]
        return ["restore", *place, "--op-id", self.op_id]

    def tree_of_home(self) -> Snapshot:
        return snapshot(self.home)

    def tree_restored(self) -> Snapshot:
        return snapshot(self.restored)

    def leftovers(self) -> list[str]:
        """Whatever a finished job must not leave behind."""
        staging = [
            name for name in os.listdir(self.restored) if name.startswith((".codehub-restore-", ".codehub-restoring-"))
        ]
        unfinished = [str(path) for path in self.archives.rglob("*#*")]
        return staging + unfinished


def start_job(arguments: list[str], **environment: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-m", "codehub.job", *arguments],
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish_job(job: "subprocess.Popen[str]") -> Outcome:
    output, errors = job.communicate(timeout=100)
    assert "Traceback" not in errors, errors
    events = [json.loads(line) for line in output.splitlines()]
    return Outcome(job.returncode, events, events[-1].get("message", "") if events else errors)


def run_job(arguments: list[str], **environment: str) -> Outcome:
    return finish_job(start_job(arguments, **environment))
