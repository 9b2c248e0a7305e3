"""What pages promise: text stays text, the keyboard is enough, nothing stale passes for true, both languages."""

import json
import re
from datetime import UTC, datetime, timedelta

import pytest
from playwright.async_api import Page, expect

from codehub.dashboard.state_labels import states
from codehub.domain.identity import Role
from codehub.domain.workspace import Desired, Phase
from tests.browser.dashboard_harness import DashboardHarness
from tests.browser.screenshots import SCREENS, fill, shown
from tests.house.project import SOURCE

pytestmark = [pytest.mark.system, pytest.mark.timeout(240)]

HOSTILE = "<img src=x onerror=alert(1)>"


def english() -> list[str]:
    """The translated sentences and names of several words, without placeholders: none of them is Korean."""
    words = (SOURCE / "dashboard" / "static" / "translations" / "en.js").read_text()
    told = [*re.findall(r'": "([^"]+)",$', words, re.MULTILINE), *re.findall(r'": "([^"]+)"', json.dumps(states()))]
    return [text for text in told if " " in text and "{" not in text]


async def test_a_hostile_name_is_text_everywhere(harness: DashboardHarness) -> None:
    """What is read in Korean is Korean."""
    sentences = english()
    assert len(sentences) > 150
    workspaces = await fill(harness)
    rows = harness.backends.database.state.rows
    for key in list(rows):
        harness.change(rows[key], name=HOSTILE, description=HOSTILE, memo=HOSTILE)
    alerts: list[str] = []
    for who, role in (("ann", Role.USER), ("admin", Role.ADMIN)):
        user = await harness.user(who, role, locale="ko-KR")
        user.page.on("dialog", lambda dialog: alerts.append(dialog.message))
        for screen in SCREENS:
            if screen.who == who:
                page = await shown(user, screen, workspaces)
                assert await page.locator("img").count() == 0, screen.name
                shows = await page.inner_text("body")
                assert [text for text in sentences if text in shows] == [], screen.name
                assert re.findall(r"[A-Za-z]{2,}(?: [a-z]{2,}){3,}", shows) == [], screen.name
        await user.goes("/" if who == "ann" else "/admin/workspaces")
        await expect(user.page.get_by_role("link", name=HOSTILE).first).to_be_visible()
        harness.change(rows[workspaces.running], desired_state=Desired.STANDBY)
        await user.goes(f"/workspaces/{workspaces.running}")
        await expect(user.page.get_by_role("heading", name=HOSTILE)).to_be_visible()
        assert await user.page.title() == f"{HOSTILE} · CodeHub"
    assert alerts == []


async def test_the_browser_itself_refuses_markup_from_text(harness: DashboardHarness) -> None:
    user = await harness.user("ann")
    await user.goes("/")
    refused = await user.page.evaluate(
        "() => { try { document.body.innerHTML = '<b>x</b>'; return false } catch { return true } }"
    )
    assert refused
    ran = await user.page.evaluate(
        "() => { const s = document.createElement('style'); s.textContent = 'body{display:none}'; "
        "document.head.append(s); return getComputedStyle(document.body).display }"
    )
    assert ran != "none"
    user.expect_complaints("Content Security Policy", "TrustedHTML", "Refused")


async def test_the_keyboard_alone_is_enough(harness: DashboardHarness) -> None:
    user = await harness.user("ann")
    page = user.page
    await user.goes("/")
    await page.keyboard.press("Tab")
    await expect(page.get_by_role("link", name="Skip to content")).to_be_focused()
    await page.keyboard.press("Enter")
    await expect(page.locator("main")).to_be_focused()
    await _tab_to(page, "New workspace")
    await page.keyboard.press("Enter")
    await expect(page.get_by_label("Name")).to_be_focused()
    await page.keyboard.press("Escape")
    await expect(page.get_by_role("button", name="New workspace").first).to_be_focused()
    await page.keyboard.press("Enter")
    await expect(page.get_by_label("Name")).to_be_focused()
    await page.keyboard.type("shop")
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("heading", name="shop", level=1)).to_be_focused()
    await page.get_by_role("link", name="All workspaces").focus()
    await page.keyboard.press("Enter")
    await _tab_to(page, "More for shop")
    await page.keyboard.press("ArrowDown")
    await expect(page.get_by_role("menuitem", name="Details")).to_be_focused()
    await page.keyboard.press("End")
    await expect(page.get_by_role("menuitem", name="Delete")).to_be_focused()
    await page.keyboard.press("Escape")
    await expect(page.get_by_role("button", name="More for shop")).to_be_focused()
    await page.keyboard.press("Enter")
    await page.keyboard.press("d")
    await page.keyboard.press("End")
    await page.keyboard.press("Enter")
    await page.get_by_text("is being deleted").wait_for()


async def _tab_to(page: Page, name: str) -> None:
    for _ in range(40):
        await page.keyboard.press("Tab")
        label = await page.evaluate(
            "() => document.activeElement.getAttribute('aria-label') || document.activeElement.textContent.trim()"
        )
        if label == name:
            return
    raise AssertionError(f"Tab never came to {name}")


async def test_updates_leave_focus_and_typing_alone(harness: DashboardHarness) -> None:
    user = await harness.user("ann")
    one = harness.put("ann", "one", Phase.RUNNING)
    harness.put("ann", "two", Phase.STANDBY)
    await user.goes("/?sort=name")
    await user.sees("one", "Running")
    await user.page.get_by_role("button", name="Stop one").focus()
    harness.change(one, name="zzz")
    await user.card("zzz").wait_for()
    await expect(user.page.get_by_role("button", name="Stop zzz")).to_be_focused()
    search = user.page.get_by_label("Search workspaces")
    await search.fill("zz")
    harness.change(one, description="new")
    await user.page.get_by_text("new", exact=True).wait_for()
    await expect(search).to_be_focused()
    await expect(search).to_have_value("zz")
    assert user.page.url.endswith("/?sort=name&q=zz")
    await user.page.reload()
    await expect(user.page.locator("article.card")).to_have_count(1)


async def test_what_is_old_says_so_and_what_comes_back_is_new(harness: DashboardHarness) -> None:
    user = await harness.user("ann")
    row = harness.put("ann", "shop", Phase.RUNNING)
    await user.goes("/")
    await user.sees("shop", "Running")
    await user.context.route("**/api/v1/events*", lambda route: route.abort())
    for topic, _ in harness.app.state.hub._topics.values():
        for listener in set(topic.listeners):
            listener.end("test")
    await user.page.get_by_text("Reconnecting…").wait_for()
    harness.change(row, name="store")
    await user.context.unroute_all()
    await user.card("store").wait_for()
    await expect(user.page.get_by_text("Reconnecting…")).to_be_hidden()
    user.expect_complaints("ERR_FAILED")


async def test_whoever_is_signed_out_is_led_to_the_door(harness: DashboardHarness) -> None:
    user = await harness.user("ann")
    await user.goes("/account")
    await user.http.delete("/api/v1/session", headers={"content-type": "application/json"})
    await user.page.goto(f"{harness.url}/?q=shop")
    await user.page.wait_for_url("**/signin?next=%2F%3Fq%3Dshop")
    user.expect_complaints("401", "404", "Content Security Policy")


async def test_before_an_idle_stop_one_click_keeps_it(harness: DashboardHarness) -> None:
    user = await harness.user("ann")
    row = harness.put("ann", "shop", Phase.RUNNING, last_access_at=harness.ago(minutes=9))
    await user.goes("/")
    await user.page.get_by_text("Stops in").wait_for()
    warning = {
        "type": "idle_warning",
        "id": str(row.id),
        "stops_at": (datetime.now(UTC) + timedelta(minutes=2)).isoformat(),
        "becomes": "STANDBY",
    }
    await harness.backends.bus.publish(f"codehub:sse:{harness.people['ann']}", json.loads(json.dumps(warning)))
    await user.page.get_by_text("nobody seems to use it").wait_for()
    await user.page.get_by_role("button", name="Keep for 1 h").click()
    await user.page.get_by_text("Kept running until").wait_for()
    assert harness.backends.database.state.leases[row.id]


async def test_korean_for_those_who_read_it(harness: DashboardHarness) -> None:
    user = await harness.user("ann", locale="ko-KR")
    harness.put("ann", "shop", Phase.RUNNING, last_access_at=harness.ago(minutes=1))
    await user.goes("/")
    await user.page.get_by_role("heading", name="워크스페이스").wait_for()
    await user.sees("shop", "실행 중")
    await user.page.get_by_text("뒤 정지").wait_for()
    assert await user.page.evaluate("document.documentElement.lang") == "ko"
    await user.goes("/account")
    await user.page.get_by_label("이 페이지의 언어").select_option("en")
    await user.page.get_by_role("heading", name="Account").wait_for()


async def test_tokens_sessions_and_password(harness: DashboardHarness) -> None:
    user = await harness.user("ann")
    page = user.page
    await harness.user("ann")
    await user.goes("/account")
    await page.get_by_role("button", name="New token").click()
    await page.get_by_role("dialog").get_by_label("Name").fill("ci")
    await page.get_by_role("dialog").get_by_role("button", name="New token").click()
    secret = await page.get_by_label("Copy the token now").input_value()
    assert secret.startswith("chub_")
    await page.get_by_role("button", name="Done").click()
    await page.get_by_role("button", name="Revoke ci").click()
    await page.get_by_role("dialog").get_by_role("button", name="Revoke").click()
    await page.get_by_text("You have no token.").wait_for()
    await expect(page.get_by_role("button", name="End")).to_have_count(1)
    await page.get_by_role("button", name="End").click()
    await expect(page.get_by_role("button", name="End")).to_have_count(0)
    await page.get_by_label("Present password").fill("wrong")
    await page.get_by_label("New password").fill("another horse battery")
    await page.get_by_role("button", name="Change password").click()
    await page.get_by_role("alert").filter(has_text=r"").first.wait_for(state="attached")
    await page.locator(".complaint:not(:empty), .field-wrong:not(:empty)").first.wait_for()
    user.expect_complaints("401", "403", "422", "409")


async def test_an_admin_manages_people_and_templates(harness: DashboardHarness) -> None:
    user = await harness.user("root", Role.ADMIN)
    page = user.page
    await user.goes("/admin/users")
    await page.get_by_role("button", name="Add somebody").click()
    await page.get_by_label("Username").fill("dora")
    await page.get_by_label("Running at once").fill("5")
    await page.get_by_role("dialog").get_by_role("button", name="Add somebody").click()
    assert len(await page.get_by_label("The password of dora").input_value()) > 10
    await page.get_by_role("button", name="Done").click()
    row = page.get_by_role("row", name="dora")
    await expect(row).to_contain_text("5")
    await row.get_by_role("button").click()
    await page.get_by_role("menuitem", name="Disable").click()
    await page.get_by_role("dialog").get_by_role("button", name="Disable").click()
    await expect(row).to_contain_text("disabled")
    await user.goes("/admin/templates")
    await page.get_by_role("button", name="New template").click()
    await page.get_by_label("Name", exact=True).fill("python")
    await page.get_by_label("Environment").fill("LANG=C.UTF-8")
    await page.get_by_label("CPUs").fill("2")
    await page.get_by_role("button", name="Save").click()
    await expect(page.get_by_role("row", name="python")).to_contain_text("2 CPU")
    await user.goes("/admin/garbage")
    await page.get_by_text("There is no garbage.").wait_for()
    await user.goes("/admin/audit")
    await page.get_by_text("made the account").first.wait_for()


async def test_settings_are_saved_and_what_is_wrong_is_said_beside_its_field(harness: DashboardHarness) -> None:
    user = await harness.user("ann")
    row = harness.put("ann", "shop", Phase.STANDBY)
    page = user.page
    await user.goes(f"/workspaces/{row.id}/settings")
    await page.get_by_label("Git repository").fill("no address")
    await page.get_by_label("Name").fill("store")
    await page.get_by_role("button", name="Save").click()
    await page.locator(".field-wrong:not(:empty)").wait_for()
    await expect(page.get_by_label("Git repository")).to_be_focused()
    await expect(page.get_by_label("Name")).to_have_value("store")
    assert harness.backends.database.state.rows[row.id].name == "shop"
    await page.get_by_label("Git repository").fill("https://git.example.com/shop.git")
    await page.get_by_label("Falls asleep").select_option("0")
    await page.get_by_role("button", name="Save").click()
    await page.get_by_text("Saved.").wait_for()
    await page.get_by_role("heading", name="store", level=1).wait_for()
    saved = harness.backends.database.state.rows[row.id]
    assert (saved.name, saved.standby_ttl_seconds, saved.git_url) == ("store", 0, "https://git.example.com/shop.git")
    user.expect_complaints("422")


async def test_the_logs_are_shown_as_they_come(harness: DashboardHarness) -> None:
    user = await harness.user("ann")
    row = harness.put("ann", "shop", Phase.STANDBY)
    await user.goes(f"/workspaces/{row.id}/logs")
    await user.page.get_by_text("Nothing: the editor is off").wait_for()


async def test_an_address_that_leads_nowhere_says_so(harness: DashboardHarness) -> None:
    user = await harness.user("ann")
    await user.goes("/workspaces/6f1c2b54-8d0e-4a7b-9f57-0c1d6b0f2a11")
    await user.page.get_by_role("heading", name="There is nothing here").wait_for()
    await user.page.get_by_role("link", name="To the workspaces").click()
    await user.page.get_by_role("heading", name="Make your first workspace").wait_for()
    await user.goes("/workspace")
    await user.page.get_by_role("heading", name="There is nothing here").wait_for()
    user.expect_complaints("404")


REPOSITORY = "https://git.example.com/team/shop.git"


async def test_a_link_with_a_repository_makes_nothing_without_a_click(harness: DashboardHarness) -> None:
    user = await harness.user("ann")
    page = user.page
    await user.goes(f"/new?git={REPOSITORY}&ref=release/1.2")
    await page.get_by_text("None of your workspaces has this repository yet.").wait_for()
    await expect(page.get_by_label("Name")).to_have_value("shop")
    await expect(page.get_by_label("Git repository")).to_have_value(REPOSITORY)
    await expect(page.get_by_label("Branch or tag")).to_have_value("release/1.2")
    await expect(page.get_by_role("dialog")).to_contain_text(
        "can run commands in the new workspace and use your secrets"
    )
    assert harness.backends.database.state.rows == {}
    await page.get_by_role("button", name="Create and start").click()
    await page.get_by_role("heading", name="shop", level=1).wait_for()
    [made] = harness.backends.database.state.rows.values()
    assert (made.name, made.git_url, made.git_ref) == ("shop", REPOSITORY, "release/1.2")


async def test_a_link_leads_to_the_workspaces_that_have_the_repository(harness: DashboardHarness) -> None:
    user = await harness.user("ann")
    page = user.page
    one = harness.put("ann", "shop", Phase.STANDBY, git_url="git@git.example.com:team/shop", git_ref="v1")
    harness.put("ann", "shop too", Phase.RUNNING, git_url=REPOSITORY)
    harness.put("ann", "other", Phase.RUNNING, git_url="https://git.example.com/team/other.git")
    await user.goes(f"/new?git={REPOSITORY}")
    names = page.locator(".card-name")
    await expect(names).to_have_count(2)
    assert sorted(await names.all_inner_texts()) == ["shop", "shop too"]
    await page.get_by_role("button", name="New workspace").click()
    await expect(page.get_by_label("Name")).to_have_value("shop-2")
    await user.goes(f"/new?git={REPOSITORY}&ref=v1")
    await expect(names).to_have_text(["shop"])
    assert harness.backends.database.state.rows[one.id].desired_state is Desired.STANDBY, "a link starts nothing"
    await expect(page.get_by_role("button", name=re.compile("(Open|Start) shop$"))).to_be_visible()


async def test_a_hostile_link_is_text(harness: DashboardHarness) -> None:
    user = await harness.user("ann")
    page = user.page
    await user.goes(f"/new?git=javascript:alert(1)//{HOSTILE}&ref=--upload-pack=evil")
    await expect(page.get_by_label("Git repository")).to_have_value(f"javascript:alert(1)//{HOSTILE}")
    assert await page.locator("img").count() == 0
    await page.get_by_label("Name").fill("shop")
    await page.get_by_role("button", name="Create and start").click()
    await page.locator(".field-wrong:not(:empty)").wait_for()
    assert harness.backends.database.state.rows == {}
    user.expect_complaints("422")


async def test_the_badge_for_a_readme_is_copied(harness: DashboardHarness) -> None:
    user = await harness.user("ann", permissions=["clipboard-read", "clipboard-write"])
    row = harness.put("ann", "shop", Phase.STANDBY, git_url=REPOSITORY, git_ref="v1")
    await user.goes(f"/workspaces/{row.id}")
    await user.page.get_by_role("button", name="Copy the badge").click()
    await user.page.get_by_text("Copied").wait_for()
    copied = await user.page.evaluate("navigator.clipboard.readText()")
    origin = await user.page.evaluate("location.origin")
    link = f"{origin}/new?git=https%3A%2F%2Fgit.example.com%2Fteam%2Fshop.git&ref=v1"
    assert copied == f"[![Open in CodeHub]({origin}/badge.svg)]({link})"
