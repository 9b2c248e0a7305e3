"""What workspaces use, in card and page: live while somebody looks, warned of in time, and in both languages."""

import re
from datetime import timedelta
from random import Random
from uuid import UUID

import pytest
from playwright.async_api import Page, expect

from codehub.domain.usage import DiskUsage, Usage, UsageSample
from codehub.domain.workspace import Phase
from codehub.ports.runtime import ContainerSpec, Resources
from tests.browser.axe import findings
from tests.browser.dashboard_harness import DashboardHarness
from tests.browser.deployment import DashboardUser
from tests.eventually import eventually

pytestmark = [pytest.mark.system, pytest.mark.timeout(240)]

GB = 1_000_000_000
HIDE = "is => Object.defineProperty(document, 'hidden', { value: is, configurable: true })"


def uses(harness: DashboardHarness, key: UUID, disk: DiskUsage | None, minutes: int = 58) -> None:
    """The workspace may use two processors and 2 GB, and was sampled each minute, but for some in between."""
    random, state = Random(7), harness.backends.database.state
    container = harness.backends.runtime.state.containers[key]
    container.memory_bytes = 480_000_000
    container.spec = ContainerSpec(key, container.volume, "", share=Resources(2.0, 2 * GB))
    now = state.now()
    state.usage[key] = [
        UsageSample(
            now - timedelta(minutes=ago),
            Usage(
                cpu=0.1 + random.random() * (1.5 if ago < 20 else 0.3),
                cpu_limit=2.0,
                memory_bytes=300_000_000 + 3_000_000 * (60 - ago),
                memory_limit_bytes=2 * GB,
                disk=disk,
            ),
        )
        for ago in range(minutes, -1, -1)
        if not 30 < ago < 36
    ]


async def goes_unseen(user: DashboardUser, cards: int) -> None:
    """To the list, in a page that nobody sees: so it has not asked what is used. All its cards are in sight, and its
    time passes by `clock.run_for` only."""
    page = user.page
    in_sight: set[str] = set()
    page.on("request", lambda request: in_sight.add(request.url) if request.url.endswith("/lifecycle") else None)
    await page.add_init_script(f"({HIDE})(true)")
    await page.clock.install()
    await user.goes("/")
    await eventually(lambda: len(in_sight) == cards)
    await page.clock.pause_at(await page.evaluate("Date.now() / 1000") + 30)


async def look(page: Page) -> None:
    """Somebody sees the page for long enough that it asks what is used."""
    await page.evaluate(HIDE, False)
    async with page.expect_request("**/api/v1/usage?*"):
        await page.clock.run_for(1_000)


async def test_a_card_says_what_its_workspace_uses(harness: DashboardHarness) -> None:
    ann = await harness.user("ann")
    busy, new = harness.put("ann", "busy", Phase.RUNNING), harness.put("ann", "new", Phase.RUNNING)
    harness.put("ann", "asleep", Phase.STANDBY)
    uses(harness, busy.id, DiskUsage(1_200_000_000, 10 * GB, 10 * GB, 8_800_000_000))
    await goes_unseen(ann, 3)
    await look(ann.page)
    line = ann.card("busy").locator(".usage-line")
    await expect(line).to_have_text(re.compile(r"^CPU \d+% · memory 480 MB of 2 GB · disk 1\.2 GB of 10 GB$"))
    await expect(ann.card("new").locator(".usage-line")).to_have_text("memory 67.1 MB")
    await expect(ann.card("asleep").locator(".usage")).to_be_hidden()
    harness.backends.runtime.state.containers[new.id].memory_bytes = 90_000_000
    harness.backends.runtime.state.containers[new.id].cpu_seconds += 1.0
    await ann.page.clock.resume()
    later = re.compile(r"^CPU \d+% · memory 90 MB$")
    await expect(ann.card("new").locator(".usage-line")).to_have_text(later)


async def test_one_question_for_all_cards_and_none_while_nobody_looks(harness: DashboardHarness) -> None:
    ann = await harness.user("ann")
    for number in range(5):
        harness.put("ann", f"one-{number}", Phase.RUNNING)
    asked: list[str] = []
    ann.page.on("request", lambda request: asked.append(request.url) if "/api/v1/usage" in request.url else None)
    await goes_unseen(ann, 5)
    await look(ann.page)
    await expect(ann.card("one-0").locator(".usage-line")).to_be_visible()
    assert [url.count("id=") for url in asked] == [5]
    await ann.page.evaluate(HIDE, True)
    await ann.page.clock.run_for(20_000)
    assert len(asked) == 1
    await look(ann.page)
    assert [url.count("id=") for url in asked] == [5, 5]


async def test_a_disk_that_is_nearly_full_is_warned_of_before_it_is_an_error(harness: DashboardHarness) -> None:
    ann = await harness.user("ann")
    full, shared = harness.put("ann", "full", Phase.RUNNING), harness.put("ann", "shared", Phase.RUNNING)
    uses(harness, full.id, DiskUsage(9_300_000_000, 10 * GB, 10 * GB, 700_000_000))
    uses(harness, shared.id, DiskUsage(1 * GB, None, 20 * GB, 900_000_000))
    await ann.goes("/")
    await expect(ann.card("full").locator(".usage-warning")).to_contain_text("The disk is nearly full")
    await expect(ann.card("shared").locator(".usage-warning")).to_contain_text("that all workspaces share")
    await ann.goes(f"/workspaces/{full.id}")
    await expect(ann.page.locator(".usage-warning")).to_contain_text("ask an administrator for more")
    await expect(ann.page.locator(".pill").first).to_have_text("Running")


@pytest.mark.parametrize(("language", "title"), [("en-US", "Usage in the last hour"), ("ko-KR", "지난 1시간 사용량")])
@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_a_page_has_charts_of_the_last_hour(
    harness: DashboardHarness, axe: str, language: str, title: str, scheme: str
) -> None:
    ann = await harness.user("ann", locale=language, color_scheme=scheme)
    row = harness.put("ann", "busy", Phase.RUNNING)
    uses(harness, row.id, DiskUsage(9_300_000_000, 10 * GB, 10 * GB, 700_000_000))
    await ann.goes(f"/workspaces/{row.id}")
    panel = ann.page.locator("section", has=ann.page.get_by_role("heading", name=title))
    charts = panel.locator("figure.chart")
    await expect(charts).to_have_count(3)
    for chart in await charts.all():
        assert await chart.locator(".chart-line").count() == 2, "what is not known is a gap"
        assert re.search(r"\d", await chart.locator("figcaption").inner_text()), "the gist is there in words"
    assert await findings(ann.page, axe) == []


async def test_of_one_that_slept_for_long_there_is_no_panel(harness: DashboardHarness) -> None:
    ann = await harness.user("ann")
    row = harness.put("ann", "asleep", Phase.STANDBY)
    await ann.goes(f"/workspaces/{row.id}")
    await expect(ann.page.get_by_role("heading", name="asleep")).to_be_visible()
    await expect(ann.page.get_by_role("heading", name="Usage in the last hour")).to_be_hidden()
