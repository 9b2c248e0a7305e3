"""A restore is whole or not at all, is recognised when it is finished, and never takes what is not its own."""

import errno
import json
import os
from datetime import UTC, datetime
from pathlib import Path

import pytest

from codehub.job.archive import empty_archive
from codehub.job.command import main
from codehub.job.errors import ExitCode
from codehub.job.store import encode_meta
from codehub.job.tar_format import REGULAR, Member, encode
from codehub.job.unpack import Unpacker
from tests.job.harness import (
    JobHarness,
    operation,
    verify,
)
from tests.job.malicious_archives import publish
from tests.job.trees import assert_same, make_nasty_tree, snapshot


@pytest.fixture
def archived(harness: JobHarness) -> JobHarness:
    (harness.home / "a").write_bytes(os.urandom(300_000))
    (harness.home / "d").mkdir()
    (harness.home / "d" / "b").write_text("b")
    assert harness.archive().code == ExitCode.DONE
    return harness


def begin(volume: Path, op_id: str) -> Path:
    mark = volume / f".codehub-restoring-{op_id}"
    mark.symlink_to("codehub is restoring this home")
    return mark


def test_the_stamp_says_what_this_home_is(archived: JobHarness) -> None:
    done = archived.restore().last
    stamp = json.loads((archived.restored / f".codehub-restored-{archived.op_id}").read_bytes())
    meta = json.loads(archived.meta.read_bytes())
    wanted = {"key": archived.key, "sha256": meta["sha256"], "op_id": archived.op_id}
    assert {name: stamp[name] for name in wanted} == wanted
    assert {name: done[name] for name in wanted} == wanted
    assert (done["event"], done["files"], done["bytes"]) == ("done", 2, meta["bytes"])


def test_a_finished_restore_is_not_repeated(archived: JobHarness) -> None:
    first = archived.restore().last
    (archived.restored / "a").write_text("written by its user")
    archived.object.unlink()
    second = archived.restore()
    assert (second.code, second.last) == (ExitCode.DONE, first)
    assert (archived.restored / "a").read_text() == "written by its user"


def test_another_operation_restores_again_in_full(archived: JobHarness) -> None:
    archived.restore()
    (archived.restored / "a").write_text("of the earlier restore")
    (archived.restored / "extra").mkdir()
    archived.op_id = operation(2)
    assert archived.restore().code == ExitCode.DONE
    assert_same(archived.tree_of_home(), archived.tree_restored())
    assert archived.leftovers() == []


def test_files_that_no_restore_put_there_are_not_replaced(archived: JobHarness) -> None:
    (archived.restored / "work").write_text("precious")
    restored = archived.restore()
    assert restored.code == ExitCode.CONFLICT
    assert [path.name for path in archived.restored.iterdir()] == ["work"]


def test_staging_of_earlier_attempts_is_removed(archived: JobHarness) -> None:
    for op_id in (operation(1), operation(9)):
        staging = archived.restored / f".codehub-restore-{op_id}"
        (staging / "tree" / "x").mkdir(parents=True)
        (staging / "tree" / "x").chmod(0o500)
        begin(archived.restored, op_id)
    assert archived.restore().code == ExitCode.DONE
    assert archived.leftovers() == []
    assert_same(archived.tree_of_home(), archived.tree_restored())


@pytest.mark.parametrize("planted", ["a file", "a symlink"])
def test_something_else_in_the_place_of_staging(archived: JobHarness, planted: str) -> None:
    archived.restore()
    outside = archived.restored.parent / "outside"
    outside.mkdir()
    (outside / "committed").write_text("not ours")
    for op_id in (operation(2), operation(9)):
        place = archived.restored / f".codehub-restore-{op_id}"
        if planted == "a file":
            place.write_text("x")
        else:
            place.symlink_to(outside)
    archived.op_id = operation(3)
    assert archived.restore().code == ExitCode.DONE
    assert archived.leftovers() == []
    assert (outside / "committed").read_text() == "not ours"


def test_a_half_restored_home_is_never_archived(archived: JobHarness) -> None:
    archived.restore()
    mark = begin(archived.restored, operation(2))
    archived.home, archived.key = archived.restored, "homes/7f1c/op-2/home.tar.zst"
    refused = archived.archive()
    assert refused.code == ExitCode.CONFLICT
    assert mark.name in refused.message, "whoever made it can mend it"
    assert not archived.object.exists()


@pytest.mark.parametrize("stamp", ["directory", "fifo", "[]", '{"op_id": 7}', "{", "null"])
def test_a_stamp_its_user_spoiled_is_no_stamp(archived: JobHarness, stamp: str) -> None:
    archived.restore()
    place = archived.restored / f".codehub-restored-{archived.op_id}"
    place.unlink()
    if stamp == "directory":
        place.mkdir()
    elif stamp == "fifo":
        os.mkfifo(place)
    else:
        place.write_text(stamp)
    assert archived.restore().code == ExitCode.CONFLICT, "nothing says that this home may be replaced"
    archived.home, archived.key = archived.restored, "homes/7f1c/op-2/home.tar.zst"
    assert archived.archive().code == ExitCode.DONE


def test_the_object_is_missing(archived: JobHarness) -> None:
    archived.object.unlink()
    assert archived.restore().code == ExitCode.ARCHIVE_NOT_FOUND
    assert os.listdir(archived.restored) == []


def test_the_meta_is_missing(archived: JobHarness) -> None:
    archived.meta.unlink()
    restored = archived.restore()
    assert restored.code == ExitCode.ARCHIVE_NOT_FOUND
    assert ".meta" in restored.message


def test_the_object_goes_away_while_it_is_read(archived: JobHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    write = Unpacker._write

    def deleting(unpacker: Unpacker, descriptor: int, data: bytes | memoryview) -> None:
        archived.object.unlink(missing_ok=True)
        write(unpacker, descriptor, data)

    monkeypatch.setattr(Unpacker, "_write", deleting)
    (archived.home / "large").write_bytes(os.urandom(30 << 20))
    archived.key = "homes/7f1c/op-2/home.tar.zst"
    archived.archive()
    assert archived.restore().code == ExitCode.ARCHIVE_NOT_FOUND
    assert os.listdir(archived.restored) == []


@pytest.mark.parametrize("content", [b"", b"{}", b"not json", b'{"sha256": 5}', b"[]"])
def test_the_meta_cannot_be_read(archived: JobHarness, content: bytes) -> None:
    archived.meta.write_bytes(content)
    assert archived.restore().code == ExitCode.ARCHIVE_CORRUPTED


def test_the_object_is_shorter(archived: JobHarness) -> None:
    os.truncate(archived.object, archived.object.stat().st_size - 1)
    assert archived.restore().code == ExitCode.ARCHIVE_CORRUPTED
    assert os.listdir(archived.restored) == []


@pytest.mark.parametrize("where", [0.0, 0.001, 0.3, 0.5, 0.9, 0.9999])
def test_one_bit_is_flipped(archived: JobHarness, where: float) -> None:
    data = bytearray(archived.object.read_bytes())
    data[int(where * len(data))] ^= 1
    archived.object.write_bytes(data)
    assert archived.restore().code == ExitCode.ARCHIVE_CORRUPTED
    assert os.listdir(archived.restored) == []


def test_a_sound_archive_that_is_another_one_is_damage_too(archived: JobHarness) -> None:
    """Readable to its end and of the right length; only the checksum can tell."""
    meta = json.loads(archived.meta.read_bytes())
    archived.meta.write_text(json.dumps({**meta, "sha256": "ab" * 32}))
    assert archived.restore().code == ExitCode.ARCHIVE_CORRUPTED
    assert os.listdir(archived.restored) == []


def test_a_damaged_archive_leaves_the_earlier_restore_alone(archived: JobHarness) -> None:
    archived.restore()
    before = archived.tree_restored()
    before.pop(b"")
    archived.object.write_bytes(bytes(archived.object.stat().st_size))
    archived.op_id = operation(2)
    assert archived.restore().code == ExitCode.ARCHIVE_CORRUPTED
    after = archived.tree_restored()
    after.pop(b"")
    assert after == before
    assert archived.leftovers() == []


def test_a_repaired_archive_can_be_restored(archived: JobHarness) -> None:
    good = archived.object.read_bytes()
    archived.object.write_bytes(bytes(len(good)))
    archived.restore()
    archived.object.write_bytes(good)
    assert archived.restore().code == ExitCode.DONE
    assert_same(archived.tree_of_home(), archived.tree_restored())


def test_nothing_is_inherited_from_the_volume(harness: JobHarness) -> None:
    """A volume with a default ACL and a set-group-id bit must not leak them into what is unpacked."""
    make_nasty_tree(harness.home)
    harness.archive()
    harness.restore()
    harness.op_id = operation(2)  # into a home that has all of it
    assert harness.restore().code == ExitCode.DONE
    assert_same(harness.tree_of_home(), harness.tree_restored())


def test_an_empty_archive_leaves_the_new_volume_as_it_was_made(harness: JobHarness) -> None:
    data, meta = empty_archive(datetime.now(UTC))
    harness.object.parent.mkdir(parents=True)
    harness.object.write_bytes(data)
    harness.meta.write_bytes(encode_meta(meta))
    assert verify(harness.store()) == meta
    harness.restored.chmod(0o710)
    assert harness.restore(max_bytes=1).code == ExitCode.DONE
    assert sorted(snapshot(harness.restored)) == [b""]
    assert harness.restored.stat().st_mode & 0o777 == 0o710


def test_a_home_of_nothing_is_a_home_too(harness: JobHarness) -> None:
    harness.home.chmod(0o750)
    before = harness.tree_of_home()
    harness.archive()
    harness.restore()
    assert_same(before, harness.tree_restored())


@pytest.mark.parametrize("op_id", ["", "../x", "a/b", ".hidden", "restore-1"])
def test_operation_ids_are_nothing_else(op_id: str) -> None:
    assert main(["restore", "--volume", "/x", "--store", "file:///x", "--key", "k", "--op-id", op_id]) == 2


def test_the_limit_is_in_the_measure_of_meta(harness: JobHarness) -> None:
    make_nasty_tree(harness.home)
    harness.archive()
    archived = harness
    cost = json.loads(archived.meta.read_bytes())["content_bytes"]
    assert archived.restore(max_bytes=cost - 1).code == ExitCode.REFUSED_MEMBER
    assert archived.restore(max_bytes=cost).code == ExitCode.DONE


def test_a_volume_that_is_no_directory(archived: JobHarness, tmp_path: Path) -> None:
    archived.restored = tmp_path / "file"
    archived.restored.write_text("x")
    assert archived.restore().code == ExitCode.ACTION_FAILED


TAGGED = Member(b"photo", REGULAR, 0o644, 0, 0, 0, xattrs=(("user.big", bytes(60_000)), ("user.small", b"x")))


def test_an_attribute_too_large_for_the_filesystem_does_not_cost_the_home(harness: JobHarness) -> None:
    try:
        os.setxattr(harness.home, "user.big", bytes(60_000))
        pytest.skip("this filesystem takes large attributes")
    except OSError as error:
        if error.errno != errno.ENOSPC:
            pytest.skip(f"this filesystem takes no attributes: {error.strerror}")
    publish(harness, [encode(TAGGED)])
    restored = harness.restore()
    assert restored.code == ExitCode.DONE, restored.message
    assert os.listxattr(harness.restored / "photo") == ["user.small"]
    [warning] = restored.warnings
    assert warning.startswith("1 extended attributes cannot be kept")
    assert "“photo”" in warning


@pytest.mark.parametrize(
    ("number", "free", "code"),
    [
        (errno.ENOSPC, 1, ExitCode.DONE),
        (errno.ENOSPC, 0, ExitCode.DISK_FULL),
        (errno.EDQUOT, 1, ExitCode.DISK_FULL),
        (errno.E2BIG, 1, ExitCode.DONE),
        (errno.EIO, 1, ExitCode.ACTION_FAILED),
    ],
    ids=["larger than its place", "disk full", "quota used up", "too large for any place", "broken disk"],
)
def test_an_attribute_that_is_not_taken(
    harness: JobHarness, monkeypatch: pytest.MonkeyPatch, number: int, free: int, code: ExitCode
) -> None:
    def refuse(*_arguments: object, **_options: object) -> None:
        raise OSError(number, os.strerror(number))

    publish(harness, [encode(TAGGED)])
    disk = os.statvfs(harness.restored)
    monkeypatch.setattr(os, "setxattr", refuse)
    monkeypatch.setattr(os, "fstatvfs", lambda _: os.statvfs_result((*disk[:4], free, *disk[5:])))
    restored = harness.restore()
    assert (restored.code, len(restored.warnings)) == (code, int(code is ExitCode.DONE))
