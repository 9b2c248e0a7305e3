"""Around every request: an id in the log and in the response, limits on what is read, security headers for browsers,
and the response to an error that nothing else caught."""

import re
import time
from collections.abc import Iterable
from typing import Final
from uuid import uuid4

import structlog
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from codehub.api.errors import BY_STATUS, internal_error, problem
from codehub.domain.errors import CodeHubError
from codehub.telemetry import HTTP_REQUESTS, HTTP_SECONDS, Metrics, get_logger

log = get_logger(__name__)

MOST_BODY_BYTES: Final = 1 << 20
MOST_HEADER_BYTES: Final = 32 << 10
_REQUEST_ID: Final = re.compile(r"[A-Za-z0-9._-]{1,64}")
_QUIET: Final = frozenset({"/healthz", "/readyz", "/metrics"})

SECURITY_HEADERS: Final = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
    "Cache-Control": "no-store",
}


class RequestMiddleware:
    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        given = headers.get("x-request-id", "")
        request_id = given if _REQUEST_ID.fullmatch(given) else uuid4().hex
        with structlog.contextvars.bound_contextvars(request_id=request_id):
            await self._respond(scope, headers, receive, send, request_id)

    async def _respond(self, scope: Scope, headers: Headers, receive: Receive, send: Send, request_id: str) -> None:
        began = time.monotonic()
        status = 0

        async def send_with_headers(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                _add_headers(message, request_id)
            await send(message)

        try:
            refused = _refusal(scope["headers"], headers)
            if refused is not None:
                await _refusal_response(refused)(scope, receive, send_with_headers)
            else:
                await self._app(scope, _limited(receive), send_with_headers)
        except Exception as error:
            if status and isinstance(error.__cause__, CodeHubError):  # foreseen, but too late for another answer
                log.warning("answer broken off", path=scope["path"], error=str(error.__cause__))
            else:
                log.exception("request failed", method=scope["method"], path=scope["path"])
            if status:
                raise  # half an answer is out: the connection must break, so that nobody takes it for a whole one
            await internal_error(request_id)(scope, receive, send_with_headers)
        finally:
            self._record(scope, status, time.monotonic() - began)

    def _record(self, scope: Scope, status: int, seconds: float) -> None:
        route = getattr(scope.get("route"), "path", "unknown")
        self._metrics.add(HTTP_REQUESTS, method=_method(scope), route=route, status=str(status))
        if route != "/events":  # those last as long as somebody listens
            self._metrics.observe(HTTP_SECONDS, seconds, route=route)
        if scope["path"] not in _QUIET:
            log.info("request", method=scope["method"], path=scope["path"], status=status, seconds=round(seconds, 4))


_METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})


def _method(scope: Scope) -> str:
    """The method as a metric's label, which must have few values whatever clients send."""
    return scope["method"] if scope["method"] in _METHODS else "other"


def _add_headers(message: Message, request_id: str) -> None:
    headers = MutableHeaders(scope=message)
    headers["X-Request-Id"] = request_id
    for name, value in SECURITY_HEADERS.items():
        headers.setdefault(name, value)


def _refusal(raw: Iterable[tuple[bytes, bytes]], headers: Headers) -> int | None:
    if sum(len(name) + len(value) for name, value in raw) > MOST_HEADER_BYTES:
        return 431
    length = headers.get("content-length", "")
    return 413 if length.isdecimal() and int(length[:20]) > MOST_BODY_BYTES else None


def _refusal_response(status: int) -> ASGIApp:
    title, code = BY_STATUS[status]
    cap, what = (MOST_BODY_BYTES, "body") if status == 413 else (MOST_HEADER_BYTES, "header block")
    return problem(status, title, code, f"The {what} may have {cap} bytes.", {"Connection": "close"})


def _limited(receive: Receive) -> Receive:
    seen = 0

    async def counted() -> Message:
        nonlocal seen
        message = await receive()
        if message["type"] == "http.request":
            seen += len(message.get("body", b""))
            if seen > MOST_BODY_BYTES:
                raise HTTPException(413, f"The body may have {MOST_BODY_BYTES} bytes.", {"Connection": "close"})
        return message

    return counted
