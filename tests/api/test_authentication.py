"""What stands around every request: cookies from our own pages only, caps, kind errors, ids, no secrets anywhere."""

import json
from typing import Any

import httpx
import pytest
import structlog
from structlog.testing import capture_logs

from codehub.api.dependencies import ApiSite
from codehub.api.middleware import MOST_BODY_BYTES
from codehub.domain.credentials import SESSION_COOKIE
from codehub.domain.errors import BackendError, Stale, Unreachable
from codehub.domain.identity import Role
from tests.api.memory_api import ORIGIN, PASSWORD, ApiUser, Backends, MemoryApi, memory_api

JSON = {"content-type": "application/json"}


async def test_signing_in_sets_a_cookie_that_only_we_get(api: MemoryApi, ann: ApiUser) -> None:
    signed_in = await api.client().post("/api/v1/session", json={"username": "ANN ", "password": PASSWORD})
    assert signed_in.status_code == 201
    [cookie] = signed_in.headers.get_list("set-cookie")
    assert cookie.startswith(f"{SESSION_COOKIE}=")
    for part in ("HttpOnly", "Secure", "Path=/", "SameSite=lax", "Max-Age="):
        assert part in cookie
    assert "Domain" not in cookie
    assert signed_in.json()["user"]["username"] == "ann"


async def test_a_session_ends_when_it_is_signed_out(api: MemoryApi, ann: ApiUser) -> None:
    browser = await api.browser("ann")
    shown = (await browser.get("/api/v1/session")).json()
    assert (shown["kind"], shown["scopes"]) == ("session", ["read", "write"])
    [session] = (await browser.get("/api/v1/sessions")).json()["items"]
    assert session["current"]
    assert (await browser.delete("/api/v1/session")).status_code == 204
    assert (await browser.get("/api/v1/session")).status_code == 401


async def test_a_password_is_changed_by_whoever_knows_it(api: MemoryApi, ann: ApiUser) -> None:
    browser, other = await api.browser("ann"), await api.browser("ann")
    wrong = {"old_password": "no such thing", "new_password": "another good one"}
    assert (await browser.put("/api/v1/session/password", json=wrong)).status_code == 403
    right = wrong | {"old_password": PASSWORD}
    assert (await browser.put("/api/v1/session/password", json=right)).status_code == 204
    assert (await browser.get("/api/v1/session")).status_code == 200
    assert (await other.get("/api/v1/session")).status_code == 401


async def test_guessing_is_slowed_down(api: MemoryApi, ann: ApiUser) -> None:
    client = api.client()
    guess = {"username": "ann", "password": "guess"}
    answers = [await client.post("/api/v1/session", json=guess) for _ in range(6)]
    assert [answer.status_code for answer in answers] == [401] * 5 + [429]
    assert (answers[-1].json()["code"], int(answers[-1].headers["retry-after"]) > 0) == ("too_many_tries", True)
    assert answers[0].json()["code"] == "unauthenticated"


# ── other sites ──────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("headers", "allowed"),
    [
        ({**JSON, "origin": ORIGIN}, True),
        ({**JSON, "origin": ORIGIN.upper()}, True),
        ({**JSON, "origin": "https://hub.test"}, True),
        ({**JSON, "origin": "http://evil.test"}, False),
        ({**JSON, "origin": "http://hub.test.evil.test"}, False),
        ({**JSON, "origin": "http://hub.test:8000"}, False),
        ({**JSON, "origin": "null"}, False),
        (JSON, False),
        ({"content-type": "text/plain", "origin": ORIGIN}, False),
        ({"content-type": "application/x-www-form-urlencoded", "origin": ORIGIN}, False),
        ({"origin": ORIGIN}, False),
    ],
)
async def test_a_cookie_changes_things_only_from_our_own_pages(
    api: MemoryApi, ann: ApiUser, headers: dict[str, str], allowed: bool
) -> None:
    browser = await api.browser("ann")
    cookie = {"cookie": browser.headers["cookie"]}
    body = b'{"name": "demo"}'
    got = await api.client().post("/api/v1/workspaces", content=body, headers=headers | cookie)
    assert got.status_code == (201 if allowed else 403), got.text
    assert bool(api.rows) == allowed
    if not allowed:
        assert got.json()["code"] == "cross_site"
    bodyless = headers | cookie
    assert (await api.client().delete("/api/v1/session", headers=bodyless)).status_code == (204 if allowed else 403)


async def test_with_a_public_address_only_that_is_ours() -> None:
    async with memory_api(site=ApiSite(public_url="https://hub.example.com/")) as api:
        await api.person("ann")
        client = api.client()
        sign_in = {"username": "ann", "password": PASSWORD}
        assert (await client.post("/api/v1/session", json=sign_in, headers={"origin": ORIGIN})).status_code == 403
        good = await client.post("/api/v1/session", json=sign_in, headers={"origin": "https://hub.example.com"})
        assert good.status_code == 201


async def test_a_token_needs_neither_origin_nor_json_and_counts_before_a_cookie(
    api: MemoryApi, ann: ApiUser, bob: ApiUser
) -> None:
    browser = await api.browser("bob")
    headers = {"cookie": browser.headers["cookie"], "origin": "http://evil.test", "content-type": "application/json"}
    made = await ann.http.post("/api/v1/workspaces", json={"name": "demo"}, headers=headers)
    assert (made.status_code, made.json()["owner"]) == (201, "ann")


@pytest.mark.parametrize(
    "authorization",
    ["Bearer", "Bearer nonsense", "Basic YTpi", "bearer chub_x", "Token x", "Bearer a b", "Bearer \xe9"],
)
async def test_a_bad_credential_is_401(api: MemoryApi, authorization: str) -> None:
    raw = [(b"authorization", authorization.encode("latin-1"))]
    refused = await api.client().get("/api/v1/workspaces", headers=raw)
    assert refused.status_code == 401
    assert refused.headers["www-authenticate"] == "Bearer"


async def test_no_other_site_may_read_us(api: MemoryApi, ann: ApiUser) -> None:
    got = await ann.http.get("/api/v1/workspaces", headers={"origin": "http://evil.test"})
    assert "access-control-allow-origin" not in got.headers
    preflight = await ann.http.options("/api/v1/workspaces", headers={"origin": "http://evil.test"})
    assert preflight.status_code == 405


# ── sizes and shapes ─────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_body_has_a_cap_however_it_is_sent(api: MemoryApi, ann: ApiUser) -> None:
    large = json.dumps({"name": "x" * MOST_BODY_BYTES}).encode()

    async def trickle() -> Any:
        for start in range(0, len(large), 65536):
            yield large[start : start + 65536]

    for content in (large, trickle()):
        refused = await ann.http.post("/api/v1/workspaces", content=content, headers=JSON)
        assert (refused.status_code, refused.json()["code"]) == (413, "too_large")
    assert not api.rows


async def test_headers_have_a_cap(ann: ApiUser) -> None:
    refused = await ann.http.get("/api/v1/workspaces", headers={"x-large": "x" * 40_000})
    assert (refused.status_code, refused.json()["code"]) == (431, "headers_too_large")


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b'"x"',
        b"null",
        b"\xff\xfe",
        b'{"name": NaN}',
        b'{"name": ' + b"9" * 5000 + b"}",
        b"[" * 100_000,
        b'{"name": "a", "name": 5}',
        b'{"\xf0\x9f\x98\x80": 1}',
        b'{"\\ud800": 1, "name": "a"}',
        b'{"__proto__": {}, "name": "a"}',
    ],
)
async def test_no_body_is_too_strange_for_a_kind_answer(api: MemoryApi, ann: ApiUser, body: bytes) -> None:
    refused = await ann.http.post("/api/v1/workspaces", content=body, headers=JSON)
    assert refused.status_code in (400, 422), refused.text
    problem = refused.json()
    assert problem["detail"]
    assert problem["code"] in ("malformed", "invalid")
    assert not api.rows


@pytest.mark.parametrize("path", ["/api/v1/workspaces/not-a-uuid", "/api/v1/workspaces/1", "/api/v1/workspaces/..%2f"])
async def test_ids_are_uuids(ann: ApiUser, path: str) -> None:
    assert (await ann.http.get(path)).status_code in (404, 422)


async def test_an_unknown_address_and_method_are_problems_too(ann: ApiUser) -> None:
    nothing = await ann.http.get("/api/v1/nothing")
    assert (nothing.status_code, nothing.json()["code"]) == (404, "not_found")
    wrong = await ann.http.put("/api/v1/workspaces", json={})
    assert (wrong.status_code, wrong.json()["code"]) == (405, "method_not_allowed")
    assert wrong.headers["allow"]
    for answer in (nothing, wrong):
        assert answer.headers["content-type"] == "application/problem+json"


# ── ids, headers, logs ───────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_request_id_goes_in_and_comes_out(ann: ApiUser) -> None:
    given = await ann.http.get("/healthz", headers={"x-request-id": "trace-1.a"})
    assert given.headers["x-request-id"] == "trace-1.a"
    for bad in ("a b", "x" * 65, "é", ""):
        made = await ann.http.get("/healthz", headers=[(b"x-request-id", bad.encode())])
        assert made.headers["x-request-id"] not in (bad, "")


async def test_browsers_are_told_to_be_careful(ann: ApiUser) -> None:
    got = await ann.http.get("/api/v1/workspaces")
    assert got.headers["x-content-type-options"] == "nosniff"
    assert got.headers["cache-control"] == "no-store"
    assert "default-src 'none'" in got.headers["content-security-policy"]
    assert "server" not in got.headers


async def test_what_nobody_foresaw_is_500_without_detail(api: MemoryApi, ann: ApiUser, monkeypatch: Any) -> None:
    async def crash(*_: object) -> object:
        raise RuntimeError("the secret of the house")

    monkeypatch.setattr(type(api.parts.views), "page", crash)
    structlog.reset_defaults()
    with capture_logs() as logs:
        failed = await ann.http.get("/api/v1/workspaces")
    assert (failed.status_code, failed.json()["code"]) == (500, "internal")
    assert "secret" not in failed.text
    assert failed.json()["request_id"] == failed.headers["x-request-id"]
    assert [line["log_level"] for line in logs if line["event"] == "request failed"] == ["error"]


@pytest.mark.parametrize(
    ("error", "status"), [(Unreachable("down"), 503), (Stale("moved"), 503), (BackendError("disk full"), 502)]
)
async def test_a_backend_s_failure_is_not_ours(
    api: MemoryApi, ann: ApiUser, monkeypatch: Any, error: Exception, status: int
) -> None:
    async def fail(*_: object) -> object:
        raise error

    monkeypatch.setattr(type(api.parts.views), "page", fail)
    failed = await ann.http.get("/api/v1/workspaces")
    assert failed.status_code == status
    assert ("retry-after" in failed.headers) == (status == 503)


async def test_no_secret_reaches_the_log(api: MemoryApi, ann: ApiUser) -> None:
    structlog.reset_defaults()
    with capture_logs() as logs:
        browser = await api.browser("ann")
        made = await browser.post("/api/v1/tokens", json={"name": "ci", "scopes": ["read"]})
        await ann.http.post("/api/v1/session", json={"username": "ann", "password": "a wrong guess"})
    text = json.dumps(logs, default=str)
    secrets = [PASSWORD, "a wrong guess", made.json()["token"], browser.headers["cookie"].partition("=")[2]]
    assert [secret for secret in secrets if secret in text] == []
    assert text.count('"event": "request"') == 3


# ── health ───────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_ready_says_what_answers(api: MemoryApi) -> None:
    told = await api.client().get("/readyz")
    assert told.status_code == 200
    checks = {check["name"]: check["ok"] for check in told.json()["checks"]}
    assert checks == {"postgresql": True, "archives": True, "controller": False}
    assert (await api.client().get("/healthz")).json() == {"alive": True}


async def test_without_the_database_it_is_not_ready(monkeypatch: Any) -> None:
    async with memory_api(Backends.fresh()) as api:

        async def gone(*_: object) -> object:
            raise Unreachable("postgresql://secret@db does not answer")

        monkeypatch.setattr(type(api.backends.archives), "inventory", gone)
        assert (await api.client().get("/readyz")).status_code == 200
        monkeypatch.setitem(api.parts.checks, "postgresql", gone)
        told = await api.client().get("/readyz")
        assert (told.status_code, told.json()["ready"]) == (503, False)
        assert "secret" not in told.text


async def test_metrics_count_routes_not_addresses(api: MemoryApi, ann: ApiUser) -> None:
    admin = await api.person("root", Role.ADMIN)
    made = await ann.create()
    await ann.http.get(f"/api/v1/workspaces/{made['id']}")
    text = (await admin.http.get("/metrics")).text
    assert 'route="/workspaces/{workspace_id}"' in text
    assert made["id"] not in text


async def test_a_new_user_gets_a_password_once_and_can_sign_in(api: MemoryApi) -> None:
    await api.person("root", Role.ADMIN)
    admin = await api.browser("root")
    made = await admin.post("/api/v1/admin/users", json={"username": "eve"})
    password = made.json()["password"]
    sign_in = {"username": "eve", "password": password}
    client: httpx.AsyncClient = api.client()
    assert (await client.post("/api/v1/session", json=sign_in)).status_code == 201
    user = f"/api/v1/admin/users/{made.json()['id']}"
    assert (await admin.patch(user, json={"disabled": True})).json()["disabled_at"]
    assert (await client.post("/api/v1/session", json=sign_in)).status_code == 401
    await admin.patch(user, json={"disabled": False})
    reset = (await admin.patch(user, json={"reset_password": True})).json()["password"]
    assert reset != password
    assert (await client.post("/api/v1/session", json={**sign_in, "password": reset})).status_code == 201
    me = next(u for u in (await admin.get("/api/v1/admin/users")).json()["items"] if u["username"] == "root")
    last = await admin.patch(f"/api/v1/admin/users/{me['id']}", json={"role": "user"})
    assert (last.status_code, last.json()["code"]) == (409, "last_admin")
