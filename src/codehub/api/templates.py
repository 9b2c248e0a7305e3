"""What workspaces can be made from, and who holds the running slots: what one asks before creating."""

from fastapi import APIRouter

from codehub.api.deps import SIGNED, Parts, Reader, problems
from codehub.api.schemas import LimitsShown, SlotHolder, TemplateList, TemplateShown

router = APIRouter(tags=["workspaces"])


@router.get("/templates", operation_id="listTemplates", responses=problems(*SIGNED))
async def list_templates(parts: Parts, _caller: Reader) -> TemplateList:
    enabled = [template for template in await parts.templates.all() if template.disabled_at is None]
    return TemplateList(items=[TemplateShown.model_validate(template) for template in enabled])


@router.get("/limits", operation_id="showLimits", responses=problems(*SIGNED))
async def show_limits(parts: Parts, caller: Reader) -> LimitsShown:
    """A slot is held while a container exists or one is wanted: these are the ones that hold yours."""
    standing = await parts.slots.of(caller.user)
    holders = [
        SlotHolder(
            id=ws.id,
            name=ws.name,
            phase=ws.phase,
            desired_state=ws.desired_state,
            operation=ws.operation,
            since=ws.phase_changed_at,
        )
        for ws in standing.holders
    ]
    return LimitsShown(
        max_running=standing.max_running,
        running=len(holders),
        is_own=standing.is_own,
        holders=holders,
        max_running_global=standing.max_running_global,
        running_global=standing.running_global,
        undo_seconds=int(parts.site.undo.total_seconds()),
    )
