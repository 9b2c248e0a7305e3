"""Homes archived by the real job and taken out again through the contents port: nothing is lost and nothing differs."""

import asyncio
import hashlib
import os
import stat
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings

from codehub.adapters.object_store.contents import ObjectContents
from codehub.job.errors import ExitCode
from codehub.job.filesystem import opened_volume, remove_tree
from codehub.ports.archives import ArchiveContents, ArchiveEntry, EntryKind, to_bytes, to_name
from tests.contracts.s3 import BUCKET, credentials, rclone
from tests.job.harness import JobHarness
from tests.job.test_round_trip import build, trees
from tests.job.trees import Snapshot, assert_same, make_nasty_tree, snapshot

KINDS = {
    stat.S_IFREG: EntryKind.FILE,
    stat.S_IFDIR: EntryKind.FOLDER,
    stat.S_IFLNK: EntryKind.LINK,
    stat.S_IFIFO: EntryKind.FIFO,
}
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@pytest.fixture(params=["directory", pytest.param("s3", marks=pytest.mark.system)])
def harness(request: pytest.FixtureRequest) -> Iterator[JobHarness]:
    with tempfile.TemporaryDirectory(prefix="codehub-contents-") as directory:
        harness = JobHarness(Path(directory))
        if request.param == "directory":
            yield harness
            return
        with rclone(Path(directory) / "s3") as endpoint, credentials(endpoint):
            harness.store_url = f"s3://{BUCKET}"
            yield harness


async def walked(contents: ArchiveContents, key: str) -> dict[bytes, ArchiveEntry]:
    found: dict[bytes, ArchiveEntry] = {}
    folders = [""]
    while folders:
        folder = folders.pop()
        for entry in (await contents.tree(key, folder)).entries:
            path = f"{folder}/{entry.name}" if folder else entry.name
            found[to_bytes(path)] = entry
            if entry.kind is EntryKind.FOLDER:
                folders.append(path)
    return found


async def fetched(contents: ArchiveContents, key: str, path: bytes) -> tuple[int, str]:
    sha256, size = hashlib.sha256(), 0
    async with contents.content(key, to_name(path)) as content:
        assert content.name == to_name(path.rpartition(b"/")[2])
        async for chunk in content.chunks:
            sha256.update(chunk)
            size += len(chunk)
        assert content.size == size
    return size, sha256.hexdigest()


def on_disk(home: Path, path: bytes) -> tuple[int, str]:
    sha256, size = hashlib.sha256(), 0
    directory = os.open(home, os.O_RDONLY)
    *parents, name = path.split(b"/")
    for parent in parents:
        inner = os.open(parent, os.O_RDONLY, dir_fd=directory)
        os.close(directory)
        directory = inner
    with os.fdopen(os.open(name, os.O_RDONLY, dir_fd=directory), "rb") as file:
        while chunk := file.read(1 << 20):
            sha256.update(chunk)
            size += len(chunk)
    os.close(directory)
    return size, sha256.hexdigest()


AS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="GNU tar gives back every attribute only to root")


async def unpacked(contents: ArchiveContents, key: str, path: bytes, into: Path) -> Snapshot:
    """By GNU tar, as a person would do it."""
    into.mkdir()
    keep = ["--xattrs", "--xattrs-include=*", "--numeric-owner", "--preserve-permissions", "--delay-directory-restore"]
    command = ["tar", "-x", "-C", str(into), *keep]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE) as tar:
        assert tar.stdin is not None
        assert tar.stderr is not None
        async with contents.content(key, to_name(path)) as content:
            assert content.size is None
            async for chunk in content.chunks:
                tar.stdin.write(chunk)
        tar.stdin.close()
        complaints = tar.stderr.read()
        assert tar.wait() == 0, (path, complaints)
    return snapshot(into, reserved=True)


def below(tree: Snapshot, folder: bytes) -> Snapshot:
    """That part of a tree, its names as they are when it is all there is."""
    prefix = folder + b"/" if folder else b""
    inside = {path: entry for path, entry in tree.items() if path == folder or path.startswith(prefix)}
    found = {}
    for path, entry in inside.items():
        names = tuple(name[len(prefix) :] for name in entry.same_file_as if name in inside)
        found[path[len(prefix) :]] = replace(entry, same_file_as=names if len(names) > 1 else ())
    return found


async def assert_folder_is_given(harness: JobHarness, contents: ArchiveContents, tree: Snapshot, folder: bytes) -> None:
    into = harness.home.parent / "unpacked"
    try:
        assert_same(below(tree, folder), await unpacked(contents, harness.key, folder, into))
    finally:
        with opened_volume(harness.home.parent) as parent:
            remove_tree(parent, b"unpacked")


async def assert_all_is_given(harness: JobHarness, contents: ArchiveContents, *, largest: int) -> None:
    tree = harness.tree_of_home()
    found = await walked(contents, harness.key)
    assert {b"", *found} == set(tree)
    for path, entry in found.items():
        seen = tree[path]
        assert (entry.kind, entry.mode) == (KINDS[seen.kind], seen.mode), path
        assert entry.mtime == EPOCH + timedelta(microseconds=seen.mtime_ns // 1000)
        if entry.kind is EntryKind.LINK:
            assert os.fsencode(entry.target or "") == os.fsencode(seen.content)
        if entry.kind is EntryKind.FILE and entry.size <= largest:
            assert await fetched(contents, harness.key, path) == on_disk(harness.home, path), path


@pytest.fixture
def contents(harness: JobHarness) -> Iterator[ObjectContents]:
    with closing(ObjectContents(harness.store_url)) as contents:
        yield contents


async def test_every_file_of_the_nasty_tree_is_given_as_it_was(harness: JobHarness, contents: ObjectContents) -> None:
    make_nasty_tree(harness.home)
    assert harness.archive().code == ExitCode.DONE
    await assert_all_is_given(harness, contents, largest=1 << 30)


@AS_ROOT
async def test_every_folder_of_the_nasty_tree_is_given_as_it_was(harness: JobHarness, contents: ObjectContents) -> None:
    make_nasty_tree(harness.home)
    assert harness.archive().code == ExitCode.DONE
    tree = harness.tree_of_home()
    folders = [path for path, entry in tree.items() if entry.kind == stat.S_IFDIR and path.count(b"/") < 4]
    assert {b"", b"links/inner", b"holes"} <= set(folders)
    for folder in folders:
        await assert_folder_is_given(harness, contents, tree, folder)


async def test_names_of_one_file_on_both_sides_of_a_folder(harness: JobHarness, contents: ObjectContents) -> None:
    """The stream passes the content before it comes to the folder, and the folder's own names are kept together."""
    for made in ("a", "m/deep", "m/other", "z"):
        (harness.home / made).mkdir(parents=True)
    for number, (first, *others) in enumerate(
        [("a/one", "m/deep/one", "m/other/again", "z/one"), ("m/deep/two", "z/two"), ("a/three", "m/three")]
    ):
        (harness.home / first).write_bytes(b"%d" % number * 300_000)
        for other in others:
            (harness.home / other).hardlink_to(harness.home / first)
    (harness.home / "a" / "link").symlink_to("somewhere")
    os.link(harness.home / "a" / "link", harness.home / "m" / "link", follow_symlinks=False)
    assert harness.archive().code == ExitCode.DONE
    await assert_all_is_given(harness, contents, largest=1 << 20)
    tree = harness.tree_of_home()
    assert below(tree, b"m")[b"deep/one"].same_file_as == (b"deep/one", b"other/again")
    for folder in (b"", b"a", b"m", b"m/deep", b"m/other", b"z"):
        await assert_folder_is_given(harness, contents, tree, folder)


@AS_ROOT
@settings(max_examples=30, suppress_health_check=list(HealthCheck))
@given(trees)
def test_any_tree_is_given_as_it_was(tree: dict[bytes, object]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        harness = JobHarness(Path(directory))
        build(os.fsencode(harness.home), tree, [])
        assert harness.archive().code == ExitCode.DONE
        with closing(ObjectContents(harness.store_url)) as contents:
            asyncio.run(_assert_everything(harness, contents))


async def _assert_everything(harness: JobHarness, contents: ObjectContents) -> None:
    await assert_all_is_given(harness, contents, largest=1 << 30)
    tree = harness.tree_of_home()
    for folder in [path for path, entry in tree.items() if entry.kind == stat.S_IFDIR]:
        await assert_folder_is_given(harness, contents, tree, folder)
