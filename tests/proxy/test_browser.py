"""The pages in a real browser, before a real proxy: they stay true, act once, and are calm when things fail."""

import json
from collections.abc import AsyncIterator
from dataclasses import replace
from functools import partial
from uuid import UUID

import pytest
from playwright.async_api import Browser, Page, expect

from codehub.domain.access import access_to
from codehub.domain.addresses import local_path, platform_path
from codehub.domain.workspace import Desired, Operation, Phase, Progress, Workspace
from codehub.proxy.access.verdicts import Respond
from codehub.proxy.http.responses import problem
from codehub.proxy.pages.content import (
    PageModel,
    limit_page,
    making_room_page,
    no_listener_page,
    not_found_page,
    workspace_page,
)
from codehub.proxy.pages.texts import Language
from tests import rows
from tests.chromium import chromium
from tests.eventually import eventually
from tests.proxy.browser import Tab, tab
from tests.proxy.page_server import RUNNING, PageServer, Tell

pytestmark = pytest.mark.system

NASTY = "<img src=x onerror=alert(1)>"
ASLEEP = rows.with_home(desired_state=Desired.STANDBY)
WANTED = rows.with_home(desired_state=Desired.RUNNING)
STARTING = rows.busy(WANTED, Operation.STARTING)
RESTORING = rows.busy(rows.archived(desired_state=Desired.RUNNING), Operation.RESTORING)
OTHER = rows.workspace(id=UUID(int=1), name="other", phase=Phase.RUNNING, desired_state=Desired.RUNNING)
DEEP = "/?folder=/home/coder/project&x=1#L10"


@pytest.fixture
async def browser() -> AsyncIterator[Browser]:
    async with chromium() as browser:
        yield browser


@pytest.fixture
async def page_server() -> AsyncIterator[PageServer]:
    async with PageServer() as page_server:
        yield page_server


@pytest.fixture
async def here(browser: Browser, page_server: PageServer) -> AsyncIterator[Tab]:
    async with tab(browser, base_url=page_server.url) as here:
        yield here


def of(row: Workspace, *, wakes: bool = False) -> Tell:
    return lambda language: workspace_page(row, access_to(row), language, wakes=wakes, public_url="")


def started(page_server: PageServer, _instead: str | None = None) -> tuple[int, Tell]:
    page_server.show(of(STARTING))
    return 202, of(STARTING)


async def stop_clock(page: Page) -> None:
    """From now on, and in each page that is opened, time passes by `clock.run_for` only."""
    await page.clock.install(time=0)
    await page.clock.pause_at(3_600)


async def title(page: Page, text: str) -> None:
    await expect(page.locator("h1")).to_have_text(text)


async def test_waiting_is_live_and_ends_at_the_deep_link(page_server: PageServer, here: Tab) -> None:
    page = here.page
    page_server.show(of(RESTORING))
    await page.goto(DEEP)
    await expect(page.locator("#text")).to_have_text("Your files are being brought back from the archive.")
    await expect(page.get_by_role("progressbar")).to_be_hidden()
    for done, fraction in ((1_200_000_000, "0.5"), (1_800_000_000, "0.75")):
        page_server.show(of(replace(RESTORING, op_progress=Progress(done, 5, 2_400_000_000))))
        await expect(page.locator("#bar p")).to_have_text(f"{done / 1e9:.1f} of 2.4 GB")
        await expect(page.get_by_role("progressbar")).to_have_js_property("value", float(fraction))
    page_server.show(of(STARTING))
    await expect(page.get_by_role("progressbar")).to_be_hidden()
    await expect(page.locator("#steps li[aria-current=step]")).to_have_text("Start")
    await expect(page.get_by_role("status")).to_contain_text("It is starting now.")
    page_server.show(None)
    await title(page, "The IDE")
    assert page.url == page_server.url + DEEP
    assert page_server.woken == []


async def test_sleeper_is_started_by_a_click(page_server: PageServer, here: Tab) -> None:
    page = here.page
    page_server.wake = partial(started, page_server)
    page_server.show(of(ASLEEP))
    await page.goto(DEEP)
    await page_server.polled()
    assert page_server.woken == [], "GET wakes nobody, and neither does looking at it"
    await page.get_by_role("button", name="Start").focus()
    await page.keyboard.press("Enter")
    await title(page, "Starting demo")
    await expect(page.locator("h1")).to_be_focused()
    assert await page.title() == "Starting demo · CodeHub"
    assert page_server.woken == [None]
    page_server.show(None)
    await title(page, "The IDE")
    assert page.url == page_server.url + DEEP


async def test_page_wakes_by_itself_once(page_server: PageServer, here: Tab) -> None:
    page = here.page
    page_server.wake = partial(started, page_server)
    page_server.show(of(ASLEEP, wakes=True))
    await page.goto("/")
    await title(page, "Starting demo")
    await page_server.polled()
    page_server.show(of(ASLEEP, wakes=True))  # somebody stopped it: that is no reason to wake it again
    await title(page, "Waking demo")
    page_server.show(of(ASLEEP))
    await title(page, "demo is asleep")
    assert page_server.woken == [None]


async def test_page_that_nobody_sees_wakes_nobody(page_server: PageServer, here: Tab) -> None:
    page = here.page
    await page.add_init_script("""
        let hidden = true;
        Object.defineProperty(document, "hidden", { get: () => hidden });
        window.appear = () => { hidden = false; document.dispatchEvent(new Event("visibilitychange")); };
    """)
    page_server.wake = partial(started, page_server)
    page_server.show(of(ASLEEP, wakes=True))
    await page.goto("/")
    await page.wait_for_load_state("networkidle")
    assert page_server.woken == []
    await page.evaluate("appear()")
    await title(page, "Starting demo")
    assert page_server.woken == [None]


async def test_prerendered_page_wakes_nobody(page_server: PageServer, here: Tab) -> None:
    page = here.page
    await page.add_init_script("""
        let prerendering = true;
        Object.defineProperty(document, "prerendering", { get: () => prerendering });
        window.appear = () => { prerendering = false; document.dispatchEvent(new Event("prerenderingchange")); };
    """)
    page_server.wake = partial(started, page_server)
    page_server.show(of(ASLEEP, wakes=True))
    await page.goto("/")
    await page.wait_for_load_state("networkidle")
    assert (page_server.woken, page_server.polls) == ([], 0)
    await page.evaluate("appear()")
    await title(page, "Starting demo")
    assert page_server.woken == [None]


def other_news(language: Language) -> PageModel:
    return replace(of(ASLEEP)(language), detail="Other news.")


@pytest.mark.parametrize("first", ["limit", "making_room"])
async def test_another_is_stopped_to_make_room(page_server: PageServer, here: Tab, first: str) -> None:
    page = here.page
    full = partial(limit_page, WANTED, [OTHER])
    leaving = partial(limit_page, WANTED, [replace(OTHER, desired_state=Desired.STANDBY)])

    def wake(instead: str | None) -> tuple[int, Tell]:
        if instead:
            return (429, full) if first == "limit" else (202, partial(making_room_page, WANTED, OTHER))
        if len(page_server.woken) <= 2:
            return 429, full
        return (429, leaving) if len(page_server.woken) < 6 else started(page_server)

    page_server.wake = wake
    page_server.show(of(ASLEEP))
    await page.goto("/")
    await page_server.polled()
    asked = page_server.polls
    await page.get_by_role("button", name="Start").click()
    await title(page, "No room to start demo")
    await eventually(lambda: page_server.polls > asked)
    page_server.show(other_news)
    await expect(page.locator("#detail")).to_have_text("Other news.")
    await page.get_by_role("button", name="Start").click()
    await page.get_by_role("button", name="Stop other and start this one").click()
    await expect(page.locator("h1")).to_contain_text("Making room")
    await title(page, "Starting demo")
    assert page_server.woken == [None, None, str(OTHER.id), None, None, None]


async def test_news_that_come_with_a_refusal_are_shown(page_server: PageServer, here: Tab) -> None:
    """News that come after the request was refused and before the page asks for news again."""
    page = here.page

    def refuse(_instead: str | None) -> tuple[int, Tell]:
        page_server.show(other_news)
        return 429, partial(limit_page, WANTED, [OTHER])

    page_server.wake = refuse
    page_server.show(of(ASLEEP))
    await page.goto("/")
    await page.get_by_role("button", name="Start").click()
    await expect(page.locator("#detail")).to_have_text("Other news.")
    assert page_server.woken == [None]


async def test_why_a_page_could_not_wake_by_itself_stays_shown(page_server: PageServer, here: Tab) -> None:
    """Such a page was never told the workspace's state: the state that it is told first is no news."""
    page = here.page

    def refuse(_instead: str | None) -> tuple[int, Tell]:
        page_server.show(of(ASLEEP))
        return 429, partial(limit_page, WANTED, [OTHER])

    page_server.wake = refuse
    page_server.show(of(ASLEEP, wakes=True))
    await page.goto("/")
    await eventually(lambda: page_server.polls == 2)  # the first was answered
    await title(page, "No room to start demo")


async def test_room_that_others_took_is_told(page_server: PageServer, here: Tab) -> None:
    page = here.page
    page_server.wake = lambda instead: (202, partial(making_room_page, WANTED, OTHER)) if instead else (429, full)
    full: Tell = partial(limit_page, WANTED, [])
    page_server.show(partial(limit_page, WANTED, [OTHER]))
    await page.goto("/")
    await page.get_by_role("button", name="Stop other and start this one").click()
    await expect(page.locator("#text")).to_have_text(full(Language.ENGLISH).text)
    assert 3 < len(page_server.woken) < 8


async def test_lost_connection_is_said_and_found_again(page_server: PageServer, here: Tab) -> None:
    page = here.page
    page_server.show(of(replace(RESTORING, op_progress=Progress(1, 1, 2))))
    await page.goto("/")
    await expect(page.get_by_role("progressbar")).to_be_visible()
    await page_server.go_away()
    await expect(page.get_by_role("alert")).to_have_text("Connection lost. Trying again …")
    await expect(page.get_by_role("progressbar")).to_be_hidden()
    page_server.show(of(STARTING))
    await page_server.come_back()
    await expect(page.get_by_role("alert")).to_be_hidden()
    await expect(page.locator("#text")).to_have_text("Your files are in place. It is starting now.")


async def test_a_start_survives_a_lost_connection(page_server: PageServer, here: Tab) -> None:
    page = here.page
    page_server.wake = partial(started, page_server)
    page_server.show(of(ASLEEP))
    await page.goto("/")
    await page_server.go_away()
    await page.get_by_role("button", name="Start").click()
    await expect(page.get_by_role("alert")).to_be_visible()
    page_server.show(of(STARTING))
    await page_server.come_back()
    await title(page, "Starting demo")
    assert page_server.woken == [None]


async def test_what_does_not_answer_is_tried_again_without_a_reload(page_server: PageServer, here: Tab) -> None:
    page = here.page
    tell: Tell = partial(no_listener_page, 3000, "demo")
    page_server.show(tell)
    await page.goto("/app?x=1")
    await page.evaluate("window.stayed = true")
    await eventually(lambda: page_server.asked_for(b"HEAD", b"/app?x=1") >= 2)
    assert await page.evaluate("window.stayed")
    assert page_server.polls == 0
    page_server.show(None)
    await title(page, "The IDE")
    assert page.url == f"{page_server.url}/app?x=1"


async def test_a_proxy_that_says_running_and_opens_nothing_makes_no_storm(page_server: PageServer, here: Tab) -> None:
    page = here.page
    page_server.show(of(STARTING))
    await stop_clock(page)
    await page.goto("/")
    await page_server.polled()
    recently = 'sessionStorage.setItem("codehub.reloads", JSON.stringify(Array(9).fill(Date.now() + 1000)))'
    await page.evaluate(recently)
    page_server.show(lambda _: RUNNING)
    await title(page, "demo is running")
    await page.clock.run_for(14_000)  # it is slowed down to one in 15 seconds
    await page.wait_for_load_state("networkidle")
    assert page_server.asked_for(b"GET", b"/") == 1
    await page.evaluate('sessionStorage.removeItem("codehub.reloads")')
    await page.reload()
    await page.clock.resume()
    await eventually(lambda: page_server.asked_for(b"GET", b"/") >= 4)
    page_server.show(None)
    await title(page, "The IDE")


async def test_a_name_is_text(page_server: PageServer, here: Tab) -> None:
    page = here.page
    page.on("dialog", lambda dialog: here.complaints.append(dialog.message))
    page_server.show(of(replace(ASLEEP, name=NASTY)))
    await page.goto("/")
    await title(page, f"{NASTY} is asleep")
    page_server.show(partial(limit_page, replace(WANTED, name=NASTY), [replace(OTHER, name=NASTY)]))
    await expect(page.get_by_role("button", name=f"Stop {NASTY} and start this one")).to_be_visible()
    page_server.show(of(rows.broken(replace(ASLEEP, name=NASTY), error_info=rows.error_info(message=NASTY))))
    await expect(page.locator("blockquote")).to_have_text(NASTY)
    assert await page.locator("main img").count() == 0


async def test_page_speaks_the_browser_s_language(page_server: PageServer, browser: Browser) -> None:
    page_server.show(of(ASLEEP))
    async with tab(browser, base_url=page_server.url, locale="ko-KR") as here:
        await here.page.goto("/")
        await title(here.page, "demo 워크스페이스가 쉬고 있습니다")
        await expect(here.page.get_by_role("button", name="시작")).to_be_visible()
        page_server.show(of(STARTING))
        await title(here.page, "demo 워크스페이스를 시작하는 중입니다")


async def test_settled_page_looks_again_when_somebody_returns_to_it(page_server: PageServer, here: Tab) -> None:
    page = here.page
    page_server.show(not_found_page)
    await page.goto("/")
    await page_server.polled()
    page_server.tell = of(STARTING)  # without news of it
    await page.evaluate('document.dispatchEvent(new Event("visibilitychange"))')
    await title(page, "Starting demo")


# ── signing in ───────────────────────────────────────────────────────────────────────────────────────────────────────


async def fill(page: Page) -> None:
    await page.get_by_label("Username").fill("ann")
    await page.get_by_label("Password", exact=True).fill("correct horse")


async def test_sign_in_goes_where_one_wanted_to_go(page_server: PageServer, here: Tab) -> None:
    page = here.page
    bodies: list[dict[str, str]] = []

    def sign_in(body: dict[str, str]) -> Respond:
        bodies.append(body)
        return Respond(201, ((b"Content-Type", b"application/json"),), b"{}")

    page_server.sign_in = sign_in
    await page.goto("/signin?next=%2Fworkspaces%2F1%3Ftab%3Devents")
    await expect(page.get_by_label("Username")).to_be_focused()
    await fill(page)
    await page.keyboard.press("Enter")
    await title(page, "The IDE")
    assert page.url == f"{page_server.url}/workspaces/1?tab=events"
    assert bodies == [{"username": "ann", "password": "correct horse"}]


async def test_sign_in_stays_on_this_site(page_server: PageServer, here: Tab) -> None:
    page = here.page
    page_server.sign_in = lambda _: Respond(201, (), b"{}")
    page_server.provider = "Example <b>"
    for bad in (
        "https://evil.example/",
        "//evil.example",
        "/%5Cevil.example",
        "javascript:alert(1)",
        "/\t/evil.example",
    ):
        await page.goto(f"/signin?next={bad.replace('%', '%25')}")
        assert await page.get_by_role("link", name="Sign in with Example <b>").get_attribute("href") == (
            "/api/v1/session/oidc?next=%2F"
        )
        await fill(page)
        await page.get_by_role("button", name="Sign in", exact=True).click()
        await title(page, "The IDE")
        assert page.url == f"{page_server.url}/"


async def test_failed_sign_in_is_explained(page_server: PageServer, here: Tab) -> None:
    page = here.page
    await stop_clock(page)
    await page.goto("/signin")
    submit, alert = page.get_by_role("button", name="Sign in", exact=True), page.get_by_role("alert")
    await submit.click()
    await expect(alert).to_have_text("Please fill in both the username and the password.")
    await expect(page.get_by_label("Username")).to_be_focused()
    page_server.sign_in = lambda _: problem(401, "wrong", "unauthenticated")
    await fill(page)
    await submit.click()
    await expect(alert).to_have_text("That username and password do not belong together.")
    await expect(page.get_by_label("Password", exact=True)).to_have_attribute("aria-invalid", "true")
    page_server.sign_in = lambda _: replace(
        problem(429, "too many", "too_many_tries"), headers=((b"Retry-After", b"2"),)
    )
    await submit.click()
    await expect(alert).to_contain_text("Too many failed tries.")
    await expect(submit).to_have_attribute("aria-disabled", "true")
    await page.clock.run_for(2_500)
    await expect(alert).to_have_text("You can try again now.")
    await expect(submit).not_to_have_attribute("aria-disabled", "true")
    page_server.sign_in = lambda _: problem(500, "oops")
    await submit.click()
    await expect(alert).to_have_text("Something went wrong on our side. Please try again.")
    await page_server.go_away()
    await submit.click()
    await expect(alert).to_contain_text("CodeHub does not answer.")
    await page_server.come_back()


async def test_password_can_be_shown_and_hidden(page_server: PageServer, here: Tab) -> None:
    page = here.page
    await page.goto("/signin")
    await fill(page)
    secret = page.locator("#password")
    await page.get_by_role("button", name="Show password").click()
    await expect(secret).to_have_attribute("type", "text")
    await page.get_by_role("button", name="Hide password").click()
    await expect(secret).to_have_attribute("type", "password")
    await expect(secret).to_have_value("correct horse")


PATHS = (
    "/", "", "/a/b?c=d/e?f#g", "//evil", "/a//b", "\\\\evil", "/\\evil", "/%2f/evil", "/%5cevil", "/a%0d", "/a%7F",
    "/a%",
    "/a%zz", "https://evil", "javascript:alert(1)", "a/b", "/a b", "/a\n", "/é", "/a?b=%0d", "/a?x=//evil", "?a", "#a",
    "/" + "a" * 1999, "/" + "a" * 2000, "/a/?", "/@evil", "/.//evil", "/;/x", "/%E4%BD%A0", "/\u2028", "/a\r", "/🙂",
    "/..", "/a/..", "/a/../w/x", "/./w/x", "/%2e/w", "/a/%2E%2e/w/x?y", "/a/.%2e", "/...", "/.a/..b/", "/w/x", "/w",
    "/w?x", "/wx/y", "/workspaces/w/",
)  # fmt: skip


async def test_both_rules_for_local_paths_agree(page_server: PageServer, here: Tab) -> None:
    await here.page.goto("/signin")
    script = """async (paths) => {
        const { localPath, platformPath } = await import("/_codehub/local_path.js");
        return [null, ...paths].map((path) => [localPath(path), platformPath(path)]);
    }"""
    found = await here.page.evaluate(script, list(PATHS))
    assert json.dumps(found) == json.dumps([[local_path(path), platform_path(path)] for path in (None, *PATHS)])


async def test_after_sign_in_nobody_goes_to_a_workspace_s_page_within_our_origin(
    page_server: PageServer, here: Tab
) -> None:
    """As a page of the workspace would have it: its owner types the password, and its script is the platform's."""
    page_server.sign_in = lambda _: Respond(201, ((b"Content-Type", b"application/json"),), b"{}")
    page_server.has_hosts = True
    await here.page.goto("/signin?next=/w/0123/evil")
    await here.page.fill("#username", "ann")
    await here.page.fill("#password", "secret")
    await here.page.click("#submit")
    await here.page.wait_for_url(f"{page_server.url}/")
