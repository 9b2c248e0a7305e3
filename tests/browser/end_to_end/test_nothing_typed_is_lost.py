"""What was typed and not saved, whatever happens to the workspace behind the editor: it is on disk in the end.

Each interruption is a row; most rows are of the long tier, where each is gone through ten times. On Docker:
tests/system/test_docker_nothing_typed_is_lost.py.
"""

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import uuid4

import pytest
from playwright.async_api import Route

from tests.browser.end_to_end import interruptions as rows
from tests.browser.end_to_end.browser_user import BrowserUser, until
from tests.browser.end_to_end.installation import Installation, Person, Workspace
from tests.browser.end_to_end.interruptions import Interruption, Notes, nothing_is_lost
from tests.conftest import Tell
from tests.proxy.recording.workbench import Tab

pytestmark = [pytest.mark.system, pytest.mark.timeout(900)]

IN_CI = (rows.stopped, rows.killed)
IN_THE_LONG_TIER = (
    *IN_CI,
    *(rows.archived, rows.idle, rows.lid_closed, rows.machine_silent, rows.front_door_killed),
    *(rows.api_silent, rows.everything_restarted, rows.cut_off),
)


@pytest.fixture
async def desk(ann: Person) -> AsyncIterator[Workspace]:
    desk = await ann.workspace(f"desk {uuid4().hex[:6]}", "RUNNING")
    yield desk
    await desk.brought_to("STANDBY")


@pytest.fixture
async def tab(desk: Workspace, user: BrowserUser) -> Tab:
    return await user.opens(desk.url)


@pytest.mark.parametrize("happens", IN_CI)
async def test_nothing_typed_is_lost(happens: Interruption, desk: Workspace, tab: Tab, hub: Installation) -> None:
    await nothing_is_lost(happens, Notes(desk, tab), hub, rounds=1)


@pytest.mark.long
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("happens", IN_THE_LONG_TIER)
async def test_nothing_typed_is_lost_in_ten_rounds(
    happens: Interruption, desk: Workspace, tab: Tab, hub: Installation, tell: Tell
) -> None:
    await nothing_is_lost(happens, Notes(desk, tab), hub, rounds=10)
    tell(f"process, {happens.__name__} 10 times: all that was typed is on disk")


async def test_what_is_typed_before_the_extension_listens_is_no_conflict(
    desk: Workspace, user: BrowserUser, hub: Installation
) -> None:
    """On a busy machine it starts seconds after the editor can be typed into."""
    typed = asyncio.Event()

    async def hold(route: Route) -> None:
        await typed.wait()
        await route.continue_()

    await user.context.route("**/_codehub/editor", hold)
    tab = await user.opens(desk.url)
    notes = Notes(desk, tab)
    await tab.open_file(notes.name)
    await notes.type("typed before ")
    assert await tab.page.locator("text=Sleeps in").count() == 0
    typed.set()
    await tab.page.wait_for_selector("text=Sleeps in")
    await tab.page.wait_for_timeout(1000)
    await rows.killed(notes, hub)
    await notes.are_saved_after_all("typed after ")


async def test_a_backup_that_outlived_the_save_is_no_conflict(desk: Workspace, tab: Tab) -> None:
    """VS Code removes its own backup after it has saved; the workspace may be gone in between."""
    notes = Notes(desk, tab)
    await notes.open()
    await notes.type("typed before ")
    backups = desk.home / ".local/share/code-server/User/Backups"

    def kept_by_vs_code() -> dict[Path, str]:
        return {each: each.read_text() for each in backups.glob("*/vscode-remote/*")}

    await until(lambda: any("typed before" in text for text in kept_by_vs_code().values()), "a backup")
    kept = kept_by_vs_code()
    await desk.brought_to("STANDBY")
    await tab.page.wait_for_selector(f"#title:has-text('{desk.name} is asleep')")
    for path, text in kept.items():
        path.write_text(text)
    await rows.wakes(tab)
    await notes.are_saved_after_all("typed after ")


async def test_below_a_path_of_the_platform_too(desk: Workspace, user: BrowserUser, hub: Installation) -> None:
    """There workspaces share an origin, and so the browser's storage: the one that sleeps is the one that is told."""
    notes = Notes(desk, await user.opens(desk.by_path))
    await nothing_is_lost(rows.stopped, notes, hub, rounds=1)


@pytest.mark.long
async def test_who_comes_back_in_the_last_second_is_not_stopped(desk: Workspace, tab: Tab) -> None:
    notes = Notes(desk, tab)
    await notes.open()
    rows.change(desk, standby_ttl_seconds=rows.TTL_SECONDS)
    await until(lambda: (rows.stops_at(desk) - datetime.now(UTC)).total_seconds() < 1, "its last second", rows.SETTLES)
    before = rows.stops_at(desk)
    await notes.type("typed before ")
    await until(lambda: rows.stops_at(desk) > before + timedelta(seconds=rows.TTL_SECONDS / 2), "a later stop")
    rows.change(desk, standby_ttl_seconds=0)
    assert (desk.shown()["phase"], desk.starts()) == ("RUNNING", 1)
    await tab.page.keyboard.press("Control+s")
    await notes.are_on_disk()


async def test_every_window_saves_what_is_typed_in_it(desk: Workspace, user: BrowserUser) -> None:
    windows = []
    for name, text in (("notes.txt", "one\ntwo\nthree\n"), ("other.css", "p {\n  margin: 0;\n}\n")):
        notes = Notes(desk, await user.opens(desk.url), name, text)
        await notes.open()
        await notes.type("typed before ")
        windows.append(notes)
    await desk.brought_to("STANDBY")
    for notes in windows:
        await notes.tab.page.wait_for_selector(f"#title:has-text('{desk.name} is asleep')")
        await notes.are_on_disk()
