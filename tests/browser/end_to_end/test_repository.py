"""The repository of a workspace in VS Code: it is the folder that opens, a failure is told, ports are named."""

import asyncio
import json
import os
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from uuid import uuid4

import pytest
from playwright.async_api import Browser, Locator, Page

from tests.browser.end_to_end.browser_user import BrowserUser, arrived, runs, until
from tests.browser.end_to_end.installation import Installation, Person, Workspace
from tests.real_services import free_port

pytestmark = [pytest.mark.system, pytest.mark.timeout(600)]

ECHO = Path(__file__).with_name("echo.js")
NAMED = ("-c", "user.name=Ann", "-c", "user.email=ann@example.com")
INSIDE = "/home/coder/.repositories/shop"
DEVCONTAINER = {
    "image": "python:3",
    "forwardPorts": [4321],
    "portsAttributes": {"4321": {"label": "Web"}},
    "containerEnv": {"GREETING": "hello"},
    "postCreateCommand": "echo $GREETING > created",
}


@pytest.fixture
async def desk(hub: Installation, ann: Person) -> AsyncIterator[Workspace]:
    """A workspace that is created with a repository, which is in its own home: no network is needed."""
    template = f"shop-{uuid4().hex[:6]}"
    body = {"env": {"CODEHUB_GIT_URL": f"file://{INSIDE}"}}
    answer = hub.admin.put(f"/api/v1/admin/templates/{template}", json=body)
    assert answer.status_code in (200, 201), answer.text
    desk = await ann.workspace(f"desk {uuid4().hex[:6]}", template=template)
    yield desk
    await desk.brought_to("STANDBY")


def publish(desk: Workspace) -> None:
    """Makes the repository, owned as the home is: git trusts no other."""
    place = desk.home / ".repositories" / "shop"
    files = {"readme.md": "# Shop\n", ".devcontainer/devcontainer.json": json.dumps(DEVCONTAINER)}
    for name, text in files.items():
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_text(text)
    for words in (("init", "-q"), ("add", "-A"), ("commit", "-q", "-m", "first")):
        subprocess.run(["git", *NAMED, *words], cwd=place, check=True, env={"PATH": os.environ["PATH"]})
    owner = desk.home.stat()
    for path in (place.parent, place, *place.rglob("*")):
        os.chown(path, owner.st_uid, owner.st_gid)


def notification(page: Page, text: str) -> Locator:
    return page.locator(".notifications-toasts .notification-list-item", has_text=text)


async def shows_the_repository(page: Page) -> None:
    await page.locator(".explorer-folders-view .monaco-list-row", has_text="readme.md").wait_for()
    title = page.locator(".explorer-viewlet .pane-header .title").first
    assert (await title.inner_text()).lower() == "shop"


async def test_the_repository_is_the_folder_that_opens(desk: Workspace, user: BrowserUser) -> None:
    publish(desk)
    await desk.brought_to("RUNNING")
    created, site = desk.home / "shop" / "created", desk.of_port(4321)
    page = await user.goes_in(desk.url)
    await asyncio.gather(  # a notification goes after ten seconds
        notification(page, "devcontainer.json is honoured, except for: image").wait_for(),
        notification(page, f"Web (4321): {site}").wait_for(),
        shows_the_repository(page),
        until(lambda: created.exists() and created.read_text() == "hello\n", "the command of devcontainer.json"),
    )


async def test_a_clone_that_failed_is_told_and_works_after_it_was_mended(desk: Workspace, user: BrowserUser) -> None:
    await desk.brought_to("RUNNING")
    page, _ = await user.goes(desk.url)
    failed = notification(page, f"The clone failed: There is no repository at file://{INSIDE}")
    await failed.wait_for()
    await failed.get_by_role("button", name="Show Log").click()
    await page.locator(".monaco-editor .view-line", has_text="does not appear to be a git repository").first.wait_for()
    await asyncio.to_thread(publish, desk)
    await failed.get_by_role("button", name="Try Again").click()
    await shows_the_repository(page)
    await until((desk.home / "shop" / ".git").is_dir, "all of the clone")


async def test_a_failure_is_told_in_korean(desk: Workspace, hub: Installation, ann: Person, user: BrowserUser) -> None:
    browser = user.context.browser
    assert browser is not None
    await desk.brought_to("RUNNING")
    async with BrowserUser.at(browser, hub, locale="ko-KR") as korean:
        await korean.signs_in(ann)
        page, _ = await korean.goes(desk.url)
        failed = notification(page, f"복제하지 못했습니다: file://{INSIDE}에 저장소가 없거나 비공개입니다.")
        await failed.wait_for()
        await failed.get_by_role("button", name="다시 시도").wait_for()


@pytest.mark.parametrize("mode", ["subdomain", "path"])
async def test_a_port_that_starts_to_listen_is_told_and_opened_at_its_own_address(
    mode: str, desk: Workspace, user: BrowserUser
) -> None:
    publish(desk)
    port = free_port()
    (desk.home / "echo.js").write_text(ECHO.read_text())
    await desk.brought_to("RUNNING")
    page = await user.goes_in(desk.url if mode == "subdomain" else desk.by_path)
    # Until the editor knows what is open already, and the setup has changed the variables of terminals.
    _, tab, _ = await asyncio.gather(
        notification(page, "Ports of this repository").wait_for(), arrived(page), shows_the_repository(page)
    )
    await tab.open_terminal()
    await runs(tab, f"$NODE_EXEC_PATH ../echo.js {port}")
    await tab.reads("it listens")
    address = f": {desk.of_port(port)}" if mode == "subdomain" else ""
    told = notification(tab.page, f"Something listens on port {port}{address}")
    await told.wait_for()
    if mode == "path":  # there the editor does not know the address of a port
        assert await told.get_by_role("button", name="Open").count() == 0
        return
    async with user.context.expect_page() as opening:
        await told.get_by_role("button", name="Open").click()
    app = await opening.value
    await app.locator("#said", has_text="hello from the page").wait_for()
    assert app.url == desk.of_port(port)


async def test_a_link_with_a_repository_leads_through_the_sign_in(
    hub: Installation, ann: Person, browser: Browser
) -> None:
    address = f"{hub.url}/new?git=https://git.example.com/team/shop.git&ref=release/1.2"
    before = len(ann.http.get("/api/v1/workspaces").json()["items"])
    async with BrowserUser.at(browser, hub) as stranger:
        page = await stranger.context.new_page()
        await page.goto(address)
        await page.wait_for_url("**/signin?*")
        await stranger.fills_in(page, ann)
        await page.wait_for_url(address)
        await page.get_by_role("button", name="Create and start").wait_for()
        assert await page.get_by_label("Branch or tag").input_value() == "release/1.2"
    assert len(ann.http.get("/api/v1/workspaces").json()["items"]) == before
