"""A harness for each test, and a real S3 server for those that ask."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.job.harness import JobHarness
from tests.job.s3_server import S3Server


@pytest.fixture
def harness() -> Iterator[JobHarness]:
    # Not tmp_path: pytest keeps the last three of those, and some homes here are large.
    with tempfile.TemporaryDirectory(prefix="codehub-job-") as directory:
        yield JobHarness(Path(directory))


@pytest.fixture
def roomy_desk() -> Iterator[JobHarness]:
    """In memory where there is plenty: making and removing very many files is no business of a shared disk."""
    memory = Path("/dev/shm")
    enough = memory.is_dir() and os.access(memory, os.W_OK) and shutil.disk_usage(memory).free > 4 << 30
    with tempfile.TemporaryDirectory(prefix="codehub-job-", dir=memory if enough else None) as directory:
        yield JobHarness(Path(directory))


@pytest.fixture
def s3(harness: JobHarness, monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Server]:
    """The harness archives to it from then on."""
    server = S3Server(harness.archives)
    harness.store_url = server.url
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    server.start()
    yield server
    server.stop()
