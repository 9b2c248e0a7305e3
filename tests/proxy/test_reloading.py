"""Tabs that reload by themselves after their workspace stopped, and people who come to start it, in a real browser."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import pytest
from playwright.async_api import Browser, Page, Request, Response

from codehub.domain.workspace import Desired, Phase, Workspace
from codehub.ports.accounts import Ticket
from codehub.usecases.identity import digest, new_session_token
from tests.chromium import chromium
from tests.eventually import eventually
from tests.proxy.deployment import Deployment, deployed, session_of
from tests.proxy.fake_workspace import FakeWorkspace
from tests.real_services import free_port

pytestmark = [pytest.mark.system, pytest.mark.timeout(240)]

DEV_CLIENT = b"""<!doctype html><title>app</title><link rel=icon href=data:,><p>the app<script>
const again = () => location.reload();
setInterval(() => fetch("/alive").then((answer) => { if (!answer.ok) again(); }, again), 200);
</script>"""
"""A page like the client of a dev server: when its server is gone, it reloads until there is one."""


@pytest.fixture
async def browser() -> AsyncIterator[Browser]:
    async with chromium() as opened:
        yield opened


@pytest.fixture
async def deployment() -> AsyncIterator[Deployment]:
    port = free_port()
    async with deployed(workspace_url=f"http://{{slug}}.localhost:{port}/", port=port) as opened:
        yield opened


@dataclass
class Tab:
    """Ann's tab, at port 3000 of her workspace. It is only listened to: whatever a test asks of a page's script counts
    as the person's own act for some seconds, and a reload after it as theirs."""

    page: Page
    demo: Workspace
    origin: str
    pages: list[str] = field(default_factory=list)
    """Which pages came, in their order, by the proxy's name for them; "" is the app's."""
    polls: int = 0
    """How often our page asked for news since it came: it does so when it starts nothing."""

    def __post_init__(self) -> None:
        self.page.on("response", self._answered)
        self.page.on("request", self._asked)

    def _answered(self, response: Response) -> None:
        if response.request.is_navigation_request() and response.status != 303:
            self.pages.append(response.headers.get("codehub-page", ""))
            self.polls = 0

    def _asked(self, request: Request) -> None:
        self.polls += "/_codehub/state" in request.url

    async def shows(self, name: str) -> None:
        await eventually(lambda: self.pages[-1:] == [name])


async def opened(deployment: Deployment, browser: Browser) -> Tab:
    ann = await deployment.person()
    demo = await deployment.workspace(ann)
    origin, secret = f"http://3000--{demo.slug}.localhost:{deployment.port}", new_session_token()
    await deployment.directory.sign_in_state().issue_ticket(
        digest(secret), Ticket(ann.user.id, demo.id, session_of(ann), 3000), 60
    )
    tab = Tab(await (await browser.new_context()).new_page(), demo, origin)
    await tab.page.goto(f"{origin}/_codehub/enter?ticket={secret}")
    return tab


async def stops(deployment: Deployment, demo: Workspace) -> None:
    deployment.runtime.state.containers.pop(demo.id)
    await deployment.becomes(demo.id, phase=Phase.STANDBY, desired_state=Desired.STANDBY)


def desired_state(deployment: Deployment, tab: Tab) -> Desired:
    return deployment.row(tab.demo.id).desired_state


async def stays_asleep(deployment: Deployment, tab: Tab) -> None:
    await tab.shows("asleep")
    await eventually(lambda: tab.polls > 0)
    assert desired_state(deployment, tab) is Desired.STANDBY


async def test_a_dev_client_that_reloads_starts_nothing_and_a_person_does(
    deployment: Deployment, browser: Browser
) -> None:
    async with FakeWorkspace() as app, asyncio.timeout(200):
        head = b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: %d\r\n\r\n" % len(DEV_CLIENT)
        app.answer = lambda _: head + DEV_CLIENT
        tab = await opened(deployment, browser)
        deployment.runtime.state.listen(tab.demo.id, 3000, app.endpoint)
        await tab.page.goto(f"{tab.origin}/deep")
        await tab.shows("")
        await stops(deployment, tab.demo)
        await stays_asleep(deployment, tab)

        await tab.page.reload()  # as the browser's own button does
        await eventually(lambda: desired_state(deployment, tab) is Desired.RUNNING)


async def test_our_page_where_nothing_listens_does_not_undo_a_stop(deployment: Deployment, browser: Browser) -> None:
    async with asyncio.timeout(200):
        tab = await opened(deployment, browser)
        await tab.shows("no_listener")
        await stops(deployment, tab.demo)
        await stays_asleep(deployment, tab)
        bookmark = await tab.page.context.new_page()
        await bookmark.goto(f"{tab.origin}/deep")
        await eventually(lambda: desired_state(deployment, tab) is Desired.RUNNING)


async def test_a_click_on_our_page_starts_it(deployment: Deployment, browser: Browser) -> None:
    async with asyncio.timeout(200):
        tab = await opened(deployment, browser)
        await tab.shows("no_listener")
        await stops(deployment, tab.demo)
        await stays_asleep(deployment, tab)
        await tab.page.click("[data-action=wake]")
        await eventually(lambda: desired_state(deployment, tab) is Desired.RUNNING)
