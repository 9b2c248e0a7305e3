"""Everybody's workspaces, for admins: all of them with filters, and those in ERROR with a bulk recovery."""

from collections import Counter
from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Query
from starlette.responses import Response

from codehub.api.admin_schemas import BulkOutcome, BulkRecovered, BulkRecovery, Errors
from codehub.api.dependencies import SIGNED, WITH_BODY, Admin, ApiParts, Cursor, Limit, Parts, SearchText, problems
from codehub.api.rendering import json_response
from codehub.api.schemas import Page, Workspace
from codehub.api.workspaces import workspace_page, workspaces_of
from codehub.domain.errors import REASONS, ErrorReason, Refused
from codehub.domain.identity import Caller
from codehub.domain.workspace import Phase, RecoverAction
from codehub.ports.views import WorkspaceFilter
from codehub.usecases.identity import actor_of

router = APIRouter(prefix="/admin", tags=["admin"])

MOST_AT_ONCE = 500


@router.get(
    "/workspaces",
    operation_id="listAllWorkspaces",
    response_model=Page[Workspace],
    responses=problems(*SIGNED, 422),
)
async def list_all(
    parts: Parts,
    _caller: Admin,
    *,
    q: SearchText = "",
    phase: Annotated[Phase | None, Query()] = None,
    owner: Annotated[UUID | None, Query(description="The owner's id.")] = None,
    deleted: Annotated[bool, Query(description="The deleted ones alone.")] = False,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> Response:
    sought = WorkspaceFilter(str(owner) if owner else None, q, phase, deleted=deleted)
    return await workspace_page(parts, sought, "all-workspaces", limit, cursor)


@router.get("/errors", operation_id="listErrors", response_model=Errors, responses=problems(*SIGNED, 422))
async def list_errors(
    parts: Parts,
    _caller: Admin,
    reason: Annotated[ErrorReason | None, Query()] = None,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> Response:
    """Those in ERROR, with what each reason means and what to do."""
    sought = WorkspaceFilter(phase=Phase.ERROR, error_reason=reason)
    items, following = await workspaces_of(parts, sought, "errors", limit, cursor)
    counted = Counter(ErrorReason(item["error"]["reason"]) for item in items if item["error"])
    reasons = [
        {
            "reason": found.value,
            "count": count,
            "meaning": REASONS[found].meaning,
            "what_to_do": REASONS[found].what_to_do,
        }
        for found, count in counted.most_common()
    ]
    return json_response({"items": items, "next_cursor": following, "reasons": reasons})


@router.post("/errors/recover", operation_id="recoverMany", responses=problems(*WITH_BODY))
async def recover_many(parts: Parts, caller: Admin, body: BulkRecovery) -> BulkRecovered:
    """Each by itself: one that is refused stops no other. Limits hold: each counts against its own owner."""
    ids = body.ids if body.ids is not None else await _in_error(parts, body.reason)
    return BulkRecovered(items=[await _recover(parts, caller, each, body.action) for each in ids])


async def _in_error(parts: ApiParts, reason: ErrorReason | None) -> list[UUID]:
    found = await parts.views.page(WorkspaceFilter(phase=Phase.ERROR, error_reason=reason), MOST_AT_ONCE)
    return [owned.workspace.id for owned in found]


async def _recover(parts: ApiParts, caller: Caller, workspace_id: UUID, action: RecoverAction) -> BulkOutcome:
    try:
        await parts.wishes.recover(workspace_id, action, actor_of(caller))
    except Refused as refused:
        return BulkOutcome(id=workspace_id, accepted=False, code=refused.code, detail=str(refused))
    return BulkOutcome(id=workspace_id, accepted=True, code=None, detail=None)
