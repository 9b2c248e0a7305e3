"""What a page says is so, and what it offers can be done: one test for each thing that somebody stumbled over."""

import re

import pytest
from playwright.async_api import expect

from codehub.domain.errors import ErrorReason
from codehub.domain.identity import Role
from codehub.domain.naming import archive_key
from codehub.domain.workspace import Desired, Phase
from codehub.ports.stores import Actor
from tests.browser.dashboard_harness import DashboardHarness, failure

pytestmark = [pytest.mark.system, pytest.mark.timeout(240)]

ROOT = Actor("root", address="198.51.100.7")
USERS = "/api/v1/admin/users"
SEEN = """is => {
  Object.defineProperty(document, "hidden", { value: !is, configurable: true });
  document.dispatchEvent(new Event("visibilitychange"));
}"""


async def test_each_tile_leads_to_what_it_counts(harness: DashboardHarness) -> None:
    root = await harness.user("root", Role.ADMIN)
    await harness.person("ann")
    harness.put("ann", "hollow", Phase.PENDING)
    harness.put("ann", "sleeper", Phase.STANDBY)
    for tile, name in (("Empty", "hollow"), ("Asleep", "sleeper")):
        await root.goes("/admin")
        await root.page.get_by_role("link", name=re.compile(f"1 ?{tile}")).click()
        await root.card(name).wait_for()
        await expect(root.page.locator("article.card")).to_have_count(1)
        await expect(root.page.get_by_role("button", name=re.compile(f"^{tile}"), pressed=True)).to_be_visible()


async def test_how_many_deleted_there_are_is_said_when_it_is_known_and_until_when_they_can_come_back(
    harness: DashboardHarness,
) -> None:
    ann = await harness.user("ann")
    gone = {"desired_state": Desired.DELETED, "deleted_at": harness.ago(hours=1)}
    row = harness.put("ann", "thesis", Phase.ARCHIVED)
    harness.change(row, phase=Phase.DELETED, **gone)
    await ann.goes("/")
    await ann.page.evaluate(
        "() => { const node = document.querySelector('p[role=status]'); window.heard = []; "
        "new MutationObserver(() => window.heard.push(node.textContent)).observe(node, { childList: true }); }"
    )
    await ann.page.get_by_role("button", name="Deleted").click()
    await ann.card("thesis").wait_for()
    await expect(ann.page.locator("p[role=status]")).to_have_text("1 found")
    assert await ann.page.evaluate("window.heard") == ["1 found"]
    await expect(ann.card("thesis").locator(".card-why")).to_contain_text("Can be brought back for 7 days, until")


async def test_who_has_no_free_slot_gets_it_asleep_and_nobody_else_made_it(harness: DashboardHarness) -> None:
    ann = await harness.user("ann")
    for number in range(3):
        harness.put("ann", f"busy-{number}", Phase.RUNNING)
    await ann.goes("/")
    requests: list[str] = []
    ann.page.on("request", lambda request: requests.append(request.url) if request.method == "POST" else None)
    await ann.page.get_by_role("button", name="New workspace").first.click()
    await ann.page.get_by_label("Name").fill("fourth")
    await ann.page.get_by_role("button", name="Create and start").click()
    await ann.page.get_by_text("“fourth” was made, and sleeps").wait_for()
    await ann.page.get_by_role("heading", name="fourth", level=1).wait_for()
    await ann.page.wait_for_timeout(800)
    await expect(ann.page.get_by_text("created elsewhere")).to_have_count(0)
    assert len([url for url in requests if url.endswith("/workspaces")]) == 1
    await ann.page.locator(".toasts").get_by_role("button", name="Start").click()
    await ann.page.get_by_role("heading", name="No free slot").wait_for()
    ann.expect_complaints("429")


async def test_the_present_restore_point_is_where_one_is(harness: DashboardHarness) -> None:
    ann = await harness.user("ann")
    row = harness.put("ann", "thesis", Phase.ARCHIVED)
    harness.point(row, 1, 1_000, 10, present=True)
    harness.point(row, 2, 1_000, 10)
    await ann.goes(f"/workspaces/{row.id}/points")
    points = ann.page.locator("li.row")
    await expect(points).to_have_count(2)
    await expect(points.first).to_contain_text("present")
    await expect(points.first.get_by_role("button", name="Go back")).to_have_count(0)
    await expect(points.last.get_by_role("button", name="Go back")).to_have_count(1)
    awake = harness.put("ann", "shop", Phase.STANDBY, archive_key="")
    key = archive_key("", awake.id, harness.point(awake, 1, 1_000, 10))
    harness.change(awake, archive_key=key)
    await ann.goes(f"/workspaces/{awake.id}/points")
    await expect(points.first).to_contain_text("its files came from here")
    await expect(points.first.get_by_role("button", name="Go back")).to_have_count(1)


async def test_the_overview_offers_what_can_be_done(harness: DashboardHarness) -> None:
    """The keys that let go of what is kept, and follow or copy the address."""
    ann = await harness.user("ann", permissions=["clipboard-read", "clipboard-write"])
    row = harness.put("ann", "shop", Phase.RUNNING, last_access_at=harness.ago(minutes=1))
    await ann.goes(f"/workspaces/{row.id}")
    page = ann.page
    await page.get_by_role("button", name="1 hr").wait_for()
    await expect(page.get_by_role("button", name="Let go")).to_be_hidden()
    await page.get_by_role("button", name="1 hr").click()
    await page.get_by_role("button", name="Let go").click()
    await expect(page.get_by_role("button", name="Let go")).to_be_hidden()
    link = page.locator(".address a")
    url = await link.inner_text()
    assert url.startswith("http://shop-")
    assert await link.get_attribute("href") == url
    await page.locator(".address").get_by_role("button", name="Copy").click()
    await page.get_by_text("Copied.").wait_for()
    assert await page.evaluate("navigator.clipboard.readText()") == url


async def test_what_cannot_be_taken_back_asks_first(harness: DashboardHarness) -> None:
    root = await harness.user("root", Role.ADMIN)
    dora = await harness.person("dora")
    users = harness.backends.database.state.accounts.users
    page, row = root.page, root.page.get_by_role("row", name="dora")
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.method) if USERS in request.url else None)
    await root.goes("/admin/users")
    before = users[dora]
    for item, refusal in (("New password", "Cancel"), ("Disable", "Cancel"), ("Edit", "Close")):
        await row.get_by_role("button").click()
        await page.get_by_role("menuitem", name=item).click()
        await page.get_by_role("dialog").get_by_role("button", name=refusal).click()
    assert users[dora] == before
    await row.get_by_role("button").click()
    await page.get_by_role("menuitem", name="New password").click()
    await page.get_by_role("dialog").get_by_role("button", name="New password").click()
    secret = page.get_by_label("The password of dora")
    await secret.wait_for()
    assert asked == ["GET", "PATCH"], "a table that is loaded for nothing closes the menu that is open by then"
    assert "mono" in (await secret.evaluate("node => getComputedStyle(node).fontFamily")).lower()


async def test_a_refused_sweep_can_be_waived_by_who_has_looked(harness: DashboardHarness) -> None:
    root = await harness.user("root", Role.ADMIN)
    await harness.person("ann")
    row = harness.put("ann", "shop", Phase.STANDBY)
    harness.backends.runtime.state.volumes[f"ws-{row.id}-home-2"] = harness.backends.runtime.state.volumes[
        f"ws-{row.id}-home"
    ]
    page = root.page
    await root.goes("/admin/garbage")
    await page.get_by_text("A sweep would be refused").wait_for()
    await page.get_by_role("button", name="Sweep all the same").click()
    await page.get_by_role("dialog").get_by_text("the database is older than what is here").wait_for()
    await page.get_by_role("dialog").get_by_role("button", name="Sweep all the same").click()
    await page.get_by_text("The coordinator was asked to sweep.").wait_for()
    marks = harness.backends.database.marks(1)
    pending = await marks.pending()
    assert pending is not None
    assert (pending.asked_by, pending.waived) == ("root", ("database-older",))
    await marks.finish(pending.id, {"swept": [{}]})
    await page.get_by_text("1 swept.").wait_for()


async def test_the_errors_are_true_again_after_a_time_without_the_stream(harness: DashboardHarness) -> None:
    """A page that nobody sees gives its stream back after a minute, and hears of no change until it is seen."""
    root = await harness.user("root", Role.ADMIN)
    await harness.person("ann")
    info = failure(ErrorReason.RETRY_EXCEEDED, "STARTING failed 3 times.", harness.ago(minutes=6))
    row = harness.put("ann", "shop", Phase.ERROR, error_info=info)
    page = root.page
    await page.clock.install()
    await root.goes("/admin/errors")
    await page.get_by_role("link", name="shop").wait_for()
    await page.evaluate(SEEN, False)
    await page.clock.run_for(61_000)
    harness.change(row, phase=Phase.STANDBY, desired_state=Desired.STANDBY, error_reason=None, error_info=None)
    await page.evaluate(SEEN, True)
    await page.get_by_role("heading", name="All is well").wait_for()


async def test_the_audit_is_told_in_words(harness: DashboardHarness) -> None:
    for language, words in (
        (
            "en-GB",
            ("downloaded from a restore point", "path: src/a.py", "failed to sign in", "looked at the workspace"),
        ),
        ("ko-KR", ("복원 지점에서 내려받음", "경로: src/a.py", "로그인 실패", "워크스페이스를 봄")),
    ):
        root = await harness.user("root", Role.ADMIN, locale=language)
        ann = await harness.person("ann")
        row = harness.put("ann", f"shop-{language}", Phase.STANDBY)
        audit = harness.app.state.parts.audit
        details = {"owner": "ann", "workspace": row.name, "archive": str(row.id), "path": "src/a.py"}
        await audit.append(ROOT, "download_from_archive", f"workspace:{row.id}", details)
        await audit.append(ROOT, "sign_in_failed", "user:ann")
        await root.goes("/admin/workspaces")
        await root.card(row.name).get_by_role("link").first.click()
        await root.page.get_by_role("heading", name=row.name, level=1).wait_for()
        await root.goes("/admin/audit")
        table = root.page.locator("table")
        for word in words:
            await expect(table.get_by_text(word).first).to_be_visible()
        text = await table.inner_text()
        assert not re.search(r"[a-z]+_[a-z]+", text), text
        await expect(table.get_by_role("link", name=row.name).first).to_have_attribute("href", f"/workspaces/{row.id}")
        assert ann


async def test_charts_have_an_axis_and_templates_are_read_whole(harness: DashboardHarness) -> None:
    root = await harness.user("root", Role.ADMIN)
    await root.goes("/admin")
    axis = root.page.locator(".chart").first.locator("text[text-anchor=end]")
    await expect(axis).to_have_count(3)
    long = "Everything that the data team needs: notebooks, drivers, and a very long description of what is inside"
    for name, about in (("default", ""), ("data", long)):
        body = {"description": about}
        await root.http.put(f"/api/v1/admin/templates/{name}", json=body)
    await root.goes("/")
    await root.page.get_by_role("button", name="New workspace").first.click()
    await root.page.get_by_label("Template").select_option("data")
    await expect(root.page.get_by_role("dialog").get_by_text(long)).to_be_visible()
    assert await root.page.get_by_label("Template").evaluate("node => node.selectedOptions[0].label") == "data"


async def test_what_is_missing_is_said_in_the_language_of_the_page(harness: DashboardHarness) -> None:
    """The browser's own words are in the browser's language, which may be another."""
    ann = await harness.user("ann", locale="ko-KR")
    await ann.goes("/")
    await ann.page.get_by_role("button", name="새 워크스페이스").first.click()
    await ann.page.get_by_role("button", name="만들고 시작").click()
    await expect(ann.page.get_by_text("입력해 주세요.")).to_be_visible()
