"""The collector's survey: what exists, what is garbage and why, since when, and why a sweep would be refused.

It changes nothing, so anyone may take one (`codehub admin gc --dry-run`); the leader's sweep starts from the same.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any
from uuid import UUID

from codehub.domain import naming
from codehub.domain.gc_rules import Retention, Thing, ThingKind, Why, forgotten, garbage, undo_is_over
from codehub.domain.gc_safety import Count, Forgotten, GcSafety, Inventory, Refusal, refusals
from codehub.domain.workspace import Operation, Workspace
from codehub.ports.archives import Archives, StoredObject
from codehub.ports.collector import CollectorData, CollectorView, Mark, Restored
from codehub.ports.runtime import Runtime


@dataclass(frozen=True, slots=True)
class Candidate:
    """Garbage. `changed_at`: before that it cannot have been, for it was written to, or an undo window was open.
    `may_go_at` is None while it is not marked."""

    thing: Thing
    bytes: int
    why: Why
    changed_at: datetime | None = None
    marked_at: datetime | None = None
    may_go_at: datetime | None = None

    def to_json(self) -> dict[str, Any]:
        return {
            "kind": self.thing.kind.value,
            "name": self.thing.name,
            "workspace": str(self.thing.workspace_id),
            "bytes": self.bytes,
            "why": self.why.value,
            "reason": self.why.name.lower(),
            "marked_at": self.marked_at.isoformat() if self.marked_at else None,
            "may_go_at": self.may_go_at.isoformat() if self.may_go_at else None,
        }


@dataclass(frozen=True, slots=True)
class CollectorReport:
    """`swept` and `left` (name → why) are of a run in earnest; `strangers` are objects under our prefix with names that
    we do not give: they are never touched."""

    now: datetime
    existing: Mapping[ThingKind, int]
    candidates: tuple[Candidate, ...]
    refusals: tuple[Refusal, ...] = ()
    strangers: int = 0
    swept: tuple[Candidate, ...] = ()
    left: Mapping[str, str] = field(default_factory=dict)
    cap_reached: bool = False
    rows: Mapping[UUID, Workspace] = field(default_factory=dict)

    def due(self) -> list[Candidate]:
        return [c for c in self.candidates if c.may_go_at is not None and c.may_go_at <= self.now]

    def marked(self, marks: Iterable[Mark], retention: Retention) -> "CollectorReport":
        times = {mark.thing: mark.marked_at for mark in marks}
        return replace(
            self,
            candidates=tuple(_since(c, times[c.thing], retention) if c.thing in times else c for c in self.candidates),
        )

    def to_json(self) -> dict[str, Any]:
        return {
            "now": self.now.isoformat(),
            "existing": {kind.value: number for kind, number in self.existing.items()},
            "strangers": self.strangers,
            "candidates": [candidate.to_json() for candidate in self.candidates],
            "refusals": [{"check": refusal.check.value, "sentence": refusal.sentence} for refusal in self.refusals],
            "swept": [candidate.to_json() for candidate in self.swept],
            "left": dict(self.left),
            "cap_reached": self.cap_reached,
        }


def _since(candidate: Candidate, marked_at: datetime, retention: Retention) -> Candidate:
    """An object that somebody still writes to is waited for: the grace counts from its last change."""
    changed = candidate.changed_at
    begins = max(marked_at, changed) if changed else marked_at
    return replace(candidate, marked_at=marked_at, may_go_at=begins + retention.grace)


class Survey:
    def __init__(
        self,
        view: CollectorView,
        archives: Archives,
        runtime: Runtime,
        retention: Retention,
        envelope: GcSafety,
        install: str,
    ) -> None:
        self._view = view
        self._archives = archives
        self._runtime = runtime
        self._retention = retention
        self._envelope = replace(envelope, skew=retention.grace)
        self._install = install

    async def report(self, waived: Collection[str] = ()) -> CollectorReport:
        """The outside is listed before the database is read: what is made meanwhile is then known to the database."""
        owner = await self._archives.owner()
        objects = await self._archives.objects()
        volumes = await self._runtime.volumes()
        containers = await self._runtime.containers()
        data = await self._view.read()
        things = {
            **dict.fromkeys(_containers(containers)),
            **dict.fromkeys(_volumes(volumes)),
            **_archives(objects, self._retention.prefix),
        }
        rows = {ws.id: ws for ws in data.workspaces}
        candidates = tuple(self._candidates(things, rows, data))
        newer = {c.thing for c in candidates if self._may_be_newer(c, things[c.thing], data.restored)}
        existing = Counter(thing.kind for thing in things)
        inventory = replace(
            self._inventory(things, rows, data),
            counts=_counts(existing, candidates),
            owner=owner,
            install=self._install,
            backup_at=data.restored.backup_at if data.restored else None,
            newer_than_backup=len(newer),
            forgotten=await self._forgotten({t: s for t, s in things.items() if t not in newer}, rows, data),
        )
        report = CollectorReport(
            now=data.now,
            existing={kind: existing[kind] for kind in ThingKind},
            candidates=candidates,
            refusals=refusals(inventory, self._envelope, waived),
            strangers=sum(naming.stored_name(self._retention.prefix, o.key) is None for o in objects),
            rows=rows,
        )
        return report.marked(data.marks, self._retention)

    def _candidates(
        self, things: "Mapping[Thing, Stored | None]", rows: Mapping[UUID, Workspace], data: CollectorData
    ) -> Iterable[Candidate]:
        for thing, stored in things.items():
            ws, points = rows.get(thing.workspace_id), data.points.get(thing.workspace_id, ())
            if thing.workspace_id in data.purged:
                why: Why | None = Why.PURGED
            else:
                why = garbage(thing, self._retention, ws, points, data.now)
            if why is not None:
                changes = [stored.newest_at] if stored else []
                if ws is not None and ws.deleted_at and undo_is_over(ws, self._retention.undo, data.now):
                    changes.append(ws.deleted_at + self._retention.undo)
                yield Candidate(thing, stored.bytes if stored else 0, why, max(changes, default=None))

    def _may_be_newer(self, found: Candidate, stored: "Stored | None", restored: Restored | None) -> bool:
        """Than the backup, and not made since the restore. Only objects tell their age; what is of an unknown workspace
        is a doubt of its own."""
        if restored is None or stored is None or found.why is Why.UNKNOWN:
            return False
        skew = self._envelope.skew
        return restored.backup_at - skew < stored.newest_at <= restored.restored_at + skew

    async def _forgotten(
        self, things: "Mapping[Thing, Stored | None]", rows: Mapping[UUID, Workspace], data: CollectorData
    ) -> Forgotten:
        """Of workspaces in ERROR too: all they have is kept, and it tells of the database all the same."""
        known = {thing: rows[thing.workspace_id] for thing in things if thing.workspace_id in rows}
        operations = {
            thing: stored.op_id
            for thing, stored in things.items()
            if thing in known and stored is not None and self._must_be_recorded(stored, known[thing], data)
        }
        recorded = await self._view.recorded(operations.values()) if operations else ()
        return Forgotten(
            unknown=tuple(t.name for t in things if t not in known and t.workspace_id not in data.purged),
            newer_homes=tuple(thing.name for thing, ws in known.items() if forgotten(thing, ws)),
            unrecorded=tuple(thing.name for thing, op_id in operations.items() if op_id not in recorded),
        )

    def _must_be_recorded(self, stored: "Stored", ws: Workspace, data: CollectorData) -> bool:
        """By the ledger, since neither the row nor a restore point knows it; and the ledger goes back so far."""
        if stored.op_id == ws.archive_op_id or stored.key in (ws.archive_key, ws.restore_from):
            return False
        if any(point.key == stored.key for point in data.points.get(ws.id, ())):
            return False
        reach = self._envelope.ledger_reach
        return reach is None or stored.newest_at > data.now - reach + self._envelope.skew

    def _inventory(
        self, things: "Mapping[Thing, Stored | None]", rows: Mapping[UUID, Workspace], data: CollectorData
    ) -> Inventory:
        """An archive that is being written has no ledger entry yet: it says nothing about the ledger's age."""
        making = {_being_written(ws, self._retention.prefix) for ws in rows.values()}
        stored = {thing: times for thing, times in things.items() if times is not None}
        settled = [times.newest_at for times in stored.values() if times.key not in making]
        return Inventory(
            newest_object_at=max(settled, default=None),
            oldest_object_at=min((times.oldest_at for times in stored.values()), default=None),
            newest_ledger_at=data.newest_entry_at,
            oldest_workspace_at=data.oldest_workspace_at,
        )


@dataclass(frozen=True, slots=True)
class Stored:
    """An archive's object and `.meta` together."""

    key: str
    op_id: UUID
    bytes: int
    oldest_at: datetime
    newest_at: datetime


def _archives(objects: Collection[StoredObject], prefix: str) -> "dict[Thing, Stored | None]":
    found: dict[Thing, Stored | None] = {}
    for stored in sorted(objects, key=lambda o: o.key):
        name = naming.stored_name(prefix, stored.key)
        if name is None:
            continue
        thing = Thing(ThingKind.OBJECT, stored.key if name.unfinished else name.key, name.workspace_id)
        at, other = stored.modified_at, found.get(thing)
        if other is None:
            found[thing] = Stored(name.key, name.op_id, stored.bytes, at, at)
        else:
            oldest, newest = min(other.oldest_at, at), max(other.newest_at, at)
            found[thing] = replace(other, bytes=other.bytes + stored.bytes, oldest_at=oldest, newest_at=newest)
    return found


def _volumes(volumes: Mapping[UUID, Iterable[str]]) -> Sequence[Thing]:
    return [Thing(ThingKind.VOLUME, name, key) for key, names in sorted(volumes.items()) for name in sorted(names)]


def _containers(containers: Collection[UUID]) -> Sequence[Thing]:
    return [Thing(ThingKind.CONTAINER, naming.container_name(key), key) for key in sorted(containers)]


def _being_written(ws: Workspace, prefix: str) -> str | None:
    if ws.archive_op_id is None or ws.operation not in (Operation.ARCHIVING, Operation.CREATE_EMPTY_ARCHIVE):
        return None
    return naming.archive_key(prefix, ws.id, ws.archive_op_id)


def _counts(existing: Mapping[ThingKind, int], candidates: Iterable[Candidate]) -> dict[ThingKind, Count]:
    unwanted = Counter(candidate.thing.kind for candidate in candidates)
    return {kind: Count(existing.get(kind, 0), unwanted[kind]) for kind in ThingKind}
