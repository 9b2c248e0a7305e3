"""The dashboard's page and files, with the policy for browsers: no script, style or request but our own.

One page is served at every address that the dashboard's router in the browser knows; it holds no data of anybody.
"""

from typing import Final

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from codehub.api.dependencies import Parts, parts_of
from codehub.api.errors import framework_error, problem

router = APIRouter(include_in_schema=False)

_POLICY_RULES: Final = {
    "default-src": "'none'",
    "script-src": "'self'",
    "style-src": "'self'",
    "img-src": "'self'",
    "connect-src": "'self'",
    "base-uri": "'none'",
    "form-action": "'self'",
    "frame-ancestors": "'none'",
    # Text can become markup nowhere, not even by a mistake of ours.
    "require-trusted-types-for": "'script'",
    "trusted-types": "'none'",
}
POLICY: Final = "; ".join(f"{what} {who}" for what, who in _POLICY_RULES.items())
_TYPES: Final = {
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
CACHE_FOR_EVER: Final = "public, max-age=31536000, immutable"


@router.get("/")
@router.get("/workspaces/{rest:path}")
@router.get("/new")
@router.get("/account")
@router.get("/account/{rest:path}")
@router.get("/admin")
@router.get("/admin/{rest:path}")
async def page(parts: Parts) -> Response:
    return _no_such_file() if parts.pages is None else _page(parts.pages.index)


async def not_found(request: Request, error: Exception) -> Response:
    """The answer to an unknown address: the page, which says so, for people; a problem for programs."""
    pages = (await parts_of(request)).pages
    is_person = "text/html" in request.headers.get("accept", "") and not request.url.path.startswith("/api/")
    if pages is None or not is_person or request.method not in ("GET", "HEAD"):
        return await framework_error(request, error)
    return _page(pages.index, 404)


def _page(index: bytes, status: int = 200) -> Response:
    headers = {
        "Content-Security-Policy": POLICY,
        "Cache-Control": "no-cache",
        "Cross-Origin-Opener-Policy": "same-origin-allow-popups",
        "Permissions-Policy": "camera=(), microphone=(), geolocation=(), payment=()",
    }
    return Response(index, status, headers, media_type="text/html")


@router.get("/assets/{version}/{name:path}")
async def asset(parts: Parts, version: str, name: str) -> Response:
    """A page from before an upgrade still finds what it needs, and keeps none of it."""
    content = parts.pages.files.get(name) if parts.pages is not None else None
    if parts.pages is None or content is None:
        return _no_such_file()
    cached = CACHE_FOR_EVER if version == parts.pages.version else "no-cache"
    return Response(content, headers={"Cache-Control": cached, "Content-Type": _TYPES[name.rpartition(".")[2]]})


@router.get("/badge.svg")
async def badge(parts: Parts) -> Response:
    """The badge for READMEs, which are pages of other sites. It is the same for everybody."""
    content = parts.pages.files.get("badge.svg") if parts.pages is not None else None
    if content is None:
        return _no_such_file()
    headers = {"Cache-Control": "public, max-age=86400", "Cross-Origin-Resource-Policy": "cross-origin"}
    return Response(content, headers=headers, media_type="image/svg+xml")


def _no_such_file() -> Response:
    return problem(404, "Not found", "not_found", "There is nothing at this address.")
