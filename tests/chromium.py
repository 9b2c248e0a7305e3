"""A browser for a test: Chromium as it is installed here, kept from noticing that containers come and go."""

import asyncio
import os
import shlex
import shutil
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
from playwright.async_api import Browser, async_playwright

from tests import steady_chromium

ARGUMENTS = (
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync"),
)
CLOSE_SECONDS = 60.0


def installed() -> str | None:
    return os.environ.get("CODEHUB_TEST_CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")


@asynccontextmanager
async def chromium() -> AsyncIterator[Browser]:
    """A browser. Skips the test where there is no Chromium."""
    program = installed()
    if program is None:
        pytest.skip("there is no Chromium: apt-get install chromium")
    with tempfile.TemporaryDirectory(prefix="codehub-chromium-") as directory:
        steady = Path(directory, "chromium")
        steady.write_text(f'#!/bin/sh\nexec {shlex.join([sys.executable, steady_chromium.__file__, program])} "$@"\n')
        steady.chmod(0o700)
        async with async_playwright() as playwright:
            browser = await playwright.chromium.launch(executable_path=steady, args=ARGUMENTS)
            try:
                yield browser
            finally:
                with suppress(TimeoutError):  # what does not end by itself ends with Playwright
                    async with asyncio.timeout(CLOSE_SECONDS):
                        await browser.close()
