"""The collector's part of the database in memory: marks, requests, and one moment's view of all rows."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any
from uuid import UUID

from codehub.adapters.memory.database_state import DatabaseState, DatabaseStore
from codehub.adapters.memory.fault_injection import Network
from codehub.domain.gc_rules import BackendResource, ResourceKind
from codehub.ports.collector import REQUEST_LIVES_SECONDS, CollectionRequest, CollectorData, Mark, SweepDecision


class MemoryCollectorView(DatabaseStore):
    async def read(self) -> CollectorData:
        def read() -> CollectorData:
            state = self._state
            return CollectorData(
                workspaces=[ws for ws in state.rows.values() if ws.purged_at is None],
                points={key: list(points) for key, points in state.points.items()},
                marks=list(state.collector.marks.values()),
                newest_entry_at=max((entry.at for entry in state.ledger), default=None),
                oldest_workspace_at=min((ws.created_at for ws in state.rows.values()), default=None),
                now=state.now(),
                purged=frozenset(ws.id for ws in state.rows.values() if ws.purged_at is not None),
                restored=state.collector.restored,
            )

        return await self._network.call("db.collector", read)

    async def recorded(self, operations: Collection[UUID]) -> Collection[UUID]:
        def read() -> set[UUID]:
            return set(operations) & {entry.op_id for entry in self._state.ledger if entry.op_id is not None}

        return await self._network.call("db.recorded", read)

    async def ask(self, asked_by: str, waived: Collection[str]) -> int:
        def ask() -> int:
            requests = self._state.collector.requests
            requests.append((self._state.now(), CollectionRequest(len(requests) + 1, asked_by, tuple(waived))))
            return len(requests)

        return await self._network.call("db.ask_collection", ask)

    async def request(self, request_id: int) -> CollectionRequest | None:
        def read() -> CollectionRequest | None:
            return next((r for _, r in self._state.collector.requests if r.id == request_id), None)

        return await self._network.call("db.collection_request", read)


class MemoryCollectorMarks(DatabaseStore):
    def __init__(self, state: DatabaseState, network: Network, epoch: int) -> None:
        super().__init__(state, network)
        self.epoch = epoch

    async def remark(self, found: Mapping[BackendResource, str]) -> Sequence[Mark]:
        def write() -> list[Mark]:
            before, now = self._state.collector.marks, self._state.now()
            after = {
                (thing.kind.value, thing.name): before.get((thing.kind.value, thing.name)) or Mark(thing, reason, now)
                for thing, reason in found.items()
            }
            self._state.collector.marks = after
            return [after[name] for name in sorted(after)]

        return await self._write("db.remark", self.epoch, write)

    async def give_up(self, thing: BackendResource, decide: SweepDecision) -> bool:
        def write() -> bool:
            state, owner = self._state, thing.workspace_id
            points = state.points.get(owner, [])
            if not decide(state.rows.get(owner), list(points), state.now()):
                return False
            state.collector.marks.pop((thing.kind.value, thing.name), None)
            if thing.kind is ResourceKind.OBJECT and any(p.key == thing.name for p in points):
                state.points[owner] = [p for p in points if p.key != thing.name]
            return True

        return await self._write("db.give_up", self.epoch, write)

    async def pending(self) -> CollectionRequest | None:
        def read() -> CollectionRequest | None:
            since = self._state.now() - timedelta(seconds=REQUEST_LIVES_SECONDS)
            requests = self._state.collector.requests
            return next((r for at, r in requests if r.report is None and at > since), None)

        return await self._network.call("db.collection_pending", read)

    async def finish(self, request_id: int, report: Mapping[str, Any]) -> None:
        def write() -> None:
            self._state.collector.requests = [
                (at, replace(r, report=dict(report)) if r.id == request_id and r.report is None else r)
                for at, r in self._state.collector.requests
            ]

        await self._write("db.finish_collection", self.epoch, write)
