"""Run by somebody who is not root: owners are theirs, everything else is as it was."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from codehub.job.errors import ExitCode
from codehub.job.tar_format import DIRECTORY, Member, encode
from tests.job import malicious_archives
from tests.job.harness import JobHarness, operation
from tests.job.trees import MTIME, ROOT, assert_same

NOBODY = 65534

# The interpreter may be where only root can read it, so all is loaded before the privileges go.
AS_NOBODY = f"""
import os, sys, codehub.job.command
codehub.job.command._parse(sys.argv[1:])
os.setgroups([]); os.setgid({NOBODY}); os.setuid({NOBODY})
os._exit(codehub.job.command.main(sys.argv[1:]))
"""


@pytest.fixture
def theirs() -> Iterator[JobHarness]:
    with tempfile.TemporaryDirectory(prefix="codehub-job-") as directory:
        harness = JobHarness(Path(directory))
        if ROOT:
            for path in (Path(directory), harness.home, harness.archives, harness.restored):
                os.chown(path, NOBODY, NOBODY)
        yield harness


def run(arguments: list[str]) -> int:
    start = ["-c", AS_NOBODY] if ROOT else ["-m", "codehub.job"]
    return subprocess.run([sys.executable, *start, *arguments], stdout=subprocess.DEVNULL, check=False).returncode


def make_home(root: Path) -> None:
    closed = root / "read-only" / "inner"
    closed.mkdir(parents=True)
    (closed / "file").write_text("x")
    os.setxattr(closed / "file", "user.a", b"1")
    (closed / "file").chmod(0o4444)
    closed.chmod(0o555)
    closed.parent.chmod(0o1555)
    (root / "a").write_text("x")
    (root / "a").chmod(0o640)
    (root / "s").symlink_to("a")


def test_read_only_directories_come_back(theirs: JobHarness) -> None:
    make_home(theirs.home)
    before = theirs.tree_of_home()
    theirs.archive()
    if ROOT:
        for path in theirs.archives.rglob("*"):
            path.chmod(0o755)
    assert run(theirs.restore_arguments()) == ExitCode.DONE
    assert_same(before, theirs.tree_restored(), owners=False)
    assert theirs.leftovers() == []


def test_the_whole_way_and_once_more(theirs: JobHarness) -> None:
    """Restoring over a restored home removes read-only directories, too."""
    make_home(theirs.home)
    give(theirs.home)
    theirs.home.chmod(0o550)
    os.utime(theirs.home, ns=(0, MTIME))
    before = theirs.tree_of_home()
    assert run(theirs.archive_arguments()) == ExitCode.DONE
    for op_id in (operation(1), operation(1), operation(2)):
        theirs.op_id = op_id
        assert run(theirs.restore_arguments()) == ExitCode.DONE
        assert_same(before, theirs.tree_restored(), owners=False)
        assert theirs.leftovers() == []


def test_a_refused_archive_is_cleared_away(theirs: JobHarness) -> None:
    closed = encode(Member(b"closed", DIRECTORY, 0o500, 0, 0, 0))
    malicious_archives.publish(
        theirs,
        [
            closed,
            malicious_archives.file(b"closed/x"),
            malicious_archives.directory(b"next"),
            malicious_archives.file(b"../pwned"),
        ],
    )
    assert run(theirs.restore_arguments()) == ExitCode.REFUSED_MEMBER
    assert os.listdir(theirs.restored) == []


def test_attributes_only_root_may_set_are_named_not_fatal(theirs: JobHarness) -> None:
    capability = malicious_archives.record(
        b"SCHILY.xattr.security.capability", bytes.fromhex("0100000200040000" + "00" * 12)
    )
    malicious_archives.publish(theirs, [malicious_archives.extended(capability, malicious_archives.file(b"ping"))])
    assert run(theirs.restore_arguments()) == ExitCode.DONE


def test_a_file_its_owner_cannot_read_is_named(theirs: JobHarness) -> None:
    (theirs.home / "closed").write_text("x")
    (theirs.home / "closed").chmod(0)
    give(theirs.home)
    assert run(theirs.archive_arguments()) == ExitCode.ACTION_FAILED
    assert not theirs.meta.exists()


def give(home: Path) -> None:
    if ROOT:
        for path in (home, *home.rglob("*")):
            mode = path.lstat().st_mode
            os.chown(path, NOBODY, NOBODY, follow_symlinks=False)
            if not path.is_symlink():
                path.chmod(mode & 0o7777)
