"""What goes into an archive comes out of it: the fixed nasty tree, and trees nobody thought of."""

import json
import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from codehub.job.attributes import read_xattrs
from codehub.job.errors import ExitCode
from codehub.job.tar_format import Xattrs
from tests.job.harness import (
    JobHarness,
    members,
    operation,
    verify,
)
from tests.job.trees import acl, assert_same, make_nasty_tree, snapshot


def test_the_nasty_tree_comes_back_identical(harness: JobHarness) -> None:
    make_nasty_tree(harness.home)
    before = harness.tree_of_home()
    archived = harness.archive()
    assert archived.code == ExitCode.DONE, archived.message
    assert harness.restore().code == ExitCode.DONE
    assert_same(before, harness.tree_restored())
    assert archived.last["left_out"] == 1, "the socket, by its type"
    assert harness.leftovers() == []
    assert harness.object.stat().st_size < 12 << 20, "holes are not stored"


def test_archiving_changes_nothing_in_the_home(harness: JobHarness) -> None:
    make_nasty_tree(harness.home)
    os.sync()  # until then a file system may still change its mind about blocks
    before = harness.tree_of_home()
    harness.archive()
    assert harness.tree_of_home() == before


def test_a_restored_home_can_be_archived_and_gives_the_same_bytes(harness: JobHarness) -> None:
    make_nasty_tree(harness.home)
    first = harness.archive().last
    harness.restore()
    harness.home, harness.key = harness.restored, "homes/7f1c/op-2/home.tar.zst"
    second = harness.archive().last
    if os.geteuid() == 0:
        assert second["sha256"] == first["sha256"]
    assert second["files"] == first["files"]


def test_the_job_leaves_its_own_names_and_nothing_else_out(harness: JobHarness) -> None:
    (harness.home / ".codehubrc").write_text("mine")
    (harness.home / "inner").mkdir()
    (harness.home / "inner" / f".codehub-restored-{operation(1)}").write_text("mine too")
    harness.archive()
    harness.restore()
    harness.home, harness.key, harness.op_id = harness.restored, "homes/7f1c/op-2/home.tar.zst", operation(2)
    # as if killed before its very last steps
    (harness.home / f".codehub-restoring-{operation(1)}").symlink_to("codehub is restoring this home")
    (harness.home / f".codehub-restore-{operation(1)}").mkdir()
    harness.restored = harness.home.with_name("restored again")
    harness.restored.mkdir()
    harness.archive()
    harness.restore()
    stamp = f".codehub-restored-{operation(2)}".encode()
    assert sorted(snapshot(harness.restored, reserved=True)) == [
        b"",
        stamp,
        b".codehubrc",
        b"inner",
        b"inner/.codehub-restored-" + operation(1).encode(),
    ]


STAMP = {"key": "k", "sha256": "s", "bytes": 0, "files": 0, "home": None}
LIKE_OURS = [
    ".codehub-notes",
    ".codehub-restored",
    ".codehub-restore-notes",
    f".codehub-restored-{operation(7)}",
    f".codehub-restoring-{operation(7)}",
    f".codehub-restore-{operation(7)}",
]


@pytest.mark.parametrize("name", LIKE_OURS)
@pytest.mark.parametrize("kind", ["file", "directory", "empty directory", "symlink", "fifo"])
def test_names_like_the_jobs_own_are_the_users(harness: JobHarness, name: str, kind: str) -> None:
    """Nothing tells a user which names are taken, so none is: it comes back, twice, and stands in nobody's way."""
    make: dict[str, Callable[[Path], object]] = {
        "file": lambda path: path.write_text("mine"),
        "directory": lambda path: (path / "tree").mkdir(parents=True),
        "empty directory": lambda path: path.mkdir(),
        "symlink": lambda path: path.symlink_to("a"),
        "fifo": os.mkfifo,
    }
    (harness.home / "a").write_text("a")
    make[kind](harness.home / name)
    before = snapshot(harness.home, reserved=True)
    for number in (1, 2):
        harness.key, harness.op_id = f"homes/7f1c/op-{number}/home.tar.zst", operation(number)
        archived = harness.archive()
        assert (archived.code, archived.last.get("left_out")) == (ExitCode.DONE, 0), archived.message
        assert harness.restore().code == ExitCode.DONE
        after = snapshot(harness.restored, reserved=True)
        del after[f".codehub-restored-{harness.op_id}".encode()]
        assert_same(before, after)
        harness.home, harness.restored = harness.restored, harness.home.with_name(f"restored {number}")
        harness.restored.mkdir()


def test_not_even_a_forged_mark_loses_anything(harness: JobHarness) -> None:
    """Whoever makes what only a restore makes is told by name what stands in the way, and nothing is given up."""
    (harness.home / "a").write_text("a")
    (harness.home / ".codehub-restored-\udcff").write_text(json.dumps({**STAMP, "op_id": "\udcff"}))
    (harness.home / ".codehub-restored-x").write_text(json.dumps({**STAMP, "op_id": "\ud800"}))
    assert harness.archive().code == ExitCode.DONE
    harness.key = "homes/7f1c/op-2/home.tar.zst"
    (harness.home / ".codehub-restoring-\udcfe").symlink_to("codehub is restoring this home")
    refused = harness.archive()
    assert (refused.code, harness.object.exists()) == (ExitCode.CONFLICT, False)
    assert r"“.codehub-restoring-\xfe”" in refused.message
    (harness.home / ".codehub-restoring-\udcfe").unlink()
    assert harness.archive().code == ExitCode.DONE


@pytest.mark.parametrize("name", LIKE_OURS)
def test_a_home_with_such_a_name_is_replaced_like_any(harness: JobHarness, name: str) -> None:
    (harness.home / name).mkdir()
    (harness.home / name / "notes").write_text("mine")
    before = snapshot(harness.home, reserved=True)
    harness.archive()
    for number in (1, 2):
        harness.op_id = operation(number)
        assert harness.restore().code == ExitCode.DONE
    after = snapshot(harness.restored, reserved=True)
    del after[f".codehub-restored-{operation(2)}".encode()]
    assert_same(before, after)
    (harness.restored / f".codehub-restored-{operation(2)}").unlink()
    harness.op_id = operation(3)
    assert harness.restore().code == ExitCode.CONFLICT, "no restore says that this is its work"
    assert (harness.restored / name / "notes").read_text() == "mine"


@pytest.mark.parametrize("depth", [20, 270])
def test_a_path_longer_than_the_kernel_takes_at_once(harness: JobHarness, depth: int) -> None:
    directory = os.open(harness.home, os.O_RDONLY)
    name = "d" * 250
    for _ in range(depth):
        os.mkdir(name, dir_fd=directory)
        inner = os.open(name, os.O_RDONLY, dir_fd=directory)
        os.close(directory)
        directory = inner
    os.close(os.open("bottom", os.O_CREAT | os.O_WRONLY, 0o600, dir_fd=directory))
    os.close(directory)
    before = harness.tree_of_home()
    assert max(map(len, before)) > 250 * depth
    assert harness.archive().code == ExitCode.DONE
    assert harness.restore().code == ExitCode.DONE
    assert_same(before, harness.tree_restored())


def test_a_file_of_an_exbibyte_and_one_with_megabytes_of_attributes(roomy_desk: JobHarness) -> None:
    """Not every filesystem takes them; one that does must not lose a home over them."""
    home = roomy_desk.home
    try:
        with (home / "image").open("wb") as image:
            image.write(b"precious")
            image.truncate(1 << 60)
        (home / "tagged").touch()
        for number in range(80):
            os.setxattr(home / "tagged", f"user.{number}", bytes(65_000))
    except OSError as error:
        pytest.skip(f"the filesystem of {home} does not take it: {error.strerror}")
    before = attributes_and_sizes(home)
    assert roomy_desk.archive().code == ExitCode.DONE
    assert roomy_desk.restore().code == ExitCode.DONE
    assert attributes_and_sizes(roomy_desk.restored) == before
    with (roomy_desk.restored / "image").open("rb") as image:
        assert image.read(10) == b"precious\0\0"


def attributes_and_sizes(directory: Path) -> dict[str, tuple[int, Xattrs]]:
    paths = [directory / "image", directory / "tagged"]
    return {path.name: (path.stat().st_size, read_xattrs(str(path))) for path in paths}


def test_verify_reads_every_header(harness: JobHarness) -> None:
    make_nasty_tree(harness.home)
    harness.archive()
    meta = verify(harness.store())
    paths = [member.path for member in members(harness.store())]
    assert sorted(paths) == sorted(harness.tree_of_home())
    assert meta.files == sum(1 for entry in harness.tree_of_home().values() if entry.kind != 0o040000)


def test_progress_reaches_its_total(harness: JobHarness) -> None:
    make_nasty_tree(harness.home)
    events = harness.archive().events
    assert events[0]["step"] == "pack"
    total = events[0]["total_bytes"]
    content = events[-1]["content_bytes"]
    assert total == pytest.approx(content, rel=0.1)


@pytest.mark.system
@pytest.mark.timeout(600)
def test_a_hundred_thousand_small_files(roomy_desk: JobHarness) -> None:
    for group in range(100):
        directory = roomy_desk.home / f"group-{group}"
        directory.mkdir()
        for number in range(1000):
            (directory / f"{number}").write_bytes(b"%d" % (group * number))
    before = roomy_desk.tree_of_home()
    archived = roomy_desk.archive()
    assert (archived.code, archived.last["files"]) == (ExitCode.DONE, 100_000)
    assert roomy_desk.restore().code == ExitCode.DONE
    assert_same(before, roomy_desk.tree_restored())


names = st.binary(min_size=1, max_size=40).filter(
    lambda name: not (b"/" in name or b"\x00" in name or name in (b".", b"..") or name.startswith(b".codehub"))
)
modes = st.integers(0, 0o7777).map(lambda mode: mode | 0o400)
times = st.integers(-(2**31) * 10**9, 2**33 * 10**9)
xattrs = st.dictionaries(
    st.text("abc=%é. ", min_size=1, max_size=8).map("user.{}".format), st.binary(max_size=60), max_size=2
)
contents = st.tuples(st.binary(max_size=80), st.sampled_from([1, 1, 7, 700, 40_000]), st.sampled_from([0, 0, 1 << 21]))


@dataclass(frozen=True)
class File:
    content: tuple[bytes, int, int]
    """What, how many times, after how large a hole."""
    mode: int
    mtime_ns: int
    xattrs: dict[str, bytes]


@dataclass(frozen=True)
class Directory:
    inner: dict[bytes, object]
    mode: int
    mtime_ns: int


symlinks = st.binary(min_size=1, max_size=200).filter(lambda target: b"\x00" not in target)
leaves = st.one_of(
    st.builds(File, contents, modes, times, xattrs),
    symlinks,
    st.sampled_from(["fifo", "hard link", "access list"]),
)
trees: st.SearchStrategy[dict[bytes, object]] = st.recursive(
    st.dictionaries(names, leaves, max_size=4),
    lambda inner: st.dictionaries(names, st.one_of(leaves, st.builds(Directory, inner, modes, times)), max_size=4),
    max_leaves=12,
)


def build(directory: bytes, tree: dict[bytes, object], made: list[bytes]) -> None:
    for name, node in tree.items():
        path = directory + b"/" + name
        if isinstance(node, Directory):
            os.mkdir(path)
            build(path, node.inner, made)
            os.chmod(path, node.mode | 0o500)
            os.utime(path, ns=(0, node.mtime_ns))
        elif isinstance(node, bytes):
            os.symlink(node, path)
        elif node == "fifo":
            os.mkfifo(path)
        elif node == "hard link" and made:
            os.link(made[len(name) % len(made)], path)
        else:
            build_file(path, node if isinstance(node, File) else None)
            made.append(path)


def build_file(path: bytes, node: File | None) -> None:
    content, repeated, hole = node.content if node else (b"listed", 1, 0)
    with open(path, "wb") as file:
        file.seek(hole)
        file.write(content * repeated)
        file.truncate()
    if node is None:
        os.setxattr(path, "system.posix_acl_access", acl(named_user=77, permissions=6))
        return
    for name, value in node.xattrs.items():
        os.setxattr(path, name, value)
    os.chmod(path, node.mode)
    os.utime(path, ns=(0, node.mtime_ns))


@settings(max_examples=80, suppress_health_check=list(HealthCheck))
@given(trees)
def test_any_tree_comes_back_identical(tree: dict[bytes, object]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        harness = JobHarness(Path(directory))
        build(os.fsencode(harness.home), tree, [])
        before = harness.tree_of_home()
        archived = harness.archive()
        assert archived.code == ExitCode.DONE, archived.message
        restored = harness.restore()
        assert restored.code == ExitCode.DONE, restored.message
        assert_same(before, harness.tree_restored())
