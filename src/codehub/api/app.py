"""The FastAPI application, made from what the composition root gives it."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.metadata import version
from typing import Any

from fastapi import APIRouter, FastAPI
from starlette.types import Lifespan

from codehub.api import (
    account,
    admin,
    commands,
    dashboard,
    events,
    health,
    lifecycle,
    restore_points,
    session,
    tokens,
    usage,
    workspaces,
)
from codehub.api.access_watch import AccessWatch
from codehub.api.dependencies import ApiParts
from codehub.api.errors import add_error_handlers
from codehub.api.events import EventHub
from codehub.api.middleware import RequestMiddleware
from codehub.api.rendering import workspace_json
from codehub.api.restore_points import MOST_DOWNLOADS, MOST_LISTINGS, ConcurrencyLimit
from codehub.api.schemas import Problem

ROUTE_MODULES = (session, tokens, account, workspaces, lifecycle, usage, commands, restore_points, events, admin)

_ABOUT = """Say what you want (`desired_state`); a controller makes reality match, and the events tell how it goes.

Errors are `application/problem+json` (RFC 9457) with a stable `code`. Lists take `?limit&cursor` and answer
`{items, next_cursor}`. Sign in for a cookie, or send `Authorization: Bearer` with a personal token."""


def create_app(parts: ApiParts) -> FastAPI:
    access = AccessWatch(parts.bus)
    hub = EventHub(
        parts.bus,
        parts.views,
        lambda owned: workspace_json(owned, parts.site.workspace_url, parts.site.undo),
        parts.metrics,
        access,
        parts.site.sse_prefix,
    )

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        yield
        await hub.close()
        await access.close()

    app = _application(lifespan)
    app.state.parts = parts
    app.state.hub, app.state.access = hub, access
    app.state.downloads = ConcurrencyLimit(MOST_DOWNLOADS, "downloads", "download_limit")
    app.state.listings = ConcurrencyLimit(MOST_LISTINGS, "listings of archives", "listing_limit")
    app.state.commands = ConcurrencyLimit(commands.MOST_COMMANDS, "commands", "command_limit")
    add_error_handlers(app)
    app.add_exception_handler(404, dashboard.not_found)
    app.add_middleware(RequestMiddleware, metrics=parts.metrics)
    return app


def document() -> dict[str, Any]:
    """The OpenAPI document alone, for which nothing has to run."""
    return _application(None).openapi()


def _application(lifespan: Lifespan[FastAPI] | None) -> FastAPI:
    app = FastAPI(
        title="CodeHub",
        version=version("codehub"),
        description=_ABOUT,
        openapi_url="/api/v1/openapi.json",
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        lifespan=lifespan,
        # Ours are in telemetry.py; this one would keep request bodies, passwords with them.
        telemetry={"auto_configure": False, "tracing": False, "metrics": False, "logs": False},
    )
    api = APIRouter(prefix="/api/v1")
    for module in ROUTE_MODULES:
        api.include_router(module.router)
    app.include_router(api)
    app.include_router(health.router)
    app.include_router(dashboard.router)
    _describe_problems(app)
    return app


def _describe_problems(app: FastAPI) -> None:
    plain = app.openapi

    def described() -> dict[str, Any]:
        document = plain()
        schemas = document.setdefault("components", {}).setdefault("schemas", {})
        if Problem.__name__ not in schemas:
            model = Problem.model_json_schema(ref_template="#/components/schemas/{model}")
            schemas.update(model.pop("$defs", {}))
            schemas[Problem.__name__] = model
        return document

    app.openapi = described  # type: ignore[method-assign] # the documented way to extend it
