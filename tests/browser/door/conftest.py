"""One installation for all that a worker runs, and a browser of its own for each test."""

import asyncio
import shlex
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from playwright.async_api import Browser, async_playwright

from codehub.adapters.ide import IdeError, ensure_code_server
from codehub.adapters.process.sandbox import find_bubblewrap
from codehub.bootstrap.places import ide_cache_dir
from codehub.settings import load_settings
from tests.browser.door import steady_chromium
from tests.browser.door.installation import Installation, Person, installation
from tests.browser.door.visitor import Visitor
from tests.proxy.recording.workbench import CHROMIUM_ARGUMENTS, chromium


@pytest.fixture(scope="session")
def cache() -> Path:
    given = load_settings(database_url="postgresql://unused", redis_url="redis://unused", ide_command=None)
    try:
        installed = asyncio.run(ensure_code_server(ide_cache_dir(given), lambda text, fraction: None))
    except IdeError as error:
        pytest.skip(f"code-server is not in the cache and cannot be installed: {error}")
    return installed.directory.parent


@pytest.fixture(scope="session")
def hub(cache: Path) -> Iterator[Installation]:
    if find_bubblewrap() is None:
        pytest.skip("bubblewrap is not there or does not work, so there is nobody but the admin")
    with installation(cache) as running:
        yield running


@pytest.fixture
async def browser(tmp_path: Path) -> AsyncIterator[Browser]:
    program = chromium()
    if program is None:
        pytest.skip("Chromium is not there")
    steady = tmp_path / "chromium"
    steady.write_text(f'#!/bin/sh\nexec {shlex.join([sys.executable, steady_chromium.__file__, program])} "$@"\n')
    steady.chmod(0o700)
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=steady, args=CHROMIUM_ARGUMENTS)
        yield browser
        await browser.close()


@pytest.fixture(scope="module")
def ann(hub: Installation) -> Iterator[Person]:
    ann = hub.person()
    yield ann
    ann.leaves()


@pytest.fixture
async def visitor(hub: Installation, browser: Browser, ann: Person) -> AsyncIterator[Visitor]:
    """Ann at her browser, signed in."""
    async with Visitor.at(browser, hub) as visitor:
        await visitor.signs_in(ann)
        yield visitor
