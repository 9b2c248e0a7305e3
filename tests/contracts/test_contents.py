"""The ArchiveContents port's promises, kept alike in memory, in a directory and on a real S3 server."""

import io
import os
import tarfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import ExitStack, closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol
from uuid import uuid4

import obstore
import pytest
import zstandard

from codehub.adapters.memory import MemoryContents
from codehub.adapters.memory.archives import ArchivesState, StoredArchive, StoredEntry
from codehub.adapters.object_store.archives import ObjectArchives
from codehub.adapters.object_store.contents import ObjectContents
from codehub.domain.errors import BackendError, ErrorReason, Invalid, NotFound
from codehub.domain.judge import ArchiveState
from codehub.domain.naming import archive_key
from codehub.job.archive import ArchiveRequest, archive
from codehub.job.progress import ProgressReporter
from codehub.job.store import open_store
from codehub.ports.archives import ArchiveContents, ArchiveEntry, Content, EntryKind, to_bytes, to_name
from tests.contracts.s3 import BUCKET, credentials, rclone

PREFIX = "team-a/homes-"
MTIME_NS = 1_700_000_000_123_456_789
MTIME = datetime(2023, 11, 14, 22, 13, 20, 123456, tzinfo=UTC)
LARGE = os.urandom((5 << 20) + 77)

Home = Mapping[bytes, StoredEntry]


def file(content: bytes = b"", mode: int = 0o640) -> StoredEntry:
    return StoredEntry(EntryKind.FILE, content, mode, MTIME_NS)


def folder(mode: int = 0o750) -> StoredEntry:
    return StoredEntry(EntryKind.FOLDER, mode=mode, mtime_ns=MTIME_NS)


def link(target: bytes) -> StoredEntry:
    return StoredEntry(EntryKind.LINK, mode=0o777, mtime_ns=MTIME_NS, target=target)


HOME: Home = {
    b"": folder(0o755),
    b"\xff odd": folder(),
    b"\xff odd/\xfe\n": file(b"not text"),
    b"a": folder(),
    b"a-b": file(b"beside"),
    b"a/empty": file(),
    b"a/inner": folder(0o700),
    b"a/inner/large.bin": file(LARGE),
    b"a/notes.txt": file("한글".encode(), 0o600),
    b"a/out": link(b"/etc/passwd"),
    b"a/pipe": StoredEntry(EntryKind.FIFO, mode=0o600, mtime_ns=MTIME_NS),
    b"b": folder(),
}


class Store(Protocol):
    """The store behind the port, where homes become archives and things happen to them."""

    contents: ArchiveContents

    async def put(self, key: str, home: Home) -> None: ...

    async def put_empty(self, key: str) -> None:
        """As of a workspace that was never started."""
        ...

    async def lose_meta(self, key: str) -> None: ...

    async def cut(self, key: str) -> None: ...

    async def flip(self, key: str) -> None:
        """One bit, in the middle."""
        ...


class MemoryStore:
    def __init__(self) -> None:
        self.state = ArchivesState()
        self.contents: ArchiveContents = MemoryContents(self.state)

    async def put(self, key: str, home: Home) -> None:
        ordered = dict(sorted(home.items(), key=lambda item: item[0].split(b"/")))
        self.state.objects[key] = StoredArchive((), datetime.now(UTC), committed=True, home=ordered)

    async def put_empty(self, key: str) -> None:
        self.state.objects[key] = StoredArchive((), datetime.now(UTC), committed=True)

    async def lose_meta(self, key: str) -> None:
        self.state.objects[key].committed = False

    async def cut(self, key: str) -> None:
        self.state.objects[key].state = ArchiveState.CORRUPTED

    async def flip(self, key: str) -> None:
        await self.cut(key)


class RealStore:
    def __init__(self, url: str, scratch: Path, contents: ObjectContents) -> None:
        self.contents: ArchiveContents = contents
        self._url, self._scratch = url, scratch

    async def put(self, key: str, home: Home) -> None:
        volume = self._scratch / uuid4().hex
        volume.mkdir()
        make_home(volume, home)
        archive(ArchiveRequest(volume, self._url, key), ProgressReporter())

    async def put_empty(self, key: str) -> None:
        with closing(ObjectArchives(self._url, PREFIX)) as archives:
            await archives.create_empty(key)

    async def lose_meta(self, key: str) -> None:
        open_store(self._url, key).delete_meta()

    async def cut(self, key: str) -> None:
        self._change(key, lambda data: data[: len(data) // 2])

    async def flip(self, key: str) -> None:
        def flipped(data: bytes) -> bytes:
            middle = len(data) // 2
            return data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]

        self._change(key, flipped)

    def _change(self, key: str, change: Callable[[bytes], bytes]) -> None:
        store = open_store(self._url, key).store
        obstore.put(store, key, change(bytes(obstore.get(store, key).bytes())))


def make_home(root: Path, home: Home) -> None:
    for raw, stored in sorted(home.items(), key=lambda item: item[0].split(b"/")):
        path = os.fsencode(root) + b"/" + raw if raw else os.fsencode(root)
        if stored.kind is EntryKind.FOLDER:
            Path(os.fsdecode(path)).mkdir(exist_ok=True)
        elif stored.kind is EntryKind.LINK:
            Path(os.fsdecode(path)).symlink_to(os.fsdecode(stored.target))
        elif stored.kind is EntryKind.FIFO:
            os.mkfifo(path)
        else:
            Path(os.fsdecode(path)).write_bytes(stored.content)
    for raw, stored in sorted(home.items(), key=lambda item: item[0].split(b"/"), reverse=True):
        path = os.fsencode(root) + b"/" + raw if raw else os.fsencode(root)
        if stored.kind is not EntryKind.LINK:
            Path(os.fsdecode(path)).chmod(stored.mode)
        os.utime(path, ns=(0, stored.mtime_ns), follow_symlinks=False)


@pytest.fixture(params=["memory", "directory", pytest.param("s3", marks=pytest.mark.system)])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    if request.param == "memory":
        yield MemoryStore()
        return
    directory = tmp_path / "archives"
    with ExitStack() as stack:
        if request.param == "s3":
            stack.enter_context(credentials(stack.enter_context(rclone(directory))))
            url = f"s3://{BUCKET}"
        else:
            directory.mkdir()
            url = directory.as_uri()
        contents = ObjectContents(url)
        stack.callback(contents.close)
        yield RealStore(url, tmp_path, contents)


@pytest.fixture
def contents(store: Store) -> ArchiveContents:
    return store.contents


@pytest.fixture
def key() -> str:
    return archive_key(PREFIX, uuid4(), uuid4())


async def gathered(content: Content) -> bytes:
    return b"".join([chunk async for chunk in content.chunks])


async def read(contents: ArchiveContents, key: str, path: str) -> bytes:
    async with contents.content(key, path) as content:
        return await gathered(content)


async def read_original(contents: ArchiveContents, key: str) -> bytes:
    async with contents.original(key) as content:
        return await gathered(content)


Members = dict[bytes, tuple[EntryKind, bytes, int, bytes]]
KINDS = {
    tarfile.DIRTYPE: EntryKind.FOLDER,
    tarfile.SYMTYPE: EntryKind.LINK,
    tarfile.FIFOTYPE: EntryKind.FIFO,
    tarfile.REGTYPE: EntryKind.FILE,
}


def members(tar: bytes) -> Members:
    """By a tar reader that is not ours."""
    found = {}
    with tarfile.open(fileobj=io.BytesIO(tar), encoding="utf-8", errors="surrogateescape") as opened:
        for member in opened:
            data = opened.extractfile(member) if member.isreg() else None
            name = to_bytes(member.name).removeprefix(b".")
            content = data.read() if data else b""
            found[name] = (KINDS[member.type], content, member.mode, to_bytes(member.linkname))
    return found


def as_members(home: Home, below: bytes = b"") -> Members:
    prefix = below + b"/" if below else b""
    inside = {raw: stored for raw, stored in home.items() if raw == below or raw.startswith(prefix)}
    return {raw[len(prefix) :]: (s.kind, s.content, s.mode, s.target) for raw, s in inside.items()}


# ── listings ─────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_listing_shows_what_is_directly_inside_folders_first(store: Store, key: str) -> None:
    await store.put(key, HOME)
    home = await store.contents.tree(key, "")
    assert [entry.name for entry in home.entries] == ["a", "b", to_name(b"\xff odd"), "a-b"]
    inside = await store.contents.tree(key, "a")
    assert inside.path == "a"
    assert inside.entries == (
        ArchiveEntry("inner", EntryKind.FOLDER, 0, 0o700, MTIME),
        ArchiveEntry("empty", EntryKind.FILE, 0, 0o640, MTIME),
        ArchiveEntry("notes.txt", EntryKind.FILE, 6, 0o600, MTIME),
        ArchiveEntry("out", EntryKind.LINK, 0, 0o777, MTIME, "/etc/passwd"),
        ArchiveEntry("pipe", EntryKind.FIFO, 0, 0o600, MTIME),
    )
    [large] = (await store.contents.tree(key, "a/inner")).entries
    assert (large.name, large.size) == ("large.bin", len(LARGE))
    assert (await store.contents.tree(key, "b")).entries == ()


async def test_a_listing_can_be_read_in_slices(store: Store, key: str) -> None:
    await store.put(key, HOME)
    whole = await store.contents.tree(key, "")
    assert not whole.has_more
    slices = [await store.contents.tree(key, "", start, 3) for start in (0, 3, 4, 9)]
    assert [found.entries for found in slices] == [whole.entries[:3], whole.entries[3:], (), ()]
    assert [found.has_more for found in slices] == [True, False, False, False]
    assert not (await store.contents.tree(key, "", 0, 4)).has_more


async def test_names_that_are_no_text_survive(store: Store, key: str) -> None:
    await store.put(key, HOME)
    odd = next(e.name for e in (await store.contents.tree(key, "")).entries if e.name.endswith("odd"))
    [inner] = (await store.contents.tree(key, odd)).entries
    assert to_bytes(f"{odd}/{inner.name}") == b"\xff odd/\xfe\n"
    assert await read(store.contents, key, f"{odd}/{inner.name}") == b"not text"


NOWHERE = ["missing", "a/missing", "a/notes.txt/x", "a/", "/", "/a", ".", "..", "a/../a-b", "a/./inner", "a//inner"]
NOWHERE += ["b/../../etc/passwd", "A", "a\x00", "\ud800", "a/out/x"]


@pytest.mark.parametrize("path", NOWHERE)
async def test_what_is_not_there_is_not_found(store: Store, key: str, path: str) -> None:
    await store.put(key, HOME)
    with pytest.raises(NotFound):
        await store.contents.tree(key, path)
    with pytest.raises(NotFound):
        await read(store.contents, key, path)


@pytest.mark.parametrize(("path", "what"), [("a/notes.txt", "a file"), ("a/out", "a link"), ("a/pipe", "a fifo")])
async def test_only_folders_are_listed(store: Store, key: str, path: str, what: str) -> None:
    await store.put(key, HOME)
    with pytest.raises(Invalid, match=what):
        await store.contents.tree(key, path)


@pytest.mark.parametrize(("path", "what"), [("a/out", "a link to “/etc/passwd”"), ("a/pipe", "a fifo")])
async def test_links_are_not_followed(store: Store, key: str, path: str, what: str) -> None:
    await store.put(key, HOME)
    with pytest.raises(Invalid, match=what):
        await read(store.contents, key, path)


# ── content ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("a/notes.txt", "notes.txt"),
        ("a/empty", "empty"),
        ("a/inner/large.bin", "large.bin"),
        ("a-b", "a-b"),
    ],
)
async def test_a_file_is_given_as_it_was(store: Store, key: str, path: str, name: str) -> None:
    await store.put(key, HOME)
    async with store.contents.content(key, path) as content:
        data = await gathered(content)
    expected = HOME[path.encode()].content
    assert (content.name, content.size) == (name, len(expected))
    assert data == expected


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("", "home.tar"),
        ("a", "a.tar"),
        ("a/inner", "inner.tar"),
        ("b", "b.tar"),
        (to_name(b"\xff odd"), "\udcff odd.tar"),
    ],
)
async def test_a_folder_is_given_as_a_tar_of_its_own(store: Store, key: str, path: str, name: str) -> None:
    await store.put(key, HOME)
    async with store.contents.content(key, path) as content:
        tar = await gathered(content)
    assert (content.name, content.size) == (name, None)
    assert members(tar) == as_members(HOME, to_bytes(path))


async def test_the_whole_is_given_as_it_is_stored(store: Store, key: str) -> None:
    await store.put(key, HOME)
    async with store.contents.original(key) as content:
        data = await gathered(content)
    assert (content.name, content.size) == ("home.tar.zst", len(data))
    assert members(zstandard.ZstdDecompressor().decompressobj().decompress(data)) == as_members(HOME)


async def test_an_empty_home_is_an_empty_folder(store: Store, key: str) -> None:
    await store.put_empty(key)
    assert (await store.contents.tree(key, "")).entries == ()
    assert members(await read(store.contents, key, "")) == {}
    assert await read_original(store.contents, key)


async def test_many_read_at_once(store: Store, key: str) -> None:
    await store.put(key, HOME)
    async with (
        store.contents.content(key, "a/inner/large.bin") as first,
        store.contents.content(key, "a/inner/large.bin") as second,
        store.contents.original(key) as third,
    ):
        both = [pair async for pair in alternately(first.chunks, second.chunks)]
        assert b"".join(both[0::2]) == b"".join(both[1::2]) == LARGE
        assert third.size == len(await gathered(third))


async def alternately(*streams: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    while True:
        for stream in streams:
            try:
                yield await anext(stream)
            except StopAsyncIteration:
                return


# ── archives that cannot be read ─────────────────────────────────────────────────────────────────────────────────────


def questions(contents: ArchiveContents, key: str) -> list[Callable[[], Awaitable[object]]]:
    return [
        lambda: contents.tree(key, ""),
        lambda: read(contents, key, ""),
        lambda: read(contents, key, "a/inner/large.bin"),
        lambda: read_original(contents, key),
    ]


async def refusals(contents: ArchiveContents, key: str) -> set[ErrorReason]:
    found = set()
    for ask in questions(contents, key):
        with pytest.raises(BackendError) as refusal:
            await ask()
        found.add(refusal.value.reason)
    return found


async def test_an_archive_that_is_not_there_cannot_be_read(contents: ArchiveContents, key: str) -> None:
    assert await refusals(contents, key) == {ErrorReason.ARCHIVE_ACCESS_ERROR}


async def test_without_meta_it_is_no_archive(store: Store, key: str) -> None:
    await store.put(key, HOME)
    await store.lose_meta(key)
    assert await refusals(store.contents, key) == {ErrorReason.ARCHIVE_ACCESS_ERROR}


@pytest.mark.parametrize("damage", ["cut", "flip"])
async def test_damage_is_seen(store: Store, key: str, damage: str) -> None:
    await store.put(key, HOME)
    await getattr(store, damage)(key)
    assert await refusals(store.contents, key) == {ErrorReason.ARCHIVE_CORRUPTED}


@pytest.mark.parametrize("damage", ["cut", "flip"])
@pytest.mark.parametrize("path", ["", "a", "a/inner/large.bin"])
async def test_damage_after_the_listing_is_seen(store: Store, key: str, path: str, damage: str) -> None:
    await store.put(key, HOME)
    await store.contents.tree(key, "")
    await getattr(store, damage)(key)
    with pytest.raises(BackendError) as refusal:
        await read(store.contents, key, path)
    assert refusal.value.reason is ErrorReason.ARCHIVE_CORRUPTED


@pytest.mark.parametrize("path", ["", "a/inner/large.bin"])
async def test_no_wrong_byte_is_ever_given(store: Store, key: str, path: str) -> None:
    await store.put(key, HOME)
    right = await read(store.contents, key, path)
    await store.flip(key)
    given: list[bytes] = []

    async def read_on() -> None:
        async with store.contents.content(key, path) as content:
            async for chunk in content.chunks:
                given.append(chunk)  # noqa: PERF401 - what came before the failure counts

    with pytest.raises(BackendError):
        await read_on()
    got = b"".join(given)
    assert right.startswith(got)
    assert len(got) < len(right)
