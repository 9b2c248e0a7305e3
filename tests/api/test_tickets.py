"""Tickets: one step from here to a workspace's own host, for whoever may open it."""

from typing import Any
from urllib.parse import parse_qs, urlsplit
from uuid import UUID

import httpx
import pytest

from codehub.api.dependencies import ApiSite
from codehub.ports.accounts import Ticket
from codehub.usecases.identity import digest
from codehub.usecases.workspace_access import TICKET_SECONDS
from tests.api.memory_api import ApiUser, MemoryApi, memory_api


async def ordered(http: httpx.AsyncClient, workspace: dict[str, Any], **body: Any) -> httpx.Response:
    return await http.post(f"/api/v1/workspaces/{workspace['id']}/ticket", json=body)


async def redeemed(api: MemoryApi, answer: httpx.Response) -> Ticket:
    """By the front door, from the address alone."""
    assert answer.status_code == 201, answer.text
    told = answer.json()
    assert told["expires_in_seconds"] == TICKET_SECONDS
    [secret] = parse_qs(urlsplit(told["url"]).query)["ticket"]
    assert secret == told["ticket"]
    ticket = await api.parts.identity.sign_in_state.redeem_ticket(digest(secret))
    assert ticket
    return ticket


def host(answer: httpx.Response) -> str:
    url = urlsplit(answer.json()["url"])
    assert (url.scheme, url.port, url.path) == ("http", 8000, "/_codehub/enter")
    return str(url.hostname)


async def test_the_answer_s_address_is_the_one_step(api: MemoryApi, ann: ApiUser) -> None:
    demo = await ann.create()
    slug = api.rows[UUID(demo["id"])].slug
    for body, name in (({}, slug), ({"port": 8080}, f"8080--{slug}")):
        answer = await ordered(ann.http, demo, **body)
        assert host(answer) == f"{name}.localhost"
        assert list(parse_qs(urlsplit(answer.json()["url"]).query)) == ["ticket"]
        ticket = await redeemed(api, answer)
        assert (ticket.user_id, str(ticket.workspace_id), ticket.port) == (ann.id, demo["id"], body.get("port"))
        assert ticket.wakes, "whoever asks means to go there"
    without_body = await ann.http.post(f"/api/v1/workspaces/{demo['id']}/ticket")
    assert host(without_body) == f"{slug}.localhost"


async def test_a_ticket_ends_with_what_made_it(api: MemoryApi, ann: ApiUser) -> None:
    demo, browser = await ann.create(), await api.browser("ann")
    by_token, by_session = await ordered(ann.http, demo), await ordered(browser, demo)
    of_token, of_session = await redeemed(api, by_token), await redeemed(api, by_session)
    [token] = (await ann.http.get("/api/v1/tokens")).json()["items"]
    assert (of_token.session_id, str(of_token.token_id)) == (None, token["id"])
    assert (of_session.session_id is None, of_session.token_id) == (False, None)
    late = [digest((await ordered(http, demo)).json()["ticket"]) for http in (ann.http, browser)]
    assert (await browser.delete(f"/api/v1/tokens/{token['id']}")).is_success
    assert (await browser.delete("/api/v1/session")).is_success
    assert [await api.parts.identity.sign_in_state.redeem_ticket(secret) for secret in late] == [None, None]


async def test_a_deep_link_comes_along(api: MemoryApi, ann: ApiUser) -> None:
    demo = await ann.create()
    answer = await ordered(ann.http, demo, path="/?folder=/home/coder/a%20b&x=1+2")
    assert answer.json()["url"].endswith("&to=%2F%3Ffolder%3D%2Fhome%2Fcoder%2Fa%2520b%26x%3D1%2B2")
    await redeemed(api, answer)
    assert "&to=" not in (await ordered(ann.http, demo, path="/")).json()["url"]


@pytest.mark.parametrize(
    "path", ["", "//evil.example", "/\\evil.example", "/%2fevil", "https://evil.example/", "x", "/a#b", "/a b", "/\x00"]
)
async def test_what_is_no_path_of_the_workspace_is_refused(api: MemoryApi, ann: ApiUser, path: str) -> None:
    answer = await ordered(ann.http, await ann.create(), path=path)
    assert answer.status_code == 422
    assert [error["field"] for error in answer.json()["errors"]] == ["path"]
    assert api.backends.database.state.accounts.tickets == {}


async def test_where_workspaces_are_paths_nobody_needs_a_ticket_and_ports_are_refused() -> None:
    async with memory_api(site=ApiSite(workspace_url="https://hub.example.com/w/{id}/")) as api:
        ann = await api.person("ann")
        demo = await ann.create()
        refused = await ordered(ann.http, demo, port=8080)
        assert (refused.status_code, refused.json()["code"]) == (409, "ports_need_subdomains")
        assert "CODEHUB_WORKSPACE_URL" in refused.json()["detail"]
        assert api.backends.database.state.accounts.tickets == {}
        assert (await ordered(ann.http, demo)).json()["url"] == demo["url"]
        assert (await ordered(ann.http, demo, path="/a?b")).json()["url"] == f"{demo['url']}a?b"


async def test_who_may_not_open_it_gets_no_ticket(api: MemoryApi, ann: ApiUser, bob: ApiUser) -> None:
    demo = await ann.create()
    assert (await ordered(bob.http, demo)).status_code == 404
    assert api.backends.database.state.accounts.tickets == {}
