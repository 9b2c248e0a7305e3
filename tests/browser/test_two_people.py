"""Several people and windows at once: what one does, the other sees; what is not one's own, nobody sees."""

import asyncio
import time

import pytest
from playwright.async_api import expect

from tests.browser.deployment import DashboardUser, Deployment
from tests.conftest import Tell

pytestmark = [pytest.mark.system, pytest.mark.timeout(240)]


async def test_two_windows_see_each_other_s_changes(deployment: Deployment, ann: DashboardUser, tell: Tell) -> None:
    other = await deployment.user("ann")
    stranger = await deployment.user("bob")
    for user in (ann, other, stranger):
        await user.goes("/")
        await user.page.get_by_role("heading", name="Make your first workspace").wait_for()  # its stream has begun
    async with asyncio.TaskGroup() as watching:
        watching.create_task(other.page.get_by_text("was created elsewhere").wait_for())
        made = await ann.create("shop", desired_state="STANDBY")
    await other.sees("shop", "Asleep")
    await expect(stranger.page.locator("article.card")).to_have_count(0)

    await ann.sees("shop", "Asleep")
    began = time.monotonic()
    await ann.http.patch(f"/api/v1/workspaces/{made['id']}", json={"name": "store"})
    await other.card("store").wait_for()
    tell(f"a change was on the other's page after {(time.monotonic() - began) * 1000:.0f} ms")
    await ann.page.get_by_role("button", name="More for store").click()
    async with asyncio.TaskGroup() as watching:
        watching.create_task(other.page.get_by_text("ann asked “store” to become: Running").wait_for())
        await ann.page.get_by_role("menuitem", name="Start").click()
    await other.sees("store", "Running")
    await expect(ann.page.get_by_text("asked “store” to become")).to_have_count(0)
    await stranger.goes("/admin")
    await stranger.page.get_by_text("Only administrators see this.").wait_for()


async def test_no_free_slot_offers_to_stop_another(deployment: Deployment, ann: DashboardUser) -> None:
    for name in ("one", "two", "three"):
        await ann.create(name)
    await ann.create("four", desired_state="STANDBY")
    await ann.goes("/")
    for name in ("one", "two", "three"):
        await ann.sees(name, "Running")
    await ann.sees("four", "Asleep")
    await ann.page.get_by_role("button", name="More for four").click()
    await ann.page.get_by_role("menuitem", name="Start").click()
    row = ann.page.get_by_role("dialog").locator("li", has_text="two")
    await row.get_by_role("button", name="Stop it and start mine").click()
    await ann.sees("two", "Asleep")
    await ann.sees("four", "Running")
    ann.expect_complaints("429")


async def test_deleted_for_good_measure_and_brought_back(deployment: Deployment, ann: DashboardUser) -> None:
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
