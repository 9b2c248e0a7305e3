"""JupyterLab as the IDE of a real `codehub up` (CODEHUB_IDE=jupyterlab), installed in a virtual environment: the kernel
of a notebook at work in Chromium, and a tab that is left open, which does not keep the workspace up.
"""

import asyncio
import os
import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from playwright.async_api import Browser, Page

from codehub.adapters.process.sandbox import find_sandbox_tools
from tests.browser.end_to_end.browser_user import BrowserUser, until
from tests.browser.end_to_end.installation import Installation, Person, Workspace, installation
from tests.browser.end_to_end.test_presence import rests, seen
from tests.proxy.recording.applications import APPLICATIONS
from tests.proxy.recording.record_applications import PROGRAMS, install

pytestmark = [pytest.mark.system, pytest.mark.timeout(1500)]

IDLE = 70.0
"""Longer than any period of JupyterLab's own requests."""


@pytest.fixture(scope="module")
def jupyterlab() -> Path:
    """The virtual environment's programs."""
    try:
        install("jupyterlab", APPLICATIONS["jupyterlab"], PROGRAMS)
    except subprocess.CalledProcessError as error:
        pytest.skip(f"JupyterLab cannot be installed: {error}")
    return PROGRAMS / "jupyterlab" / "bin"


@pytest.fixture(scope="module")
def lab(jupyterlab: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    if find_sandbox_tools() is None:
        pytest.skip("bubblewrap is not there or does not work, so there is nobody but the admin")
    path = f"{jupyterlab}:{os.environ['PATH']}"
    with installation(tmp_path_factory.mktemp("cache"), CODEHUB_IDE="jupyterlab", PATH=path) as running:
        yield running


@pytest.fixture(scope="module")
def scientist(lab: Installation) -> Iterator[Person]:
    somebody = lab.person()
    yield somebody
    somebody.leaves()


@pytest.fixture
async def scientist_at_browser(lab: Installation, browser: Browser, scientist: Person) -> AsyncIterator[BrowserUser]:
    async with BrowserUser.at(browser, lab) as user:
        await user.signs_in(scientist)
        yield user


async def opens_notebook(user: BrowserUser, desk: Workspace) -> Page:
    page, answer = await user.goes(f"{desk.url}lab")
    assert answer.status == 200
    await page.click(".jp-LauncherCard[data-category='Notebook']")
    await page.wait_for_selector(".jp-Notebook .cm-content")
    await page.wait_for_selector("text=Python 3 (ipykernel) | Idle")  # what is run before the kernel is there, is lost
    return page


async def calculates(page: Page, what: str, result: str) -> None:
    """By the notebook's kernel, whose answer comes through a WebSocket."""
    await page.click(".jp-Notebook .jp-mod-active .cm-content")  # outside of a cell letters are commands
    await page.keyboard.type(what)
    await page.keyboard.press("Shift+Enter")
    await page.wait_for_selector(f".jp-OutputArea-output:has-text('{result}')")


async def test_a_kernel_works_and_its_user_is_seen(scientist: Person, scientist_at_browser: BrowserUser) -> None:
    desk = await scientist.workspace("desk", "RUNNING", standby_ttl_seconds=0)
    page = await opens_notebook(scientist_at_browser, desk)
    await calculates(page, "6 * 7000 + 1", "42001")
    await calculates(page, "import os; os.getcwd()", "/home/coder")
    before = seen(desk)
    await asyncio.sleep(2)
    await calculates(page, "5 * 1111", "5555")
    await until(lambda: seen(desk) > before, "a cell that was run")


@pytest.mark.long
async def test_a_tab_left_open_lets_the_workspace_stop(scientist: Person, scientist_at_browser: BrowserUser) -> None:
    """With the TTL that the issue was seen with."""
    desk = await scientist.workspace("left", "RUNNING", standby_ttl_seconds=150)
    page = await opens_notebook(scientist_at_browser, desk)
    await calculates(page, "6 * 7000 + 1", "42001")
    await rests(desk, IDLE)
    async with asyncio.timeout(600):
        while not desk.is_asleep():
            await asyncio.sleep(1)
