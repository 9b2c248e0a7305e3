"""Every route × everybody: the owner, somebody else, an admin, nobody, and a token that may only read.

A route that is not in the table fails the suite: nothing is added without saying who may use it.
"""

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pytest

from codehub.adapters.memory.archives import StoredArchive
from codehub.domain.gc_rules import RestorePoint
from codehub.domain.identity import Scope
from codehub.domain.workspace import Phase
from tests.api.memory_api import ApiUser, MemoryApi
from tests.rows import OP_ID, broken

OK = range(200, 300)


@dataclass(frozen=True)
class Route:
    """`seen_by`: own (any signed-in person has their own), owner (the workspace's, and admins), admin. `writes`: a
    token with the read scope may not."""

    method: str
    path: str
    seen_by: str
    writes: bool = False
    body: dict[str, Any] | None = None
    own_answer: int | None = None

    def __str__(self) -> str:
        return f"{self.method} {self.path}"


A = "/api/v1/account"
W = "/api/v1/workspaces/{id}"
ROUTES = [
    Route("GET", "/api/v1/session", "own"),
    Route("DELETE", "/api/v1/session", "own", own_answer=409),
    Route(
        "PUT", "/api/v1/session/password", "own", body={"old_password": "a", "new_password": "b" * 9}, own_answer=409
    ),
    Route("POST", "/api/v1/session/proof", "own", body={"password": "a"}, own_answer=409),
    Route("GET", "/api/v1/sessions", "own"),
    Route("DELETE", "/api/v1/sessions/" + "0" * 64, "own", writes=True, own_answer=404),
    Route("GET", "/api/v1/tokens", "own"),
    Route("POST", "/api/v1/tokens", "own", writes=True, body={"name": "x", "scopes": ["read"]}, own_answer=409),
    Route("DELETE", "/api/v1/tokens/{id}", "own", writes=True, own_answer=404),
    Route("GET", f"{A}/secrets", "own"),
    Route("PUT", f"{A}/secrets/A", "own", writes=True, body={"value": "x"}, own_answer=409),
    Route("DELETE", f"{A}/secrets/A", "own", writes=True, own_answer=404),
    Route("GET", f"{A}/git-credentials", "own"),
    Route("PUT", f"{A}/git-credentials/a.b/token", "own", writes=True, body={"token": "x"}, own_answer=409),
    Route("DELETE", f"{A}/git-credentials/a.b/token", "own", writes=True, own_answer=404),
    Route("POST", f"{A}/git-credentials/a.b/ssh-key", "own", writes=True, own_answer=409),
    Route("DELETE", f"{A}/git-credentials/a.b/ssh-key", "own", writes=True, own_answer=404),
    Route("GET", f"{A}/ssh-keys", "own"),
    Route("POST", f"{A}/ssh-keys", "own", writes=True, body={"public_key": "x"}, own_answer=409),
    Route("DELETE", f"{A}/ssh-keys/{{id}}", "own", writes=True, own_answer=404),
    Route("GET", f"{A}/git-identity", "own"),
    Route("PUT", f"{A}/git-identity", "own", writes=True, body={"name": "x", "email": "x@y"}),
    Route("DELETE", f"{A}/git-identity", "own", writes=True),
    Route("GET", f"{A}/dotfiles", "own"),
    Route("PUT", f"{A}/dotfiles", "own", writes=True, body={"url": "https://a.b/c"}, own_answer=409),
    Route("DELETE", f"{A}/dotfiles", "own", writes=True),
    Route("GET", "/api/v1/workspaces", "own"),
    Route("POST", "/api/v1/workspaces", "own", writes=True, body={"name": "new", "desired_state": "PENDING"}),
    Route("GET", "/api/v1/templates", "own"),
    Route("GET", "/api/v1/limits", "own"),
    Route("GET", "/api/v1/usage?id={id}", "own"),
    Route("GET", W, "owner"),
    Route("PATCH", W, "owner", writes=True, body={"memo": "x"}),
    Route("DELETE", W, "owner", writes=True),
    Route("GET", f"{W}/events", "owner"),
    Route("GET", f"{W}/lifecycle", "owner"),
    Route("GET", f"{W}/logs", "owner"),
    Route("POST", f"{W}/exec", "owner", writes=True, body={"argv": ["true"]}, own_answer=409),
    Route("GET", f"{W}/usage", "owner"),
    Route("GET", f"{W}/archives", "owner"),
    Route("GET", f"{W}/archives/{OP_ID}/tree", "owner"),
    Route("GET", f"{W}/archives/{OP_ID}/content", "owner"),
    Route("GET", f"{W}/archives/{OP_ID}/original", "owner"),
    Route("POST", f"{W}/keepalive", "owner", writes=True, body={"seconds": 60}),
    Route("POST", f"{W}/recover", "owner", writes=True, body={"action": "retry"}, own_answer=409),
    Route("POST", f"{W}/restore", "owner", writes=True, body={"archive": str(OP_ID)}),
    Route("POST", f"{W}/undelete", "owner", writes=True, own_answer=409),
    Route("POST", f"{W}/ticket", "owner", writes=True),
    Route("GET", "/api/v1/admin/users", "admin"),
    Route("POST", "/api/v1/admin/users", "admin", writes=True, body={"username": "new"}, own_answer=409),
    Route("GET", "/api/v1/admin/users/{owner}", "admin"),
    Route("PATCH", "/api/v1/admin/users/{owner}", "admin", writes=True, body={"max_running": 5}),
    Route("GET", "/api/v1/admin/workspaces", "admin"),
    Route("GET", "/api/v1/admin/errors", "admin"),
    Route("POST", "/api/v1/admin/errors/recover", "admin", writes=True, body={"action": "retry"}),
    Route("GET", "/api/v1/admin/templates", "admin"),
    Route("GET", "/api/v1/admin/templates/default", "admin"),
    Route("PUT", "/api/v1/admin/templates/other", "admin", writes=True, body={}),
    Route("DELETE", "/api/v1/admin/templates/default", "admin", writes=True),
    Route("GET", "/api/v1/admin/templates/default/secrets", "admin"),
    Route("PUT", "/api/v1/admin/templates/default/secrets/A", "admin", writes=True, body={"value": "x"}),
    Route("DELETE", "/api/v1/admin/templates/default/secrets/A", "admin", writes=True, own_answer=404),
    Route("GET", "/api/v1/admin/audit", "admin"),
    Route("GET", "/api/v1/admin/gc", "admin"),
    Route("POST", "/api/v1/admin/gc", "admin", writes=True, body={}, own_answer=409),
    Route("GET", "/api/v1/admin/gc/7", "admin", own_answer=404),
    Route("GET", "/api/v1/admin/leader", "admin"),
    Route("GET", "/api/v1/admin/history", "admin"),
    Route("GET", "/metrics", "admin"),
]
OPEN = {
    "POST /api/v1/session",
    "GET /api/v1/session/oidc",
    "GET /api/v1/session/oidc/callback",
    "GET /healthz",
    "GET /readyz",
}
ELSEWHERE = {"GET /api/v1/events"}
"""Its answers do not end: tests/api/test_events.py."""


class Scene:
    def __init__(self, api: MemoryApi, ann: ApiUser, workspace_id: str) -> None:
        self.site, self.ann, self.workspace_id = api, ann, workspace_id

    async def ask(self, person: ApiUser | None, route: Route) -> int:
        http = person.http if person else self.site.client()
        path = route.path.replace("{id}", self.workspace_id).replace("{owner}", str(self.ann.id))
        return (await http.request(route.method, path, json=route.body)).status_code


@pytest.fixture
async def scene(api: MemoryApi, ann: ApiUser) -> Scene:
    made = await ann.create()
    row = api.controller_writes(made["id"], phase=Phase.RUNNING)
    now, key = datetime.now(UTC), f"{row.id}/{OP_ID}/home.tar.zst"
    api.backends.database.state.points[row.id] = [RestorePoint(row.id, OP_ID, key, 1, 1, "0" * 64, now, now)]
    api.backends.archives.state.objects[key] = StoredArchive((), now, committed=True)
    return Scene(api, ann, made["id"])


def test_every_route_says_who_may_use_it(api: MemoryApi) -> None:
    documented = {f"{method.upper()} {path}" for path, item in api.app.openapi()["paths"].items() for method in item}
    placed = {str(route) for route in ROUTES} | OPEN | ELSEWHERE
    named = {
        one.removesuffix("?id={id}")
        .replace("{id}", "{workspace_id}")
        .replace(str(OP_ID), "{op_id}")
        .replace("tokens/{workspace_id}", "tokens/{token_id}")
        .replace("{owner}", "{user_id}")
        .replace("0" * 64, "{session_id}")
        .replace("templates/default", "templates/{name}")
        .replace("templates/other", "templates/{name}")
        .replace("gc/7", "gc/{run_id}")
        .replace("git-credentials/a.b", "git-credentials/{host}")
        .replace("ssh-keys/{workspace_id}", "ssh-keys/{key_id}")
        .replace("account/secrets/A", "account/secrets/{name}")
        .replace("}/secrets/A", "}/secrets/{variable}")
        for one in placed
    }
    assert named == documented


@pytest.mark.parametrize("route", ROUTES, ids=str)
async def test_whoever_may_not_changes_nothing_and_the_owner_may(scene: Scene, bob: ApiUser, route: Route) -> None:
    reader = await scene.site.person("ann", scopes=frozenset({Scope.READ}))
    before = dict(scene.site.rows)
    assert await scene.ask(None, route) == 401
    if route.seen_by == "owner":
        assert await scene.ask(bob, route) == 404
    if route.writes or route.seen_by == "admin":
        assert await scene.ask(reader, route) == 403
    else:
        assert granted(await scene.ask(reader, route), route)
    assert scene.site.rows == before
    got = await scene.ask(scene.ann, route)
    assert got == 403 if route.seen_by == "admin" else granted(got, route)


@pytest.mark.parametrize("route", ROUTES, ids=str)
async def test_an_admin_stands_where_the_owner_stands(scene: Scene, admin: ApiUser, route: Route) -> None:
    assert granted(await scene.ask(admin, route), route)


def granted(status: int, route: Route) -> bool:
    return status == route.own_answer if route.own_answer else status in OK


async def test_an_admin_s_reading_token_reads_metrics_and_nobody_else_s(scene: Scene, admin: ApiUser) -> None:
    scraper = await scene.site.person("root", scopes=frozenset({Scope.READ}))
    assert (await scraper.http.get("/metrics")).status_code == 200
    assert (await scraper.http.get("/api/v1/admin/users")).status_code == 403
    assert (await scraper.http.get(f"/api/v1/workspaces/{scene.workspace_id}")).status_code == 404


async def test_an_admin_who_looks_into_a_home_leaves_a_trace(scene: Scene, admin: ApiUser) -> None:
    for path in (
        "ticket",
        "logs",
        "archives",
        f"archives/{OP_ID}/tree",
        f"archives/{OP_ID}/content",
        f"archives/{OP_ID}/original",
    ):
        url = f"/api/v1/workspaces/{scene.workspace_id}/{path}"
        assert (await (admin.http.post(url) if path == "ticket" else admin.http.get(url))).is_success
    audit = (await admin.http.get("/api/v1/admin/audit", params={"actor": "root"})).json()["items"]
    looked = {"issue_ticket", "read_logs", "list_archives", "list_archive", "download_from_archive", "download_archive"}
    assert looked <= {entry["action"] for entry in audit}


async def test_one_bad_workspace_stops_no_bulk_recovery(scene: Scene, admin: ApiUser, ann: ApiUser) -> None:
    other = await ann.create("other", desired_state="PENDING")
    for workspace_id in (scene.workspace_id, other["id"]):
        wrong = broken(scene.site.rows[UUID(workspace_id)])
        scene.site.controller_writes(
            workspace_id, phase=wrong.phase, error_info=wrong.error_info, error_reason=wrong.error_reason
        )
    errors = (await admin.http.get("/api/v1/admin/errors")).json()
    assert [(group["reason"], group["count"]) for group in errors["reasons"]] == [("RetryExceeded", 2)]
    healthy = await ann.create("healthy", desired_state="PENDING")
    ids = [other["id"], healthy["id"], scene.workspace_id]
    told = (await admin.http.post("/api/v1/admin/errors/recover", json={"ids": ids})).json()["items"]
    assert [(item["accepted"], item["code"]) for item in told] == [(True, None), (False, "not_in_error"), (True, None)]
    assert scene.site.rows[UUID(other["id"])].recover_pending
