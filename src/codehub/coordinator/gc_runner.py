"""The garbage collector (contract 9): mark → grace → sweep, by the leader alone.

Its report says what exists, what is garbage, why and since when, and why a sweep would be refused. Making one changes
nothing, so anyone may (`codehub admin gc --dry-run`); the leader's sweep starts from the same. A resource goes only if
it was garbage for the whole grace, no safety check refuses, and it is judged garbage once more under its row's lock
right before the delete; meanwhile no worker acts on that workspace. If a backend does not answer, nothing is swept.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from itertools import groupby
from typing import Any
from uuid import UUID

import structlog

from codehub.coordinator.context import TermContext
from codehub.domain import naming, notices
from codehub.domain.errors import BackendError, Unreachable, VolumeInUse
from codehub.domain.gc_rules import (
    BackendResource,
    GarbageReason,
    ResourceKind,
    Retention,
    garbage,
    is_unrecorded_home,
    may_sweep,
    undo_is_over,
)
from codehub.domain.gc_safety import (
    GcLimits,
    LostRecords,
    Refusal,
    ResourceCount,
    SafetyFacts,
    database_is_doubtful,
    refusals,
)
from codehub.domain.judge import ArchiveState
from codehub.domain.workspace import Operation, Workspace
from codehub.ports.archives import Archives, StoredObject
from codehub.ports.collector import CollectorData, CollectorMarks, CollectorView, Mark, RestoredDatabase
from codehub.ports.runtime import Runtime
from codehub.telemetry import GC_GARBAGE, GC_REFUSALS, GC_RUNS, GC_SWEPT

log = structlog.get_logger()

SILENT = "backend-silent"
_ORDER = {kind: number for number, kind in enumerate(ResourceKind)}


@dataclass(frozen=True, slots=True)
class ArchiveObject:
    """An archive in the store: the object and its `.meta` together."""

    key: str
    op_id: UUID
    bytes: int
    oldest_at: datetime
    newest_at: datetime


Resources = Mapping[BackendResource, ArchiveObject | None]
"""Everything that exists; of an object also what is known of it as an archive."""


@dataclass(frozen=True, slots=True)
class GarbageCandidate:
    """A resource that is garbage. It was none before `changed_at`, for it was written to or an undo window was open.
    `may_go_at` is None while the resource is not marked."""

    resource: BackendResource
    bytes: int
    why: GarbageReason
    changed_at: datetime | None = None
    marked_at: datetime | None = None
    may_go_at: datetime | None = None

    def marked(self, marked_at: datetime, retention: Retention) -> "GarbageCandidate":
        """The candidate with its mark. The grace of an object that is still written to counts from its last change."""
        begins = max(marked_at, self.changed_at) if self.changed_at else marked_at
        return replace(self, marked_at=marked_at, may_go_at=begins + retention.grace)

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
        marked = (c.marked(times[c.resource], retention) if c.resource in times else c for c in self.candidates)
        return replace(self, candidates=tuple(marked))

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
        """Make the report. The backends are listed before the database is read: what is made meanwhile is then known to
        the database."""
        owner = await self._archives.owner()
        objects = await self._archives.objects()
        volumes = await self._runtime.volumes()
        containers = await self._runtime.containers()
        data = await self._view.read()
        resources = _resources(containers, volumes, objects, self._retention.prefix)
        rows = {ws.id: ws for ws in data.workspaces}
        candidates = tuple(self._candidates(resources, rows, data))
        existing = Counter(resource.kind for resource in resources)
        facts = await self._safety_facts(owner, existing, candidates, resources, rows, data)
        report = CollectionReport(
            now=data.now,
            existing={kind: existing[kind] for kind in ResourceKind},
            candidates=candidates,
            refusals=refusals(facts, self._limits, waived),
            unrecognised=sum(naming.stored_name(self._retention.prefix, o.key) is None for o in objects),
            rows=rows,
        )
        return report.marked(data.marks, self._retention)

    def _candidates(
        self,
        resources: Resources,
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

    async def _safety_facts(
        self,
        owner: str | None,
        existing: Mapping[ResourceKind, int],
        candidates: Sequence[GarbageCandidate],
        resources: Resources,
        rows: Mapping[UUID, Workspace],
        data: CollectorData,
    ) -> SafetyFacts:
        """What the safety checks look at. An archive that is being written has no ledger entry yet, so it says nothing
        about the ledger's age."""
        newer = {c.resource for c in candidates if self._may_be_newer(c, resources[c.resource], data.restored)}
        unwanted = Counter(candidate.resource.kind for candidate in candidates)
        being_written = {_being_written(ws, self._retention.prefix) for ws in rows.values()}
        stored = [archive for archive in resources.values() if archive is not None]
        return SafetyFacts(
            counts={kind: ResourceCount(existing[kind], unwanted[kind]) for kind in ResourceKind},
            newest_object_at=max((a.newest_at for a in stored if a.key not in being_written), default=None),
            oldest_object_at=min((a.oldest_at for a in stored), default=None),
            newest_ledger_at=data.newest_entry_at,
            oldest_workspace_at=data.oldest_workspace_at,
            install=self._install,
            owner=owner,
            backup_at=data.restored.backup_at if data.restored else None,
            newer_than_backup=len(newer),
            lost_records=await self._lost_records({t: s for t, s in resources.items() if t not in newer}, rows, data),
        )

    def _may_be_newer(
        self, found: GarbageCandidate, stored: ArchiveObject | None, restored: RestoredDatabase | None
    ) -> bool:
        """Whether a candidate may be newer than the backup, and was not made since the restore. Only objects tell their
        age; what is of an unknown workspace is refused by another check."""
        if restored is None or stored is None or found.why is GarbageReason.UNKNOWN:
            return False
        skew = self._limits.skew
        return restored.backup_at - skew < stored.newest_at <= restored.restored_at + skew

    async def _lost_records(
        self,
        resources: Resources,
        rows: Mapping[UUID, Workspace],
        data: CollectorData,
    ) -> LostRecords:
        """The records that the database must have lost. Workspaces in ERROR count too: their resources are kept, and
        show what was lost all the same."""
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

    def _must_be_recorded(self, stored: ArchiveObject, ws: Workspace, data: CollectorData) -> bool:
        """Whether the ledger must know this archive: neither the row nor a restore point does, and the ledger reaches
        that far back."""
        if stored.op_id == ws.archive_op_id or stored.key in (ws.archive_key, ws.restore_from):
            return False
        if any(point.key == stored.key for point in data.points.get(ws.id, ())):
            return False
        reach = self._limits.ledger_reach
        return reach is None or stored.newest_at > data.now - reach + self._limits.skew


def _resources(
    containers: Collection[UUID], volumes: Mapping[UUID, Iterable[str]], objects: Iterable[StoredObject], prefix: str
) -> Resources:
    found: dict[BackendResource, ArchiveObject | None] = {
        BackendResource(ResourceKind.CONTAINER, naming.container_name(key), key): None for key in sorted(containers)
    }
    for key, names in sorted(volumes.items()):
        found |= {BackendResource(ResourceKind.VOLUME, name, key): None for name in sorted(names)}
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


def _being_written(ws: Workspace, prefix: str) -> str | None:
    if ws.archive_op_id is None or ws.operation not in (Operation.ARCHIVING, Operation.CREATE_EMPTY_ARCHIVE):
        return None
    return naming.archive_key(prefix, ws.id, ws.archive_op_id)


class GcRunner:
    def __init__(self, context: TermContext, scanner: GcScanner, marks: CollectorMarks) -> None:
        self._scanner = scanner
        self._marks = marks
        self._backends = context.backends
        self._queue = context.queue
        self._commands = context.commands
        self._robot = context.actor("collector")
        self._notifier = context.notifier
        self._metrics = context.metrics
        self._retention = context.tuning.retention
        self._limits = context.tuning.gc_limits
        self._notified: set[str] = set()

    async def run(self, waived: Collection[str] = ()) -> CollectionReport:
        """Mark garbage and sweep what is due. Raises BackendError, having swept nothing, if a backend could not be
        listed; Stale when the term is over."""
        try:
            await self._backends.check_all_identities()
            report = await self._scanner.report(waived)
        except BackendError as error:
            self._metrics.add(GC_RUNS, outcome="unreachable")
            await self._notify({SILENT: f"nothing is collected: {error}"})
            raise
        if not database_is_doubtful(report.refusals):
            marks = await self._marks.remark({c.resource: c.why for c in report.candidates})
            report = report.marked(marks, self._retention)
        for kind in ResourceKind:
            self._metrics.set(GC_GARBAGE, sum(c.resource.kind is kind for c in report.candidates), kind=kind.value)
        if report.refusals:
            return await self._refused(report)
        report = await self._sweep(report)
        outcome = "unreachable" if SILENT in report.left else "swept" if report.swept else "nothing to do"
        self._metrics.add(GC_RUNS, outcome=outcome)
        return report

    async def serve_request(self) -> CollectionReport | None:
        """Run the collection that an admin asked for, if one did."""
        request = await self._marks.pending()
        if request is None:
            return None
        log.info("collection asked for", by=request.asked_by, waived=list(request.waived))
        try:
            report = await self.run(request.waived)
        except BackendError as error:
            await self._marks.finish(request.id, {"error": str(error)})
            raise
        await self._marks.finish(request.id, report.to_json())
        return report

    async def _refused(self, report: CollectionReport) -> CollectionReport:
        self._metrics.add(GC_RUNS, outcome="refused")
        for refusal in report.refusals:
            self._metrics.add(GC_REFUSALS, check=refusal.check.value)
            log.warning("collection refused", check=refusal.check.value, why=refusal.sentence)
        await self._notify(_by_check(report.refusals))
        return report

    async def _notify(self, reasons: dict[str, str]) -> None:
        """Notify the admins of each reason once, until it is gone."""
        for reason, message in reasons.items():
            if reason not in self._notified:
                await self._notifier.notify(notices.collection_stopped(reason, message))
        self._notified = set(reasons)

    async def _sweep(self, report: CollectionReport) -> CollectionReport:
        due = sorted(report.due(), key=lambda c: (c.resource.workspace_id, _ORDER[c.resource.kind], c.resource.name))
        cap = self._limits.per_run
        swept: list[GarbageCandidate] = []
        left: dict[str, str] = {}
        silent: dict[str, str] = {}
        for workspace_id, mine in groupby(due[:cap], key=lambda c: c.resource.workspace_id):
            try:
                async with self._queue.holding(workspace_id):
                    left |= await self._sweep_workspace(report, workspace_id, list(mine), swept)
            except BackendError as error:
                silent[SILENT] = f"the collection stopped half-way: {error}"
                log.warning("collection stopped half-way", error=str(error), swept=len(swept))
                break
        await self._notify(silent)
        for candidate in swept:
            self._metrics.add(GC_SWEPT, kind=candidate.resource.kind.value)
        return replace(report, swept=tuple(swept), left=left | silent, cap_reached=len(due) > cap)

    async def _sweep_workspace(
        self, report: CollectionReport, workspace_id: UUID, mine: list[GarbageCandidate], swept: list[GarbageCandidate]
    ) -> dict[str, str]:
        """Sweep one workspace's garbage; returns what stays after all, and why."""
        ws, left = report.rows.get(workspace_id), {}
        if ws is not None and undo_is_over(ws, self._retention.undo, report.now):
            if not await self._commands.purge(ws.id, self._retention.undo, self._robot):
                return {candidate.resource.name: "wanted back" for candidate in mine}
            ws = None
        for candidate in mine:
            why_not = await self._sweep_one(candidate, ws)
            if why_not is None:
                swept.append(candidate)
                log.info("swept", kind=candidate.resource.kind.value, name=candidate.resource.name, why=candidate.why)
            else:
                left[candidate.resource.name] = why_not
        return left

    async def _sweep_one(self, candidate: GarbageCandidate, ws: Workspace | None) -> str | None:
        """Delete one candidate; returns why it stays after all, or None. `ws` is None if the workspace is gone for
        good."""
        resource = candidate.resource
        if ws is not None and not await self._archive_is_readable(ws, resource):
            return "its archive cannot be read"
        if not await self._marks.give_up(resource, partial(may_sweep, resource, self._retention)):
            return "protected again"
        try:
            await self._delete(resource)
        except VolumeInUse:
            if ws is None:
                await self._backends.clear_job(resource.workspace_id)
            return "in use"
        except Unreachable:
            raise
        except BackendError as error:
            return str(error)
        return None

    async def _archive_is_readable(self, ws: Workspace, resource: BackendResource) -> bool:
        """Whether the archive of a volume past the safe point is readable: else that volume holds the home."""
        if resource.name != ws.home_store_key or not ws.home.deleting_volume or ws.archive_key is None:
            return True
        return await self._backends.look(ws.archive_key) is ArchiveState.READABLE

    async def _delete(self, resource: BackendResource) -> None:
        match resource.kind:
            case ResourceKind.CONTAINER:
                await self._backends.remove_container(resource.workspace_id)
            case ResourceKind.VOLUME:
                await self._backends.delete_volume(resource.workspace_id, resource.name)
            case ResourceKind.OBJECT:
                await self._backends.delete_archive(resource.workspace_id, resource.name)


def _by_check(found: Collection[Refusal]) -> dict[str, str]:
    sentences: dict[str, str] = {}
    for refusal in found:
        known = sentences.get(refusal.check.value)
        sentences[refusal.check.value] = f"{known}; {refusal.sentence}" if known else refusal.sentence
    return sentences
