"""Routes for one workspace's lifecycle: why it is up, keep it up, recover, restore, undelete and open it."""

from dataclasses import replace
from typing import Annotated

from fastapi import APIRouter, Query
from starlette.responses import Response

from codehub.api.dependencies import SIGNED, WITH_BODY, Parts, Signed, WorkspaceId, problems
from codehub.api.rendering import json_response
from codehub.api.schemas import (
    KeepAlive,
    LeaseShown,
    LifecycleShown,
    LogsShown,
    Recovery,
    Restoration,
    TicketOrder,
    TicketShown,
    WorkspaceShown,
)
from codehub.api.workspaces import shown
from codehub.domain.addresses import entry_url
from codehub.domain.errors import Conflict, Invalid, NotFound
from codehub.domain.identity import Scope
from codehub.domain.ledger import AuditAction
from codehub.domain.workspace import RecoverAction
from codehub.usecases.authorization import authorized_workspace
from codehub.usecases.identity import actor_of, new_session_token
from codehub.usecases.restore_points import restore_point
from codehub.usecases.workspace_access import TICKET_SECONDS, create_ticket

router = APIRouter(tags=["workspaces"])


@router.get(
    "/workspaces/{workspace_id}/lifecycle",
    operation_id="explainWorkspace",
    responses=problems(*SIGNED, 404, 422),
)
async def explain_workspace(parts: Parts, caller: Signed, workspace_id: WorkspaceId) -> LifecycleShown:
    """Why is it up, when will it stop, what keeps it from stopping, and why did it stop."""
    ws = (await authorized_workspace(parts.views, caller, workspace_id)).workspace
    told = await parts.lifecycles.explain(ws)
    fields = {name: getattr(told, name) for name in told.__slots__}
    return LifecycleShown.model_validate({"phase": ws.phase, "desired_state": ws.desired_state, **fields})


@router.get(
    "/workspaces/{workspace_id}/logs",
    operation_id="readWorkspaceLogs",
    responses=problems(*SIGNED, 404, 422),
)
async def read_logs(
    parts: Parts, caller: Signed, workspace_id: WorkspaceId, tail: Annotated[int, Query(ge=1, le=2_000)] = 200
) -> LogsShown:
    """What the IDE printed last. Empty when no container is there."""
    owned = await authorized_workspace(parts.views, caller, workspace_id)
    await parts.access_audit.viewed(caller, owned, AuditAction.READ_LOGS)
    return LogsShown(text=await parts.runtime.logs(workspace_id, tail))


@router.post(
    "/workspaces/{workspace_id}/keepalive",
    operation_id="keepWorkspaceAlive",
    responses=problems(*WITH_BODY, 404, 409),
)
async def keep_alive(parts: Parts, caller: Signed, workspace_id: WorkspaceId, body: KeepAlive) -> LeaseShown:
    """Hold off idle stops for a while. An explicit stop still stops it, and so does the maximum lifetime."""
    ws = (await authorized_workspace(parts.views, caller, workspace_id, Scope.WRITE)).workspace
    lease = await parts.lifecycles.keep_alive(ws, body.seconds, actor_of(caller))
    cap = parts.lifecycles.longest_lease_seconds
    message = f"Kept until {lease.until.isoformat(timespec='seconds')}."
    if lease.capped:
        message = f"Kept for {cap} seconds, the most at once; ask again before they are over."
    if not lease.seconds:
        message = "Let go: the ordinary idle rules hold again."
    stops_at = (await parts.lifecycles.explain(ws)).stops_at
    return LeaseShown(until=lease.until, seconds=lease.seconds, capped=lease.capped, message=message, stops_at=stops_at)


@router.post(
    "/workspaces/{workspace_id}/recover",
    operation_id="recoverWorkspace",
    status_code=202,
    response_model=WorkspaceShown,
    responses=problems(*WITH_BODY, 404, 409, 429),
)
async def recover(parts: Parts, caller: Signed, workspace_id: WorkspaceId, body: Recovery) -> Response:
    """Out of ERROR. Owners may recover their own."""
    owned = await authorized_workspace(parts.views, caller, workspace_id, Scope.WRITE)
    if body.archive is not None and body.action is not RecoverAction.USE_ARCHIVE:
        raise Invalid("Only use_archive takes a restore point.", "archive")
    if body.action is RecoverAction.USE_ARCHIVE and not await parts.views.restore_points(workspace_id):
        raise Conflict("There is no restore point to go back to. Begin anew with 'empty_home'.", "no_restore_point")
    key = None if body.archive is None else (await restore_point(parts.views, owned, body.archive)).key
    row = await parts.commands.recover(workspace_id, body.action, actor_of(caller), key)
    return json_response(shown(parts, replace(owned, workspace=row)), 202)


@router.post(
    "/workspaces/{workspace_id}/restore",
    operation_id="restoreWorkspace",
    status_code=202,
    response_model=WorkspaceShown,
    responses=problems(*WITH_BODY, 404, 409),
)
async def restore(parts: Parts, caller: Signed, workspace_id: WorkspaceId, body: Restoration) -> Response:
    """Back to a restore point. What is in the home now becomes a restore point first."""
    owned = await authorized_workspace(parts.views, caller, workspace_id, Scope.WRITE)
    point = await restore_point(parts.views, owned, body.archive)
    row = await parts.commands.restore(workspace_id, point.key, actor_of(caller))
    return json_response(shown(parts, replace(owned, workspace=row)), 202)


@router.post(
    "/workspaces/{workspace_id}/undelete",
    operation_id="undeleteWorkspace",
    status_code=202,
    response_model=WorkspaceShown,
    responses=problems(*SIGNED, 404, 409, 410, 422),
)
async def undelete(parts: Parts, caller: Signed, workspace_id: WorkspaceId) -> Response:
    owned = await authorized_workspace(parts.views, caller, workspace_id, Scope.WRITE, deleted=True)
    row = await parts.commands.undelete(workspace_id, actor_of(caller))
    return json_response(shown(parts, replace(owned, workspace=row)), 202)


@router.post(
    "/workspaces/{workspace_id}/ticket",
    operation_id="issueTicket",
    status_code=201,
    responses=problems(*WITH_BODY, 404, 409),
)
async def issue_ticket(
    parts: Parts, caller: Signed, workspace_id: WorkspaceId, body: TicketOrder | None = None
) -> TicketShown:
    """Opens the workspace's own host, once: its page can then be signed in without ever seeing our cookie. Going to
    `url` is all it takes; a workspace that sleeps may be woken by it."""
    owned = await authorized_workspace(parts.views, caller, workspace_id, Scope.WRITE)
    order, secret, ws = body or TicketOrder(), new_session_token(), owned.workspace
    url = entry_url(parts.site.workspace_url, ws.slug, ws.id, secret, order.port, order.path)
    try:
        await create_ticket(parts.identity, caller, owned, order.port, secret, wakes=True)
    except NotFound as ended:
        raise Conflict("This session has just ended. Sign in again.", "session_ended") from ended
    return TicketShown(ticket=secret, url=url, expires_in_seconds=TICKET_SECONDS)
