"""One installation for all that a worker runs, and a browser of its own for each test."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from playwright.async_api import Browser

from codehub.adapters.ide import IdeError, ensure_code_server
from codehub.adapters.process.sandbox import find_sandbox_tools
from codehub.bootstrap.runtimes import ide_cache_dir
from codehub.settings import load_settings
from tests.browser.end_to_end.browser_user import BrowserUser
from tests.browser.end_to_end.installation import Installation, Person, installation
from tests.chromium import chromium


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
    if find_sandbox_tools() is None:
        pytest.skip("bubblewrap is not there or does not work, so there is nobody but the admin")
    with installation(cache) as running:
        yield running


@pytest.fixture
async def browser() -> AsyncIterator[Browser]:
    async with chromium() as browser:
        yield browser


@pytest.fixture(scope="module")
def ann(hub: Installation) -> Iterator[Person]:
    ann = hub.person()
    yield ann
    ann.leaves()


@pytest.fixture
async def user(hub: Installation, browser: Browser, ann: Person) -> AsyncIterator[BrowserUser]:
    """Ann at her browser, signed in."""
    async with BrowserUser.at(browser, hub) as user:
        await user.signs_in(ann)
        yield user
