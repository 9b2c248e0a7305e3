"""The dashboard's whole journey on one `codehub up`: real databases, a real code-server, and the front door between.

Two windows of one person are open all along. Nothing is reloaded: what one does, the other sees.
"""

import asyncio
import time

import pytest
from playwright.async_api import Browser, Locator, Page

from codehub.proxy.presence.tap import REST_SECONDS
from tests.browser.end_to_end.browser_user import BrowserUser, arrived, runs, until
from tests.browser.end_to_end.installation import Installation, Person, Workspace
from tests.conftest import Tell

pytestmark = [pytest.mark.system, pytest.mark.timeout(600)]


SEEN_SINCE = "typed => Date.parse(document.querySelector('article.card time').dateTime) >= typed"


def card(page: Page, name: str) -> Locator:
    return page.locator("article.card").filter(has=page.get_by_role("link", name=name, exact=True))


async def sees(page: Page, name: str, state: str) -> None:
    await card(page, name).locator(".pill").filter(has_text=state).wait_for()


async def chooses(page: Page, name: str, item: str) -> None:
    await page.get_by_role("button", name=f"More for {name}").click()
    await page.get_by_role("menuitem", name=item).click()


async def test_a_whole_life_and_two_windows(hub: Installation, browser: Browser, tell: Tell) -> None:
    ann = hub.person()
    async with (
        BrowserUser.at(browser, hub, locale="en-GB") as user,
        BrowserUser.at(browser, hub, locale="en-GB") as there,
    ):
        page, other = await user.comes_in(ann), await there.comes_in(ann)
        desk = await creates(page, other, ann)
        await works_inside(page, desk)
        await stops_and_archives(page, other, tell)
        await looks_into_the_archive(page)
        await restores(page, desk)
        await deletes_and_thinks_better(page, other, desk)
        async with BrowserUser.at(browser, hub, locale="en-GB") as admins:
            await is_mended_by_an_admin(await admins.comes_in(hub.administrator), page, other, desk)
    ann.leaves()


async def creates(page: Page, other: Page, ann: Person) -> Workspace:
    await other.get_by_role("heading", name="Make your first workspace").wait_for()
    await page.get_by_role("button", name="New workspace").first.click()
    await page.get_by_label("Name").fill("shop")
    async with asyncio.TaskGroup() as watching:
        watching.create_task(sees(other, "shop", "Starting…"))
        watching.create_task(page.get_by_role("progressbar").wait_for())
        await page.get_by_role("button", name="Create and start").click()
        await page.get_by_role("heading", name="shop", level=1).wait_for()
    await page.locator(".pill", has_text="Running").wait_for()
    await page.get_by_text("Stops in").first.wait_for()
    await sees(other, "shop", "Running")
    shown = ann.http.get(f"/api/v1/workspaces/{page.url.rsplit('/', 1)[1]}").json()
    return Workspace(ann.http, ann.data, shown["id"], "shop", shown["url"])


async def works_inside(page: Page, desk: Workspace) -> None:
    """What is done there shows on the card, which says how long ago somebody was seen."""
    desk.furnish()
    await page.get_by_role("link", name="All workspaces").click()
    async with page.expect_popup() as opening:
        await page.get_by_role("button", name="Open shop").click()
    tab = await arrived(await opening.value)
    assert tab.page.url.startswith(desk.url)
    assert await tab.page.evaluate("window.opener") is None
    await tab.open_terminal()
    typed = time.time()
    await runs(tab, "echo $((6 * 7)) > 'read me.txt'")
    await until((desk.home / "read me.txt").exists, "the file")
    await tab.page.wait_for_timeout(REST_SECONDS * 1_000)  # what counted before may have hidden the typing for so long
    await tab.page.keyboard.press("Enter")
    await page.bring_to_front()
    await page.wait_for_function(SEEN_SINCE, arg=typed * 1_000)
    assert (await card(page, "shop").locator("time").inner_text()).startswith("used ")
    await tab.page.close()


async def stops_and_archives(page: Page, other: Page, tell: Tell) -> None:
    began = time.monotonic()
    await page.get_by_role("button", name="Stop shop").click()
    await card(other, "shop").locator(".pill", has_not_text="Running").wait_for()
    tell(f"a wish was on the other window after {(time.monotonic() - began) * 1000:.0f} ms, through the front door")
    for window in (page, other):
        await sees(window, "shop", "Asleep")
    await chooses(page, "shop", "Archive")
    for window in (page, other):
        await sees(window, "shop", "Archived")


async def looks_into_the_archive(page: Page) -> None:
    await page.get_by_role("link", name="shop", exact=True).click()
    await page.get_by_role("link", name="Restore points").click()
    await page.get_by_role("button", name="Browse the restore point").click()
    async with page.expect_download() as downloading:
        await page.get_by_role("link", name="Download read me.txt").click()
    download = await downloading.value
    assert (await download.path()).read_text() == "42\n"
    assert download.suggested_filename == "read me.txt"


async def restores(page: Page, desk: Workspace) -> None:
    await page.get_by_role("button", name="Start").click()
    await page.locator(".pill", has_text="Running").wait_for()
    assert (desk.home / "read me.txt").read_text() == "42\n"
    await page.get_by_role("link", name="All workspaces").click()


async def deletes_and_thinks_better(page: Page, other: Page, desk: Workspace) -> None:
    """It is paused, so that it does not end before the person has changed their mind."""
    with desk.paused():
        async with asyncio.TaskGroup() as watching:
            watching.create_task(other.get_by_text("asked “shop” to become: Deleted").wait_for())
            await chooses(page, "shop", "Delete")
        await page.get_by_role("button", name="Undo").click()
        await page.get_by_text("stays.").wait_for()
    for window in (page, other):
        await sees(window, "shop", "Running")


async def is_mended_by_an_admin(admin: Page, page: Page, other: Page, desk: Workspace) -> None:
    await desk.brought_to("STANDBY")
    desk.home.parent.rename(desk.data / "taken-away")
    await sees(other, "shop", "Needs attention")
    await page.get_by_role("link", name="shop", exact=True).click()
    await page.get_by_role("heading", name="The home volume vanished").wait_for()
    await admin.get_by_role("link", name="Admin").click()
    passed = admin.locator("figure.chart").filter(has_text="Requests at the front door")
    await passed.get_by_text("most").wait_for()  # all of this came through it
    await admin.get_by_role("link", name="Errors").first.click()
    shop = admin.get_by_role("link", name="shop", exact=True)
    trouble = admin.locator(".trouble-group", has=shop)  # another test's workspace may have one too
    await trouble.get_by_role("heading", name="The home volume vanished").wait_for()
    await trouble.get_by_role("button", name="Begin with an empty home").click()
    await admin.get_by_role("dialog").get_by_role("button", name="Begin with an empty home").click()
    await trouble.wait_for(state="detached")
    await sees(other, "shop", "Asleep")
    await page.locator(".trouble").wait_for(state="hidden")
