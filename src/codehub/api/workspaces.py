"""Routes for workspaces: list, create, show, change and delete them; and the templates and limits for creating one.

A change of the desired state is accepted (202) and carried out by the controller.
"""

from dataclasses import replace
from typing import Annotated, Any

from fastapi import APIRouter, Header, Query
from starlette.responses import Response

from codehub.api import rendering
from codehub.api.dependencies import (
    SIGNED,
    WITH_BODY,
    ApiParts,
    Cursor,
    Limit,
    Parts,
    Reader,
    SearchText,
    Signed,
    WorkspaceId,
    also,
    problems,
)
from codehub.api.rendering import json_response, workspace_json
from codehub.api.schemas import (
    LedgerEntryShown,
    LimitsShown,
    Page,
    SlotHolder,
    TemplateList,
    TemplateShown,
    WorkspaceChange,
    WorkspaceCreate,
    WorkspaceShown,
)
from codehub.domain.errors import Invalid
from codehub.domain.identity import Scope
from codehub.domain.ledger import AuditAction
from codehub.domain.template import checked_git_ref, checked_git_url
from codehub.domain.workspace import Desired, Phase
from codehub.ports.views import OwnedWorkspace, Position, WorkspaceFilter
from codehub.usecases.authorization import authorized_workspace
from codehub.usecases.identity import actor_of
from codehub.usecases.workspace_commands import CreateWorkspace, WorkspaceEdit

router = APIRouter(tags=["workspaces"])

IdempotencyKey = Annotated[
    str | None,
    Header(
        pattern=r"^[\x21-\x7e]{1,200}$",
        description="The same key with the same body gives the same answer, however often it is sent.",
    ),
]


@router.get(
    "/workspaces",
    operation_id="listWorkspaces",
    response_model=Page[WorkspaceShown],
    responses=problems(*SIGNED, 422),
)
async def list_workspaces(
    parts: Parts,
    caller: Reader,
    *,
    q: SearchText = "",
    phase: Annotated[Phase | None, Query()] = None,
    deleted: Annotated[bool, Query(description="The deleted ones alone.")] = False,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> Response:
    """One's own, newest first."""
    sought = WorkspaceFilter(caller.user.owner_id, q, phase, deleted=deleted)
    return await workspace_page(parts, sought, "workspaces", limit, cursor)


async def workspace_page(
    parts: ApiParts, sought: WorkspaceFilter, kind: str, limit: int, cursor: str | None
) -> Response:
    items, following = await workspaces_of(parts, sought, kind, limit, cursor)
    return json_response({"items": items, "next_cursor": following})


async def workspaces_of(
    parts: ApiParts, sought: WorkspaceFilter, kind: str, limit: int, cursor: str | None
) -> tuple[list[dict[str, Any]], str | None]:
    after = rendering.decode_position(kind, cursor)
    found = await parts.views.page(sought, limit + 1, after)
    following = None
    if len(found) > limit:
        last = found[limit - 1].workspace
        following = rendering.encode_position(kind, Position(last.created_at, last.id))
    return [shown(parts, owned) for owned in found[:limit]], following


@router.post(
    "/workspaces",
    operation_id="createWorkspace",
    status_code=201,
    response_model=WorkspaceShown,
    responses=problems(*WITH_BODY, 409, 429),
)
async def create_workspace(
    parts: Parts, caller: Signed, body: WorkspaceCreate, idempotency_key: IdempotencyKey = None
) -> Response:
    """It exists at once; the controller brings it to `desired_state`. The image is the template's alone. With
    `asleep_if_full` the answer's `desired_state` tells whether there was a running slot for it."""
    new = CreateWorkspace(owner_id=caller.user.owner_id, runtime=parts.site.runtime, **body.model_dump())
    created = await parts.creation.create(caller, new, idempotency_key, lambda owned: shown(parts, owned))
    return json_response(created, 201, {"Location": f"/api/v1/workspaces/{created['id']}"})


@router.get(
    "/workspaces/{workspace_id}",
    operation_id="showWorkspace",
    response_model=WorkspaceShown,
    responses=problems(*SIGNED, 404, 422),
)
async def show_workspace(parts: Parts, caller: Signed, workspace_id: WorkspaceId) -> Response:
    """A deleted one too, while it can be brought back."""
    owned = await authorized_workspace(parts.views, caller, workspace_id, deleted=True)
    await parts.access_audit.viewed(caller, owned, AuditAction.SHOW_WORKSPACE)
    return json_response(shown(parts, owned))


@router.patch(
    "/workspaces/{workspace_id}",
    operation_id="changeWorkspace",
    response_model=WorkspaceShown,
    responses={
        **also(202, WorkspaceShown, "Accepted: the controller is on it."),
        **problems(*WITH_BODY, 404, 409, 429),
    },
)
async def change_workspace(parts: Parts, caller: Signed, workspace_id: WorkspaceId, body: WorkspaceChange) -> Response:
    """All of it or nothing. A new name keeps the address."""
    owned = await authorized_workspace(parts.views, caller, workspace_id, Scope.WRITE)
    fields = await _fields(parts, body)
    edit = WorkspaceEdit(fields, body.desired_state, body.if_idle, body.discard_home)
    if body.template is not None:
        owned = replace(owned, template_image=(await parts.creation.template(body.template)).image_ref)
    row = await parts.commands.edit(workspace_id, edit, actor_of(caller))
    await parts.access_audit.changed(caller, owned, fields)
    accepted = body.desired_state is not None and (not row.is_at_rest or row.phase is Phase.ERROR)
    return json_response(shown(parts, replace(owned, workspace=row)), 202 if accepted else 200)


async def _fields(parts: ApiParts, body: WorkspaceChange) -> dict[str, object]:
    """The fields that were sent. Null is a value for what has a default elsewhere, and Invalid for the rest."""
    sent = body.model_fields_set - {"desired_state", "if_idle", "discard_home"}
    fields: dict[str, object] = {name: getattr(body, name) for name in sent}
    for name in ("name", "description", "memo", "template"):
        if name in fields and fields[name] is None:
            raise Invalid("This cannot be null.", name)
    parts.creation.check_ttl("standby_ttl_seconds", body.standby_ttl_seconds)
    parts.creation.check_ttl("archive_ttl_seconds", body.archive_ttl_seconds)
    if body.git_url is not None:
        checked_git_url(body.git_url)
    if body.git_ref is not None:
        checked_git_ref(body.git_ref)
    return fields


@router.delete(
    "/workspaces/{workspace_id}",
    operation_id="deleteWorkspace",
    status_code=202,
    response_model=WorkspaceShown,
    responses=problems(*SIGNED, 404, 409, 422),
)
async def delete_workspace(
    parts: Parts,
    caller: Signed,
    workspace_id: WorkspaceId,
    *,
    if_idle: Annotated[bool, Query(description="409 instead of waiting while an operation is under way.")] = False,
) -> Response:
    """Archived first, and kept for the undo window."""
    owned = await authorized_workspace(parts.views, caller, workspace_id, Scope.WRITE)
    row = await parts.commands.want(workspace_id, Desired.DELETED, actor_of(caller), if_idle=if_idle)
    return json_response(shown(parts, replace(owned, workspace=row)), 202)


@router.get(
    "/workspaces/{workspace_id}/events",
    operation_id="listWorkspaceEvents",
    responses=problems(*SIGNED, 404, 422),
)
async def list_workspace_events(
    parts: Parts, caller: Signed, workspace_id: WorkspaceId, limit: Limit = 50, cursor: Cursor = None
) -> Page[LedgerEntryShown]:
    """What happened, newest first: each request and operation with who and why."""
    owned = await authorized_workspace(parts.views, caller, workspace_id, deleted=True)
    await parts.access_audit.viewed(caller, owned, AuditAction.READ_EVENTS)
    before = rendering.decode_number("events", cursor)
    found = await parts.views.entries(workspace_id, limit + 1, before)
    following = rendering.encode_cursor("events", str(found[limit - 1][0])) if len(found) > limit else None
    return Page(items=[LedgerEntryShown.model_validate(entry) for _, entry in found[:limit]], next_cursor=following)


def shown(parts: ApiParts, owned: OwnedWorkspace) -> dict[str, Any]:
    return workspace_json(owned, parts.site.workspace_url, parts.site.undo)


@router.get("/templates", operation_id="listTemplates", responses=problems(*SIGNED))
async def list_templates(parts: Parts, _caller: Reader) -> TemplateList:
    enabled = [template for template in await parts.templates.all() if template.disabled_at is None]
    return TemplateList(items=[TemplateShown.model_validate(template) for template in enabled])


@router.get("/limits", operation_id="showLimits", responses=problems(*SIGNED))
async def show_limits(parts: Parts, caller: Reader) -> LimitsShown:
    """A slot is held while a container exists or one is wanted: these are the ones that hold yours."""
    usage = await parts.slots.of_owner(caller.user.owner_id)
    holders = [
        SlotHolder(
            id=ws.id,
            name=ws.name,
            phase=ws.phase,
            desired_state=ws.desired_state,
            operation=ws.operation,
            since=ws.phase_changed_at,
        )
        for ws in usage.holders
    ]
    return LimitsShown(
        max_running=usage.max_running,
        running=len(holders),
        is_own=usage.is_own,
        holders=holders,
        max_running_global=usage.max_running_global,
        running_global=usage.running_global,
        undo_seconds=int(parts.site.undo.total_seconds()),
    )
