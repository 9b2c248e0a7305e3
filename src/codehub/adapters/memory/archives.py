"""Object storage in memory, and what is inside its archives.

An object knows whether its `.meta` was written and whether its bytes are still good; an archive that goes bad while it
is read stops giving bytes.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from uuid import UUID
from weakref import WeakValueDictionary

from codehub.adapters.memory.fault_injection import Network, effect
from codehub.domain.errors import BackendError, ErrorReason
from codehub.domain.judge import ArchiveState
from codehub.domain.naming import ARCHIVE_FILE, meta_key
from codehub.job.compress import compressed
from codehub.job.tar_format import DIRECTORY, END_OF_ARCHIVE, FIFO, REGULAR, SYMLINK, Member, encode, padded
from codehub.ports.archives import (
    ArchiveEntry,
    Content,
    EntryKind,
    Listing,
    StoredObject,
    folder_content,
    must_be_folder,
    must_have_bytes,
    not_there,
    to_bytes,
    to_name,
)
from codehub.ports.jobs import JobResult

_CHUNK = 1 << 16
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_TAR_KINDS = {EntryKind.FILE: REGULAR, EntryKind.FOLDER: DIRECTORY, EntryKind.LINK: SYMLINK, EntryKind.FIFO: FIFO}


@dataclass(frozen=True, slots=True)
class StoredEntry:
    kind: EntryKind
    content: bytes = b""
    mode: int = 0o644
    mtime_ns: int = 0
    target: bytes = b""


_HOME = StoredEntry(EntryKind.FOLDER, mode=0o755)
Home = Mapping[bytes, StoredEntry]


@dataclass(slots=True)
class StoredArchive:
    """`home`: its entries by path, each folder before its inside; without it, each number of the content is a file.
    `rotten`: its bytes are no longer those that were proven, which only who reads them all can tell."""

    content: tuple[int, ...]
    modified_at: datetime
    committed: bool = False
    state: ArchiveState = ArchiveState.READABLE
    home: Mapping[bytes, StoredEntry] | None = None
    rotten: bool = False

    def read(self) -> tuple[int, ...]:
        return (*self.content, -1) if self.rotten else self.content

    def result(self, key: str) -> JobResult:
        return JobResult(key, f"sha256-of-{self.content}", len(self.content), len(self.content))


@dataclass(slots=True)
class ArchivesState:
    now: Callable[[], datetime] = lambda: datetime(2026, 1, 1, tzinfo=UTC)
    objects: dict[str, StoredArchive] = field(default_factory=dict)
    unfinished: dict[str, StoredObject] = field(default_factory=dict)
    owner: str | None = None

    def looks_complete(self, key: str) -> bool:
        """Whether the archive is complete, as far as can be seen without reading it."""
        archive = self.objects.get(key)
        return archive is not None and archive.committed and archive.state is ArchiveState.READABLE

    def is_complete(self, key: str) -> bool:
        return self.looks_complete(key) and not self.objects[key].rotten


class MemoryArchives:
    name = "memory"

    def __init__(self, state: ArchivesState | None = None, network: Network | None = None) -> None:
        self.state = state or ArchivesState()
        self._network = network or Network()

    @effect("archives.inventory")
    def inventory(self) -> Collection[str]:
        return [key for key in self.state.objects if self.state.looks_complete(key)]

    @effect("archives.look")
    def look(self, key: str) -> ArchiveState:
        archive = self.state.objects.get(key)
        return archive.state if archive is not None and archive.committed else ArchiveState.NOT_FOUND

    @effect("archives.create_empty")
    def create_empty(self, key: str) -> JobResult:
        archive = self.state.objects.setdefault(key, StoredArchive((), self.state.now()))
        archive.committed = True
        return archive.result(key)

    async def delete(self, key: str) -> None:
        def delete() -> None:
            self.state.objects.pop(key, None)
            self.state.unfinished.pop(key, None)

        await self._network.call("archives.delete", delete, _workspace_of(key))

    @effect("archives.objects")
    def objects(self) -> Collection[StoredObject]:
        found = [StoredObject(k, len(a.content), a.modified_at) for k, a in self.state.objects.items()]
        metas = [StoredObject(meta_key(k), 2, a.modified_at) for k, a in self.state.objects.items() if a.committed]
        return [*found, *metas, *self.state.unfinished.values()]

    @effect("archives.owner")
    def owner(self) -> str | None:
        return self.state.owner

    @effect("archives.claim")
    def claim(self, install: str) -> str:
        self.state.owner = self.state.owner or install
        return self.state.owner


def _workspace_of(key: str) -> UUID | None:
    with suppress(ValueError, IndexError):
        return UUID(key.split("/")[-3])
    return None


class MemoryContents:
    def __init__(self, state: ArchivesState | None = None, network: Network | None = None) -> None:
        self.state = state or ArchivesState()
        self._network = network or Network()
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

    @effect("contents.home")
    def _home(self, key: str) -> Home:
        return self._readable(key)

    async def _chunks(self, key: str, data: bytes) -> AsyncIterator[bytes]:
        for start in range(0, len(data), _CHUNK):
            await self._network.call("contents.chunk", lambda: self._readable(key))
            yield data[start : start + _CHUNK]

    def _readable(self, key: str) -> Home:
        archive = self.state.objects.get(key)
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


def _entry(path: bytes, stored: StoredEntry) -> ArchiveEntry:
    return ArchiveEntry(
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
