"""Somebody at a browser: signs in, opens workspaces, works in them. What our own pages complain of is kept."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Self

from playwright.async_api import Browser, BrowserContext, ConsoleMessage, Error, Page, Response, WebSocket

from tests.browser.end_to_end.installation import TIMEOUT_SECONDS, Installation, Person
from tests.proxy.recording.workbench import Tab

DOCUMENT = "meta#vscode-workbench-web-configuration"
"""Of the IDE's page, whatever became of its scripts."""
WORKBENCH = ".monaco-workbench .part.statusbar"
LOADS_FAIL = "Failed to load resource"
"""What a browser notes of every page whose status is not 200."""


@dataclass
class BrowserUser:
    context: BrowserContext
    hub: Installation
    complaints: list[str] = field(default_factory=list)
    """Of pages that are ours: what their scripts threw, and what their policy forbade."""
    sockets: dict[Page, list[WebSocket]] = field(default_factory=dict)
    """All that a page ever opened."""
    _ours: set[Page] = field(default_factory=set)

    @classmethod
    @asynccontextmanager
    async def at(cls, browser: Browser, hub: Installation, **looks: Any) -> AsyncIterator[Self]:
        context = await browser.new_context(**looks)
        context.set_default_timeout(TIMEOUT_SECONDS * 1000)
        user = cls(context, hub)
        context.on("page", user._watch)
        try:
            yield user
        finally:
            for page in context.pages:
                print(await shown(page))  # seen if the test fails
            # A page that is just leaving may never tell that it was closed; the browser itself ends after this.
            with suppress(TimeoutError):
                async with asyncio.timeout(TIMEOUT_SECONDS):
                    await context.close()
        assert not user.complaints, user.complaints

    def _watch(self, page: Page) -> None:
        def answered(response: Response) -> None:
            if response.request.is_navigation_request() and response.frame == page.main_frame:
                ours = f"{self.hub.url}/"
                mine = "codehub-page" in response.headers or (
                    response.url.startswith(ours) and not response.url.startswith(f"{ours}w/")
                )
                (self._ours.add if mine else self._ours.discard)(page)

        def said(message: ConsoleMessage) -> None:
            if page in self._ours and message.type in ("error", "warning") and LOADS_FAIL not in message.text:
                self.complaints.append(f"{page.url}: {message.text}")

        def thrown(error: object) -> None:
            if page in self._ours:
                self.complaints.append(f"{page.url}: {error}")

        def opened(socket: WebSocket) -> None:
            self.sockets.setdefault(page, []).append(socket)

        page.on("response", answered)
        page.on("console", said)
        page.on("pageerror", thrown)
        page.on("websocket", opened)

    async def signs_in(self, person: Person) -> Page:
        """At our own page. A page of the platform's is left open."""
        page = await self.context.new_page()
        await page.goto(f"{self.hub.url}/signin?next=/api/v1/session")
        await self.fills_in(page, person)
        await page.wait_for_url(f"{self.hub.url}/api/v1/session")
        return page

    async def comes_in(self, person: Person) -> Page:
        """By the platform's own address: who is not signed in is led to the door, and from there to the dashboard."""
        page = await self.context.new_page()
        await page.goto(f"{self.hub.url}/")
        await page.wait_for_url("**/signin?*")
        await self.fills_in(page, person)
        await page.wait_for_url(f"{self.hub.url}/")
        return page

    async def fills_in(self, page: Page, person: Person) -> None:
        await page.fill("#username", person.username)
        await page.fill("#password", person.password)
        await page.click("#submit")

    async def goes(self, address: str) -> tuple[Page, Response]:
        page = await self.context.new_page()
        answer = await page.goto(address)
        assert answer is not None
        return page, answer

    async def goes_in(self, address: str) -> Page:
        """To an editor, which is loaded after this."""
        page, _ = await self.goes(address)
        if address.startswith(f"{self.hub.url}/w/"):
            await page.click("[data-action=here]")  # within the platform's origin only after a choice
        return page

    async def opens(self, address: str) -> Tab:
        return await arrived(await self.goes_in(address))


async def shown(page: Page) -> str:
    try:
        async with asyncio.timeout(5):
            return f"{page.url} showed: {(await page.inner_text('body'))[:500]!r}"
    except (TimeoutError, Error) as error:
        return f"{page.url} showed nothing: {error}"


async def arrived(page: Page) -> Tab:
    """The workbench stands and lists the home's files."""
    await page.wait_for_selector(WORKBENCH)
    await page.wait_for_selector(".explorer-folders-view .monaco-list-row")
    return Tab(page)


async def runs(tab: Tab, command: str) -> None:
    """In its terminal. What is typed before the shell listens may be lost, so it is seen to stand there first."""
    await tab.click_terminal()
    await tab.page.keyboard.type(command)
    await tab.reads(f"$ {command}")
    await tab.page.keyboard.press("Enter")


async def until(
    check: Callable[[], bool], what: str, seconds: float = TIMEOUT_SECONDS, say: Callable[[], object] = lambda: ""
) -> None:
    """`say`: asked if it never comes."""
    try:
        async with asyncio.timeout(seconds):
            while not check():
                await asyncio.sleep(0.1)
    except TimeoutError:
        raise AssertionError(f"it never came: {what} {say()}") from None
