"""The collector's part of the database in memory: marks, requests, and one moment's view of all rows."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, TypeVar
from uuid import UUID

from codehub.adapters.memory.wire import Wire
from codehub.domain.gc_rules import Thing, ThingKind
from codehub.ports.collector import REQUEST_LIVES_SECONDS, CollectionRequest, CollectorData, GivenUp, Mark, Restored

if TYPE_CHECKING:
    from codehub.adapters.memory.database import DatabaseWorld

T = TypeVar("T")


@dataclass(slots=True)
class CollectorWorld:
    marks: dict[tuple[str, str], Mark] = field(default_factory=dict)
    requests: list[tuple[datetime, CollectionRequest]] = field(default_factory=list)
    restored: Restored | None = None


class MemoryCollectorView:
    def __init__(self, world: "DatabaseWorld", wire: Wire) -> None:
        self._world = world
        self._wire = wire

    async def read(self) -> CollectorData:
        def read() -> CollectorData:
            world = self._world
            return CollectorData(
                workspaces=[ws for ws in world.rows.values() if ws.purged_at is None],
                points={key: list(points) for key, points in world.points.items()},
                marks=list(world.collector.marks.values()),
                newest_entry_at=max((entry.at for entry in world.ledger), default=None),
                oldest_workspace_at=min((ws.created_at for ws in world.rows.values()), default=None),
                now=world.now(),
                purged=frozenset(ws.id for ws in world.rows.values() if ws.purged_at is not None),
                restored=world.collector.restored,
            )

        return await self._wire.call("db.collector", read)

    async def recorded(self, operations: Collection[UUID]) -> Collection[UUID]:
        def read() -> set[UUID]:
            return set(operations) & {entry.op_id for entry in self._world.ledger if entry.op_id is not None}

        return await self._wire.call("db.recorded", read)

    async def ask(self, asked_by: str, waived: Collection[str]) -> int:
        def ask() -> int:
            requests = self._world.collector.requests
            requests.append((self._world.now(), CollectionRequest(len(requests) + 1, asked_by, tuple(waived))))
            return len(requests)

        return await self._wire.call("db.ask_collection", ask)

    async def request(self, request_id: int) -> CollectionRequest | None:
        def read() -> CollectionRequest | None:
            return next((r for _, r in self._world.collector.requests if r.id == request_id), None)

        return await self._wire.call("db.collection_request", read)


class MemoryCollectorMarks:
    def __init__(self, world: "DatabaseWorld", wire: Wire, epoch: int) -> None:
        self._world = world
        self._wire = wire
        self.epoch = epoch

    async def _write(self, name: str, work: Callable[[], T]) -> T:
        with self._world.leadership.shared(self.epoch) as transaction:
            return await self._wire.call(name, lambda: transaction.commit(work))

    async def remark(self, found: Mapping[Thing, str]) -> Sequence[Mark]:
        def write() -> list[Mark]:
            before, now = self._world.collector.marks, self._world.now()
            after = {
                (thing.kind.value, thing.name): before.get((thing.kind.value, thing.name)) or Mark(thing, reason, now)
                for thing, reason in found.items()
            }
            self._world.collector.marks = after
            return [after[name] for name in sorted(after)]

        return await self._write("db.remark", write)

    async def give_up(self, thing: Thing, decide: GivenUp) -> bool:
        def write() -> bool:
            world, owner = self._world, thing.workspace_id
            points = world.points.get(owner, [])
            if not decide(world.rows.get(owner), list(points), world.now()):
                return False
            world.collector.marks.pop((thing.kind.value, thing.name), None)
            if thing.kind is ThingKind.OBJECT and any(p.key == thing.name for p in points):
                world.points[owner] = [p for p in points if p.key != thing.name]
            return True

        return await self._write("db.give_up", write)

    async def pending(self) -> CollectionRequest | None:
        def read() -> CollectionRequest | None:
            since = self._world.now() - timedelta(seconds=REQUEST_LIVES_SECONDS)
            requests = self._world.collector.requests
            return next((r for at, r in requests if r.report is None and at > since), None)

        return await self._wire.call("db.collection_pending", read)

    async def finish(self, request_id: int, report: Mapping[str, Any]) -> None:
        def write() -> None:
            self._world.collector.requests = [
                (at, replace(r, report=dict(report)) if r.id == request_id and r.report is None else r)
                for at, r in self._world.collector.requests
            ]

        await self._write("db.finish_collection", write)
