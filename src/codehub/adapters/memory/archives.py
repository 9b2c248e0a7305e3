"""Object storage in memory. An object knows whether its `.meta` was written and whether its bytes are still good."""

from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from uuid import UUID

from codehub.adapters.memory.wire import Wire
from codehub.domain.judge import ArchiveState
from codehub.domain.naming import meta_key
from codehub.ports.archives import EntryKind, StoredObject
from codehub.ports.jobs import JobResult


@dataclass(frozen=True, slots=True)
class StoredEntry:
    kind: EntryKind
    content: bytes = b""
    mode: int = 0o644
    mtime_ns: int = 0
    target: bytes = b""


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
class ArchiveWorld:
    now: Callable[[], datetime] = lambda: datetime(2026, 1, 1, tzinfo=UTC)
    objects: dict[str, StoredArchive] = field(default_factory=dict)
    unfinished: dict[str, StoredObject] = field(default_factory=dict)
    owner: str | None = None

    def looks_complete(self, key: str) -> bool:
        """As far as can be seen without reading it."""
        archive = self.objects.get(key)
        return archive is not None and archive.committed and archive.state is ArchiveState.READABLE

    def is_complete(self, key: str) -> bool:
        return self.looks_complete(key) and not self.objects[key].rotten


class MemoryArchives:
    name = "memory"

    def __init__(self, world: ArchiveWorld | None = None, wire: Wire | None = None) -> None:
        self.world = world or ArchiveWorld()
        self._wire = wire or Wire()

    async def inventory(self) -> Collection[str]:
        return await self._wire.call(
            "archives.inventory",
            lambda: [key for key in self.world.objects if self.world.looks_complete(key)],
        )

    async def look(self, key: str) -> ArchiveState:
        def look() -> ArchiveState:
            archive = self.world.objects.get(key)
            return archive.state if archive is not None and archive.committed else ArchiveState.NOT_FOUND

        return await self._wire.call("archives.look", look)

    async def create_empty(self, key: str) -> JobResult:
        def create() -> JobResult:
            archive = self.world.objects.setdefault(key, StoredArchive((), self.world.now()))
            archive.committed = True
            return archive.result(key)

        return await self._wire.call("archives.create_empty", create)

    async def delete(self, key: str) -> None:
        def delete() -> None:
            self.world.objects.pop(key, None)
            self.world.unfinished.pop(key, None)

        await self._wire.call("archives.delete", delete, _workspace_of(key))

    async def objects(self) -> Collection[StoredObject]:
        def list_all() -> list[StoredObject]:
            found = [StoredObject(k, len(a.content), a.modified_at) for k, a in self.world.objects.items()]
            metas = [StoredObject(meta_key(k), 2, a.modified_at) for k, a in self.world.objects.items() if a.committed]
            return [*found, *metas, *self.world.unfinished.values()]

        return await self._wire.call("archives.objects", list_all)

    async def owner(self) -> str | None:
        return await self._wire.call("archives.owner", lambda: self.world.owner)

    async def claim(self, install: str) -> str:
        def claim() -> str:
            self.world.owner = self.world.owner or install
            return self.world.owner

        return await self._wire.call("archives.claim", claim)


def _workspace_of(key: str) -> UUID | None:
    with suppress(ValueError, IndexError):
        return UUID(key.split("/")[-3])
    return None
