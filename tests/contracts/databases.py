"""What the store suites run on: any database of ours, and rows to put into it."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import datetime
from typing import Any, Protocol
from uuid import UUID, uuid4

from codehub.domain.admission import Slots
from codehub.domain.gc_rules import RestorePoint
from codehub.domain.workspace import SPEC_FIELDS, STATUS_FIELDS, Workspace
from codehub.ports.collector import CollectorMarks, CollectorView
from codehub.ports.signals import ChangeFeed, Clock
from codehub.ports.stores import (
    Actor,
    Leadership,
    Ledger,
    SpecDecision,
    WorkspaceSpecs,
    WorkspaceStatuses,
)
from tests.rows import LONG_AGO, workspace

ANN = Actor("ann")


class Database(Protocol):
    def specs(self) -> WorkspaceSpecs: ...

    def statuses(self, epoch: int) -> WorkspaceStatuses: ...

    def ledger(self) -> Ledger: ...

    def leadership(self, clock: Clock) -> Leadership: ...

    def changes(self) -> ChangeFeed: ...

    def collector(self) -> CollectorView: ...

    def marks(self, epoch: int) -> CollectorMarks: ...


class RealClock:
    def monotonic(self) -> float:
        return asyncio.get_running_loop().time()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


def as_given(row: Workspace, _slots: Slots, _now: datetime) -> Workspace:
    return row


def setting(**changes: Any) -> SpecDecision:
    def decide(row: Workspace, _slots: Slots, _now: datetime) -> Workspace:
        return replace(row, **changes)

    return decide


def fresh(**changes: Any) -> Workspace:
    """A row nobody has: id, name and slug of its own."""
    key: UUID = changes.pop("id", None) or uuid4()
    named = {"id": key, "name": f"demo {key.hex}", "slug": f"demo-{key.hex[:30]}"}
    return workspace(**(named | changes))


async def stored(database: Database, **changes: Any) -> Workspace:
    """A row as it would stand after all those writes, each by the side that may make it."""
    spec = {name: value for name, value in changes.items() if name in SPEC_FIELDS or name == "id"}
    row = await database.specs().create(fresh(**spec), as_given, ANN)
    status = {name: value for name, value in changes.items() if name in STATUS_FIELDS}
    if not status:
        return row
    return await database.statuses(await epoch_of(database)).record(row, replace(row, **status))


async def epoch_of(database: Database) -> int:
    leader = await database.leadership(RealClock()).leader()
    return leader.epoch if leader else 0


@asynccontextmanager
async def new_term(database: Database, holder: str = "next") -> AsyncIterator[int]:
    """Somebody leads; every older term is over."""
    term = await database.leadership(RealClock()).campaign(holder)
    try:
        yield term.epoch
    finally:
        await term.resign()


def restore_point(row: Workspace, key: str, **changes: Any) -> RestorePoint:
    point = RestorePoint(
        workspace_id=row.id,
        op_id=uuid4(),
        key=key,
        bytes=10,
        files=2,
        sha256="ab" * 32,
        created_at=LONG_AGO,
        verified_at=LONG_AGO,
    )
    return replace(point, **changes)


Decide = Callable[[Workspace, Slots, datetime], Workspace]
