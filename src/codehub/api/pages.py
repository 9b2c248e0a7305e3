"""The dashboard's page and files. What they may do is said here, not by them: no script, style or request but our own.

One page stands for every address that the browser's side of the dashboard knows; it holds nothing of anybody.
"""

from typing import Final

from fastapi import APIRouter
from starlette.responses import Response

from codehub.api.deps import Parts
from codehub.api.errors import problem

router = APIRouter(include_in_schema=False)

_RULES: Final = {
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
POLICY: Final = "; ".join(f"{what} {who}" for what, who in _RULES.items())
_TYPES: Final = {
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
FOR_EVER: Final = "public, max-age=31536000, immutable"


@router.get("/")
@router.get("/workspaces/{rest:path}")
@router.get("/account")
@router.get("/account/{rest:path}")
@router.get("/admin")
@router.get("/admin/{rest:path}")
async def page(parts: Parts) -> Response:
    if parts.pages is None:
        return _nothing()
    headers = {
        "Content-Security-Policy": POLICY,
        "Cache-Control": "no-cache",
        "Cross-Origin-Opener-Policy": "same-origin-allow-popups",
        "Permissions-Policy": "camera=(), microphone=(), geolocation=(), payment=()",
    }
    return Response(parts.pages.index, headers=headers, media_type="text/html")


@router.get("/assets/{version}/{name:path}")
async def asset(parts: Parts, version: str, name: str) -> Response:
    """A page from before an upgrade still finds what it needs, and keeps none of it."""
    content = parts.pages.files.get(name) if parts.pages is not None else None
    if parts.pages is None or content is None:
        return _nothing()
    cached = FOR_EVER if version == parts.pages.version else "no-cache"
    return Response(content, headers={"Cache-Control": cached, "Content-Type": _TYPES[name.rpartition(".")[2]]})


def _nothing() -> Response:
    return problem(404, "Not found", "not_found", "There is nothing at this address.")
