"""What may happen to a workspace while somebody types in its editor, a function each, and whether what was typed is on
disk in the end. VS Code saves nothing by itself here.
"""

import re
import signal
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime

import psutil
from playwright.async_api import Error

from codehub.domain.failures import HOLD_SECONDS
from tests.browser.end_to_end.browser_user import arrived, until
from tests.browser.end_to_end.installation import Installation, Workspace
from tests.proxy.recording.workbench import FILES, Tab

TTL_SECONDS = 62
"""The least that an installation with these intervals takes."""
SETTLES = 300.0
"""Seconds until an idle stop: a tab that was just opened has to do with itself for a while, which counts."""
CUT_MS, SILENT_MS = 5_000, 15_000


@dataclass
class Notes:
    """A file in an editor. `text` is what it should hold."""

    desk: Workspace
    tab: Tab
    name: str = "notes.txt"
    text: str = FILES["notes.txt"]

    async def open(self) -> None:
        await listens(self.tab)
        await self.tab.open_file(self.name)

    async def type(self, words: str) -> None:
        await self.tab.page.click(".editor-group-container.active .monaco-editor .view-line")
        await self.tab.page.keyboard.press("Control+Home")
        await self.tab.page.keyboard.type(words)
        self.text = words + self.text

    async def are_on_disk(self) -> None:
        file = self.desk.home / self.name
        await until(lambda: file.read_text() == self.text, f"{self.text!r} on disk", say=file.read_text)

    async def are_saved_after_all(self, words: str) -> None:
        """What was typed is there, and the editor works: what is typed next is saved too."""
        await self.tab.page.wait_for_selector(f".tab.active[data-resource-name='{self.name}']")
        await self.tab.page.wait_for_selector(f".view-line:has-text('{self.text.splitlines()[0]}')")
        await self.type(words)
        await self.tab.page.keyboard.press("Control+s")
        await self.are_on_disk()


Interruption = Callable[[Notes, Installation], Awaitable[None]]


async def nothing_is_lost(happens: Interruption, notes: Notes, hub: Installation, rounds: int) -> None:
    await notes.open()
    for number in range(rounds):
        await notes.type(f"{number} before ")
        await happens(notes, hub)
        await notes.are_saved_after_all(f"{number} after ")


# ── the workspace ends ───────────────────────────────────────────────────────────────────────────────────────────────


async def stopped(notes: Notes, hub: Installation) -> None:
    del hub
    await notes.desk.brought_to("STANDBY")
    await _says_it_is(notes, "asleep")
    await wakes(notes.tab)
    await notes.are_on_disk()


async def saved_by_a_stop(notes: Notes, hub: Installation) -> None:
    """It is on disk before the workspace has ended. A machine that stands still for three seconds is too slow for that;
    then it is there after the next start."""
    del hub
    await notes.desk.brought_to("STANDBY")
    await notes.are_on_disk()
    await _says_it_is(notes, "asleep")
    await wakes(notes.tab)


async def archived(notes: Notes, hub: Installation) -> None:
    del hub
    await notes.desk.brought_to("ARCHIVED")
    await _says_it_is(notes, "in the archive")
    await wakes(notes.tab)
    await notes.are_on_disk()


async def idle(notes: Notes, hub: Installation) -> None:
    """Nobody touches it for as long as it may be idle."""
    del hub
    change(notes.desk, standby_ttl_seconds=TTL_SECONDS)
    await until(notes.desk.is_asleep, "an idle stop", SETTLES, notes.desk.shown)
    change(notes.desk, standby_ttl_seconds=0)
    await _says_it_is(notes, "asleep")
    await wakes(notes.tab)
    await notes.are_on_disk()


async def killed(notes: Notes, hub: Installation) -> None:
    """Everything of it at once. It is started again by itself, and so is the editor. One that dies again and again
    right after its start is given up, so the next time it has run for a while."""
    del hub
    page = notes.tab.page
    if notes.desk.starts() > 1:
        await until(lambda: _has_held(notes.desk), "a start that has held", SETTLES, notes.desk.shown)
    async with page.expect_navigation(url=re.compile(r"/\?folder="), wait_until="commit"):
        notes.desk.kill()
    await arrived(page)
    await notes.are_on_disk()


def _has_held(desk: Workspace) -> bool:
    since = datetime.fromisoformat(desk.shown()["phase_changed_at"])
    return (datetime.now(UTC) - since).total_seconds() > HOLD_SECONDS


async def lid_closed(notes: Notes, hub: Installation) -> None:
    """The tab is frozen while the workspace goes to sleep."""
    del hub
    page = notes.tab.page
    browser = await page.context.new_cdp_session(page)
    await browser.send("Page.setWebLifecycleState", {"state": "frozen"})
    await notes.desk.brought_to("STANDBY")
    with suppress(Error):  # it has left already: what it leaves to is another page
        await browser.send("Page.setWebLifecycleState", {"state": "active"})
    await _says_it_is(notes, "asleep")
    await wakes(notes.tab)
    await notes.are_on_disk()


# ── the workspace stays: VS Code reconnects, and no notice comes ─────────────────────────────────────────────────────


async def machine_silent(notes: Notes, hub: Installation) -> None:
    """Nothing of the workspace runs for a while, and no connection is closed: its machine is cut off."""
    del hub
    with notes.desk.paused():
        await notes.tab.page.wait_for_timeout(SILENT_MS)


async def front_door_killed(notes: Notes, hub: Installation) -> None:
    """Its workers, which are started again."""
    del notes
    for process in psutil.Process(hub.running.process.pid).children():
        if "proxy-worker" in process.cmdline():
            process.send_signal(signal.SIGKILL)


async def api_silent(notes: Notes, hub: Installation) -> None:
    """Neither the API nor the coordinator answers for a while."""
    hub.running.process.send_signal(signal.SIGSTOP)
    try:
        await notes.tab.page.wait_for_timeout(SILENT_MS)
        await _no_notice(notes)
    finally:
        hub.running.process.send_signal(signal.SIGCONT)


async def everything_restarted(notes: Notes, hub: Installation) -> None:
    """All of CodeHub is killed and started again, as by an upgrade; the workspace runs on."""
    hub.restart()
    await _no_notice(notes)


async def cut_off(notes: Notes, hub: Installation) -> None:
    """The network is away for a while, and comes back."""
    del hub
    await notes.tab.page.context.set_offline(True)
    await notes.tab.page.wait_for_timeout(CUT_MS)
    await _no_notice(notes)
    await notes.tab.page.context.set_offline(False)


# ── about the desk ───────────────────────────────────────────────────────────────────────────────────────────────────


async def wakes(tab: Tab) -> None:
    """Starts it from the page that says that it is asleep, and waits for the editor and its extension."""
    await tab.page.click("[data-action=wake]")
    await arrived(tab.page)
    await listens(tab)


def change(desk: Workspace, **fields: object) -> None:
    answer = desk.http.patch(desk.path, json=fields)
    assert answer.status_code in (200, 202), answer.text


def stops_at(desk: Workspace) -> datetime:
    """When it is stopped if nobody comes."""
    answer = desk.http.get(f"{desk.path}/lifecycle")
    assert answer.status_code == 200, answer.text
    return datetime.fromisoformat(answer.json()["stops_at"])


async def listens(tab: Tab) -> None:
    """Until the extension does, as its item in the status bar shows."""
    await tab.page.wait_for_selector("text=/Sleeps in|Stays awake/")


async def _says_it_is(notes: Notes, what: str) -> None:
    await notes.tab.page.wait_for_selector(f"#title:has-text('{notes.desk.name} is {what}')")


async def _no_notice(notes: Notes) -> None:
    assert await notes.tab.page.locator("#codehub-notice[open]").count() == 0
