"""What an admin looks at: who changed what, who leads, what the last day was like, and what the garbage collector
would take."""

from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import AfterValidator

from codehub.api import cursors
from codehub.api.admin_schemas import AuditShown, GcReport, HistoryShown, HistoryStep, LeaderShown
from codehub.api.deps import SIGNED, Admin, Cursor, Limit, Parts, problems
from codehub.api.schemas import Page, storable
from codehub.domain.history import STEP, history

router = APIRouter(prefix="/admin", tags=["admin"])

Word = Annotated[str | None, Query(max_length=200), AfterValidator(lambda text: text and storable(text))]


@router.get("/audit", operation_id="listAudit", responses=problems(*SIGNED, 422))
async def list_audit(
    parts: Parts,
    _caller: Admin,
    actor: Word = None,
    subject: Word = None,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> Page[AuditShown]:
    """Newest first."""
    before = cursors.number_read("audit", cursor)
    found = await parts.audit.entries(limit + 1, before=before, actor=actor, subject=subject)
    following = cursors.written("audit", str(found[limit - 1].id)) if len(found) > limit else None
    return Page(items=[AuditShown.model_validate(entry) for entry in found[:limit]], next_cursor=following)


@router.get("/gc", operation_id="reportGarbage", responses=problems(*SIGNED))
async def report_garbage(parts: Parts, _caller: Admin) -> GcReport:
    """A dry run: nothing is deleted."""
    return GcReport.model_validate(await parts.gc_report())


@router.get("/leader", operation_id="showLeader", responses=problems(*SIGNED))
async def show_leader(parts: Parts, _caller: Admin) -> LeaderShown:
    """The coordinator that moves the workspaces. `age_seconds`: since its last sign of life."""
    leader = await parts.leader()
    if leader is None:
        return LeaderShown(holder=None, epoch=None, renewed_at=None, age_seconds=None)
    return LeaderShown.model_validate(leader)


@router.get("/history", operation_id="showHistory", responses=problems(*SIGNED))
async def show_history(parts: Parts, _caller: Admin) -> HistoryShown:
    """What ran, what started and how fast, what was archived, what passed the front doors: the last day in steps."""
    steps = history(await parts.views.day())
    items = [HistoryStep.model_validate(step) for step in steps]
    return HistoryShown(step_seconds=int(STEP.total_seconds()), items=items)
