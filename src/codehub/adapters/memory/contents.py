"""What is inside the archives of the world in memory. One that goes bad while it is read stops giving bytes."""

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from weakref import WeakValueDictionary

from codehub.adapters.memory.archives import ArchiveWorld, StoredEntry
from codehub.adapters.memory.wire import Wire
from codehub.domain.errors import BackendError, ErrorReason
from codehub.domain.judge import ArchiveState
from codehub.domain.naming import ARCHIVE_FILE
from codehub.job.compress import compressed
from codehub.job.tar_format import DIRECTORY, END_OF_ARCHIVE, FIFO, REGULAR, SYMLINK, Member, encode, padded
from codehub.ports.archives import (
    Content,
    Entry,
    EntryKind,
    Listing,
    folder_content,
    must_be_folder,
    must_have_bytes,
    not_there,
    to_bytes,
    to_name,
)

_CHUNK = 1 << 16
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_HOME = StoredEntry(EntryKind.FOLDER, mode=0o755)
_TAR_KINDS = {
    EntryKind.FILE: REGULAR,
    EntryKind.FOLDER: DIRECTORY,
    EntryKind.LINK: SYMLINK,
    EntryKind.FIFO: FIFO,
}

Home = Mapping[bytes, StoredEntry]


class MemoryContents:
    def __init__(self, world: ArchiveWorld | None = None, wire: Wire | None = None) -> None:
        self.world = world or ArchiveWorld()
        self._wire = wire or Wire()
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def tree(self, key: str, path: str, start: int = 0, most: int | None = None, *, owner: str = "") -> Listing:
        home = await self._in_turn(key, owner)
        folder = to_bytes(path)
        must_be_folder(path, _entry(folder, _found(home, path)))
        inside = [(raw, stored) for raw, stored in home.items() if raw and _parent(raw) == folder]
        ordered = sorted(inside, key=lambda item: (item[1].kind is not EntryKind.FOLDER, item[0]))
        end = len(ordered) if most is None else start + most
        return Listing(path, tuple(_entry(raw, stored) for raw, stored in ordered[start:end]), end < len(ordered))

    @asynccontextmanager
    async def content(self, key: str, path: str, *, owner: str = "") -> AsyncIterator[Content]:
        home = await self._in_turn(key, owner)
        raw = to_bytes(path)
        entry = _entry(raw, _found(home, path))
        must_have_bytes(path, entry)
        if entry.kind is EntryKind.FILE:
            yield Content(entry.name, entry.size, self._chunks(key, home[raw].content))
        else:
            yield folder_content(entry.name, self._chunks(key, b"".join(_tar(home, raw))))

    @asynccontextmanager
    async def original(self, key: str) -> AsyncIterator[Content]:
        data = b"".join(compressed(_tar(await self._home(key), b"")))
        yield Content(ARCHIVE_FILE, len(data), self._chunks(key, data))

    async def _in_turn(self, key: str, owner: str) -> Home:
        async with self._turns.setdefault(owner, asyncio.Lock()):
            return await self._home(key)

    async def _home(self, key: str) -> Home:
        return await self._wire.call("contents.home", lambda: self._readable(key))

    async def _chunks(self, key: str, data: bytes) -> AsyncIterator[bytes]:
        for start in range(0, len(data), _CHUNK):
            await self._wire.call("contents.chunk", lambda: self._readable(key))
            yield data[start : start + _CHUNK]

    def _readable(self, key: str) -> Home:
        archive = self.world.objects.get(key)
        if archive is None or not archive.committed or archive.state is ArchiveState.NOT_FOUND:
            raise BackendError("the archive is not there", reason=ErrorReason.ARCHIVE_ACCESS_ERROR)
        if archive.state is ArchiveState.CORRUPTED or archive.rotten:
            raise BackendError("the archive is not what .meta says", reason=ErrorReason.ARCHIVE_CORRUPTED)
        if archive.state is ArchiveState.EXPIRED:
            raise BackendError("the archive is in cold storage", reason=ErrorReason.ARCHIVE_ACCESS_ERROR)
        if archive.home is not None:
            return archive.home
        return {b"%d" % n: StoredEntry(EntryKind.FILE, b"%d" % value) for n, value in enumerate(archive.content)}


def _found(home: Home, path: str) -> StoredEntry:
    raw = to_bytes(path)
    found = home.get(raw, _HOME if not raw else None)
    if found is None:
        raise not_there(path)
    return found


def _parent(path: bytes) -> bytes:
    return path.rpartition(b"/")[0]


def _entry(path: bytes, stored: StoredEntry) -> Entry:
    return Entry(
        name=to_name(path.rpartition(b"/")[2]),
        kind=stored.kind,
        size=len(stored.content),
        mode=stored.mode,
        mtime=_EPOCH + timedelta(microseconds=stored.mtime_ns // 1000),
        target=to_name(stored.target) if stored.kind is EntryKind.LINK else None,
    )


def _tar(home: Home, folder: bytes) -> Iterator[bytes]:
    prefix = folder + b"/" if folder else b""
    for path, stored in home.items():
        if path == folder or path.startswith(prefix):
            kind, size = _TAR_KINDS[stored.kind], len(stored.content)
            inner = path[len(prefix) :]
            yield encode(Member(inner, kind, stored.mode, 0, 0, stored.mtime_ns, size=size, link=stored.target))
            yield padded(stored.content)
    yield END_OF_ARCHIVE
