"""The garbage collector (contract 9): mark → grace → sweep, by the leader alone.

A resource goes only if it was garbage for the whole grace, no safety check refuses, and it is judged garbage
once more under its row's lock right before the delete. Meanwhile no worker acts on that workspace. Whatever does not
answer, or is refused, sweeps nothing.
"""

from collections.abc import Collection
from dataclasses import replace
from functools import partial
from itertools import groupby
from uuid import UUID

import structlog

from codehub.coordinator.context import TermContext
from codehub.coordinator.gc_report import CollectionReport, GarbageCandidate, GcScanner
from codehub.domain.errors import BackendError, Unreachable, VolumeInUse
from codehub.domain.gc_rules import BackendResource, ResourceKind, may_sweep, undo_is_over
from codehub.domain.gc_safety import Refusal, database_is_doubtful
from codehub.domain.judge import ArchiveState
from codehub.domain.workspace import Workspace
from codehub.ports.collector import CollectorMarks
from codehub.telemetry import GC_GARBAGE, GC_REFUSALS, GC_RUNS, GC_SWEPT

log = structlog.get_logger()

SILENT = "backend-silent"
_ORDER = {kind: number for number, kind in enumerate(ResourceKind)}


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
        self._told: set[str] = set()

    async def run(self, waived: Collection[str] = ()) -> CollectionReport:
        """Mark garbage and sweep what is due. Raises BackendError, having swept nothing, if a backend could not be
        listed; Stale when the term is over."""
        try:
            await self._backends.check_all_identities()
            report = await self._scanner.report(waived)
        except BackendError as error:
            self._metrics.add(GC_RUNS, outcome="unreachable")
            await self._tell({SILENT: f"nothing is collected: {error}"})
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
        await self._tell(_by_check(report.refusals))
        return report

    async def _tell(self, reasons: dict[str, str]) -> None:
        """Notify the admins of each reason once, until it is gone."""
        for reason, message in reasons.items():
            if reason not in self._told:
                await self._notifier.notify("garbage collection stopped", {"reason": reason, "message": message})
        self._told = set(reasons)

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
        await self._tell(silent)
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
            why_not = await self._take(candidate, ws)
            if why_not is None:
                swept.append(candidate)
                log.info("swept", kind=candidate.resource.kind.value, name=candidate.resource.name, why=candidate.why)
            else:
                left[candidate.resource.name] = why_not
        return left

    async def _take(self, candidate: GarbageCandidate, ws: Workspace | None) -> str | None:
        """Delete one candidate; returns why it stays after all, or None. `ws` is None if the workspace is gone for
        good."""
        resource = candidate.resource
        if ws is not None and not await self._archive_vouches(ws, resource):
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

    async def _archive_vouches(self, ws: Workspace, resource: BackendResource) -> bool:
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
