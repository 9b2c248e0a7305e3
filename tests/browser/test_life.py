"""A workspace's whole life, as somebody sees it who has never heard of phases."""

import pytest
from playwright.async_api import expect

from tests.browser.hub import Hub, Visitor

pytestmark = [pytest.mark.system, pytest.mark.timeout(240)]


async def test_from_nothing_to_deleted_and_back(hub: Hub, ann: Visitor) -> None:
    page = ann.page
    await ann.goes("/")
    await page.get_by_role("heading", name="Make your first workspace").wait_for()
    await page.get_by_role("button", name="New workspace").first.click()
    with hub.gate("no-start"):
        await page.get_by_label("Name").fill("shop")
        await page.get_by_role("button", name="Create and start").click()
        await page.get_by_role("heading", name="shop", level=1).wait_for()
        await page.locator(".pill", has_text="Starting…").wait_for()
        await page.get_by_role("progressbar").wait_for()
    await page.locator(".pill", has_text="Running").wait_for()
    await page.get_by_text("Stops in").first.wait_for()
    workspace_id = page.url.rsplit("/", 1)[1]
    home = await hub.home(workspace_id)
    (home / "project").mkdir()
    (home / "project" / "read me.txt").write_text("hello\n")

    await page.get_by_role("link", name="All workspaces").click()
    await ann.sees("shop", "Running")
    await page.get_by_role("button", name="Stop shop").click()
    await ann.sees("shop", "Asleep")
    await page.get_by_role("button", name="More for shop").click()
    await page.get_by_role("menuitem", name="Archive").click()
    await ann.sees("shop", "Archived")

    await page.get_by_role("link", name="shop", exact=True).click()
    await page.get_by_role("link", name="Restore points").click()
    await page.get_by_role("button", name="Browse the restore point").click()
    await page.get_by_role("button", name="project").click()
    async with page.expect_download() as downloading:
        await page.get_by_role("link", name="Download read me.txt").click()
    download = await downloading.value
    assert (await download.path()).read_text() == "hello\n"
    assert download.suggested_filename == "read me.txt"

    await page.get_by_role("button", name="Start").click()
    await page.locator(".pill", has_text="Running").wait_for()
    assert (await hub.home(workspace_id) / "project" / "read me.txt").read_text() == "hello\n"

    await page.get_by_role("link", name="All workspaces").click()
    await page.get_by_role("button", name="More for shop").click()
    await page.get_by_role("menuitem", name="Delete").click()
    await page.get_by_role("button", name="Undo").click()
    await page.get_by_text("stays.").wait_for()
    await expect(ann.card("shop")).to_be_visible()


async def test_deleted_for_good_measure_and_brought_back(hub: Hub, ann: Visitor) -> None:
    await ann.create("shop", desired_state="STANDBY")
    await ann.goes("/")
    await ann.sees("shop", "Asleep")
    page = ann.page
    await page.get_by_role("button", name="More for shop").click()
    await page.get_by_role("menuitem", name="Delete").click()
    await ann.card("shop").wait_for(state="detached")
    await page.get_by_role("button", name="Deleted").click()
    await ann.card("shop").get_by_role("button", name="Bring back shop").click()
    await page.get_by_role("button", name="All", exact=False).first.click()
    await ann.sees("shop", "Archived")
