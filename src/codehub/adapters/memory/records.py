"""Templates and repeated requests in memory.

The audit log in memory.

What passed the front doors, in memory.

The collector's part of the database in memory: marks, requests, and one moment's view of all rows.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, TypeVar
from uuid import UUID

from codehub.adapters.memory.account_tables import AccountTables, StoredKey
from codehub.adapters.memory.fault_injection import Network
from codehub.domain.errors import Conflict
from codehub.domain.gc_rules import BackendResource, ResourceKind
from codehub.domain.history import SPAN, TrafficMinute
from codehub.domain.template import Template
from codehub.ports.accounts import AuditEntry, IdempotencyClaim
from codehub.ports.collector import (
    REQUEST_LIVES_SECONDS,
    CollectionRequest,
    CollectorData,
    Mark,
    RestoredDatabase,
    SweepDecision,
)
from codehub.ports.stores import Actor

if TYPE_CHECKING:
    from codehub.adapters.memory.database import DatabaseState


class MemoryTemplates:
    def __init__(self, world: AccountTables, wire: Network) -> None:
        self._world = world
        self._wire = wire

    async def get(self, name: str) -> Template | None:
        return await self._wire.call("templates.get", lambda: self._world.templates.get(name))

    async def all(self) -> Sequence[Template]:
        return await self._wire.call(
            "templates.all", lambda: sorted(self._world.templates.values(), key=lambda template: template.name)
        )

    async def put(self, template: Template, actor: Actor) -> Template:
        def write() -> Template:
            now, before = self._world.now(), self._world.templates.get(template.name)
            since = (before.disabled_at if before else None) or now
            stored = replace(
                template,
                created_at=before.created_at if before else now,
                updated_at=now,
                disabled_at=since if template.disabled_at else None,
            )
            self._world.templates[stored.name] = stored
            # Not the environment: people put secrets there.
            details = {"image_ref": stored.image_ref, "disabled": stored.disabled_at is not None}
            self._world.told(actor, "put_template", f"template:{stored.name}", details)
            return stored

        return await self._wire.call("templates.put", write)


class MemoryIdempotencyKeys:
    def __init__(self, world: AccountTables, wire: Network) -> None:
        self._world = world
        self._wire = wire

    async def claim(self, user_id: UUID, key: str, request_hash: bytes, workspace_id: UUID) -> IdempotencyClaim:
        def take() -> IdempotencyClaim:
            self._world.user(user_id)
            known = self._world.keys.get((user_id, key))
            if known is None:
                self._world.keys[user_id, key] = StoredKey(request_hash, workspace_id, self._world.now())
                return IdempotencyClaim(workspace_id, None, first=True)
            if known.request_hash != request_hash:
                raise Conflict(
                    "This Idempotency-Key was used for another request. Send a new key with a new request.",
                    "idempotency_key_reused",
                )
            return IdempotencyClaim(known.workspace_id, known.response, first=False)

        return await self._wire.call("idempotency_keys.claim", take)

    async def answer(self, user_id: UUID, key: str, response: Mapping[str, Any]) -> None:
        def write() -> None:
            known = self._world.keys.get((user_id, key))
            if known is not None and known.response is None:
                known.response = dict(response)

        await self._wire.call("idempotency_keys.answer", write)

    async def release(self, user_id: UUID, key: str) -> None:
        def free() -> None:
            known = self._world.keys.get((user_id, key))
            if known is not None and known.response is None:
                del self._world.keys[user_id, key]

        await self._wire.call("idempotency_keys.release", free)

    async def forget_older(self, seconds: float, epoch: int | None = None) -> int:
        def sweep() -> int:
            oldest = self._world.now() - timedelta(seconds=seconds)
            gone = [name for name, stored in self._world.keys.items() if stored.created_at < oldest]
            for name in gone:
                del self._world.keys[name]
            return len(gone)

        return await self._world.within(epoch, self._wire, "idempotency_keys.forget_older", sweep)


class MemoryAudit:
    def __init__(self, world: AccountTables, wire: Network) -> None:
        self._world = world
        self._wire = wire

    async def append(self, actor: Actor, action: str, subject: str, details: Mapping[str, Any] | None = None) -> None:
        await self._wire.call("audit.append", lambda: self._world.told(actor, action, subject, details))

    async def entries(
        self, limit: int = 100, *, before: int | None = None, actor: str | None = None, subject: str | None = None
    ) -> Sequence[AuditEntry]:
        def read() -> list[AuditEntry]:
            wanted = [
                entry
                for entry in reversed(self._world.audit)
                if (before is None or entry.id < before)
                and (actor is None or entry.actor == actor)
                and (subject is None or entry.subject == subject)
            ]
            return wanted[:limit]

        return await self._wire.call("audit.entries", read)

    async def forget_older(self, seconds: float, epoch: int | None = None) -> int:
        def sweep() -> int:
            oldest = self._world.now() - timedelta(seconds=seconds)
            kept = [entry for entry in self._world.audit if entry.at >= oldest]
            gone = len(self._world.audit) - len(kept)
            self._world.audit[:] = kept
            return gone

        return await self._world.within(epoch, self._wire, "audit.forget_older", sweep)


class MemoryTraffic:
    def __init__(self, minutes: dict[datetime, TrafficMinute], now: Callable[[], datetime], wire: Network) -> None:
        self._minutes = minutes
        self._now = now
        self._wire = wire

    async def add(self, requests: int, socket_seconds: float) -> None:
        def write() -> None:
            now = self._now()
            at = now.replace(second=0, microsecond=0)
            known = self._minutes.get(at, TrafficMinute(at, 0, 0.0))
            self._minutes[at] = TrafficMinute(at, known.requests + requests, known.socket_seconds + socket_seconds)
            for old in [minute for minute in self._minutes if minute <= now - SPAN]:
                del self._minutes[old]

        await self._wire.call("traffic.add", write)


T = TypeVar("T")


@dataclass(slots=True)
class CollectorState:
    marks: dict[tuple[str, str], Mark] = field(default_factory=dict)
    requests: list[tuple[datetime, CollectionRequest]] = field(default_factory=list)
    restored: RestoredDatabase | None = None


class MemoryCollectorView:
    def __init__(self, world: "DatabaseState", wire: Network) -> None:
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
    def __init__(self, world: "DatabaseState", wire: Network, epoch: int) -> None:
        self._world = world
        self._wire = wire
        self.epoch = epoch

    async def _write(self, name: str, work: Callable[[], T]) -> T:
        with self._world.leadership.shared(self.epoch) as transaction:
            return await self._wire.call(name, lambda: transaction.commit(work))

    async def remark(self, found: Mapping[BackendResource, str]) -> Sequence[Mark]:
        def write() -> list[Mark]:
            before, now = self._world.collector.marks, self._world.now()
            after = {
                (resource.kind.value, resource.name): before.get((resource.kind.value, resource.name))
                or Mark(resource, reason, now)
                for resource, reason in found.items()
            }
            self._world.collector.marks = after
            return [after[name] for name in sorted(after)]

        return await self._write("db.remark", write)

    async def give_up(self, resource: BackendResource, decide: SweepDecision) -> bool:
        def write() -> bool:
            world, owner = self._world, resource.workspace_id
            points = world.points.get(owner, [])
            if not decide(world.rows.get(owner), list(points), world.now()):
                return False
            world.collector.marks.pop((resource.kind.value, resource.name), None)
            if resource.kind is ResourceKind.OBJECT and any(p.key == resource.name for p in points):
                world.points[owner] = [p for p in points if p.key != resource.name]
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
