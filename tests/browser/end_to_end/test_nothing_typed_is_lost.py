"""What was typed and not saved, whatever happens to the workspace behind the editor: it is on disk in the end.

VS Code saves nothing by itself here. Each thing that happens to it is a row; most rows are of the long tier.
"""

import asyncio
import json
import re
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from uuid import uuid4

import psutil
import pytest
from playwright.async_api import Error, Route

from tests.browser.end_to_end.browser_user import BrowserUser, arrived, until
from tests.browser.end_to_end.installation import Installation, Person, Workspace
from tests.proxy.recording.workbench import Tab

pytestmark = [pytest.mark.system, pytest.mark.timeout(900)]

BEFORE, AFTER = "typed before ", "typed after "
TTL_SECONDS = 62
"""The least that an installation with these intervals takes."""
Happening = Callable[[Workspace, Tab, Installation], Awaitable[None]]


@pytest.fixture
async def desk(ann: Person) -> AsyncIterator[Workspace]:
    desk = await ann.workspace(f"desk {uuid4().hex[:6]}", "RUNNING")
    yield desk
    await desk.brought_to("STANDBY")


@pytest.fixture
async def tab(desk: Workspace, user: BrowserUser) -> Tab:
    return await user.opens(desk.url)


async def types(tab: Tab, text: str) -> None:
    await tab.page.click(".editor-group-container.active .monaco-editor .view-line")
    await tab.page.keyboard.press("Control+Home")
    await tab.page.keyboard.type(text)


async def is_on_disk(desk: Workspace, text: str) -> None:
    notes = desk.home / "notes.txt"
    await until(lambda: notes.read_text() == f"{text}one\ntwo\nthree\n", f"{text!r} on disk", say=notes.read_text)


async def wakes(tab: Tab) -> None:
    """Starts it from the page that says that it is asleep, and waits for the editor."""
    await tab.page.click("[data-action=wake]")
    await arrived(tab.page)


def kill_workspace(desk: Workspace) -> None:
    """Everything of it at once, as when the machine's memory runs out."""
    record = json.loads((desk.data / "runtime" / "containers" / desk.id / "record.json").read_text())
    supervisor = psutil.Process(record["pid"])
    for process in (supervisor, *supervisor.children(recursive=True)):
        with suppress(psutil.NoSuchProcess):
            process.kill()


# ── what happens to it ───────────────────────────────────────────────────────────────────────────────────────────────


async def stopped(desk: Workspace, tab: Tab, hub: Installation) -> None:
    del hub
    await desk.brought_to("STANDBY")
    await tab.page.wait_for_selector(f"#title:has-text('{desk.name} is asleep')")
    await is_on_disk(desk, BEFORE)
    await wakes(tab)


async def archived(desk: Workspace, tab: Tab, hub: Installation) -> None:
    del hub
    await desk.brought_to("ARCHIVED")
    await tab.page.wait_for_selector(f"#title:has-text('{desk.name} is in the archive')")
    await wakes(tab)


async def killed(desk: Workspace, tab: Tab, hub: Installation) -> None:
    """It is started again by itself, and so is the editor."""
    del hub
    async with tab.page.expect_navigation(url=re.compile(r"/\?folder="), wait_until="commit"):
        kill_workspace(desk)
    await arrived(tab.page)


async def front_door_killed(desk: Workspace, tab: Tab, hub: Installation) -> None:
    """Its workers, which are started again: the page stays."""
    del desk, tab
    for process in psutil.Process(hub.running.process.pid).children():
        if "proxy-worker" in process.cmdline():
            process.send_signal(signal.SIGKILL)


async def cut_off(desk: Workspace, tab: Tab, hub: Installation) -> None:
    """The network is away for a while, and comes back: the page stays."""
    del desk, hub
    await tab.page.context.set_offline(True)
    await tab.page.wait_for_timeout(5000)
    assert await tab.page.locator("#codehub-notice").count() == 0
    await tab.page.context.set_offline(False)


async def lid_closed(desk: Workspace, tab: Tab, hub: Installation) -> None:
    """The tab is frozen while the workspace goes to sleep."""
    del hub
    browser = await tab.page.context.new_cdp_session(tab.page)
    await browser.send("Page.setWebLifecycleState", {"state": "frozen"})
    await desk.brought_to("STANDBY")
    with suppress(Error):  # it has left already: what it leaves to is another page
        await browser.send("Page.setWebLifecycleState", {"state": "active"})
    await tab.page.wait_for_selector(f"#title:has-text('{desk.name} is asleep')")
    await wakes(tab)


async def idle(desk: Workspace, tab: Tab, hub: Installation) -> None:
    """Nobody touches it for as long as it may be idle."""
    del hub
    change(desk, standby_ttl_seconds=TTL_SECONDS)
    await desk.becomes("STANDBY")
    change(desk, standby_ttl_seconds=0)
    await tab.page.wait_for_selector(f"#title:has-text('{desk.name} is asleep')")
    await is_on_disk(desk, BEFORE)
    await wakes(tab)


ROWS = (archived, idle, front_door_killed, cut_off, lid_closed)
LONG = [pytest.param(each, marks=pytest.mark.long) for each in ROWS]


@pytest.mark.parametrize("happens", [stopped, killed, *LONG])
async def test_nothing_typed_is_lost(happens: Happening, desk: Workspace, tab: Tab, hub: Installation) -> None:
    await tab.open_file("notes.txt")
    await types(tab, BEFORE)
    await happens(desk, tab, hub)
    await is_saved_after_all(desk, tab)


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
    await tab.open_file("notes.txt")
    await types(tab, BEFORE)
    assert await tab.page.locator("text=Sleeps in").count() == 0
    typed.set()
    await tab.page.wait_for_selector("text=Sleeps in")
    await tab.page.wait_for_timeout(1000)
    await killed(desk, tab, hub)
    await is_saved_after_all(desk, tab)


async def test_a_backup_that_outlived_the_save_is_no_conflict(desk: Workspace, tab: Tab) -> None:
    """VS Code removes its own backup after it has saved; the workspace may be gone in between."""
    await tab.open_file("notes.txt")
    await types(tab, BEFORE)
    backups = desk.home / ".local/share/code-server/User/Backups"
    await until(lambda: any(BEFORE in each.read_text() for each in backups.glob("*/vscode-remote/*")), "a backup")
    kept = {each: each.read_text() for each in backups.glob("*/vscode-remote/*")}
    await desk.brought_to("STANDBY")
    await tab.page.wait_for_selector(f"#title:has-text('{desk.name} is asleep')")
    for path, text in kept.items():
        path.write_text(text)
    await wakes(tab)
    await is_saved_after_all(desk, tab)


async def test_below_a_path_of_the_platform_too(desk: Workspace, user: BrowserUser, hub: Installation) -> None:
    """There workspaces share an origin, and so the browser's storage: the one that sleeps is the one that is told."""
    tab = await user.opens(desk.by_path)
    await tab.open_file("notes.txt")
    await types(tab, BEFORE)
    await stopped(desk, tab, hub)
    await is_saved_after_all(desk, tab)


@pytest.mark.long
async def test_who_comes_back_in_the_last_second_is_not_stopped(desk: Workspace, tab: Tab) -> None:
    await tab.open_file("notes.txt")
    change(desk, standby_ttl_seconds=TTL_SECONDS)
    before = stops_at(desk)
    await until(lambda: (stops_at(desk) - datetime.now(UTC)).total_seconds() < 1, "its last second")
    await types(tab, BEFORE)
    await until(lambda: stops_at(desk) > before + timedelta(seconds=TTL_SECONDS / 2), "a later stop")
    change(desk, standby_ttl_seconds=0)
    assert (desk.shown()["phase"], desk.starts()) == ("RUNNING", 1)
    await tab.page.keyboard.press("Control+s")
    await is_on_disk(desk, BEFORE)


async def test_every_window_saves_what_is_typed_in_it(desk: Workspace, user: BrowserUser) -> None:
    tabs = [await user.opens(desk.url) for _ in range(2)]
    names = ("notes.txt", "other.css")
    for tab, name in zip(tabs, names, strict=True):
        await tab.page.bring_to_front()
        await tab.open_file(name)
        await types(tab, BEFORE)
    await desk.brought_to("STANDBY")
    for tab in tabs:
        await tab.page.wait_for_selector(f"#title:has-text('{desk.name} is asleep')")
    for name in names:
        assert (desk.home / name).read_text().startswith(BEFORE)


def change(desk: Workspace, **fields: object) -> None:
    answer = desk.http.patch(desk.path, json=fields)
    assert answer.status_code in (200, 202), answer.text


def stops_at(desk: Workspace) -> datetime:
    """When it is stopped if nobody comes."""
    answer = desk.http.get(f"{desk.path}/lifecycle")
    assert answer.status_code == 200, answer.text
    return datetime.fromisoformat(answer.json()["stops_at"])


async def is_saved_after_all(desk: Workspace, tab: Tab) -> None:
    """What was typed is there, and the editor works: what is typed next is saved too."""
    await tab.page.wait_for_selector(".tab.active[data-resource-name='notes.txt']")
    await tab.page.wait_for_selector(f".view-line:has-text('{BEFORE.strip()}')")
    await types(tab, AFTER)
    await tab.page.keyboard.press("Control+s")
    await is_on_disk(desk, AFTER + BEFORE)
