"""Presence from end to end: what is done in a real tab reaches the workspace's `last_access_at`, and a tab that is only
left open does not.
"""

import asyncio
import time

import pytest

from tests.browser.end_to_end.browser_user import BrowserUser, runs, until
from tests.browser.end_to_end.installation import Person, Workspace
from tests.proxy.recording.workbench import Tab

pytestmark = [pytest.mark.system]

IDLE, LONG_IDLE = 30.0, 600.0
SETTLES = 240.0
"""A tab that was just opened still has to do with itself."""
LOOP = "for i in 1 2 3 4 5 6; do sleep 4; echo t-$i; done"


@pytest.fixture(scope="module")
def desk(ann: Person) -> Workspace:
    """It is not stopped, however long nobody is seen."""
    return asyncio.run(ann.workspace("desk", "RUNNING", standby_ttl_seconds=0))


@pytest.fixture
async def tab(desk: Workspace, user: BrowserUser) -> Tab:
    """With a terminal, left alone until nothing of its opening is left."""
    tab = await user.opens(desk.url)
    await tab.open_terminal()
    await tab.click_terminal()  # a page that opens late may have taken the focus
    await rests(desk, IDLE)
    return tab


def seen(desk: Workspace) -> str:
    return str(desk.shown()["last_access_at"] or "")


async def rests(desk: Workspace, seconds: float) -> str:
    """Nobody was seen for so long."""
    began = since = time.monotonic()
    last = seen(desk)
    while time.monotonic() - since < seconds:
        await asyncio.sleep(1)
        if (now := seen(desk)) != last:
            last, since = now, time.monotonic()
        assert since - began < SETTLES, "somebody is seen all the time, and nobody is there"
    return last


@pytest.mark.timeout(900)
async def test_a_person_is_seen_and_an_open_tab_is_not(desk: Workspace, tab: Tab) -> None:
    keyboard = tab.page.keyboard
    before = seen(desk)
    await keyboard.press("#")
    await until(lambda: seen(desk) > before, "a key in the terminal")
    await keyboard.press("Backspace")

    await tab.open_file("notes.txt")
    await keyboard.type("x")
    before = await rests(desk, 10)
    await keyboard.press("Control+s")
    await until(lambda: seen(desk) > before, "a save")

    await runs(tab, LOOP)
    await tab.reads("t-3")  # what was typed is long flushed
    before = seen(desk)
    await tab.reads("t-6")
    await until(lambda: seen(desk) > before, "output of a terminal")
    await rests(desk, 10)


@pytest.mark.long
@pytest.mark.timeout(1800)
async def test_ten_minutes_of_an_open_tab(desk: Workspace, tab: Tab) -> None:
    before = seen(desk)
    await asyncio.sleep(LONG_IDLE)
    assert seen(desk) == before
    await tab.page.keyboard.press("#")
    await until(lambda: seen(desk) > before, "a key in the terminal")
