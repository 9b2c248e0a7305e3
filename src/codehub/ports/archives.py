"""Archives as the controller sees them: there and whole, definitely not, or unknown (Unreachable is raised).

An object without its `.meta` is not an archive: `.meta` is the commit marker, written last.
"""

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

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
        """A direct look: READABLE, or definitely not and why. Never UNKNOWN: raises Unreachable instead."""
        ...

    async def create_empty(self, key: str) -> JobResult:
        """The archive of an empty home, object then `.meta`, read back. There already = success."""
        ...

    async def delete(self, key: str) -> None:
        """`.meta` first, then the object. Gone is success. The name of an unfinished upload removes that alone."""
        ...

    async def objects(self) -> Collection[StoredObject]:
        """Every object under our prefix, `.meta` files and unfinished uploads into a directory too: the collector's
        view. The owner's mark is not among them."""
        ...

    async def owner(self) -> str | None:
        """The installation that the store, under our prefix, says it belongs to; None if it says nothing."""
        ...

    async def claim(self, install: str) -> str:
        """Say whose the store is, if nobody has; the owner, which may be another."""
        ...
