"""Who may no longer be there is shown out, and who never might is told nothing."""

import asyncio
from uuid import uuid4

import pytest
from playwright.async_api import Browser, Page, Response, WebSocket

from tests.browser.end_to_end.browser_user import BrowserUser, arrived, until
from tests.browser.end_to_end.installation import Installation, Person, Workspace

pytestmark = [pytest.mark.system, pytest.mark.timeout(600)]

SECONDS = 15.0
"""Less than the minute after which sockets are looked at anyway."""
SIGN_OUT = """fetch("/api/v1/session", {method: "DELETE", headers: {"Content-Type": "application/json"}})
    .then(said => said.status)"""
THEIR_OWN = {"date", "x-request-id"}


@pytest.fixture(scope="module")
def desk(ann: Person) -> Workspace:
    return asyncio.run(ann.workspace("desk", "RUNNING"))


def open_sockets(user: BrowserUser, page: Page) -> list[WebSocket]:
    return [one for one in user.sockets[page] if not one.is_closed()]


@pytest.mark.parametrize("mode", ["subdomain", "path"])
async def test_signing_out_ends_what_is_open(
    mode: str, desk: Workspace, hub: Installation, browser: Browser, ann: Person
) -> None:
    address = f"{desk.url if mode == 'subdomain' else desk.by_path}?folder=/home/coder"
    async with BrowserUser.at(browser, hub) as user:
        platform = await user.signs_in(ann)
        tab = await user.opens(address)
        await tab.open_terminal()
        await until(lambda: len(open_sockets(user, tab.page)) >= 2, "the sockets of an editor")
        sockets = open_sockets(user, tab.page)

        await platform.goto(f"{hub.url}/signin")  # a page of ours that may ask the API
        assert await platform.evaluate(SIGN_OUT) == 204
        await until(lambda: all(one.is_closed() for one in sockets), "the end of the sockets", SECONDS)
        assert await tab.page.evaluate("fetch('./', {redirect: 'manual'}).then(said => said.status)") in (0, 401)

        page, _ = await user.goes(address)
        assert page.url.startswith(f"{hub.url}/signin?next=")
        await user.fills_in(page, ann)
        if mode == "subdomain":
            await arrived(page)
            assert page.url == address
        else:  # no sign-in ends on a workspace's page within the platform's origin
            await page.wait_for_url(f"{hub.url}/workspaces/{desk.id}")
            await user.opens(address)


async def test_somebody_else_cannot_tell_it_from_nothing(desk: Workspace, hub: Installation, browser: Browser) -> None:
    nowhere = desk.url.replace(desk.slug, "desk-000000")
    async with BrowserUser.at(browser, hub) as user:
        await user.signs_in(hub.person())
        page, theirs = await user.goes(desk.url)
        assert theirs.status == 404
        assert await page.inner_text("#title") == "There is nothing here"
        _, none = await user.goes(nowhere)
        assert await seen(theirs) == await seen(none)

        page, theirs = await user.goes(desk.by_path)
        assert theirs.status == 404
        assert await page.inner_text("#title") == "There is nothing here"
        unknown = str(uuid4())
        _, none = await user.goes(desk.by_path.replace(desk.id, unknown))
        assert await seen(theirs, desk.id) == await seen(none, unknown)


async def seen(answer: Response, own_id: str = "") -> tuple[int, dict[str, str], bytes]:
    """All of it, but for what tells one answer from the next."""
    headers = {name: value for name, value in answer.headers.items() if name not in THEIR_OWN}
    body = await answer.body()
    return answer.status, headers, body.replace(own_id.encode(), b"ID") if own_id else body
