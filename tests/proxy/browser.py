"""A real browser for the pages, and what it complains about."""

import os
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from playwright.async_api import Browser, ConsoleMessage, Page, async_playwright

CHROMIUM = os.environ.get("CODEHUB_TEST_CHROMIUM") or shutil.which("chromium")
ARGUMENTS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
OF_THE_NETWORK = "Failed to load resource"
"""What Chromium says of every answer that is an error, expected or not."""


@asynccontextmanager
async def chromium() -> AsyncIterator[Browser]:
    if CHROMIUM is None:
        pytest.skip("chromium is not installed")
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        try:
            yield browser
        finally:
            await browser.close()


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
