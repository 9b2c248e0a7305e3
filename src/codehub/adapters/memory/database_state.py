"""What the database in memory holds, and what every store on it shares: publishing changes and fenced writes.

A fenced write is a transaction that holds the leadership row shared from the epoch's check to its commit. A bump of
the epoch ends the transactions that are open, as the rival does on PostgreSQL by ending the old leader's backends.
"""

import asyncio
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import TypeVar
from uuid import UUID

from codehub.adapters.memory.account_tables import AccountTables
from codehub.adapters.memory.fault_injection import Network
from codehub.adapters.memory.leadership import LeadershipState
from codehub.domain.backend_identity import Backend
from codehub.domain.gc_rules import RestorePoint
from codehub.domain.history import TrafficMinute
from codehub.domain.ledger import LedgerEntry, entries
from codehub.domain.workspace import PUBLISHED_FIELDS, WAKING_FIELDS, Workspace
from codehub.ports.collector import CollectionRequest, Mark, RestoredDatabase
from codehub.ports.signals import Change, Channel
from codehub.ports.stores import BackendRecord

T = TypeVar("T")


@dataclass(slots=True)
class CollectorState:
    marks: dict[tuple[str, str], Mark] = field(default_factory=dict)
    requests: list[tuple[datetime, CollectionRequest]] = field(default_factory=list)
    restored: RestoredDatabase | None = None


def _wall_clock() -> datetime:
    return datetime.now(UTC)


@dataclass(slots=True)
class DatabaseState:
    now: Callable[[], datetime] = _wall_clock
    rows: dict[UUID, Workspace] = field(default_factory=dict)
    ledger: list[LedgerEntry] = field(default_factory=list)
    points: dict[UUID, list[RestorePoint]] = field(default_factory=dict)
    leases: dict[UUID, dict[str, datetime]] = field(default_factory=dict)
    traffic: dict[datetime, TrafficMinute] = field(default_factory=dict)
    backend_identities: dict[Backend, BackendRecord] = field(default_factory=dict)
    people: AccountTables = field(default_factory=AccountTables)
    leadership: LeadershipState = field(default_factory=LeadershipState)
    collector: CollectorState = field(default_factory=CollectorState)
    admission: asyncio.Lock = field(default_factory=asyncio.Lock)
    listeners: list[asyncio.Queue[Change | None]] = field(default_factory=list)
    row_writes: int = 0
    watchers: list[Callable[[Workspace | None, Workspace, str, str], None]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.people.leadership = self.leadership

    def put(self, before: Workspace | None, after: Workspace, actor: str, reason: str) -> Workspace:
        now = self.now()
        row = replace(after, version=(before.version + 1 if before else 1), updated_at=now)
        self.rows[row.id] = row
        self.row_writes += 1
        self.ledger.extend(entries(before, row, actor, reason, now))
        for change in _changes(before, row):
            for listener in self.listeners:
                listener.put_nowait(change)
        for watcher in self.watchers:
            watcher(before, row, actor, reason)
        return row


def _changes(before: Workspace | None, after: Workspace) -> list[Change]:
    found = []
    if before is None or differ(before, after, PUBLISHED_FIELDS):
        found.append(Change(Channel.SSE, after.id, after.owner_id))
    if before is None or differ(before, after, WAKING_FIELDS):
        found.append(Change(Channel.WAKE, after.id, after.owner_id))
    if before is not None and before.deleted_at != after.deleted_at:
        found.append(Change(Channel.DELETED, after.id, after.owner_id))
    return found


def differ(before: Workspace, after: Workspace, names: Collection[str]) -> bool:
    return any(getattr(before, name) != getattr(after, name) for name in names)


class DatabaseStore:
    """A store on the database in memory, reached over a network that may fail. A write with an epoch is a transaction
    that the end of that term refuses."""

    def __init__(self, state: DatabaseState, network: Network) -> None:
        self._state = state
        self._network = network

    async def _write(self, name: str, epoch: int | None, work: Callable[[], T]) -> T:
        if epoch is None:
            return await self._network.call(name, work)
        with self._state.leadership.shared(epoch) as transaction:
            return await self._network.call(name, lambda: transaction.commit(work))
