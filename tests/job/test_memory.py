"""Whatever the size of a home, the job stays under 200 MB."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from codehub.job.errors import ExitCode
from tests.job.harness import JobHarness
from tests.job.s3_server import S3Server

pytestmark = [pytest.mark.system, pytest.mark.timeout(300)]
LIMIT = 200 << 20


# A child starts with its parent's peak, so the one who starts the job must be small itself.
MEASURE = """
import resource, subprocess, sys
code = subprocess.run([sys.executable, "-m", "codehub.job", *sys.argv[1:]], stdout=subprocess.DEVNULL).returncode
print(code, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
"""


def peak_memory(arguments: list[str]) -> int:
    measured = subprocess.run(
        [sys.executable, "-c", MEASURE, *arguments], stdout=subprocess.PIPE, text=True, check=True
    ).stdout.split()
    assert int(measured[0]) == ExitCode.DONE
    return int(measured[1]) * 1024


def make_large_home(home: Path) -> None:
    with (home / "1 GiB that cannot be compressed").open("wb") as file:
        for _ in range(64):
            file.write(os.urandom(16 << 20))


@pytest.mark.parametrize("where", ["directory", "s3"])
def test_a_large_file(harness: JobHarness, where: str, request: pytest.FixtureRequest) -> None:
    if where == "s3":
        server: S3Server = request.getfixturevalue("s3")
        assert harness.store_url == server.url
    make_large_home(harness.home)
    archive = peak_memory(harness.archive_arguments())
    restore = peak_memory(harness.restore_arguments())
    print(f"1 GiB, {where}: archive {archive >> 20} MB, restore {restore >> 20} MB")
    assert archive < LIMIT
    assert restore < LIMIT


def test_a_crowd_in_one_directory(harness: JobHarness) -> None:
    """Names are all a directory costs; hard links are kept in mind until their last name."""
    for number in range(30_000):
        (harness.home / f"file-{number:06}-with-a-name-of-ordinary-length").touch()
    (harness.home / "again").mkdir()
    for number in range(0, 30_000, 2):
        name = f"file-{number:06}-with-a-name-of-ordinary-length"
        (harness.home / "again" / name).hardlink_to(harness.home / name)
    assert peak_memory(harness.archive_arguments()) < LIMIT
    assert peak_memory(harness.restore_arguments()) < LIMIT
