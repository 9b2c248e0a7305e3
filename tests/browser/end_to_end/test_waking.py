"""What wakes a workspace that sleeps, and what does not: a person who means it, once; a browser by itself, never."""

import asyncio
from contextlib import suppress
from functools import partial

import pytest
from playwright.async_api import Page

from tests.browser.end_to_end.browser_user import DOCUMENT, BrowserUser, arrived, until
from tests.browser.end_to_end.installation import TIMEOUT_SECONDS, Person, Workspace
from tests.browser.end_to_end.other_site import link, other_site

pytestmark = [pytest.mark.system, pytest.mark.timeout(600)]

TABS, WHOLE = 20, 2


async def test_twenty_tabs_are_one_start(ann: Person, user: BrowserUser) -> None:
    desk = await ann.workspace("twenty")
    pages = [await user.context.new_page() for _ in range(TABS)]
    for page in pages[WHOLE:]:
        await page.route("**/static/**", lambda route: route.abort())
    addresses = [f"{desk.url}?folder=/home/coder&tab={number}" for number in range(TABS)]
    went = zip(pages, addresses, strict=True)
    await asyncio.gather(*(page.goto(address, wait_until="commit") for page, address in went))
    for page in pages:
        await page.wait_for_selector(DOCUMENT, state="attached")
    assert [page.url for page in pages] == addresses
    for page in pages[:WHOLE]:
        await arrived(page)
    assert desk.starts() == 1
    await desk.brought_to("STANDBY")


BY_ITSELF = """address => {
    const hint = document.createElement("link");
    hint.rel = "prefetch";
    hint.href = address;
    document.head.append(hint);
    const picture = new Image();
    picture.src = address + "&picture";
    const frame = document.createElement("iframe");
    frame.src = address + "&frame";
    document.body.append(frame);
    fetch(address + "&fetch", {mode: "no-cors", credentials: "include"}).catch(() => {});
    const wake = new URL("/_codehub/wake", address);
    fetch(wake, {method: "POST", mode: "no-cors", credentials: "include", body: "{}"}).catch(() => {});
}"""
"""Whatever a page may make a browser ask for, with nobody wanting to go there."""


async def test_what_nobody_meant_wakes_nothing(ann: Person, user: BrowserUser) -> None:
    desk = await ann.workspace("quiet", "RUNNING")
    await user.context.route("**/_codehub/editor.js", lambda route: route.abort())  # an editor that does not leave
    tab = await user.opens(desk.url)
    await tab.open_terminal()
    await desk.brought_to("STANDBY")

    opened = len(user.sockets[tab.page])
    await until(lambda: len(user.sockets[tab.page]) >= opened + 2, "a sleeping tab that tries to come back")
    assert desk.is_asleep()

    await asks_by_itself(tab.page, desk)  # as the workspace's own page, with its cookies
    assert desk.is_asleep()
    async with other_site("") as elsewhere:
        page, _ = await user.goes(elsewhere)
        await asks_by_itself(page, desk)
    assert desk.is_asleep()
    assert desk.starts() == 1


async def asks_by_itself(page: Page, desk: Workspace) -> None:
    """Until each of them was answered, or given up by the browser. What a page asked just as it was loaded anew, as a
    workbench does by itself, the browser forgets without a word: then it is asked again, at other addresses, for a
    picture that is on its way is not asked for twice."""
    over: set[str] = set()
    page.on("response", lambda response: over.add(response.url))
    page.on("requestfailed", lambda request: over.add(request.url))
    wanted: set[str] = set()
    for number, seconds in enumerate((20.0, 20.0, TIMEOUT_SECONDS)):
        address = f"{desk.url}?folder=/home/coder&try={number}"
        asked = (f"{address}&{what}" for what in ("picture", "frame", "fetch"))
        wanted = {address, *asked, f"{desk.url}_codehub/wake"}
        await page.evaluate(BY_ITSELF, address)
        with suppress(AssertionError):
            await until(partial(wanted.issubset, over), "an answer to each", seconds)
            return
    raise AssertionError(f"no answer to {wanted - over}")


async def test_the_dashboard_s_ticket_wakes_at_once(ann: Person, user: BrowserUser) -> None:
    desk = await ann.workspace("ticketed")
    platform = user.context.pages[0]
    await platform.evaluate("url => location.assign(url)", desk.ticket(path="/?folder=/home/coder"))
    await arrived(platform)
    assert platform.url == f"{desk.url}?folder=/home/coder"
    assert desk.starts() == 1
    await desk.brought_to("STANDBY")


@pytest.mark.parametrize("mode", ["subdomain", "path"])
async def test_a_link_from_elsewhere_needs_one_click(mode: str, ann: Person, user: BrowserUser) -> None:
    desk = await ann.workspace(f"linked-{mode}")
    address = f"{desk.url if mode == 'subdomain' else desk.by_path}?folder=/home/coder"
    async with other_site(link(address)) as elsewhere:
        page, _ = await user.goes(elsewhere)
        await page.click("a")
        start = page.locator("[data-action=wake]")
        await start.wait_for()
        assert await page.inner_text("#title") == f"{desk.name} is asleep"
        assert await start.inner_text() == "Start"
        assert desk.is_asleep()
        assert desk.starts() == 0
        await start.click()
        await page.wait_for_selector(DOCUMENT, state="attached")
    # By path it would be within the platform's origin: a link from elsewhere leads to its own host instead.
    assert page.url == f"{desk.url}?folder=/home/coder"
    assert desk.starts() == 1
    await desk.brought_to("STANDBY")
