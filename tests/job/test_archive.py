"""The order of an archive: object, read back, `.meta`; and what is already there is never spoiled."""

import json
import os
import threading
import time
from pathlib import Path

import pytest

from codehub.job import archive as archive_module
from codehub.job.errors import ExitCode
from codehub.job.pack import Totals
from codehub.job.progress import ProgressReporter
from codehub.job.store import ArchiveStore, Meta, part_size
from tests.job.harness import (
    JobHarness,
    verify,
)
from tests.job.trees import assert_same


def test_meta_says_what_the_object_is(harness: JobHarness) -> None:
    (harness.home / "a").write_text("x" * 1000)
    done = harness.archive().last
    meta = json.loads(harness.meta.read_bytes())
    assert done["event"] == "done"
    assert done["key"] == harness.key
    assert {name: done[name] for name in meta} == meta
    assert meta["bytes"] == harness.object.stat().st_size
    assert meta["files"] == 1
    assert verify(harness.store()).sha256 == meta["sha256"]


@pytest.mark.skipif(os.geteuid() != 0, reason="giving files away takes root")
def test_what_root_writes_into_somebodys_store_they_can_still_delete(harness: JobHarness) -> None:
    """In a container the job is root; the store is the directory of whoever runs CodeHub."""
    store = harness.object.parents[len(Path(harness.key).parents) - 1]
    os.chown(store, 1234, 1235)
    assert harness.archive().code == ExitCode.DONE
    places = [place for place in harness.object.parents if place.is_relative_to(store)]
    assert {(place.stat().st_uid, place.stat().st_gid) for place in places} == {(1234, 1235)}


def test_a_finished_archive_is_not_made_again(harness: JobHarness) -> None:
    (harness.home / "a").write_text("as archived")
    first = harness.archive().last
    written = harness.object.stat().st_mtime_ns, harness.meta.stat().st_mtime_ns
    (harness.home / "a").write_text("changed afterwards")
    second = harness.archive()
    assert (second.code, second.last["sha256"]) == (ExitCode.DONE, first["sha256"])
    assert (harness.object.stat().st_mtime_ns, harness.meta.stat().st_mtime_ns) == written


def test_an_object_without_meta_is_replaced(harness: JobHarness) -> None:
    (harness.home / "a").write_text("the truth")
    harness.object.parent.mkdir(parents=True)
    harness.object.write_bytes(b"half an upload")
    assert harness.archive().code == ExitCode.DONE
    harness.restore()
    assert (harness.restored / "a").read_text() == "the truth"


@pytest.mark.parametrize("damage", ["gone", "shorter", "meta cut short"])
def test_a_proven_archive_that_lost_its_bytes_is_made_again_while_the_home_lives(
    harness: JobHarness, damage: str
) -> None:
    (harness.home / "a").write_text("still here")
    harness.archive()
    if damage == "gone":
        harness.object.unlink()
    else:
        os.truncate(harness.object if damage == "shorter" else harness.meta, 10)
    assert harness.archive().code == ExitCode.DONE
    verify(harness.store())


def test_what_was_stored_wrong_is_never_believed(harness: JobHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    def spoil(store: ArchiveStore) -> None:
        harness.object.write_bytes(harness.object.read_bytes()[:-1] + b"!")

    monkeypatch.setattr(ArchiveStore, "sync", spoil)
    (harness.home / "a").write_text("x")
    archived = harness.archive()
    what = "the object store does not give back what was sent"
    assert (archived.code, archived.message) == (ExitCode.UNREACHABLE, what)
    assert len(archived.warnings) == 2, "three tries"
    assert not harness.meta.exists()


@pytest.mark.parametrize(
    ("limit", "why"),
    [
        ("tar_reader.LONGEST_PATH", "is too long a name"),
        ("tar_reader.LARGEST_PAX_HEADER", "an extended header of"),
        ("tar_reader.MOST_PIECES", "has a sparse map of"),
        ("compress.LARGEST_WINDOW", "cannot be decompressed"),
    ],
)
def test_what_no_restore_would_take_is_never_believed(
    harness: JobHarness, monkeypatch: pytest.MonkeyPatch, limit: str, why: str
) -> None:
    (harness.home / ("a name of forty letters " * 8)).write_bytes(os.urandom(4 << 20))
    with (harness.home / "sparse").open("wb") as sparse:
        for place in (0, 1 << 20, 2 << 20):
            sparse.seek(place)
            sparse.write(b"x")
        sparse.truncate(3 << 20)
    with monkeypatch.context() as smaller:
        smaller.setattr(f"codehub.job.{limit}", 1 << 10 if limit.startswith("compress") else 1)
        archived = harness.archive()
    assert (archived.code, harness.meta.exists()) == (ExitCode.ACTION_FAILED, False)
    assert archived.message.startswith("no restore would take this home's archive, so the volume stays (")
    assert why in archived.message
    assert archived.warnings == [], "trying again would change nothing"
    assert harness.archive().code == ExitCode.DONE
    assert harness.restore().code == ExitCode.DONE


def test_meta_is_written_after_the_proof(harness: JobHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[bool] = []
    prove = archive_module._prove

    def watched(store: ArchiveStore, sha256: str, size: int, progress: ProgressReporter) -> None:
        seen.append(harness.meta.exists())
        prove(store, sha256, size, progress)

    monkeypatch.setattr(archive_module, "_prove", watched)
    (harness.home / "a").write_text("x")
    harness.archive()
    assert (seen, harness.meta.exists()) == ([False], True)


def test_two_jobs_at_once_agree(harness: JobHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other one finishes first: the same tree gives the same bytes, so its proof is ours."""
    (harness.home / "a").write_bytes(os.urandom(100_000))
    create = ArchiveStore.create_meta

    def beaten(store: ArchiveStore, meta: Meta) -> bool:
        create(store, meta)
        return create(store, meta)

    monkeypatch.setattr(ArchiveStore, "create_meta", beaten)
    assert harness.archive().code == ExitCode.DONE


def test_a_proven_archive_is_never_written_over(harness: JobHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stalled job wakes up and finds that another one of its operation has finished."""
    (harness.home / "a").write_bytes(os.urandom(100_000))
    upload = archive_module._upload

    def stalled(volume: int, store: ArchiveStore, progress: ProgressReporter, number: int) -> tuple[str, int, Totals]:
        monkeypatch.undo()
        assert harness.archive().code == ExitCode.DONE
        written = harness.object.stat()
        try:
            return upload(volume, store, progress, number)
        finally:
            assert harness.object.stat() == written

    monkeypatch.setattr(archive_module, "_upload", stalled)
    archived = harness.archive()
    assert (archived.code, archived.warnings) == (
        ExitCode.DONE,
        ["another job proved this archive meanwhile; trying again"],
    )
    verify(harness.store())


def test_another_content_proven_meanwhile_is_a_conflict(harness: JobHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    (harness.home / "a").write_text("x")
    create = ArchiveStore.create_meta

    def beaten(store: ArchiveStore, meta: Meta) -> bool:
        create(store, Meta("ab" * 32, meta.bytes, 1, 1, meta.created_at))
        return create(store, meta)

    monkeypatch.setattr(ArchiveStore, "create_meta", beaten)
    assert harness.archive().code == ExitCode.CONFLICT


def test_the_same_tree_gives_the_same_bytes(harness: JobHarness) -> None:
    for number in range(50):
        (harness.home / f"{number}").write_bytes(os.urandom(200_000))
    first = harness.archive().last["sha256"]
    harness.key = "homes/7f1c/op-2/home.tar.zst"
    assert harness.archive().last["sha256"] == first


def test_a_file_that_never_stands_still_ends_the_job(harness: JobHarness) -> None:
    (harness.home / "log").write_bytes(os.urandom(30 << 20))
    stop = threading.Event()

    def write() -> None:
        with (harness.home / "log").open("ab") as log:
            while not stop.is_set():
                log.write(b"more")
                log.flush()
                time.sleep(0.001)

    writer = threading.Thread(target=write)
    writer.start()
    archived = harness.archive()
    stop.set()
    writer.join()
    assert (archived.code, archived.message) == (ExitCode.ACTION_FAILED, "“log” changed while it was read")
    assert not harness.object.exists()
    assert not harness.meta.exists()
    assert harness.leftovers() == []


def test_ignored_files_are_left_out(harness: JobHarness) -> None:
    (harness.home / ".codehubignore").write_text("# caches\nnode_modules/\n*.log\n!kept.log\n/build\n!\n")
    for name in ("node_modules/x/y", "a.log", "kept.log", "build/out", "src/build", "src/node_modules/z", "src/a.txt"):
        (harness.home / name).parent.mkdir(parents=True, exist_ok=True)
        (harness.home / name).write_text(name)
    archived = harness.archive()
    harness.restore()
    assert sorted(harness.tree_restored()) == [b"", b".codehubignore", b"kept.log", b"src", b"src/a.txt", b"src/build"]
    assert archived.warnings == [".codehubignore: not a pattern: !"]


def test_an_ignore_file_that_is_no_file_is_no_trouble(harness: JobHarness) -> None:
    os.mkfifo(harness.home / ".codehubignore")
    before = harness.tree_of_home()
    harness.archive()
    harness.restore()
    assert_same(before, harness.tree_restored())


def test_a_proven_archive_that_has_rotted_is_made_again_while_the_home_lives(harness: JobHarness) -> None:
    (harness.home / "notes").write_text("mine")
    before = harness.tree_of_home()
    assert harness.archive().code == ExitCode.DONE
    whole = harness.object.read_bytes()
    harness.object.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    assert harness.archive().code == ExitCode.DONE
    assert harness.object.read_bytes() == whole
    harness.restore()
    assert_same(before, harness.tree_restored())


def test_a_missing_volume_is_said_clearly(harness: JobHarness) -> None:
    harness.home.rmdir()
    archived = harness.archive()
    assert archived.code == ExitCode.ACTION_FAILED
    assert archived.message.startswith("cannot open the volume")


def test_a_missing_archive_directory_is_an_outage_not_an_answer(harness: JobHarness) -> None:
    harness.archives.rmdir()
    assert harness.archive().code == ExitCode.UNREACHABLE
    assert harness.restore().code == ExitCode.UNREACHABLE


@pytest.mark.parametrize("suffix", ["", ".meta"])
def test_an_unfinished_upload_of_a_killed_job_is_swept(harness: JobHarness, suffix: str) -> None:
    harness.object.parent.mkdir(parents=True)
    Path(f"{harness.object}{suffix}#1").write_bytes(b"abandoned")
    harness.archive()
    assert harness.leftovers() == []
    Path(f"{harness.object}{suffix}#1").write_bytes(b"in place already, when the job was killed")
    harness.archive()
    assert harness.leftovers() == []


@pytest.mark.parametrize("home", [0, 1 << 30, 100 << 30, 400 << 30, 5 << 40])
def test_parts_are_few_enough_for_s3(home: int) -> None:
    assert home / part_size(home) < 10_000
    assert part_size(home) >= 5 << 20


def test_parts_stay_small_for_homes_of_ordinary_size() -> None:
    assert part_size(70 << 30) == 8 << 20
