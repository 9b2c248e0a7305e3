"""Errors over HTTP: one table from the domain's tree to statuses, and one shape (RFC 9457, application/problem+json).

`code` is stable and for programs, `detail` is a sentence for people. What we did not foresee is a 500 that says
nothing but its request id; the log has the rest.
"""

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response

from codehub.domain.errors import (
    BackendError,
    CodeHubError,
    Conflict,
    Forbidden,
    Invalid,
    LimitReached,
    NotFound,
    Refused,
    Stale,
    TooManyTries,
    Unauthenticated,
    Unreachable,
)
from codehub.telemetry import get_logger

log = get_logger(__name__)

PROBLEM_TYPE: Final = "application/problem+json"


@dataclass(frozen=True, slots=True)
class ProblemType:
    """How an error is told over HTTP. `code` None: the error's own. `retry_after`: seconds, if waiting helps."""

    status: int
    title: str
    code: str | None = None
    retry_after: int | None = None


BY_KIND: Final[tuple[tuple[type[CodeHubError], ProblemType], ...]] = (
    (NotFound, ProblemType(404, "Not found")),
    (Unauthenticated, ProblemType(401, "Not signed in")),
    (Forbidden, ProblemType(403, "Not allowed")),
    (TooManyTries, ProblemType(429, "Too many tries")),
    (LimitReached, ProblemType(429, "Limit reached", retry_after=30)),
    (Invalid, ProblemType(422, "Not valid")),
    (Conflict, ProblemType(409, "Conflict")),
    (Refused, ProblemType(409, "Refused")),
    (Unreachable, ProblemType(503, "A backend does not answer", "unreachable", retry_after=5)),
    (Stale, ProblemType(503, "Changed meanwhile", "stale", retry_after=1)),
    (BackendError, ProblemType(502, "A backend failed", "backend_failed")),
)
"""The first entry that fits an error counts."""

BY_CODE: Final[Mapping[str, ProblemType]] = {
    "purged": ProblemType(410, "Gone for good"),
    "idempotency_key_reused": ProblemType(422, "Not valid"),
    "operation_in_progress": ProblemType(409, "Conflict", retry_after=2),
}
"""Codes of conflicts for which HTTP has a better status."""

BY_STATUS: Final[Mapping[int, tuple[str, str]]] = {
    400: ("Malformed request", "malformed"),
    404: ("Not found", "not_found"),
    405: ("Method not allowed", "method_not_allowed"),
    413: ("Too large", "too_large"),
    415: ("Not JSON", "not_json"),
    431: ("Headers too large", "headers_too_large"),
}
"""Titles and codes of what the framework refuses by itself."""

_FRAMEWORK_DETAILS: Final = {
    "malformed": "The body cannot be read as JSON.",
    "not_found": "There is nothing at this address.",
    "method_not_allowed": "This address does not take that method.",
}


class CrossSite(Forbidden):
    """A cookie came along with a request that our own pages did not send."""

    code = "cross_site"


def problem(
    status: int, title: str, code: str, detail: str, headers: Mapping[str, str] | None = None, **more: object
) -> Response:
    body = {"type": f"urn:codehub:problem:{code}", "title": title, "status": status, "detail": detail, "code": code}
    # ASCII on purpose: half a surrogate pair in somebody's field name must not break the answer about it.
    content = json.dumps(body | more).encode("ascii")
    return Response(content, status, dict(headers or {}), PROBLEM_TYPE)


def problem_of(error: CodeHubError) -> Response:
    code = getattr(error, "code", None)
    found = BY_CODE.get(code or "") or next((found for kind, found in BY_KIND if isinstance(error, kind)), None)
    if found is None:
        raise error
    headers: dict[str, str] = {}
    more: dict[str, object] = {}
    wait = _wait(error, found)
    if wait is not None:
        headers["Retry-After"] = str(wait)
    if isinstance(error, Unauthenticated):
        headers["WWW-Authenticate"] = "Bearer"
    if isinstance(error, LimitReached):
        more["holders"] = list(error.holders)
    if found.status == 422:
        more["errors"] = [_field_error(getattr(error, "field", None) or "", str(error))]
    return problem(found.status, found.title, found.code or code or "refused", str(error), headers, **more)


def _wait(error: CodeHubError, found: ProblemType) -> int | None:
    if isinstance(error, TooManyTries):
        return max(1, math.ceil(error.retry_after))
    return found.retry_after


def internal_error(request_id: str) -> Response:
    detail = f"Something went wrong on our side. An administrator finds it in the log by the request id {request_id}."
    return problem(500, "Internal error", "internal", detail, request_id=request_id)


def add_error_handlers(app: FastAPI) -> None:
    app.add_exception_handler(CodeHubError, _codehub_error)
    app.add_exception_handler(RequestValidationError, _validation_error)
    app.add_exception_handler(HTTPException, framework_error)


async def _codehub_error(_request: Request, error: Exception) -> Response:
    assert isinstance(error, CodeHubError)  # noqa: S101 - that is what it is registered for
    answer = problem_of(error)
    if answer.status_code >= 500:
        log.warning("backend failed a request", status=answer.status_code, error=str(error))
    return answer


async def _validation_error(_request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)  # noqa: S101 - as above
    errors = [_field_error(_field(found["loc"]), _message(found)) for found in error.errors()]
    detail = "; ".join(f"{e['field']}: {e['message']}" if e["field"] else e["message"] for e in errors[:5])
    return problem(422, "Not valid", "invalid", detail, errors=errors[:50])


async def framework_error(_request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)  # noqa: S101 - as above
    title, code = BY_STATUS.get(error.status_code, ("Refused", "refused"))
    return problem(error.status_code, title, code, _FRAMEWORK_DETAILS.get(code, str(error.detail)), error.headers)


def _field(location: Iterable[object]) -> str:
    """The field as the client sent it: `name`, where the framework says `body.name`."""
    parts = [str(part) for part in location]
    return ".".join(parts[1:] if parts[:1] in (["body"], ["query"], ["path"], ["header"]) else parts)[:200]


def _message(found: Mapping[str, Any]) -> str:
    if found["type"] == "json_invalid":
        return "This is not JSON."
    if found["type"] == "extra_forbidden":
        return "There is no such field."
    return str(found["msg"]).removeprefix("Value error, ")[:500]


def _field_error(field: str, message: str) -> dict[str, str]:
    return {"field": field, "message": message}
