"""Routes for an orchestrator. Alive: this process answers. Ready: it can do its work. Metrics: for Prometheus.

The API without Redis, archives or a leading coordinator is still of use (people can look, and requests are stored), so
these are reported and do not take it out of service; the database does. Metrics name no person, yet tell much about an
installation: an admin's credential reads them, one with the `read` scope is enough for a scraper.
"""

import asyncio
import time

from fastapi import APIRouter
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.responses import JSONResponse, Response

from codehub.api.dependencies import SIGNED, ApiParts, Parts, Reader, ReadinessCheck, problems
from codehub.api.schemas import CheckShown, Readiness
from codehub.domain.errors import CodeHubError, Forbidden
from codehub.domain.identity import Role

router = APIRouter(tags=["health"])

REQUIRED = frozenset({"postgresql"})
"""The backends without which the API is of no use, so that it is not ready."""


@router.get("/healthz", operation_id="isAlive", responses={500: {"description": "It is not."}})
async def is_alive() -> dict[str, bool]:
    return {"alive": True}


@router.get(
    "/readyz",
    operation_id="isReady",
    response_model=Readiness,
    responses={503: {"model": Readiness, "description": "A required dependency does not answer."}},
)
async def is_ready(parts: Parts) -> Response:
    checks = await asyncio.gather(*(_run_check(parts, name, check) for name, check in parts.checks.items()))
    leads = await _run_check(parts, "controller", lambda: _check_leader(parts))
    ready = all(check.ok for check in checks if check.required)
    age = await _leader_age(parts) if leads.ok else None
    told = Readiness(ready=ready, checks=[*checks, leads], controller_age_seconds=age)
    return JSONResponse(told.model_dump(mode="json"), 200 if ready else 503)


@router.get(
    "/metrics",
    operation_id="readMetrics",
    response_class=Response,
    responses={
        200: {"description": "Prometheus text.", "content": {"text/plain": {"schema": {"type": "string"}}}},
        **problems(*SIGNED),
    },
)
async def read_metrics(parts: Parts, caller: Reader) -> Response:
    if caller.user.role is not Role.ADMIN:
        raise Forbidden("Only an admin's credential reads the metrics; a token with the scope read is enough.")
    return Response(generate_latest(parts.metrics.registry), headers={"Content-Type": CONTENT_TYPE_LATEST})


async def _run_check(parts: ApiParts, name: str, check: ReadinessCheck) -> CheckShown:
    began, detail = time.monotonic(), ""
    try:
        async with asyncio.timeout(parts.site.check_timeout):
            await check()
    except TimeoutError:
        detail = f"no answer in {parts.site.check_timeout:g} s"
    except CodeHubError as error:
        detail = type(error).__name__  # anybody may ask: no addresses, no messages of backends
    seconds = round(time.monotonic() - began, 4)
    return CheckShown(name=name, ok=not detail, required=name in REQUIRED, detail=detail, seconds=seconds)


class NoLeader(CodeHubError):
    """No coordinator has renewed its term lately."""


async def _check_leader(parts: ApiParts) -> None:
    leader = await parts.leader()
    if leader is None or leader.is_silent:
        raise NoLeader


async def _leader_age(parts: ApiParts) -> float | None:
    leader = await parts.leader()
    return None if leader is None else round(leader.age_seconds, 3)
