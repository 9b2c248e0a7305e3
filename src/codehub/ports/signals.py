"""What passes between the processes: change notices, wakes, activity, and the notices to admins.

Signals are hints and may be lost or doubled; the periodic passes are the truth.
"""

from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any, Protocol
from uuid import UUID

from codehub.domain.notices import Notice

NOTICES = "notices"
"""Last part of the bus channel on which the admins' event streams hear notices; no user has such an id."""


class Channel(StrEnum):
    SSE = "ws_sse"
    WAKE = "ws_wake"
    DELETED = "ws_deleted"


@dataclass(frozen=True, slots=True)
class Change:
    """A workspace's row changed. `owner_id`: to send it to its owner's channel."""

    channel: Channel
    workspace_id: UUID
    owner_id: str


class ChangeFeed(Protocol):
    def changes(self, listening: Callable[[], None] | None = None) -> AsyncIterator[Change]:
        """Committed changes as the database tells them, from the moment `listening` is called. Raises Unreachable when
        the connection is lost: whoever listens must then assume that anything changed."""
        ...


class Bus(Protocol):
    async def publish(self, channel: str, message: Mapping[str, Any]) -> None:
        """Send a message; nobody listening is success. Raises Unreachable."""
        ...

    def subscribe(self, channel: str, listening: Callable[[], None] | None = None) -> AsyncIterator[Mapping[str, Any]]:
        """Messages from the moment `listening` is called, soon after the first item is awaited. A channel that ends in
        `*` is every channel that begins so. Raises Unreachable on a lost connection: messages may then be lost."""
        ...


class Activity(Protocol):
    async def record(self, seen: Mapping[UUID, datetime]) -> None:
        """Record when each workspace was last used; the later time wins."""
        ...

    async def read(self) -> Mapping[UUID, datetime]:
        """When each workspace was last used. Raises Unreachable: then nothing may be stopped."""
        ...

    async def forget(self, written: Mapping[UUID, datetime]) -> None:
        """Remove each id whose time is still the one given: newer activity stays."""
        ...


class Notifier(Protocol):
    async def notify(self, notice: Notice) -> None:
        """Tell the admins. Best effort: never raises."""
        ...


class Clock(Protocol):
    """Waits and measures durations. Points in time come from the database."""

    def monotonic(self) -> float: ...

    async def sleep(self, seconds: float) -> None: ...


class Ids(Protocol):
    """Randomness, injected so that a simulated run can be replayed."""

    def new(self) -> UUID: ...

    def jitter(self) -> float:
        """A random number in [−1, 1]."""
        ...
