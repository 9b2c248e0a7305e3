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
from codehub.job.progress import Progress
from codehub.job.store import ArchiveStore, Meta, part_size
from codehub.job.verify import verify
from tests.job.jobs import Desk
from tests.job.trees import assert_same


def test_meta_says_what_the_object_is(desk: Desk) -> None:
    (desk.home / "a").write_text("x" * 1000)
    done = desk.archive().last
    meta = json.loads(desk.meta.read_bytes())
    assert done["event"] == "done"
    assert done["key"] == desk.key
    assert {name: done[name] for name in meta} == meta
    assert meta["bytes"] == desk.object.stat().st_size
    assert meta["files"] == 1
    assert verify(desk.store()).sha256 == meta["sha256"]


@pytest.mark.skipif(os.geteuid() != 0, reason="giving files away takes root")
def test_what_root_writes_into_somebodys_store_they_can_still_delete(desk: Desk) -> None:
    """In a container the job is root; the store is the directory of whoever runs CodeHub."""
    store = desk.object.parents[len(Path(desk.key).parents) - 1]
    os.chown(store, 1234, 1235)
    assert desk.archive().code == ExitCode.DONE
    places = [place for place in desk.object.parents if place.is_relative_to(store)]
    assert {(place.stat().st_uid, place.stat().st_gid) for place in places} == {(1234, 1235)}


def test_a_finished_archive_is_not_made_again(desk: Desk) -> None:
    (desk.home / "a").write_text("as archived")
    first = desk.archive().last
    written = desk.object.stat().st_mtime_ns, desk.meta.stat().st_mtime_ns
    (desk.home / "a").write_text("changed afterwards")
    second = desk.archive()
    assert (second.code, second.last["sha256"]) == (ExitCode.DONE, first["sha256"])
    assert (desk.object.stat().st_mtime_ns, desk.meta.stat().st_mtime_ns) == written


def test_an_object_without_meta_is_replaced(desk: Desk) -> None:
    (desk.home / "a").write_text("the truth")
    desk.object.parent.mkdir(parents=True)
    desk.object.write_bytes(b"half an upload")
    assert desk.archive().code == ExitCode.DONE
    desk.restore()
    assert (desk.restored / "a").read_text() == "the truth"


@pytest.mark.parametrize("damage", ["gone", "shorter", "meta cut short"])
def test_a_proven_archive_that_lost_its_bytes_is_made_again_while_the_home_lives(desk: Desk, damage: str) -> None:
    (desk.home / "a").write_text("still here")
    desk.archive()
    if damage == "gone":
        desk.object.unlink()
    else:
        os.truncate(desk.object if damage == "shorter" else desk.meta, 10)
    assert desk.archive().code == ExitCode.DONE
    verify(desk.store())


def test_what_was_stored_wrong_is_never_believed(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    def spoil(store: ArchiveStore) -> None:
        desk.object.write_bytes(desk.object.read_bytes()[:-1] + b"!")

    monkeypatch.setattr(ArchiveStore, "settle", spoil)
    (desk.home / "a").write_text("x")
    archived = desk.archive()
    what = "the object store does not give back what was sent"
    assert (archived.code, archived.message) == (ExitCode.UNREACHABLE, what)
    assert len(archived.warnings) == 2, "three tries"
    assert not desk.meta.exists()


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
    desk: Desk, monkeypatch: pytest.MonkeyPatch, limit: str, why: str
) -> None:
    (desk.home / ("a name of forty letters " * 8)).write_bytes(os.urandom(4 << 20))
    with (desk.home / "sparse").open("wb") as sparse:
        for place in (0, 1 << 20, 2 << 20):
            sparse.seek(place)
            sparse.write(b"x")
        sparse.truncate(3 << 20)
    with monkeypatch.context() as smaller:
        smaller.setattr(f"codehub.job.{limit}", 1 << 10 if limit.startswith("compress") else 1)
        archived = desk.archive()
    assert (archived.code, desk.meta.exists()) == (ExitCode.ACTION_FAILED, False)
    assert archived.message.startswith("no restore would take this home's archive, so the volume stays (")
    assert why in archived.message
    assert archived.warnings == [], "trying again would change nothing"
    assert desk.archive().code == ExitCode.DONE
    assert desk.restore().code == ExitCode.DONE


def test_meta_is_written_after_the_proof(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[bool] = []
    prove = archive_module._prove

    def watched(store: ArchiveStore, sha256: str, size: int, progress: Progress) -> None:
        seen.append(desk.meta.exists())
        prove(store, sha256, size, progress)

    monkeypatch.setattr(archive_module, "_prove", watched)
    (desk.home / "a").write_text("x")
    desk.archive()
    assert (seen, desk.meta.exists()) == ([False], True)


def test_two_jobs_at_once_agree(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other one finishes first: the same tree gives the same bytes, so its proof is ours."""
    (desk.home / "a").write_bytes(os.urandom(100_000))
    create = ArchiveStore.create_meta

    def beaten(store: ArchiveStore, meta: Meta) -> bool:
        create(store, meta)
        return create(store, meta)

    monkeypatch.setattr(ArchiveStore, "create_meta", beaten)
    assert desk.archive().code == ExitCode.DONE


def test_a_proven_archive_is_never_written_over(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stalled job wakes up and finds that another one of its operation has finished."""
    (desk.home / "a").write_bytes(os.urandom(100_000))
    upload = archive_module._upload

    def stalled(volume: int, store: ArchiveStore, progress: Progress, number: int) -> tuple[str, int, Totals]:
        monkeypatch.undo()
        assert desk.archive().code == ExitCode.DONE
        written = desk.object.stat()
        try:
            return upload(volume, store, progress, number)
        finally:
            assert desk.object.stat() == written

    monkeypatch.setattr(archive_module, "_upload", stalled)
    archived = desk.archive()
    assert (archived.code, archived.warnings) == (
        ExitCode.DONE,
        ["another job proved this archive meanwhile; trying again"],
    )
    verify(desk.store())


def test_another_content_proven_meanwhile_is_a_conflict(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    (desk.home / "a").write_text("x")
    create = ArchiveStore.create_meta

    def beaten(store: ArchiveStore, meta: Meta) -> bool:
        create(store, Meta("ab" * 32, meta.bytes, 1, 1, meta.created_at))
        return create(store, meta)

    monkeypatch.setattr(ArchiveStore, "create_meta", beaten)
    assert desk.archive().code == ExitCode.CONFLICT


def test_the_same_tree_gives_the_same_bytes(desk: Desk) -> None:
    for number in range(50):
        (desk.home / f"{number}").write_bytes(os.urandom(200_000))
    first = desk.archive().last["sha256"]
    desk.key = "homes/7f1c/op-2/home.tar.zst"
    assert desk.archive().last["sha256"] == first


def test_a_file_that_never_stands_still_ends_the_job(desk: Desk) -> None:
    (desk.home / "log").write_bytes(os.urandom(30 << 20))
    stop = threading.Event()

    def write() -> None:
        with (desk.home / "log").open("ab") as log:
            while not stop.is_set():
                log.write(b"more")
                log.flush()
                time.sleep(0.001)

    writer = threading.Thread(target=write)
    writer.start()
    archived = desk.archive()
    stop.set()
    writer.join()
    assert (archived.code, archived.message) == (ExitCode.ACTION_FAILED, "“log” changed while it was read")
    assert not desk.object.exists()
    assert not desk.meta.exists()
    assert desk.leftovers() == []


def test_ignored_files_are_left_out(desk: Desk) -> None:
    (desk.home / ".codehubignore").write_text("# caches\nnode_modules/\n*.log\n!kept.log\n/build\n!\n")
    for name in ("node_modules/x/y", "a.log", "kept.log", "build/out", "src/build", "src/node_modules/z", "src/a.txt"):
        (desk.home / name).parent.mkdir(parents=True, exist_ok=True)
        (desk.home / name).write_text(name)
    archived = desk.archive()
    desk.restore()
    assert sorted(desk.tree_restored()) == [b"", b".codehubignore", b"kept.log", b"src", b"src/a.txt", b"src/build"]
    assert archived.warnings == [".codehubignore: not a pattern: !"]


def test_an_ignore_file_that_is_no_file_is_no_trouble(desk: Desk) -> None:
    os.mkfifo(desk.home / ".codehubignore")
    before = desk.tree_of_home()
    desk.archive()
    desk.restore()
    assert_same(before, desk.tree_restored())


def test_a_missing_volume_is_said_clearly(desk: Desk) -> None:
    desk.home.rmdir()
    archived = desk.archive()
    assert archived.code == ExitCode.ACTION_FAILED
    assert archived.message.startswith("cannot open the volume")


def test_a_missing_archive_directory_is_an_outage_not_an_answer(desk: Desk) -> None:
    desk.archives.rmdir()
    assert desk.archive().code == ExitCode.UNREACHABLE
    assert desk.restore().code == ExitCode.UNREACHABLE


@pytest.mark.parametrize("suffix", ["", ".meta"])
def test_an_unfinished_upload_of_a_killed_job_is_swept(desk: Desk, suffix: str) -> None:
    desk.object.parent.mkdir(parents=True)
    Path(f"{desk.object}{suffix}#1").write_bytes(b"abandoned")
    desk.archive()
    assert desk.leftovers() == []
    Path(f"{desk.object}{suffix}#1").write_bytes(b"in place already, when the job was killed")
    desk.archive()
    assert desk.leftovers() == []


@pytest.mark.parametrize("home", [0, 1 << 30, 100 << 30, 400 << 30, 5 << 40])
def test_parts_are_few_enough_for_s3(home: int) -> None:
    assert home / part_size(home) < 10_000
    assert part_size(home) >= 5 << 20


def test_parts_stay_small_for_homes_of_ordinary_size() -> None:
    assert part_size(70 << 30) == 8 << 20
