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
from codehub.job.verify import members, verify
from tests.job.jobs import Desk, operation
from tests.job.trees import acl, assert_same, make_nasty_tree, snapshot


def test_the_nasty_tree_comes_back_identical(desk: Desk) -> None:
    make_nasty_tree(desk.home)
    before = desk.tree_of_home()
    archived = desk.archive()
    assert archived.code == ExitCode.DONE, archived.message
    assert desk.restore().code == ExitCode.DONE
    assert_same(before, desk.tree_restored())
    assert archived.last["left_out"] == 1, "the socket, by its type"
    assert desk.leftovers() == []
    assert desk.object.stat().st_size < 12 << 20, "holes are not stored"


def test_archiving_changes_nothing_in_the_home(desk: Desk) -> None:
    make_nasty_tree(desk.home)
    os.sync()  # until then a file system may still change its mind about blocks
    before = desk.tree_of_home()
    desk.archive()
    assert desk.tree_of_home() == before


def test_a_restored_home_can_be_archived_and_gives_the_same_bytes(desk: Desk) -> None:
    make_nasty_tree(desk.home)
    first = desk.archive().last
    desk.restore()
    desk.home, desk.key = desk.restored, "homes/7f1c/op-2/home.tar.zst"
    second = desk.archive().last
    if os.geteuid() == 0:
        assert second["sha256"] == first["sha256"]
    assert second["files"] == first["files"]


def test_the_job_leaves_its_own_names_and_nothing_else_out(desk: Desk) -> None:
    (desk.home / ".codehubrc").write_text("mine")
    (desk.home / "inner").mkdir()
    (desk.home / "inner" / f".codehub-restored-{operation(1)}").write_text("mine too")
    desk.archive()
    desk.restore()
    desk.home, desk.key, desk.op_id = desk.restored, "homes/7f1c/op-2/home.tar.zst", operation(2)
    # as if killed before its very last steps
    (desk.home / f".codehub-restoring-{operation(1)}").symlink_to("codehub is restoring this home")
    (desk.home / f".codehub-restore-{operation(1)}").mkdir()
    desk.restored = desk.home.with_name("restored again")
    desk.restored.mkdir()
    desk.archive()
    desk.restore()
    stamp = f".codehub-restored-{operation(2)}".encode()
    assert sorted(snapshot(desk.restored, reserved=True)) == [
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
def test_names_like_the_jobs_own_are_the_users(desk: Desk, name: str, kind: str) -> None:
    """Nothing tells a user which names are taken, so none is: it comes back, twice, and stands in nobody's way."""
    make: dict[str, Callable[[Path], object]] = {
        "file": lambda path: path.write_text("mine"),
        "directory": lambda path: (path / "tree").mkdir(parents=True),
        "empty directory": lambda path: path.mkdir(),
        "symlink": lambda path: path.symlink_to("a"),
        "fifo": os.mkfifo,
    }
    (desk.home / "a").write_text("a")
    make[kind](desk.home / name)
    before = snapshot(desk.home, reserved=True)
    for number in (1, 2):
        desk.key, desk.op_id = f"homes/7f1c/op-{number}/home.tar.zst", operation(number)
        archived = desk.archive()
        assert (archived.code, archived.last.get("left_out")) == (ExitCode.DONE, 0), archived.message
        assert desk.restore().code == ExitCode.DONE
        after = snapshot(desk.restored, reserved=True)
        del after[f".codehub-restored-{desk.op_id}".encode()]
        assert_same(before, after)
        desk.home, desk.restored = desk.restored, desk.home.with_name(f"restored {number}")
        desk.restored.mkdir()


def test_not_even_a_forged_mark_loses_anything(desk: Desk) -> None:
    """Whoever makes what only a restore makes is told by name what stands in the way, and nothing is given up."""
    (desk.home / "a").write_text("a")
    (desk.home / ".codehub-restored-\udcff").write_text(json.dumps({**STAMP, "op_id": "\udcff"}))
    (desk.home / ".codehub-restored-x").write_text(json.dumps({**STAMP, "op_id": "\ud800"}))
    assert desk.archive().code == ExitCode.DONE
    desk.key = "homes/7f1c/op-2/home.tar.zst"
    (desk.home / ".codehub-restoring-\udcfe").symlink_to("codehub is restoring this home")
    refused = desk.archive()
    assert (refused.code, desk.object.exists()) == (ExitCode.CONFLICT, False)
    assert r"“.codehub-restoring-\xfe”" in refused.message
    (desk.home / ".codehub-restoring-\udcfe").unlink()
    assert desk.archive().code == ExitCode.DONE


@pytest.mark.parametrize("name", LIKE_OURS)
def test_a_home_with_such_a_name_is_replaced_like_any(desk: Desk, name: str) -> None:
    (desk.home / name).mkdir()
    (desk.home / name / "notes").write_text("mine")
    before = snapshot(desk.home, reserved=True)
    desk.archive()
    for number in (1, 2):
        desk.op_id = operation(number)
        assert desk.restore().code == ExitCode.DONE
    after = snapshot(desk.restored, reserved=True)
    del after[f".codehub-restored-{operation(2)}".encode()]
    assert_same(before, after)
    (desk.restored / f".codehub-restored-{operation(2)}").unlink()
    desk.op_id = operation(3)
    assert desk.restore().code == ExitCode.CONFLICT, "no restore says that this is its work"
    assert (desk.restored / name / "notes").read_text() == "mine"


@pytest.mark.parametrize("depth", [20, 270])
def test_a_path_longer_than_the_kernel_takes_at_once(desk: Desk, depth: int) -> None:
    directory = os.open(desk.home, os.O_RDONLY)
    name = "d" * 250
    for _ in range(depth):
        os.mkdir(name, dir_fd=directory)
        inner = os.open(name, os.O_RDONLY, dir_fd=directory)
        os.close(directory)
        directory = inner
    os.close(os.open("bottom", os.O_CREAT | os.O_WRONLY, 0o600, dir_fd=directory))
    os.close(directory)
    before = desk.tree_of_home()
    assert max(map(len, before)) > 250 * depth
    assert desk.archive().code == ExitCode.DONE
    assert desk.restore().code == ExitCode.DONE
    assert_same(before, desk.tree_restored())


def test_a_file_of_an_exbibyte_and_one_with_megabytes_of_attributes(roomy_desk: Desk) -> None:
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


def test_verify_reads_every_header(desk: Desk) -> None:
    make_nasty_tree(desk.home)
    desk.archive()
    meta = verify(desk.store())
    paths = [member.path for member in members(desk.store())]
    assert sorted(paths) == sorted(desk.tree_of_home())
    assert meta.files == sum(1 for entry in desk.tree_of_home().values() if entry.kind != 0o040000)


def test_progress_reaches_its_total(desk: Desk) -> None:
    make_nasty_tree(desk.home)
    events = desk.archive().events
    assert events[0]["step"] == "pack"
    total = events[0]["total_bytes"]
    content = events[-1]["content_bytes"]
    assert total == pytest.approx(content, rel=0.1)


@pytest.mark.system
@pytest.mark.timeout(600)
def test_a_hundred_thousand_small_files(roomy_desk: Desk) -> None:
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
        desk = Desk(Path(directory))
        build(os.fsencode(desk.home), tree, [])
        before = desk.tree_of_home()
        archived = desk.archive()
        assert archived.code == ExitCode.DONE, archived.message
        restored = desk.restore()
        assert restored.code == ExitCode.DONE, restored.message
        assert_same(before, desk.tree_restored())
