"""The API against its own document: whatever is sent, no 5xx, no status that is not documented, no answer of another
shape. Ids are sometimes real, sometimes somebody else's, sometimes nobody's.
"""

import zlib
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from codehub.adapters.postgres.schema import migrate
from codehub.api.app import document
from codehub.domain.identity import Role
from tests.api.real_api import RealApi, real_api
from tests.real_services import ServiceLoop, temporary_database

pytestmark = [pytest.mark.system, pytest.mark.timeout(300)]

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]


class Target:
    """A real API process in front of real servers, two people and an admin, and what they have."""

    def __init__(self, url: str, people: list[dict[str, str]], ids: dict[str, list[str]]) -> None:
        self.url = url
        self.people = people
        self.ids = ids

    def send(self, case: Any) -> None:
        """Who asks and for whose things is drawn from the case itself, so that a failure repeats."""
        draw = zlib.crc32(repr((case.method, case.path, case.query, case.body)).encode("utf-8", "replace"))
        for name, known in self.ids.items():
            if name in (case.path_parameters or {}) and draw % 3:
                case.path_parameters[name] = known[draw // 3 % len(known)]
        headers = self.people[draw // 16 % len(self.people)]
        case.call_and_validate(base_url=self.url, headers=headers, checks=CHECKS)


@pytest.fixture(scope="module")
def target(postgres_url: str, redis_url: str, service_loop: ServiceLoop) -> Iterator[Target]:
    with temporary_database(postgres_url, service_loop, prefix="fuzz") as url:
        service_loop.run(migrate(url))
        context = real_api(url, redis_url)
        api = service_loop.run(_entered(context))
        try:
            yield service_loop.run(_populated(api))
        finally:
            service_loop.run(_left(context))


async def _entered(context: Any) -> RealApi:
    api: RealApi = await context.__aenter__()
    return api


async def _left(context: Any) -> None:
    await context.__aexit__(None, None, None)


async def _populated(api: RealApi) -> Target:
    started = await api.start_api()
    people, ids = [], {"workspace_id": [], "user_id": [], "name": ["default", "other"]}
    for name, role in (("ann", Role.USER), ("bob", Role.USER), ("root", Role.ADMIN)):
        user_id, headers = await api.token(name, role)
        people.append(headers)
        ids["user_id"].append(str(user_id))
        async with httpx.AsyncClient(base_url=started.url, headers=headers) as client:
            for number in range(2):
                body = {"name": f"w{number}", "desired_state": "STANDBY"}
                ids["workspace_id"].append((await client.post("/api/v1/workspaces", json=body)).json()["id"])
    return Target(started.url, people, ids)


def _schema() -> Any:
    return schemathesis.openapi.from_dict(document()).exclude(path="/api/v1/events")  # its answers never end


schema = _schema()
HOUSE: dict[str, Any] = {
    "phases": [Phase.explicit, Phase.generate],
    "suppress_health_check": list(HealthCheck),
    "deadline": None,
}


@schema.parametrize()  # type: ignore[untyped-decorator] # schemathesis' own
@settings(max_examples=8, **HOUSE)
def test_the_api_is_as_documented(target: Target, case: Any) -> None:
    target.send(case)


@pytest.mark.long
@pytest.mark.timeout(3600)
@schema.parametrize()  # type: ignore[untyped-decorator] # as above
@settings(max_examples=200, **HOUSE)
def test_the_api_is_as_documented_at_length(target: Target, case: Any) -> None:
    target.send(case)
