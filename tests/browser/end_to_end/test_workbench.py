"""The IDE through the front door, on a host of its own and below a path of ours: each part of it that has its own way
in is used once, by hand, in a real browser.
"""

import asyncio
from pathlib import Path

import pytest
from playwright.async_api import Page

from tests.browser.end_to_end.browser_user import BrowserUser, runs, until
from tests.browser.end_to_end.installation import Installation, Person, Workspace
from tests.proxy.recording.workbench import Tab
from tests.real_services import free_port

pytestmark = [pytest.mark.system, pytest.mark.timeout(600)]

ECHO = Path(__file__).with_name("echo.js")


@pytest.fixture(scope="module")
def desk(ann: Person) -> Workspace:
    desk = asyncio.run(ann.workspace("desk", "RUNNING"))
    (desk.home / "readme.md").write_text("# A heading of mine\n\nsome *words*\n")
    (desk.home / "echo.js").write_text(ECHO.read_text())
    return desk


@pytest.mark.parametrize("mode", ["subdomain", "path"])
async def test_the_workbench_works(mode: str, desk: Workspace, user: BrowserUser) -> None:
    tab = await user.opens(desk.url if mode == "subdomain" else desk.by_path)
    await writes_from_a_terminal(tab, desk, f"by-{mode}")
    await edits_and_saves(tab, desk, f"{mode} ")
    await searches(tab)
    await previews(tab)


async def writes_from_a_terminal(tab: Tab, desk: Workspace, name: str) -> None:
    await tab.open_terminal()
    await runs(tab, f"echo $((6 * 7)) > {name}")
    await until(lambda: (desk.home / name).exists() and (desk.home / name).read_text() == "42\n", "the file")


async def edits_and_saves(tab: Tab, desk: Workspace, word: str) -> None:
    before = (desk.home / "notes.txt").read_text()
    await tab.open_file("notes.txt")
    await tab.page.keyboard.press("Control+Home")
    await tab.page.keyboard.type(word)
    await tab.page.keyboard.press("Control+s")
    await until(lambda: (desk.home / "notes.txt").read_text() == word + before, "the saved text")


async def searches(tab: Tab) -> None:
    await tab.search("margin")
    await tab.page.wait_for_selector(".search-view .monaco-list-row:has-text('other.css')")


async def previews(tab: Tab) -> None:
    """An extension's webview: a frame in a frame, filled by a service worker."""
    await tab.open_file("readme.md")
    await tab.page.keyboard.press("Control+Shift+v")
    inner = tab.page.frame_locator("iframe.webview").frame_locator("iframe#active-frame")
    await inner.locator("h1", has_text="A heading of mine").wait_for()
    assert await inner.locator("em").inner_text() == "words"


async def test_a_dev_server_of_the_workspace_and_its_socket(
    desk: Workspace, user: BrowserUser, hub: Installation
) -> None:
    port = free_port()
    site = desk.of_port(port)
    app, answer = await user.goes(site)
    assert answer.status == 502
    assert await app.inner_text("#title") == f"Nothing listens on port {port}"

    tab = await user.opens(desk.url)
    await tab.open_terminal()
    await runs(tab, f"$NODE_EXEC_PATH echo.js {port}")
    await tab.reads("it listens")
    await app.locator("#said", has_text="hello from the page").wait_for()  # it has looked again by itself

    await user.context.clear_cookies(domain=site.split("/")[2].partition(":")[0])
    passed = hops(app)
    deep = f"{site}deep/link?a=1&b=2"
    await app.goto(deep)
    await app.locator("#said", has_text="hello from the page").wait_for()
    assert app.url == deep
    assert [hop.partition("?")[0] for hop in passed] == [
        f"{site}deep/link",
        f"{hub.url}/open/{desk.slug}",
        f"{site}_codehub/enter",
        f"{site}_codehub/arrived",
        f"{site}deep/link",
    ]
    passed.clear()
    await app.reload()
    await app.locator("#said", has_text="hello from the page").wait_for()
    assert passed == [deep]  # once handed over is enough


def hops(page: Page) -> list[str]:
    """Every address that the page itself is sent to from now on."""
    seen: list[str] = []
    page.on("request", lambda request: seen.append(request.url) if request.is_navigation_request() else None)
    return seen
