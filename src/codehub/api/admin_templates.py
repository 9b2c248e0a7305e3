"""Templates, for admins: the list of images that may run at all."""

from dataclasses import replace
from typing import Annotated

from fastapi import APIRouter, Path
from starlette.responses import Response

from codehub.api.admin_schemas import AdminTemplate, AdminTemplateList, TemplateChange
from codehub.api.dependencies import SIGNED, WITH_BODY, Admin, ApiParts, Parts, problems
from codehub.domain.errors import NotFound
from codehub.domain.template import Template, checked_template, must_fit
from codehub.usecases.identity import actor_of

router = APIRouter(prefix="/admin/templates", tags=["admin"])

Name = Annotated[str, Path(pattern=r"^[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?$", examples=["default"])]


@router.get("", operation_id="listAllTemplates", responses=problems(*SIGNED))
async def list_all_templates(parts: Parts, _caller: Admin) -> AdminTemplateList:
    """Disabled ones too."""
    found = await parts.templates.all()
    return AdminTemplateList(items=[AdminTemplate.model_validate(template) for template in found])


@router.get("/{name}", operation_id="showTemplate", responses=problems(*SIGNED, 404, 422))
async def show_template(parts: Parts, _caller: Admin, name: Name) -> AdminTemplate:
    return AdminTemplate.model_validate(await _found(parts, name))


@router.put("/{name}", operation_id="putTemplate", responses=problems(*WITH_BODY, 503))
async def put_template(parts: Parts, caller: Admin, name: Name, body: TemplateChange) -> AdminTemplate:
    """Made or replaced, whole. Workspaces that exist follow it at their next start; what runs is not restarted."""
    # Any time means from now on.
    disabled_at = await parts.views.now() if body.disabled else None
    template = Template(
        name=name,
        description=body.description,
        image_ref=body.image_ref,
        env=dict(body.env),
        cpu=body.cpu,
        memory_bytes=body.memory_bytes,
        disk_bytes=body.disk_bytes,
        pids=body.pids,
        disabled_at=disabled_at,
    )
    await _check(parts, template)
    return AdminTemplate.model_validate(await parts.templates.put(template, actor_of(caller)))


@router.delete("/{name}", operation_id="disableTemplate", status_code=204, responses=problems(*SIGNED, 404, 422))
async def disable_template(parts: Parts, caller: Admin, name: Name) -> Response:
    """Nothing new is made from it; what exists goes on. Putting it again enables it."""
    found = await _found(parts, name)
    await parts.templates.put(replace(found, disabled_at=await parts.views.now()), actor_of(caller))
    return Response(status_code=204)


async def _check(parts: ApiParts, template: Template) -> None:
    """Refuses a template that no workspace could ever start from, here and not at each start."""
    checked_template(template)
    if template.cpu is not None or template.memory_bytes is not None:
        most = await parts.runtime.capacity()
        must_fit(template, most.cpu, most.memory_bytes)


async def _found(parts: ApiParts, name: str) -> Template:
    found = await parts.templates.get(name)
    if found is None:
        raise NotFound(f"There is no template {name!r}.")
    return found
