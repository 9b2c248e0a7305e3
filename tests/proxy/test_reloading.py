"""Tabs that reload by themselves after their workspace stopped, and people who come to start it, in a real browser."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from playwright.async_api import Browser, Page

from codehub.domain.workspace import Desired, Phase, Workspace
from codehub.ports.accounts import Ticket
from codehub.usecases.new_secrets import digest, new_session_token
from tests.api.real_site import free_port
from tests.proxy.browser import chromium
from tests.proxy.doors import eventually
from tests.proxy.hub import Hub, Somebody, hub_on, session_of
from tests.proxy.workspaces import Workspace as Server

pytestmark = [pytest.mark.system, pytest.mark.timeout(240)]

DEV_CLIENT = b"""<!doctype html><title>app</title><link rel=icon href=data:,><p>the app<script>
const again = () => location.reload();
setInterval(() => fetch("/alive").then((answer) => { if (!answer.ok) again(); }, again), 200);
</script>"""
"""Like the client of a dev server: when its server is gone, it reloads until there is one."""


@pytest.fixture
async def browser() -> AsyncIterator[Browser]:
    async with chromium() as opened:
        yield opened


@pytest.fixture
async def hub() -> AsyncIterator[Hub]:
    port = free_port()
    async with hub_on(workspace_url=f"http://{{slug}}.localhost:{port}/", port=port) as opened:
        yield opened


async def at_port(hub: Hub, browser: Browser) -> tuple[Page, Somebody, Workspace, str]:
    """Ann, who came to port 3000 of her workspace."""
    ann = await hub.person()
    demo = await hub.workspace(ann)
    origin, secret = f"http://3000--{demo.slug}.localhost:{hub.port}", new_session_token()
    await hub.directory.tickets().issue(digest(secret), Ticket(ann.user.id, demo.id, session_of(ann), 3000), 60)
    page = await browser.new_page()
    await page.goto(f"{origin}/_codehub/enter?ticket={secret}")
    return page, ann, demo, origin


async def stops(hub: Hub, demo: Workspace) -> None:
    hub.runtime.world.containers.pop(demo.id)
    await hub.becomes(demo.id, phase=Phase.STANDBY, desired_state=Desired.STANDBY)


def wishes(hub: Hub, demo: Workspace) -> Desired:
    return hub.row(demo.id).desired_state


async def stays_asleep(hub: Hub, page: Page, demo: Workspace) -> None:
    """The page offers to start it, and our script there has asked for news: it would have started it before that."""
    await page.wait_for_selector("[data-action=wake]")
    await page.wait_for_load_state("networkidle")
    assert wishes(hub, demo) is Desired.STANDBY


async def test_a_dev_client_that_reloads_starts_nothing_and_a_person_does(hub: Hub, browser: Browser) -> None:
    async with Server() as app, asyncio.timeout(200):
        head = b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: %d\r\n\r\n" % len(DEV_CLIENT)
        app.answer = lambda _: head + DEV_CLIENT
        page, _, demo, origin = await at_port(hub, browser)
        hub.runtime.world.listen(demo.id, 3000, app.endpoint)
        await page.goto(f"{origin}/deep")
        await page.wait_for_selector("text=the app")
        await stops(hub, demo)
        await stays_asleep(hub, page, demo)

        await page.reload()  # as the browser's own button does
        await eventually(lambda: wishes(hub, demo) is Desired.RUNNING)


async def test_our_page_where_nothing_listens_does_not_undo_a_stop(hub: Hub, browser: Browser) -> None:
    async with asyncio.timeout(200):
        page, _, demo, origin = await at_port(hub, browser)
        await page.wait_for_selector("text=Nothing listens on port 3000")
        await stops(hub, demo)
        await stays_asleep(hub, page, demo)
        bookmark = await page.context.new_page()
        await bookmark.goto(f"{origin}/deep")
        await eventually(lambda: wishes(hub, demo) is Desired.RUNNING)


async def test_a_click_on_our_page_starts_it(hub: Hub, browser: Browser) -> None:
    async with asyncio.timeout(200):
        page, _, demo, _ = await at_port(hub, browser)
        await page.wait_for_selector("text=Nothing listens on port 3000")
        await stops(hub, demo)
        await stays_asleep(hub, page, demo)
        await page.click("[data-action=wake]")
        await eventually(lambda: wishes(hub, demo) is Desired.RUNNING)
