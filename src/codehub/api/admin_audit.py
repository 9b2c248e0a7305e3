"""Routes for admins about the installation: the audit log, the leader, the history of the last day, and the garbage
collector's report and runs."""

from typing import Annotated

from fastapi import APIRouter, Path, Query
from pydantic import AfterValidator

from codehub.api import pagination
from codehub.api.admin_schemas import (
    AuditShown,
    GcOrder,
    GcRefusal,
    GcReport,
    GcRun,
    HistoryShown,
    HistoryStep,
    LeaderShown,
)
from codehub.api.dependencies import SIGNED, WITH_BODY, Admin, Cursor, Limit, Parts, problems
from codehub.api.schemas import Page, storable
from codehub.domain.audit import AuditAction
from codehub.domain.errors import Conflict, NotFound
from codehub.domain.history import STEP, history
from codehub.usecases.identity import actor_of

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
    before = pagination.decode_number("audit", cursor)
    found = await parts.audit.entries(limit + 1, before=before, actor=actor, subject=subject)
    following = pagination.encode_cursor("audit", str(found[limit - 1].id)) if len(found) > limit else None
    return Page(items=[AuditShown.model_validate(entry) for entry in found[:limit]], next_cursor=following)


@router.get("/gc", operation_id="reportGarbage", responses=problems(*SIGNED))
async def report_garbage(parts: Parts, _caller: Admin) -> GcReport:
    """A dry run: nothing is deleted."""
    return GcReport.model_validate(await parts.gc_report())


@router.post("/gc", operation_id="collectGarbage", status_code=202, responses=problems(*WITH_BODY, 409))
async def collect_garbage(parts: Parts, caller: Admin, body: GcOrder) -> GcRun:
    """Ask the coordinator that leads for a run, over the checks that are named. It sweeps what was garbage for the
    whole grace period and still is; `GET /admin/gc/{id}` tells how it went."""
    leader = await parts.leader()
    if leader is None or leader.is_silent:
        raise Conflict("Nobody leads, so nobody can sweep. Start a coordinator.", "no_leader")
    asked = await parts.collector.ask(caller.user.username, body.waive)
    await parts.audit.append(actor_of(caller), AuditAction.COLLECT_GARBAGE, "installation", {"waived": body.waive})
    return GcRun(id=asked, is_done=False, swept=0, refusals=[])


@router.get("/gc/{run_id}", operation_id="showCollection", responses=problems(*SIGNED, 404, 422))
async def show_collection(parts: Parts, _caller: Admin, run_id: Annotated[int, Path(ge=1, le=2**62)]) -> GcRun:
    """How a run goes that was asked for."""
    found = await parts.collector.request(run_id)
    if found is None:
        raise NotFound("There is no such run.")
    report = found.report or {}
    refusals = [GcRefusal.model_validate(refusal) for refusal in report.get("refusals", ())]
    return GcRun(id=run_id, is_done=found.report is not None, swept=len(report.get("swept", ())), refusals=refusals)


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
    steps = history(await parts.views.history_data())
    items = [HistoryStep.model_validate(step) for step in steps]
    return HistoryShown(step_seconds=int(STEP.total_seconds()), items=items)
