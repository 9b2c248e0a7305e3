"""`kill -9` anywhere, then the same command again: the same tree, the same archive, nothing left behind.

Two ways to die: at a chosen system call, one after the other through the whole job; and at a random moment, in the
middle of whatever its threads are doing.
"""

import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from codehub.job.errors import ExitCode
from tests.job.harness import (
    JobHarness,
    operation,
    run_job,
    start_job,
    verify,
)
from tests.job.killed_job import run_until
from tests.job.s3_server import S3Server
from tests.job.trees import MTIME, Snapshot, acl, assert_same

CI, LONG = 15, 200


def make_small_tree(root: Path) -> None:
    """Few entries, every kind of effect."""
    (root / "dir" / "inner").mkdir(parents=True)
    (root / "dir" / "inner" / "file").write_bytes(os.urandom(5000))
    (root / "dir" / "name").hardlink_to(root / "dir" / "inner" / "file")
    (root / "link").symlink_to("dir")
    os.mkfifo(root / "fifo")
    (root / "x").write_text("x")
    os.setxattr(root / "x", "user.a", b"1")
    (root / "dir").chmod(0o500)
    os.setxattr(root, "system.posix_acl_default", acl(named_user=5, permissions=6))
    root.chmod(0o2711)
    os.utime(root, ns=(0, MTIME))


def make_busy_tree(root: Path) -> None:
    """Enough of everything that a random moment falls into the middle of something."""
    make_small_tree(root)
    randomness = random.Random(5)
    for group in range(8):
        (root / f"group-{group}").mkdir()
        for number in range(60):
            (root / f"group-{group}" / f"{number}").write_bytes(randomness.randbytes(randomness.randrange(12_000)))
    (root / "large").write_bytes(randomness.randbytes(12 << 20))
    os.utime(root, ns=(0, MTIME))


def check_restored(harness: JobHarness, before: Snapshot) -> None:
    assert_same(before, harness.tree_restored())
    assert harness.leftovers() == []


@pytest.mark.system
@pytest.mark.timeout(600)
def test_restore_killed_at_every_call(harness: JobHarness) -> None:
    make_small_tree(harness.home)
    before = harness.tree_of_home()
    harness.archive()
    at = 0
    for at in deaths_on_fresh_volumes(harness):
        assert run_until(harness.restore_arguments()) == ExitCode.DONE, at
        check_restored(harness, before)
    print(f"restore: killed at each of {at + 1} calls")
    assert at > 80


def deaths_on_fresh_volumes(harness: JobHarness) -> Iterator[int]:
    """Numbers of calls the job died at, until it lives through."""
    at = 0
    while True:
        harness.restored = harness.archives.parent / f"volume-{at}"
        harness.restored.mkdir()
        if run_until(harness.restore_arguments(), at, half=at % 2 == 1) != -signal.SIGKILL:
            return
        yield at
        at += 1


@pytest.mark.system
@pytest.mark.timeout(600)
def test_restore_over_an_earlier_one_killed_at_every_call_twice(harness: JobHarness) -> None:
    """The second run dies too, elsewhere; the third must finish."""
    make_small_tree(harness.home)
    before = harness.tree_of_home()
    harness.archive()
    assert run_until(harness.restore_arguments()) == ExitCode.DONE
    number, at = 2, 0
    while True:
        harness.op_id = operation(number)
        number += 1
        if run_until(harness.restore_arguments(), at, half=at % 2 == 0) != -signal.SIGKILL:
            break
        run_until(harness.restore_arguments(), (at * 7) % 90)
        assert run_until(harness.restore_arguments()) == ExitCode.DONE, at
        check_restored(harness, before)
        at += 3
    print(f"restore over restore: killed at {at // 3} calls")


def is_committed(staging: Path) -> bool:
    return (staging / "committed").exists() and not (staging / "cleared").exists()


def is_half_moved(staging: Path) -> bool:
    return (staging / "cleared").exists() and 0 < len(list((staging / "tree").iterdir())) < 4


@pytest.mark.system
@pytest.mark.timeout(600)
@pytest.mark.parametrize("given_up_when", [is_committed, is_half_moved])
def test_a_restore_given_up_for_another_killed_at_every_call(
    harness: JobHarness, given_up_when: Callable[[Path], bool]
) -> None:
    """Operation 1 dies on its way into place, operation 2 dies clearing that away; then either must finish."""
    make_small_tree(harness.home)
    before = harness.tree_of_home()
    harness.archive()
    death = next(
        at
        for at in deaths_on_fresh_volumes(harness)
        if given_up_when(harness.restored / f".codehub-restore-{operation(1)}")
    )
    for at in range(50):
        harness.restored = harness.archives.parent / f"given-up-{at}"
        harness.restored.mkdir()
        run_until(harness.restore_arguments(), death, half=death % 2 == 1)
        harness.op_id = operation(2)
        run_until(harness.restore_arguments(), at, half=at % 4 > 1)
        harness.op_id = operation(1 + at % 2)
        assert run_until(harness.restore_arguments()) == ExitCode.DONE, at
        check_restored(harness, before)
        harness.op_id = operation(1)


@pytest.mark.system
@pytest.mark.timeout(600)
def test_archive_killed_at_every_call(harness: JobHarness) -> None:
    make_small_tree(harness.home)
    before = harness.tree_of_home()
    for at in range(1000):
        harness.key = f"homes/7f1c/op-{at}/home.tar.zst"
        if run_until(harness.archive_arguments(), at, half=at % 2 == 1) != -signal.SIGKILL:
            break
        if harness.meta.exists():
            verify(harness.store())
        assert run_until(harness.archive_arguments()) == ExitCode.DONE, at
        verify(harness.store())
        assert harness.tree_of_home() == before
        assert harness.leftovers() == []
    print(f"archive: killed at each of {at} calls")
    assert at > 20


def kill_at_random(arguments: list[str], moment: float) -> None:
    job = start_job(arguments)
    time.sleep(moment)
    job.kill()
    job.communicate()


def archive_killed_at_random(harness: JobHarness, times: int) -> None:
    make_busy_tree(harness.home)
    before = harness.tree_of_home()
    began = time.monotonic()
    assert run_job(harness.archive_arguments()).code == ExitCode.DONE
    lasts = time.monotonic() - began
    moments = random.Random(times)
    for number in range(times):
        harness.key = f"homes/7f1c/op-{number}/home.tar.zst"
        kill_at_random(harness.archive_arguments(), moments.uniform(0.1, lasts))
        store = harness.store()
        if store.read_meta() is not None:
            verify(store)
        assert run_job(harness.archive_arguments()).code == ExitCode.DONE
        verify(store)
        assert harness.leftovers() == []
        harness.restored = harness.archives.parent / f"volume-{number}"
        harness.restored.mkdir()
    assert harness.tree_of_home() == before
    assert harness.restore().code == ExitCode.DONE
    check_restored(harness, before)


def restore_killed_at_random(harness: JobHarness, times: int) -> None:
    make_busy_tree(harness.home)
    before = harness.tree_of_home()
    assert harness.archive().code == ExitCode.DONE
    began = time.monotonic()
    assert run_job(harness.restore_arguments()).code == ExitCode.DONE
    lasts = time.monotonic() - began
    moments = random.Random(times)
    for number in range(times):
        harness.op_id = operation(number + 2)
        kill_at_random(harness.restore_arguments(), moments.uniform(0.1, lasts))
        if number % 3 == 0:
            kill_at_random(harness.restore_arguments(), moments.uniform(0.1, lasts))
        assert run_job(harness.restore_arguments()).code == ExitCode.DONE
        check_restored(harness, before)


@pytest.mark.system
@pytest.mark.timeout(600)
def test_archive_killed_at_random_moments(harness: JobHarness) -> None:
    archive_killed_at_random(harness, CI)


@pytest.mark.system
@pytest.mark.timeout(600)
def test_archive_to_s3_killed_at_random_moments(harness: JobHarness, s3: S3Server) -> None:
    archive_killed_at_random(harness, CI)


@pytest.mark.system
@pytest.mark.timeout(600)
def test_restore_killed_at_random_moments(harness: JobHarness) -> None:
    restore_killed_at_random(harness, CI)


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_archive_killed_at_two_hundred_random_moments(harness: JobHarness) -> None:
    archive_killed_at_random(harness, LONG)


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_archive_to_s3_killed_at_two_hundred_random_moments(harness: JobHarness, s3: S3Server) -> None:
    archive_killed_at_random(harness, LONG)


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_restore_killed_at_two_hundred_random_moments(harness: JobHarness) -> None:
    restore_killed_at_random(harness, LONG)
