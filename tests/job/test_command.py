"""The program: its lines, its exit codes, how long it waits for whoever reads it."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from codehub.job.errors import OUTCOMES, ExitCode, outcome_of
from tests.job.harness import JobHarness, finish_job, run_job, start_job
from tests.job.trees import assert_same


def test_archive_and_restore_as_programs(harness: JobHarness) -> None:
    (harness.home / "a").write_bytes(os.urandom(3 << 20))
    archived = run_job(harness.archive_arguments())
    assert (archived.code, archived.last["event"]) == (ExitCode.DONE, "done")
    assert {"bytes", "files", "total_bytes", "step"} <= set(archived.events[0])
    restored = run_job([*harness.restore_arguments(), "--max-bytes", str(10 << 20)])
    assert (restored.code, restored.last["sha256"]) == (ExitCode.DONE, archived.last["sha256"])
    assert_same(harness.tree_of_home(), harness.tree_restored())


def test_the_last_line_says_why_it_failed(harness: JobHarness) -> None:
    failed = run_job(harness.restore_arguments())
    assert failed.code == ExitCode.ARCHIVE_NOT_FOUND
    assert failed.last == {
        "event": "failed",
        "reason": "ArchiveAccessError",
        "detail": "not_found",
        "message": "the archive has no .meta, so it is not believed",
    }


def test_wrong_usage(harness: JobHarness) -> None:
    assert run_job(["archive"]).last["detail"] == "usage"
    harness.store_url = "ftp://example.com"
    assert run_job(harness.archive_arguments()).code == ExitCode.USAGE
    harness.store_url, harness.key = harness.archives.as_uri(), "../escape"
    assert run_job(harness.archive_arguments()).code == ExitCode.USAGE
    harness.key = "percent%20/home.tar.zst"
    assert run_job(harness.archive_arguments()).code == ExitCode.USAGE
    assert run_job([*harness.restore_arguments(), "--max-bytes", "-1"]).code == ExitCode.USAGE


def test_help_names_every_exit_code() -> None:
    help_text = subprocess.run(
        [sys.executable, "-m", "codehub.job", "--help"], capture_output=True, text=True, check=True
    ).stdout
    assert all(f"{code:3}  {outcome.meaning}" in help_text for code, outcome in OUTCOMES.items())


def test_every_exit_code_has_an_outcome() -> None:
    assert set(OUTCOMES) == set(ExitCode)
    assert outcome_of(137).reason == "ActionFailed"
    assert {outcome.reason for outcome in OUTCOMES.values()} == {
        "",
        "ActionFailed",
        "Unreachable",
        "ArchiveAccessError",
        "ArchiveCorrupted",
    }


def test_a_reader_that_went_away_does_not_end_the_job(harness: JobHarness) -> None:
    (harness.home / "a").write_bytes(os.urandom(3 << 20))
    job = start_job(harness.archive_arguments())
    assert job.stdout is not None
    job.stdout.close()
    assert job.wait(timeout=60) == ExitCode.DONE
    if job.stderr is not None:
        job.stderr.close()
    assert harness.meta.exists()


@pytest.mark.system
def test_a_reader_that_sleeps_does_not_hold_the_job_up(harness: JobHarness) -> None:
    (harness.home / "a").write_text("x")
    read_end, write_end = os.pipe()
    os.set_blocking(write_end, False)
    try:
        while True:
            os.write(write_end, b"x" * 4096)
    except BlockingIOError:
        os.set_blocking(write_end, True)
    job = subprocess.Popen([sys.executable, "-m", "codehub.job", *harness.archive_arguments()], stdout=write_end)
    assert job.wait(timeout=60) == ExitCode.DONE
    os.close(read_end)
    os.close(write_end)


def test_a_stopped_job_leaves_nothing_half_done(harness: JobHarness) -> None:
    (harness.home / "a").write_bytes(os.urandom(64 << 20))
    job = start_job(harness.archive_arguments())
    while not list(harness.archives.rglob("*#*")):
        assert job.poll() is None
        time.sleep(0.005)
    job.send_signal(signal.SIGTERM)
    assert finish_job(job).code == ExitCode.STOPPED
    assert [path for path in harness.archives.rglob("*") if path.is_file()] == []


def test_the_job_knows_nothing_of_the_rest_of_codehub(harness: JobHarness) -> None:
    script = (
        "import json, sys, codehub.job.command; print(json.dumps([m for m in sys.modules if m.startswith('codehub')]))"
    )
    loaded = json.loads(subprocess.run([sys.executable, "-c", script], capture_output=True, check=True).stdout)
    assert [name for name in loaded if name != "codehub" and not name.startswith("codehub.job")] == []


def test_secrets_are_never_arguments() -> None:
    source = (Path(__file__).parents[2] / "src/codehub/job/command.py").read_text()
    assert "secret" not in source.lower().replace("aws_secret_access_key", "")
