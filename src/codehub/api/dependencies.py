"""What routes depend on: the use cases that the composition root gives, the caller, and the bounds of a page.

A browser sends its cookie along with whatever any site makes it send, so a cookie may change things only in a request
that our own pages alone can make: JSON, from our own origin. A bearer token is sent on purpose and needs neither.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Annotated, Any, Final, Protocol
from urllib.parse import urlsplit
from uuid import UUID

from fastapi import Depends, Path, Query, Request
from fastapi.security import APIKeyCookie, HTTPAuthorizationCredentials, HTTPBearer
from pydantic import AfterValidator

from codehub.api.errors import CrossSite
from codehub.api.schemas import AN_ID, Problem, storable
from codehub.domain.credentials import SESSION_COOKIE
from codehub.domain.errors import Unauthenticated
from codehub.domain.gc_rules import Retention
from codehub.domain.identity import Caller, Scope
from codehub.ports.accounts import Audit
from codehub.ports.archives import ArchiveContents
from codehub.ports.collector import CollectorView
from codehub.ports.runtime import Runtime
from codehub.ports.signals import Bus
from codehub.ports.stores import Leader, Templates
from codehub.ports.views import WorkspaceViews
from codehub.telemetry import Metrics
from codehub.usecases.authorization import AccessAudit
from codehub.usecases.exec import WorkspaceExec
from codehub.usecases.identity import Identity, Tokens
from codehub.usecases.lifecycle import Lifecycles
from codehub.usecases.oidc import Oidc
from codehub.usecases.secrets import SecretKeeping
from codehub.usecases.ssh_keys import SshKeys
from codehub.usecases.usage import WorkspaceUsage
from codehub.usecases.users import Users
from codehub.usecases.workspace_commands import RunningSlots, WorkspaceCommands, WorkspaceCreation


@dataclass(frozen=True, slots=True)
class ApiSite:
    """How this API is reached. `public_url` None: whatever host the request names. `workspace_url`: a pattern with
    `{slug}` or `{id}`. `undo`: how long what was deleted can be brought back. Other times in seconds."""

    public_url: str | None = None
    workspace_url: str = "http://{slug}.localhost:8000/"
    runtime: str = "process"
    sse_prefix: str = "codehub:sse:"
    heartbeat: float = 30.0
    check_timeout: float = 3.0
    undo: timedelta = Retention().undo

    @property
    def origin(self) -> str | None:
        if self.public_url is None:
            return None
        parts = urlsplit(self.public_url)
        return f"{parts.scheme}://{parts.netloc}".lower()


ReadinessCheck = Callable[[], Awaitable[object]]
"""Asks whether a backend answers."""


class DashboardFiles(Protocol):
    """The dashboard's page, and its files by their names below `/assets/{version}/`."""

    @property
    def version(self) -> str: ...

    @property
    def index(self) -> bytes: ...

    @property
    def files(self) -> Mapping[str, bytes]: ...


@dataclass(frozen=True, slots=True)
class ApiParts:
    identity: Identity
    users: Users
    tokens: Tokens
    secrets: SecretKeeping
    ssh_keys: SshKeys
    oidc: Oidc | None
    commands: WorkspaceCommands
    creation: WorkspaceCreation
    lifecycles: Lifecycles
    slots: RunningSlots
    usage: WorkspaceUsage
    exec: WorkspaceExec
    views: WorkspaceViews
    contents: ArchiveContents
    templates: Templates
    audit: Audit
    access_audit: AccessAudit
    collector: CollectorView
    runtime: Runtime
    bus: Bus
    metrics: Metrics
    leader: Callable[[], Awaitable[Leader | None]]
    gc_report: Callable[[], Awaitable[Mapping[str, object]]]
    checks: Mapping[str, ReadinessCheck] = field(default_factory=dict)
    site: ApiSite = field(default_factory=ApiSite)
    pages: DashboardFiles | None = None


_SAFE: Final = frozenset({"GET", "HEAD", "OPTIONS"})

_cookie = APIKeyCookie(
    name=SESSION_COOKIE, scheme_name="session", auto_error=False, description="Set by POST /api/v1/session."
)
_bearer = HTTPBearer(scheme_name="token", auto_error=False, description="A personal token from POST /api/v1/tokens.")


async def parts_of(request: Request) -> ApiParts:
    """The application's parts. Async, though it waits for nothing: FastAPI would run a plain function in a thread."""
    parts: ApiParts = request.app.state.parts
    return parts


Parts = Annotated[ApiParts, Depends(parts_of)]


def address_of(request: Request) -> str:
    return request.client.host if request.client else ""


async def caller_of(
    request: Request,
    parts: Parts,
    cookie: Annotated[str | None, Depends(_cookie)],
    bearer: Annotated[HTTPAuthorizationCredentials | None, Depends(_bearer)],
) -> Caller:
    if bearer is None and request.headers.get("authorization"):
        raise Unauthenticated("Only `Authorization: Bearer …` is understood here.")
    if bearer is None and cookie is not None and request.method not in _SAFE:
        refuse_cross_site(request, parts, must_name_origin=True)
    token = bearer.credentials if bearer else None
    return await parts.identity.caller(session_token=cookie, bearer=token, address=address_of(request))


Signed = Annotated[Caller, Depends(caller_of)]


async def reader_of(caller: Signed) -> Caller:
    caller.must(Scope.READ)
    return caller


async def admin_of(caller: Signed) -> Caller:
    caller.must(Scope.ADMIN)
    return caller


Reader = Annotated[Caller, Depends(reader_of)]
Admin = Annotated[Caller, Depends(admin_of)]


def refuse_cross_site(request: Request, parts: ApiParts, *, must_name_origin: bool) -> None:
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise CrossSite("With a cookie, send Content-Type: application/json; only our own pages can.")
    origin = request.headers.get("origin", "").lower()
    if not origin and not must_name_origin:
        return
    host = request.headers.get("host", "").lower()
    ours = {parts.site.origin} if parts.site.origin else {f"http://{host}", f"https://{host}"}
    if origin not in ours:
        raise CrossSite("With a cookie, requests must come from our own pages: their Origin is not ours.")


Limit = Annotated[int, Query(ge=1, le=200, description="How many at most.")]
Cursor = Annotated[str | None, Query(max_length=400, description="`next_cursor` of the page before.")]
SearchText = Annotated[
    str, Query(max_length=100, description="Found in name or description."), AfterValidator(storable)
]
WorkspaceId = Annotated[UUID, Path(examples=[AN_ID])]

_WHEN: Final = {
    400: "The request or its body cannot be read.",
    401: "Nobody is signed in, or no longer.",
    403: "Signed in, but not allowed to do that.",
    404: "There is no such thing, or it is not yours.",
    409: "The state of things forbids it; `code` says which.",
    410: "It is gone for good.",
    413: "The body is larger than 1 MiB.",
    422: "A value is wrong; `errors` names the field.",
    429: "Too much; `Retry-After` says when to try again.",
    431: "The headers are larger than 32 KiB.",
    500: "Our fault; the log has the request id.",
    502: "A backend failed.",
    503: "A backend does not answer; `Retry-After` says when to try again.",
}
_ALWAYS: Final = (400, 413, 431, 500, 502, 503)
_RETRY: Final = {"Retry-After": {"description": "Seconds.", "schema": {"type": "integer"}}}


def problems(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """The OpenAPI entries for these statuses, and for those that any request may get."""
    found: dict[int | str, dict[str, Any]] = {}
    for status in sorted({*statuses, *_ALWAYS}):
        schema = {"$ref": f"#/components/schemas/{Problem.__name__}"}
        found[status] = {"description": _WHEN[status], "content": {"application/problem+json": {"schema": schema}}}
        if status in (429, 503):
            found[status]["headers"] = _RETRY
    return found


SIGNED: Final = (401, 403)
WITH_BODY: Final = (400, 401, 403, 422)


def also(status: int, model: type, description: str) -> Mapping[int | str, dict[str, Any]]:
    return {status: {"model": model, "description": description}}
