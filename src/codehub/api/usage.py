"""Routes for what workspaces use: CPU, memory and disk, now and over the last hour.

A look asks neither the workspace nor the front door, and so never counts as activity.
"""

from typing import Annotated, Any
from uuid import UUID

from fastapi import APIRouter, Query

from codehub.api.dependencies import SIGNED, Parts, Reader, Signed, WorkspaceId, problems
from codehub.api.schemas import (
    DiskShown,
    UsageHistoryShown,
    UsageList,
    UsagePoint,
    UsageShown,
    UsageWarningShown,
    WorkspaceUsageShown,
)
from codehub.domain.usage import WARNING_MESSAGES, Usage, usage_warnings
from codehub.usecases.authorization import authorized_workspace, may_see

router = APIRouter(tags=["workspaces"])

MOST_AT_ONCE = 100

Ids = Annotated[
    list[UUID], Query(alias="id", min_length=1, max_length=MOST_AT_ONCE, description="Workspaces: `id=…&id=…`.")
]


@router.get("/usage", operation_id="listUsage", responses=problems(*SIGNED, 422))
async def list_usage(parts: Parts, caller: Reader, ids: Ids) -> UsageList:
    """What some workspaces use now, in the order asked for. Left out are those that are not yours, do not run, or of
    which nothing is known."""
    known = await parts.views.some(ids)
    visible = {key for key, owned in known.items() if may_see(caller, owned) and owned.workspace.deleted_at is None}
    wanted = [key for key in dict.fromkeys(ids) if key in visible]
    found = await parts.usage.now(wanted) if wanted else {}
    return UsageList(items=[WorkspaceUsageShown(id=key, **_fields(found[key])) for key in wanted if key in found])


@router.get("/workspaces/{workspace_id}/usage", operation_id="showUsage", responses=problems(*SIGNED, 404, 422))
async def show_usage(parts: Parts, caller: Signed, workspace_id: WorkspaceId) -> UsageHistoryShown:
    """What one workspace uses now (null if it does not run) and the samples of the last hour, oldest first."""
    await authorized_workspace(parts.views, caller, workspace_id)
    now = (await parts.usage.now([workspace_id])).get(workspace_id)
    samples = await parts.usage.last_hour(workspace_id)
    return UsageHistoryShown(
        now=UsageShown(**_fields(now)) if now else None,
        items=[UsagePoint(at=one.at, **_values(one.usage)) for one in samples],
    )


def _values(usage: Usage) -> dict[str, Any]:
    return {
        "cpu": usage.cpu,
        "cpu_limit": usage.cpu_limit,
        "memory_bytes": usage.memory_bytes,
        "memory_limit_bytes": usage.memory_limit_bytes,
        "disk": DiskShown.model_validate(usage.disk) if usage.disk else None,
    }


def _fields(usage: Usage) -> dict[str, Any]:
    warnings = [UsageWarningShown(code=code, message=WARNING_MESSAGES[code]) for code in usage_warnings(usage)]
    return {**_values(usage), "warnings": warnings}
