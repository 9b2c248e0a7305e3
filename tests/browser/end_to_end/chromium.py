"""A browser for a test: Chromium as it is installed here, kept from noticing that containers come and go."""

import shlex
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from playwright.async_api import Browser, async_playwright

from tests.browser.end_to_end import steady_chromium
from tests.proxy.recording.workbench import CHROMIUM_ARGUMENTS, chromium


@asynccontextmanager
async def launched(place: Path) -> AsyncIterator[Browser]:
    """`place`: an empty directory. Skips the test where there is no Chromium."""
    program = chromium()
    if program is None:
        pytest.skip("Chromium is not there")
    steady = place / "chromium"
    steady.write_text(f'#!/bin/sh\nexec {shlex.join([sys.executable, steady_chromium.__file__, program])} "$@"\n')
    steady.chmod(0o700)
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=steady, args=CHROMIUM_ARGUMENTS)
        yield browser
        await browser.close()
