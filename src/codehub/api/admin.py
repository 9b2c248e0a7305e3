"""Routes for admins: accounts, everybody's workspaces, templates, the audit log, the leader, the history of the last
day and the garbage collector.

Who may sign in, and as what, is changed by a session whose admin has just proved who they are: a token gets
`needs_session`, another session `proof_needed`.
"""

from collections import Counter
from dataclasses import replace
from typing import Annotated, Any
from uuid import UUID

from fastapi import APIRouter, Path, Query
from pydantic import AfterValidator
from starlette.responses import Response

from codehub.api import rendering
from codehub.api.account import VariableName, secret_item
from codehub.api.dependencies import SIGNED, WITH_BODY, Admin, ApiParts, Cursor, Limit, Parts, SearchText, problems
from codehub.api.rendering import json_response, user_json
from codehub.api.schemas import (
    ANOTHER_ID,
    AdminTemplate,
    AdminTemplateList,
    AuditShown,
    BulkOutcome,
    BulkRecovered,
    BulkRecovery,
    CreatedUser,
    Errors,
    GcOrder,
    GcRefusal,
    GcReport,
    GcRun,
    HistoryShown,
    HistoryStep,
    LeaderShown,
    Page,
    SecretItem,
    SecretList,
    SecretPut,
    TemplateChange,
    UserChange,
    UserCreate,
    UserShown,
    WorkspaceShown,
    storable,
)
from codehub.api.workspaces import workspace_page, workspaces_of
from codehub.domain.errors import REASONS, Conflict, ErrorReason, Invalid, NotFound, Refused
from codehub.domain.history import STEP, history
from codehub.domain.identity import Caller
from codehub.domain.ledger import AuditAction
from codehub.domain.template import KubernetesOptions, Template, checked_template, must_be_able_to_sudo, must_fit
from codehub.domain.workspace import Phase, RecoverAction
from codehub.ports.views import WorkspaceFilter
from codehub.usecases.identity import actor_of

router = APIRouter(prefix="/admin", tags=["admin"])

MOST_AT_ONCE = 500
"""The most workspaces that one request recovers."""

UserId = Annotated[UUID, Path(examples=[ANOTHER_ID])]
TemplateName = Annotated[str, Path(pattern=r"^[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?$", examples=["default"])]
AuditText = Annotated[str | None, Query(max_length=200), AfterValidator(lambda text: text and storable(text))]


@router.get("/users", operation_id="listUsers", response_model=Page[UserShown], responses=problems(*SIGNED, 422))
async def list_users(parts: Parts, caller: Admin, limit: Limit = 50, cursor: Cursor = None) -> Response:
    """In the order of usernames."""
    after = None if cursor is None else rendering.decode_cursor("users", cursor)
    found, following = await parts.users.list(caller, after, limit)
    next_cursor = None if following is None else rendering.encode_cursor("users", following)
    return json_response({"items": [user_json(user) for user in found], "next_cursor": next_cursor})


@router.post(
    "/users",
    operation_id="createUser",
    status_code=201,
    response_model=CreatedUser,
    responses=problems(*WITH_BODY, 409),
)
async def create_user(parts: Parts, caller: Admin, body: UserCreate) -> Response:
    """A password that we make is shown in this answer and never again."""
    user, password = await parts.users.create(caller, body.username, body.role, body.password, body.max_running)
    return json_response({**user_json(user), "password": password}, 201)


@router.get(
    "/users/{user_id}", operation_id="showUser", response_model=UserShown, responses=problems(*SIGNED, 404, 422)
)
async def show_user(parts: Parts, caller: Admin, user_id: UserId) -> Response:
    return json_response(user_json(await parts.users.get(caller, user_id)))


@router.patch(
    "/users/{user_id}", operation_id="changeUser", response_model=CreatedUser, responses=problems(*WITH_BODY, 404, 409)
)
async def change_user(parts: Parts, caller: Admin, user_id: UserId, body: UserChange) -> Response:
    """In this order: role, disabled, max_running, reset_password. There is always an admin left. A new password ends
    the person's sessions and revokes their tokens."""
    user = await parts.users.get(caller, user_id)
    sent: dict[str, Any] = {name: getattr(body, name) for name in body.model_fields_set}
    for name in ("role", "disabled"):
        if name in sent and sent[name] is None:
            raise Invalid("This cannot be null.", name)
    if body.role is not None:
        user = await parts.users.set_role(caller, user_id, body.role)
    if body.disabled is not None:
        act = parts.users.disable if body.disabled else parts.users.enable
        user = await act(caller, user_id)
    if "max_running" in sent:
        user = await parts.users.set_max_running(caller, user_id, body.max_running)
    password = await parts.users.reset_password(caller, user_id) if body.reset_password else None
    return json_response({**user_json(user), "password": password})


@router.get(
    "/workspaces",
    operation_id="listAllWorkspaces",
    response_model=Page[WorkspaceShown],
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
    ids = body.ids if body.ids is not None else await _ids_in_error(parts, body.reason)
    return BulkRecovered(items=[await _recover(parts, caller, each, body.action) for each in ids])


async def _ids_in_error(parts: ApiParts, reason: ErrorReason | None) -> list[UUID]:
    found = await parts.views.page(WorkspaceFilter(phase=Phase.ERROR, error_reason=reason), MOST_AT_ONCE)
    return [owned.workspace.id for owned in found]


async def _recover(parts: ApiParts, caller: Caller, workspace_id: UUID, action: RecoverAction) -> BulkOutcome:
    try:
        await parts.commands.recover(workspace_id, action, actor_of(caller))
    except Refused as refused:
        return BulkOutcome(id=workspace_id, accepted=False, code=refused.code, detail=str(refused))
    return BulkOutcome(id=workspace_id, accepted=True, code=None, detail=None)


@router.get("/templates", operation_id="listAllTemplates", responses=problems(*SIGNED))
async def list_all_templates(parts: Parts, _caller: Admin) -> AdminTemplateList:
    """Disabled ones too."""
    found = await parts.templates.all()
    return AdminTemplateList(items=[AdminTemplate.model_validate(template) for template in found])


@router.get("/templates/{name}", operation_id="showTemplate", responses=problems(*SIGNED, 404, 422))
async def show_template(parts: Parts, _caller: Admin, name: TemplateName) -> AdminTemplate:
    return AdminTemplate.model_validate(await _existing_template(parts, name))


@router.put("/templates/{name}", operation_id="putTemplate", responses=problems(*WITH_BODY, 503))
async def put_template(parts: Parts, caller: Admin, name: TemplateName, body: TemplateChange) -> AdminTemplate:
    """Made or replaced, whole. Workspaces that exist follow it at their next start; what runs is not restarted."""
    # Any time means from now on.
    disabled_at = await parts.views.now() if body.disabled else None
    options = KubernetesOptions.from_json(body.kubernetes.model_dump(exclude_none=True))
    given = body.model_dump(exclude={"disabled", "kubernetes"})
    template = Template(name=name, **given, kubernetes=options, disabled_at=disabled_at)
    await _refuse_unstartable(parts, template)
    return AdminTemplate.model_validate(await parts.templates.put(template, actor_of(caller)))


@router.delete(
    "/templates/{name}", operation_id="disableTemplate", status_code=204, responses=problems(*SIGNED, 404, 422)
)
async def disable_template(parts: Parts, caller: Admin, name: TemplateName) -> Response:
    """Nothing new is made from it; what exists goes on. Putting it again enables it."""
    found = await _existing_template(parts, name)
    await parts.templates.put(replace(found, disabled_at=await parts.views.now()), actor_of(caller))
    return Response(status_code=204)


@router.get("/templates/{name}/secrets", operation_id="listTemplateSecrets", responses=problems(*SIGNED, 404, 422))
async def list_template_secrets(parts: Parts, caller: Admin, name: TemplateName) -> SecretList:
    """The names of the template's secrets, which are environment variables in all of its workspaces."""
    found = await parts.secrets.list_of_template(caller, name)
    return SecretList(items=[secret_item(parts, one) for one in found])


@router.put(
    "/templates/{name}/secrets/{variable}",
    operation_id="putTemplateSecret",
    responses=problems(*WITH_BODY, 404, 409, 429),
)
async def put_template_secret(
    parts: Parts, caller: Admin, name: TemplateName, variable: VariableName, body: SecretPut
) -> SecretItem:
    """Made or replaced. A variable of the same name that a workspace's owner keeps wins over it."""
    shown = await parts.secrets.put_template_variable(caller, name, variable, body.value.get_secret_value())
    return secret_item(parts, shown)


@router.delete(
    "/templates/{name}/secrets/{variable}",
    operation_id="deleteTemplateSecret",
    status_code=204,
    responses=problems(*SIGNED, 404, 422),
)
async def delete_template_secret(parts: Parts, caller: Admin, name: TemplateName, variable: VariableName) -> Response:
    await parts.secrets.delete_template_variable(caller, name, variable)
    return Response(status_code=204)


async def _refuse_unstartable(parts: ApiParts, template: Template) -> None:
    """Refuses a template that no workspace could ever start from, here and not at each start."""
    checked_template(template)
    must_be_able_to_sudo(template, runtime=parts.runtime.name, possible=parts.runtime.supports_sudo)
    if template.cpu is not None or template.memory_bytes is not None:
        most = await parts.runtime.capacity()
        must_fit(template, most.cpu, most.memory_bytes)


async def _existing_template(parts: ApiParts, name: str) -> Template:
    found = await parts.templates.get(name)
    if found is None:
        raise NotFound(f"There is no template {name!r}.")
    return found


@router.get("/audit", operation_id="listAudit", responses=problems(*SIGNED, 422))
async def list_audit(
    parts: Parts,
    _caller: Admin,
    actor: AuditText = None,
    subject: AuditText = None,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> Page[AuditShown]:
    """Newest first."""
    before = rendering.decode_number("audit", cursor)
    found = await parts.audit.entries(limit + 1, before=before, actor=actor, subject=subject)
    following = rendering.encode_cursor("audit", str(found[limit - 1].id)) if len(found) > limit else None
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
