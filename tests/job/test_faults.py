"""Faults of real parts: each ends in its designed reason, loses nothing, and the same command recovers."""

import os
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from codehub.job.errors import ExitCode
from codehub.job.filesystem import opened_volume
from codehub.job.volume import mark_begun, staging_name
from tests.job.harness import (
    JobHarness,
    finish_job,
    operation,
    run_job,
    start_job,
    verify,
)
from tests.job.s3_server import BUCKET, S3Server
from tests.job.trees import ROOT, assert_same

pytestmark = [pytest.mark.system, pytest.mark.timeout(300)]


@pytest.fixture
def home(harness: JobHarness) -> JobHarness:
    (harness.home / "large").write_bytes(os.urandom(96 << 20))
    (harness.home / "small").write_text("small")
    return harness


def wait_for_upload(server: S3Server, harness: JobHarness) -> None:
    """Until the multipart upload has begun: the server then knows the job, and nothing is visible yet."""
    time.sleep(0.8)
    assert f"{harness.key}.meta" not in server.objects()


def test_s3_round_trip(home: JobHarness, s3: S3Server) -> None:
    before = home.tree_of_home()
    archived = run_job(home.archive_arguments())
    assert archived.code == ExitCode.DONE, archived.message
    assert s3.objects() == [home.key, f"{home.key}.meta"]
    again = run_job(home.archive_arguments())
    assert again.last["created_at"] == archived.last["created_at"], "proven once"
    assert run_job(home.restore_arguments()).code == ExitCode.DONE
    assert_same(before, home.tree_restored())


def test_the_server_goes_away_in_the_middle_and_comes_back(home: JobHarness, s3: S3Server) -> None:
    job = start_job(home.archive_arguments())
    wait_for_upload(s3, home)
    s3.stop()
    time.sleep(1.0)
    s3.start()
    archived = finish_job(job)
    assert archived.code == ExitCode.DONE, archived.message
    verify(home.store())


def test_the_server_goes_away_and_stays_away(home: JobHarness, s3: S3Server) -> None:
    before = home.tree_of_home()
    job = start_job([*home.archive_arguments(), "--backoff-seconds", "0.1"])
    wait_for_upload(s3, home)
    s3.stop()
    archived = finish_job(job)
    assert (archived.code, archived.last["reason"]) == (ExitCode.UNREACHABLE, "Unreachable")
    s3.start()
    assert f"{home.key}.meta" not in s3.objects()
    assert_same(before, home.tree_of_home())
    assert run_job(home.archive_arguments()).code == ExitCode.DONE
    verify(home.store())


def test_the_server_is_killed_while_a_home_is_restored(home: JobHarness, s3: S3Server) -> None:
    before = home.tree_of_home()
    home.archive()
    job = start_job([*home.restore_arguments(), "--backoff-seconds", "0.1"])
    while job.poll() is None and not any(path.name.startswith(".codehub-restore-") for path in home.restored.iterdir()):
        time.sleep(0.005)
    s3.stop()
    restored = finish_job(job)
    assert restored.code in (ExitCode.UNREACHABLE, ExitCode.DONE), restored.message
    if restored.code == ExitCode.UNREACHABLE:
        assert os.listdir(home.restored) == []
    s3.start()
    assert run_job(home.restore_arguments()).code == ExitCode.DONE
    assert_same(before, home.tree_restored())


def test_wrong_credentials_are_said_at_once(home: JobHarness, s3: S3Server) -> None:
    archived = run_job(home.archive_arguments(), AWS_SECRET_ACCESS_KEY="not-the-secret-at-all")
    assert (archived.code, archived.last["reason"]) == (ExitCode.ACCESS_DENIED, "Unreachable")
    assert archived.warnings == [], "no use in trying again"
    assert "not-the-secret-at-all" not in str(archived.events)
    restored = run_job(home.restore_arguments(), AWS_SECRET_ACCESS_KEY="not-the-secret-at-all")
    assert restored.code == ExitCode.ACCESS_DENIED
    assert s3.objects() == []
    assert run_job(home.archive_arguments()).code == ExitCode.DONE


def test_a_bucket_that_is_not_there_is_no_lost_archive(home: JobHarness, s3: S3Server) -> None:
    home.store_url = "s3://no-such-bucket"
    assert run_job(home.archive_arguments()).code == ExitCode.UNREACHABLE
    assert run_job(home.restore_arguments()).code == ExitCode.UNREACHABLE


@pytest.mark.parametrize("damage", ["truncated", "flipped", "object gone", "meta gone"])
def test_damage_on_s3(home: JobHarness, s3: S3Server, damage: str) -> None:
    home.archive()
    stored = s3.directory / BUCKET / home.key
    meta = stored.with_name(stored.name + ".meta")
    good = stored.read_bytes(), meta.read_bytes()
    s3.stop()  # it would not notice what happens behind its back
    if damage == "truncated":
        os.truncate(stored, 1 << 20)
    elif damage == "flipped":
        stored.write_bytes(good[0][:-1000] + bytes([good[0][-1000] ^ 1]) + good[0][-999:])
    else:
        (stored if damage == "object gone" else meta).unlink()
    s3.start()
    restored = run_job(home.restore_arguments())
    expected = ExitCode.ARCHIVE_NOT_FOUND if "gone" in damage else ExitCode.ARCHIVE_CORRUPTED
    assert restored.code == expected, restored.message
    assert os.listdir(home.restored) == []
    s3.stop()
    stored.write_bytes(good[0])
    meta.write_bytes(good[1])
    s3.start()
    assert run_job(home.restore_arguments()).code == ExitCode.DONE


@pytest.fixture
def small_disk() -> Iterator[Path]:
    if not ROOT:
        pytest.skip("mounting needs root")
    with tempfile.TemporaryDirectory(prefix="codehub-job-") as directory:
        mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=32m", "tmpfs", directory], check=False)
        if mounted.returncode:
            pytest.skip("this machine does not let us mount")
        yield Path(directory)
        subprocess.run(["umount", directory], check=True)


def test_the_disk_is_full_on_restore(home: JobHarness, small_disk: Path) -> None:
    home.archive()
    home.restored = small_disk
    restored = run_job(home.restore_arguments())
    assert (restored.code, restored.last["reason"]) == (ExitCode.DISK_FULL, "ActionFailed")
    assert "No space left" in restored.message
    assert os.listdir(small_disk) == [], "the space is given back"
    subprocess.run(["mount", "-o", "remount,size=200m", small_disk], check=True)
    assert run_job(home.restore_arguments()).code == ExitCode.DONE
    assert_same(home.tree_of_home(), home.tree_restored())


def test_the_leftovers_of_a_killed_restore_do_not_count_as_used(home: JobHarness, small_disk: Path) -> None:
    """24 MB, and 20 of the 32 MB there are hold the first attempt's staging."""
    for path in home.home.iterdir():
        path.unlink()
    (home.home / "a").write_bytes(os.urandom(24 << 20))
    assert home.archive().code == ExitCode.DONE
    home.restored = small_disk
    for op_id in (operation(1), operation(2)):
        tree = small_disk / os.fsdecode(staging_name(op_id)) / "tree"
        tree.mkdir(parents=True)
        (tree / "a").write_bytes(bytes(10 << 20))
        with opened_volume(small_disk) as volume:
            mark_begun(volume, op_id)
    assert run_job([*home.restore_arguments(), "--max-bytes", "free"]).code == ExitCode.DONE
    assert_same(home.tree_of_home(), home.tree_restored())


def test_a_home_larger_than_the_disk_is_not_begun(home: JobHarness, small_disk: Path) -> None:
    home.archive()
    home.restored = small_disk
    restored = run_job([*home.restore_arguments(), "--max-bytes", "free"])
    assert restored.code == ExitCode.DISK_FULL
    assert restored.message.startswith("the home needs ")
    assert [event["bytes"] for event in restored.events if event["event"] == "progress"] == [0]
    assert os.listdir(small_disk) == []


def test_the_disk_is_full_on_archive(home: JobHarness, small_disk: Path) -> None:
    before = home.tree_of_home()
    home.store_url = small_disk.as_uri()
    archived = run_job(home.archive_arguments())
    assert archived.code == ExitCode.DISK_FULL, archived.message
    assert [path for path in small_disk.rglob("*") if path.is_file()] == []
    assert_same(before, home.tree_of_home())


def test_a_mounted_volume_keeps_its_lost_and_found(home: JobHarness, small_disk: Path) -> None:
    subprocess.run(["mount", "-o", "remount,size=200m", small_disk], check=True)
    (small_disk / "lost+found").mkdir(mode=0o700)
    home.archive()
    home.restored = small_disk
    assert run_job(home.restore_arguments()).code == ExitCode.DONE
    assert (small_disk / "lost+found").is_dir()
    home.home, home.key = small_disk, "homes/7f1c/op-2/home.tar.zst"
    assert home.archive().last["files"] == 2
    (small_disk / "lost+found").rmdir()
    os.utime(small_disk, ns=(0, home.tree_of_home()[b""].mtime_ns))
