"""A thousand workspaces on one page: what it costs is measured in the browser and said, and only what does not depend
on the machine is asserted: how much is drawn, that one change touches one card, that nothing piles up."""

import json
from typing import Any

import pytest

from codehub.domain.workspace import Phase, Progress, Workspace
from tests.browser.dashboard_harness import DashboardHarness, archiving
from tests.browser.deployment import DashboardUser
from tests.conftest import Tell

pytestmark = [pytest.mark.system, pytest.mark.timeout(300)]

MANY = 1_000
PHASES = (Phase.STANDBY, Phase.ARCHIVED, Phase.ARCHIVED, Phase.RUNNING)

PAINTED = "() => performance.getEntriesByName('first-contentful-paint')[0]?.startTime"
WATCH = """() => {
  window.seen = { touched: new Set(), longest: 0, frames: 0 };
  new MutationObserver((records) => {
    for (const { target } of records) {
      const card = (target.nodeType === 1 ? target : target.parentElement)?.closest("article.card");
      if (card) window.seen.touched.add(card.dataset.id);
    }
  }).observe(document.querySelector(".cards"), {
    subtree: true, childList: true, attributes: true, characterData: true,
  });
  let last = performance.now();
  const frame = (now) => {
    window.seen.longest = Math.max(window.seen.longest, now - last);
    window.seen.frames += 1;
    last = now;
    requestAnimationFrame(frame);
  };
  requestAnimationFrame(frame);
}"""
SEEN = "() => ({ ...window.seen, touched: [...window.seen.touched] })"


async def crowd(harness: DashboardHarness) -> tuple[DashboardUser, list[Workspace]]:
    user = await harness.user("ann")
    rows = [
        harness.put("ann", f"project {number:04}", PHASES[number % 4], created_at=harness.ago(minutes=number))
        for number in range(MANY)
    ]
    return user, rows


async def test_a_thousand_stay_smooth(harness: DashboardHarness, tell: Tell) -> None:
    user, rows = await crowd(harness)
    page = user.page
    await user.goes("/")
    await user.card("project 0000").wait_for()
    drawn = await page.evaluate("performance.now()")
    painted = await (await page.wait_for_function(PAINTED)).json_value()
    cards = await page.locator("article.card").count()
    assert cards < MANY / 4, "cards far out of sight are drawn"

    await page.wait_for_timeout(1_500)
    await page.evaluate(WATCH)
    harness.change(rows[3], description="changed")
    await page.get_by_text("changed", exact=True).wait_for()
    seen: dict[str, Any] = await page.evaluate(SEEN)
    assert str(rows[3].id) in seen["touched"]
    harness.change(rows[800], description="out of sight")
    await page.wait_for_timeout(500)

    began = await page.evaluate("performance.now()")
    for row in rows[:200]:
        harness.change(row, memo="busy")
    harness.change(rows[0], description="the last")
    await page.get_by_text("the last", exact=True).wait_for()
    took = await page.evaluate("performance.now()") - began
    smooth: dict[str, Any] = await page.evaluate(SEEN)
    await page.get_by_label("Search workspaces").fill("0987")
    await user.card("project 0987").wait_for()
    assert await page.locator("article.card").count() == 1
    tell(
        f"{MANY} workspaces: first paint {painted:.0f} ms, first card after {drawn:.0f} ms with {cards} drawn; "
        f"200 changes at once on the page after {took:.0f} ms, longest frame {smooth['longest']:.0f} ms"
    )


async def test_scrolling_to_the_end_shows_everybody(harness: DashboardHarness) -> None:
    user, _ = await crowd(harness)
    await user.goes("/?sort=name")
    last = user.card(f"project {MANY - 1:04}")
    while not await last.count():
        await user.page.evaluate("scrollTo(0, document.body.scrollHeight)")
        await user.page.wait_for_timeout(100)
    await last.wait_for()


@pytest.mark.long
@pytest.mark.timeout(900)
async def test_an_hour_of_events_leaves_nothing_behind(harness: DashboardHarness, tell: Tell) -> None:
    """Twenty events each second for an hour, as fast as they go."""
    user, rows = await crowd(harness)
    await user.goes("/")
    await user.card("project 0000").wait_for()
    session = await user.context.new_cdp_session(user.page)

    async def after(events: int) -> tuple[int, int]:
        for number in range(events):
            row = rows[number % MANY]
            if number % 5:
                harness.change(row, op_progress=Progress(number, number, events, "upload"))
            else:
                harness.change(row, **archiving(number, events, 1) if number % 2 else {"memo": str(number)})
            if number % 200 == 0:
                await user.page.wait_for_timeout(20)
        await user.page.wait_for_timeout(1_000)
        await session.send("HeapProfiler.collectGarbage")
        heap = (await session.send("Runtime.getHeapUsage"))["usedSize"]
        return int(heap), int(await user.page.evaluate("document.querySelectorAll('*').length"))

    warm = await after(7_200)
    end = await after(72_000)
    tell(f"an hour's events: heap {warm[0] / 1e6:.1f} → {end[0] / 1e6:.1f} MB, nodes {warm[1]} → {end[1]}")
    assert end[1] < warm[1] * 1.2
    assert end[0] < warm[0] * 1.5, json.dumps([warm, end])
