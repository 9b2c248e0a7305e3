"""The garbage collector's report: what exists, what is garbage, why and since when, and why a sweep would be refused.

Making one changes nothing, so anyone may (`codehub admin gc --dry-run`); the leader's sweep starts from the same.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any
from uuid import UUID

from codehub.domain import naming
from codehub.domain.gc_rules import (
    BackendResource,
    GarbageReason,
    ResourceKind,
    Retention,
    garbage,
    is_unrecorded_home,
    undo_is_over,
)
from codehub.domain.gc_safety import GcLimits, LostRecords, Refusal, ResourceCount, SafetyFacts, refusals
from codehub.domain.workspace import Operation, Workspace
from codehub.ports.archives import Archives, StoredObject
from codehub.ports.collector import CollectorData, CollectorView, Mark, RestoredDatabase
from codehub.ports.runtime import Runtime


@dataclass(frozen=True, slots=True)
class GarbageCandidate:
    """A resource that is garbage. It was none before `changed_at`, for it was written to or an undo window was open.
    `may_go_at` is None while it is not marked."""

    resource: BackendResource
    bytes: int
    why: GarbageReason
    changed_at: datetime | None = None
    marked_at: datetime | None = None
    may_go_at: datetime | None = None

    def to_json(self) -> dict[str, Any]:
        return {
            "kind": self.resource.kind.value,
            "name": self.resource.name,
            "workspace": str(self.resource.workspace_id),
            "bytes": self.bytes,
            "why": self.why.value,
            "reason": self.why.name.lower(),
            "marked_at": self.marked_at.isoformat() if self.marked_at else None,
            "may_go_at": self.may_go_at.isoformat() if self.may_go_at else None,
        }


@dataclass(frozen=True, slots=True)
class CollectionReport:
    """What a collection found and did. `swept` and `left` (name → why) are of a run that really swept; `unrecognised`
    counts objects under our prefix with names that we do not give: they are never touched."""

    now: datetime
    existing: Mapping[ResourceKind, int]
    candidates: tuple[GarbageCandidate, ...]
    refusals: tuple[Refusal, ...] = ()
    unrecognised: int = 0
    swept: tuple[GarbageCandidate, ...] = ()
    left: Mapping[str, str] = field(default_factory=dict)
    cap_reached: bool = False
    rows: Mapping[UUID, Workspace] = field(default_factory=dict)

    def due(self) -> list[GarbageCandidate]:
        return [c for c in self.candidates if c.may_go_at is not None and c.may_go_at <= self.now]

    def marked(self, marks: Iterable[Mark], retention: Retention) -> "CollectionReport":
        times = {mark.resource: mark.marked_at for mark in marks}
        return replace(
            self,
            candidates=tuple(
                _since(c, times[c.resource], retention) if c.resource in times else c for c in self.candidates
            ),
        )

    def to_json(self) -> dict[str, Any]:
        return {
            "now": self.now.isoformat(),
            "existing": {kind.value: number for kind, number in self.existing.items()},
            "strangers": self.unrecognised,
            "candidates": [candidate.to_json() for candidate in self.candidates],
            "refusals": [{"check": refusal.check.value, "sentence": refusal.sentence} for refusal in self.refusals],
            "swept": [candidate.to_json() for candidate in self.swept],
            "left": dict(self.left),
            "cap_reached": self.cap_reached,
        }


def _since(candidate: GarbageCandidate, marked_at: datetime, retention: Retention) -> GarbageCandidate:
    """The candidate with its mark. The grace of an object that somebody still writes to counts from its last change."""
    changed = candidate.changed_at
    begins = max(marked_at, changed) if changed else marked_at
    return replace(candidate, marked_at=marked_at, may_go_at=begins + retention.grace)


class GcScanner:
    def __init__(
        self,
        view: CollectorView,
        archives: Archives,
        runtime: Runtime,
        retention: Retention,
        limits: GcLimits,
        install: str,
    ) -> None:
        self._view = view
        self._archives = archives
        self._runtime = runtime
        self._retention = retention
        self._limits = replace(limits, skew=retention.grace)
        self._install = install

    async def report(self, waived: Collection[str] = ()) -> CollectionReport:
        """The backends are listed before the database is read: what is made meanwhile is then known to the database."""
        owner = await self._archives.owner()
        objects = await self._archives.objects()
        volumes = await self._runtime.volumes()
        containers = await self._runtime.containers()
        data = await self._view.read()
        resources = {
            **dict.fromkeys(_containers(containers)),
            **dict.fromkeys(_volumes(volumes)),
            **_archives(objects, self._retention.prefix),
        }
        rows = {ws.id: ws for ws in data.workspaces}
        candidates = tuple(self._candidates(resources, rows, data))
        newer = {c.resource for c in candidates if self._may_be_newer(c, resources[c.resource], data.restored)}
        existing = Counter(resource.kind for resource in resources)
        inventory = replace(
            self._inventory(resources, rows, data),
            counts=_counts(existing, candidates),
            owner=owner,
            install=self._install,
            backup_at=data.restored.backup_at if data.restored else None,
            newer_than_backup=len(newer),
            lost_records=await self._lost_records({t: s for t, s in resources.items() if t not in newer}, rows, data),
        )
        report = CollectionReport(
            now=data.now,
            existing={kind: existing[kind] for kind in ResourceKind},
            candidates=candidates,
            refusals=refusals(inventory, self._limits, waived),
            unrecognised=sum(naming.stored_name(self._retention.prefix, o.key) is None for o in objects),
            rows=rows,
        )
        return report.marked(data.marks, self._retention)

    def _candidates(
        self,
        resources: "Mapping[BackendResource, ArchiveObject | None]",
        rows: Mapping[UUID, Workspace],
        data: CollectorData,
    ) -> Iterable[GarbageCandidate]:
        for resource, stored in resources.items():
            ws, points = rows.get(resource.workspace_id), data.points.get(resource.workspace_id, ())
            if resource.workspace_id in data.purged:
                why: GarbageReason | None = GarbageReason.PURGED
            else:
                why = garbage(resource, self._retention, ws, points, data.now)
            if why is not None:
                changes = [stored.newest_at] if stored else []
                if ws is not None and ws.deleted_at and undo_is_over(ws, self._retention.undo, data.now):
                    changes.append(ws.deleted_at + self._retention.undo)
                yield GarbageCandidate(resource, stored.bytes if stored else 0, why, max(changes, default=None))

    def _may_be_newer(
        self, found: GarbageCandidate, stored: "ArchiveObject | None", restored: RestoredDatabase | None
    ) -> bool:
        """Whether it may be newer than the backup, and not made since the restore. Only objects tell their age; what is
        of an unknown workspace is refused by another check."""
        if restored is None or stored is None or found.why is GarbageReason.UNKNOWN:
            return False
        skew = self._limits.skew
        return restored.backup_at - skew < stored.newest_at <= restored.restored_at + skew

    async def _lost_records(
        self,
        resources: "Mapping[BackendResource, ArchiveObject | None]",
        rows: Mapping[UUID, Workspace],
        data: CollectorData,
    ) -> LostRecords:
        """What the database must have lost. Workspaces in ERROR count too: their resources are kept, and tell of the
        database all the same."""
        known = {resource: rows[resource.workspace_id] for resource in resources if resource.workspace_id in rows}
        operations = {
            resource: stored.op_id
            for resource, stored in resources.items()
            if resource in known and stored is not None and self._must_be_recorded(stored, known[resource], data)
        }
        recorded = await self._view.recorded(operations.values()) if operations else ()
        return LostRecords(
            unknown=tuple(t.name for t in resources if t not in known and t.workspace_id not in data.purged),
            newer_homes=tuple(resource.name for resource, ws in known.items() if is_unrecorded_home(resource, ws)),
            unrecorded=tuple(resource.name for resource, op_id in operations.items() if op_id not in recorded),
        )

    def _must_be_recorded(self, stored: "ArchiveObject", ws: Workspace, data: CollectorData) -> bool:
        """Whether the ledger must know this archive, as neither the row nor a restore point does and it reaches so far
        back."""
        if stored.op_id == ws.archive_op_id or stored.key in (ws.archive_key, ws.restore_from):
            return False
        if any(point.key == stored.key for point in data.points.get(ws.id, ())):
            return False
        reach = self._limits.ledger_reach
        return reach is None or stored.newest_at > data.now - reach + self._limits.skew

    def _inventory(
        self,
        resources: "Mapping[BackendResource, ArchiveObject | None]",
        rows: Mapping[UUID, Workspace],
        data: CollectorData,
    ) -> SafetyFacts:
        """The ages of objects, ledger and workspaces. An archive that is being written has no ledger entry yet, so it
        says nothing about the ledger's age."""
        making = {_being_written(ws, self._retention.prefix) for ws in rows.values()}
        stored = {resource: times for resource, times in resources.items() if times is not None}
        settled = [times.newest_at for times in stored.values() if times.key not in making]
        return SafetyFacts(
            newest_object_at=max(settled, default=None),
            oldest_object_at=min((times.oldest_at for times in stored.values()), default=None),
            newest_ledger_at=data.newest_entry_at,
            oldest_workspace_at=data.oldest_workspace_at,
        )


@dataclass(frozen=True, slots=True)
class ArchiveObject:
    """An archive in the store: the object and its `.meta` together."""

    key: str
    op_id: UUID
    bytes: int
    oldest_at: datetime
    newest_at: datetime


def _archives(objects: Collection[StoredObject], prefix: str) -> "dict[BackendResource, ArchiveObject | None]":
    found: dict[BackendResource, ArchiveObject | None] = {}
    for stored in sorted(objects, key=lambda o: o.key):
        name = naming.stored_name(prefix, stored.key)
        if name is None:
            continue
        resource = BackendResource(ResourceKind.OBJECT, stored.key if name.unfinished else name.key, name.workspace_id)
        at, other = stored.modified_at, found.get(resource)
        if other is None:
            found[resource] = ArchiveObject(name.key, name.op_id, stored.bytes, at, at)
        else:
            oldest, newest = min(other.oldest_at, at), max(other.newest_at, at)
            found[resource] = replace(other, bytes=other.bytes + stored.bytes, oldest_at=oldest, newest_at=newest)
    return found


def _volumes(volumes: Mapping[UUID, Iterable[str]]) -> Sequence[BackendResource]:
    return [
        BackendResource(ResourceKind.VOLUME, name, key)
        for key, names in sorted(volumes.items())
        for name in sorted(names)
    ]


def _containers(containers: Collection[UUID]) -> Sequence[BackendResource]:
    return [BackendResource(ResourceKind.CONTAINER, naming.container_name(key), key) for key in sorted(containers)]


def _being_written(ws: Workspace, prefix: str) -> str | None:
    if ws.archive_op_id is None or ws.operation not in (Operation.ARCHIVING, Operation.CREATE_EMPTY_ARCHIVE):
        return None
    return naming.archive_key(prefix, ws.id, ws.archive_op_id)


def _counts(
    existing: Mapping[ResourceKind, int], candidates: Iterable[GarbageCandidate]
) -> dict[ResourceKind, ResourceCount]:
    unwanted = Counter(candidate.resource.kind for candidate in candidates)
    return {kind: ResourceCount(existing.get(kind, 0), unwanted[kind]) for kind in ResourceKind}
