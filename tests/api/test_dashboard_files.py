"""The dashboard's page and files: everywhere the same page, files for ever, and a policy that no page can loosen."""

from dataclasses import replace

import httpx
import pytest

from codehub.api.app import create_app
from codehub.api.dashboard import CACHE_FOR_EVER, POLICY
from codehub.dashboard import dashboard
from tests.api.memory_api import ORIGIN, Backends, memory_parts

PAGES = ["/", "/workspaces/6f1c2b54-8d0e-4a7b-9f57-0c1d6b0f2a11/points", "/new", "/account", "/admin", "/admin/users"]


@pytest.fixture
def client() -> httpx.AsyncClient:
    app = create_app(replace(memory_parts(Backends.fresh()), pages=dashboard()))
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url=ORIGIN)


@pytest.mark.parametrize("path", PAGES)
async def test_one_page_for_every_address_under_a_strict_policy(client: httpx.AsyncClient, path: str) -> None:
    answer = await client.get(path)
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    assert answer.headers["content-security-policy"] == POLICY
    assert "unsafe" not in POLICY
    assert "frame-ancestors 'none'" in POLICY
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["cache-control"] == "no-cache"
    assert f"/assets/{dashboard().version}/main.js" in answer.text


async def test_files_are_kept_for_ever_under_their_version_alone(client: httpx.AsyncClient) -> None:
    version = dashboard().version
    for name, kind in (
        ("main.js", "text/javascript"),
        ("styles/ground.css", "text/css"),
        ("icon.svg", "image/svg+xml"),
    ):
        answer = await client.get(f"/assets/{version}/{name}")
        assert answer.headers["content-type"].startswith(kind)
        assert answer.headers["cache-control"] == CACHE_FOR_EVER
        assert answer.headers["x-content-type-options"] == "nosniff"
    old = await client.get("/assets/0123456789abcdef/main.js")
    assert (old.status_code, old.headers["cache-control"]) == (200, "no-cache")


@pytest.mark.parametrize("name", ["nothing.js", "../files.py", "%2e%2e/files.py", "index.html", "", "core"])
async def test_nothing_else_is_given(client: httpx.AsyncClient, name: str) -> None:
    answer = await client.get(f"/assets/{dashboard().version}/{name}")
    assert answer.status_code == 404
    assert answer.headers["content-type"] == "application/problem+json"


async def test_the_badge_may_be_shown_by_other_sites_and_says_nothing_about_anybody(client: httpx.AsyncClient) -> None:
    answer = await client.get("/badge.svg")
    assert (answer.status_code, answer.headers["content-type"]) == (200, "image/svg+xml")
    assert answer.headers["cross-origin-resource-policy"] == "cross-origin"
    assert answer.headers["cache-control"] == "public, max-age=86400"
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    assert answer.text.startswith("<svg")


async def test_a_mistyped_address_is_a_page_for_people_and_a_problem_for_programs(client: httpx.AsyncClient) -> None:
    as_browser = {"accept": "text/html,application/xhtml+xml,*/*;q=0.8"}
    answer = await client.get("/workspace", headers=as_browser)
    assert (answer.status_code, answer.headers["content-type"]) == (404, "text/html; charset=utf-8")
    assert answer.headers["content-security-policy"] == POLICY
    for path, method, headers in (
        ("/workspace", "GET", {}),
        ("/workspace", "POST", as_browser),
        ("/api/v1/nothing", "GET", as_browser),
    ):
        answer = await client.request(method, path, headers=headers)
        assert (answer.status_code, answer.headers["content-type"]) == (404, "application/problem+json")


async def test_without_a_dashboard_there_is_no_page() -> None:
    app = create_app(memory_parts(Backends.fresh()))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url=ORIGIN) as bare:
        assert (await bare.get("/")).status_code == 404
        assert (await bare.get("/badge.svg")).status_code == 404
        assert (await bare.get("/assets/x/main.js")).status_code == 404


async def test_pages_are_no_part_of_the_api(client: httpx.AsyncClient) -> None:
    paths = (await client.get("/api/v1/openapi.json")).json()["paths"]
    assert [
        path for path in paths if path.startswith(("/assets", "/admin", "/account", "/new", "/badge")) or path == "/"
    ] == []
