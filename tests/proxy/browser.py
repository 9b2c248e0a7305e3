"""A real browser for the pages, and what it complains about."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from playwright.async_api import Browser, ConsoleMessage, Page

OF_THE_NETWORK = "Failed to load resource"
"""What Chromium says of every answer that is an error, expected or not."""


class Tab:
    """One page in a browser context of its own."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.complaints: list[str] = []
        page.on("console", self._said)
        page.on("pageerror", lambda error: self.complaints.append(str(error)))

    def _said(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning") and not message.text.startswith(OF_THE_NETWORK):
            self.complaints.append(message.text)


@asynccontextmanager
async def tab(browser: Browser, **options: Any) -> AsyncIterator[Tab]:
    """A page in English on a desktop, unless told otherwise. Fails if the page ran into an error or its own policy."""
    context = await browser.new_context(**({"locale": "en-GB"} | options))
    opened = Tab(await context.new_page())
    try:
        yield opened
    finally:
        await context.close()
    assert opened.complaints == []
