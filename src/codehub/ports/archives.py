"""Archives: whether they are there and whole, and what is inside them.

An object without its `.meta` is not an archive: `.meta` is the commit marker, written last. Contents are read while the
workspace sleeps, fails or is over its limit; nothing here follows a symbolic link. Names are text with surrogate
escapes, so that every name a file system can hold survives: `to_bytes` gives back what the archive has. An archive that
is not there or not whole is a BackendError with its reason (ArchiveAccessError, ArchiveCorrupted); a store that does
not answer is Unreachable.
"""

from collections.abc import AsyncIterator, Collection
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Protocol

from codehub.domain.errors import Invalid, NotFound
from codehub.domain.judge import ArchiveState
from codehub.ports.jobs import JobResult


@dataclass(frozen=True, slots=True)
class StoredObject:
    key: str
    bytes: int
    modified_at: datetime


class Archives(Protocol):
    name: str
    """What an error calls it: `s3`, or `directory`."""

    async def inventory(self) -> Collection[str]:
        """The keys of all complete archives, by listing. An archive written during the listing may be missed."""
        ...

    async def look(self, key: str) -> ArchiveState:
        """The archive's state by a direct look: READABLE, or definitely not and why. Raises Unreachable, never
        UNKNOWN."""
        ...

    async def create_empty(self, key: str) -> JobResult:
        """Write the archive of an empty home: the object, read back, then `.meta`. One that is there already is
        success."""
        ...

    async def delete(self, key: str) -> None:
        """Delete `.meta`, then the object. Gone is success. The name of an unfinished upload removes that alone."""
        ...

    async def objects(self) -> Collection[StoredObject]:
        """Every object under our prefix, `.meta` files and unfinished uploads into a directory too: the collector's
        view. The owner's mark is not among them."""
        ...

    async def owner(self) -> str | None:
        """The installation that the store, under our prefix, says it belongs to; None if it says nothing."""
        ...

    async def claim(self, install: str) -> str:
        """Mark the store as this installation's, if nobody has; returns its owner, which may be another."""
        ...


class EntryKind(StrEnum):
    FILE = "file"
    FOLDER = "folder"
    LINK = "link"
    FIFO = "fifo"


@dataclass(frozen=True, slots=True)
class ArchiveEntry:
    """A file, folder or link in an archive. `size`: how many bytes `content` gives of a file; 0 of all else. `target`:
    where a symbolic link points."""

    name: str
    kind: EntryKind
    size: int
    mode: int
    mtime: datetime
    target: str | None = None


@dataclass(frozen=True, slots=True)
class Listing:
    """What is directly inside a folder: folders first, then by name in the order of its bytes. `has_more`: it goes on
    after these."""

    path: str
    entries: tuple[ArchiveEntry, ...]
    has_more: bool = False


@dataclass(frozen=True, slots=True)
class Content:
    """Bytes to download; name and size are known before the first. `size` is exact where it is given; the stream then
    has that many bytes or raises."""

    name: str
    size: int | None
    chunks: AsyncIterator[bytes]


class ArchiveContents(Protocol):
    """Reads what is inside an archive. `owner`: whose archive it is. One owner's are looked into for the first time one
    after another, and so are those of nobody named, so that nobody keeps all others waiting."""

    async def tree(self, key: str, path: str, start: int = 0, most: int | None = None, *, owner: str = "") -> Listing:
        """What a folder holds. `path` is relative to the home, "" is the home itself. NotFound if it is not in the
        archive, Invalid if it is no folder. Of a folder that has thousands of entries, only the `most` from `start` on
        are made."""
        ...

    def content(self, key: str, path: str, *, owner: str = "") -> AbstractAsyncContextManager[Content]:
        """A file's bytes, holes and second names included, or a folder as an uncompressed tar with names relative to
        it. Refuses as `tree` does, and what has no bytes of its own (links, fifos), before anything is sent. No byte
        that is not the archive's is ever given: a stream that cannot go on raises. Leaving the context ends the
        reading."""
        ...

    def original(self, key: str) -> AbstractAsyncContextManager[Content]:
        """The whole archive as it is stored. Its last bytes are given only when all of them were found right."""
        ...


def to_name(raw: bytes) -> str:
    return raw.decode("utf-8", "surrogateescape")


def to_bytes(path: str) -> bytes:
    try:
        return path.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        raise not_there(path) from None


def shown(path: str) -> str:
    """A path for a message: one line, whatever it holds."""
    text = "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in path)
    return f"“{text}”" if len(text) <= 200 else f"“{text[:120]}…{text[-60:]}”"


def not_there(path: str) -> NotFound:
    return NotFound(f"There is no {shown(path)} in this restore point.")


def must_be_folder(path: str, entry: ArchiveEntry) -> None:
    if entry.kind is EntryKind.FILE:
        raise Invalid(f"{shown(path)} is a file, not a folder. Download it instead.")
    if entry.kind is not EntryKind.FOLDER:
        raise Invalid(f"{shown(path)} is {_what(entry)}, not a folder.")


def must_have_bytes(path: str, entry: ArchiveEntry) -> None:
    if entry.kind not in (EntryKind.FILE, EntryKind.FOLDER):
        raise Invalid(f"{shown(path)} is {_what(entry)} and has no content of its own.")


def folder_content(name: str, chunks: AsyncIterator[bytes]) -> Content:
    return Content(f"{name or 'home'}.tar", None, chunks)


def _what(entry: ArchiveEntry) -> str:
    return f"a link to {shown(entry.target or '')}" if entry.kind is EntryKind.LINK else f"a {entry.kind}"
