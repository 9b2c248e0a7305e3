"""From our own pages into the IDE: out of the archive, past a limit, and what an error tells."""

import pytest
from playwright.async_api import Browser

from tests.browser.end_to_end.browser_user import BrowserUser, arrived, until
from tests.browser.end_to_end.installation import Installation, Person

pytestmark = [pytest.mark.system, pytest.mark.timeout(600)]


async def test_out_of_the_archive(ann: Person, user: BrowserUser) -> None:
    desk = await ann.workspace("kept")
    (desk.home / "work.txt").write_text("what I did\n")
    await desk.brought_to("ARCHIVED")
    page, answer = await user.goes(f"{desk.url}?folder=/home/coder")
    assert answer.status == 502
    assert await page.inner_text("#title") == "kept is in the archive"
    assert (await desk.becomes("ARCHIVED"))["desired_state"] == "ARCHIVED"
    restore = page.locator("[data-action=wake]")
    assert await restore.inner_text() == "Restore and start"
    await restore.click()
    await (await arrived(page)).open_file("work.txt")
    assert page.url == f"{desk.url}?folder=/home/coder"
    assert (desk.home / "work.txt").read_text() == "what I did\n"
    await desk.brought_to("STANDBY")


async def test_an_error_is_explained_and_its_end_is_seen(ann: Person, user: BrowserUser) -> None:
    desk = await ann.workspace("broken")
    volume = desk.home.parent
    volume.rename(desk.data / "lost")
    await desk.shows(lambda ws: ws["phase"] == "ERROR")
    page, answer = await user.goes(desk.url)
    assert answer.status == 502
    assert await page.inner_text("#title") == "broken has a problem"
    assert await page.inner_text("#text") == "Its home directory has vanished, and CodeHub did not remove it."
    assert await page.get_attribute("[data-action=dashboard]", "href") == f"{user.hub.url}/workspaces/{desk.id}"
    assert await page.locator("[data-action=wake]").count() == 0

    said = desk.http.post(f"{desk.path}/recover", json={"action": "empty_home"})
    assert said.status_code == 202, said.text
    await page.locator("[data-action=wake]").click()  # the page has followed
    await arrived(page)
    await desk.brought_to("STANDBY")


async def test_one_makes_room_for_another(hub: Installation, browser: Browser) -> None:
    bob = hub.person(max_running=1)
    first = await bob.workspace("first", "RUNNING")
    second = await bob.workspace("second")
    async with BrowserUser.at(browser, hub) as user:
        await user.signs_in(bob)
        page = await user.context.new_page()
        told: list[str] = []
        page.on("response", lambda answer: told.append(answer.url) if "/_codehub/state" in answer.url else None)
        await page.goto(second.url)
        instead = page.locator(f"[data-action='instead:{first.id}']")
        await instead.wait_for()
        assert await page.inner_text("#title") == "No room to start second"
        assert second.is_asleep()
        await until(lambda: len(told) >= 2, "the state, as it is, and that nothing changed")
        assert await page.inner_text("#title") == "No room to start second"
        await instead.click()
        await arrived(page)
    await first.becomes("STANDBY")
    assert (first.starts(), second.starts()) == (1, 1)
    bob.leaves()
