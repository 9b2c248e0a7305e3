"""What was typed and not saved, whatever happens to the workspace behind the editor: it is on disk in the end.

Each interruption is a row; most rows are of the long tier, where each is gone through ten times. On Docker:
tests/system/test_docker_nothing_typed_is_lost.py.
"""

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import uuid4

import pytest
from playwright.async_api import Page, Route

from tests.browser.end_to_end import interruptions as rows
from tests.browser.end_to_end.browser_user import BrowserUser, arrived, until
from tests.browser.end_to_end.installation import Installation, Person, Workspace
from tests.browser.end_to_end.interruptions import Interruption, Notes, nothing_is_lost
from tests.conftest import Tell
from tests.proxy.recording.workbench import Tab

pytestmark = [pytest.mark.system, pytest.mark.timeout(900)]

IN_CI = (rows.stopped, rows.killed)
IN_THE_LONG_TIER = (
    *IN_CI,
    *(rows.saved_by_a_stop, rows.archived, rows.idle, rows.lid_closed, rows.machine_silent, rows.front_door_killed),
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


@dataclass
class HeldExtension:
    """On a busy machine the extension starts seconds after the editor can be typed into; here, when it is told to."""

    may_start: asyncio.Event = field(default_factory=asyncio.Event)

    async def hold(self, route: Route) -> None:
        await self.may_start.wait()
        await route.continue_()


async def test_what_is_typed_before_the_extension_listens_is_no_conflict(
    desk: Workspace, user: BrowserUser, hub: Installation
) -> None:
    extension = HeldExtension()
    await user.context.route("**/_codehub/editor", extension.hold)
    notes = Notes(desk, await user.opens(desk.url))
    await notes.tab.open_file(notes.name)
    await notes.type("typed before ")
    assert await notes.tab.page.locator("text=Sleeps in").count() == 0
    extension.may_start.set()
    await rows.listens(notes.tab)
    await notes.tab.page.wait_for_timeout(1000)
    await rows.killed(notes, hub)
    await notes.are_saved_after_all("typed after ")


def kept_by_vs_code(desk: Workspace) -> dict[Path, str]:
    """Its own backups of what is not saved."""
    found: dict[Path, str] = {}
    for each in (desk.home / ".local/share/code-server/User/Backups").glob("*/vscode-remote/*"):
        with suppress(FileNotFoundError):  # VS Code writes it anew
            found[each] = each.read_text()
    return found


async def backed_up(desk: Workspace, text: str) -> dict[Path, str]:
    await until(lambda: any(text in kept for kept in kept_by_vs_code(desk).values()), "a backup of VS Code's")
    return kept_by_vs_code(desk)


async def test_who_types_on_in_what_vs_code_kept_is_told_of_no_conflict(desk: Workspace, user: BrowserUser) -> None:
    notes = Notes(desk, await user.opens(desk.url))
    page = notes.tab.page
    await notes.open()
    await notes.type("typed before ")
    await backed_up(desk, "typed before ")
    await page.wait_for_timeout(1000)  # ours is written by now as well
    extension = HeldExtension()
    await user.context.route("**/_codehub/editor", extension.hold)
    async with page.expect_navigation(url=re.compile(r"/\?folder="), wait_until="commit"):
        desk.kill()
    await arrived(page)
    await page.wait_for_selector(".view-line:has-text('typed before')")
    await notes.type("typed on ")
    extension.may_start.set()
    await rows.listens(notes.tab)
    await page.wait_for_timeout(1000)
    await page.keyboard.press("Control+s")
    await notes.are_on_disk()
    assert await page.locator(".tab[data-resource-name^='Untitled']").count() == 0


async def test_what_is_typed_while_a_save_is_under_way_is_kept(desk: Workspace, tab: Tab, hub: Installation) -> None:
    """VS Code then calls the document saved towards extensions, although it is not."""
    notes = Notes(desk, tab)
    await notes.open()
    await notes.type("saved ")
    with desk.paused():
        await tab.page.keyboard.press("Control+s")
        await tab.page.wait_for_timeout(5000)  # what is paused is asked before the save too
        await notes.type("typed before ")
        await tab.page.wait_for_timeout(500)
    saved = notes.text.removeprefix("typed before ")
    await until(lambda: (desk.home / notes.name).read_text() == saved, "the save", say=lambda: desk.home)
    await tab.page.wait_for_timeout(1000)
    await rows.killed(notes, hub)
    await notes.are_saved_after_all("typed after ")


COUNTS_RECORDS = """() => new Promise((resolve, reject) => {
  const opened = indexedDB.open("codehub /");
  opened.onerror = () => reject(opened.error);
  opened.onsuccess = () => {
    const found = opened.result.transaction("unsaved").objectStore("unsaved").getAll();
    found.onsuccess = () => resolve(found.result.filter(({ uri }) => !uri.startsWith("untitled:")).length);
  };
})"""
"""How many files' texts the extension keeps in the browser."""
HOLDS_LOCKS = """async () => {
  const names = (await navigator.locks.query()).held.map(({ name }) => name);
  const held = names.filter((name) => name.startsWith("codehub tab"));
  const released = new Promise((resolve) => (window.release = resolve));
  for (const name of held) navigator.locks.request(name, () => released);
  return held.length;
}"""


@pytest.fixture
async def slow_end(desk: Workspace, user: BrowserUser) -> tuple[Notes, Page]:
    """A file with a text that was not saved, in a page that takes the place of another which ends slowly: the lock by
    which the other's tab is known to be open is still held, until `release()` is called in the second page."""
    notes = Notes(desk, await user.opens(desk.url))
    page = notes.tab.page
    await notes.open()
    await notes.type("typed before ")
    await backed_up(desk, "typed before ")
    await page.wait_for_timeout(1000)
    holder, _ = await user.goes(f"{desk.url}_codehub/editor")
    assert await holder.evaluate(HOLDS_LOCKS) == 1
    await page.bring_to_front()
    async with page.expect_navigation(url=re.compile(r"/\?folder="), wait_until="commit"):
        desk.kill()
    await arrived(page)
    await rows.listens(notes.tab)
    await page.wait_for_selector(".view-line:has-text('typed before')")
    assert "typed before" not in (desk.home / notes.name).read_text()
    return notes, holder


async def test_a_page_that_ends_slowly_is_not_taken_for_an_open_one(slow_end: tuple[Notes, Page]) -> None:
    notes, holder = slow_end
    await holder.evaluate("release()")
    await notes.are_on_disk()


async def test_who_types_on_and_saves_while_a_page_ends_slowly_is_told_of_no_conflict(
    slow_end: tuple[Notes, Page],
) -> None:
    notes, holder = slow_end
    await notes.type("typed on ")
    await notes.tab.page.keyboard.press("Control+s")
    await notes.are_on_disk()
    await holder.evaluate("release()")
    while await holder.evaluate(COUNTS_RECORDS):
        await asyncio.sleep(0.1)
    assert await notes.tab.page.locator(".tab[data-resource-name^='Untitled']").count() == 0


async def test_a_backup_that_outlived_the_save_is_no_conflict(desk: Workspace, tab: Tab) -> None:
    """VS Code removes its own backup after it has saved; the workspace may be gone in between."""
    notes = Notes(desk, tab)
    await notes.open()
    await notes.type("typed before ")
    kept = await backed_up(desk, "typed before ")
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
    await rows.wakes(windows[0].tab)
    await arrived(windows[1].tab.page)  # it waits for the workspace by itself
    for notes in windows:
        await notes.are_on_disk()
