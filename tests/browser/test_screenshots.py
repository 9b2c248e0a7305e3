"""Every page, in every look: no serious accessibility problem, nothing wider than the screen, and a picture of each."""

from collections.abc import Mapping
from typing import Any

import pytest

from tests.browser.axe import findings
from tests.browser.dashboard_harness import DashboardHarness
from tests.browser.screenshots import FOLDER, LOOKS, SCREENS, fill, shown

pytestmark = [pytest.mark.system, pytest.mark.timeout(300)]

TOO_WIDE = "document.documentElement.scrollWidth - document.documentElement.clientWidth"


EVERY_TIME = {"desktop-light", "phone-dark"}
"""The looks that are always checked: both sizes and both colours; the other two pairs are for the long run."""
PAIRS = [
    pytest.param(look, options, id=look, marks=() if look in EVERY_TIME else pytest.mark.long)
    for look, options in LOOKS
]


@pytest.mark.parametrize(("look", "options"), PAIRS)
async def test_every_page_can_be_used_by_everybody(
    harness: DashboardHarness, axe: str, look: str, options: Mapping[str, Any]
) -> None:
    workspaces = await fill(harness)
    users = {name: await harness.user(name, reduced_motion="reduce", **options) for name in ("ann", "admin")}
    wrong: dict[str, list[str]] = {}
    for screen in SCREENS:
        page = await shown(users[screen.who], screen, workspaces)
        found = await findings(page, axe)
        if await page.evaluate(TOO_WIDE) > 0:
            found.append("wider than the screen")
        if found:
            wrong[screen.name] = found
    assert wrong == {}


def test_the_documentation_has_a_picture_of_each() -> None:
    """`python -m tests.browser.screenshots` takes them anew."""
    wanted = {f"{screen.name}-{look}.png" for screen in SCREENS if screen.pictured for look, _ in LOOKS}
    assert {path.name for path in FOLDER.iterdir()} == wanted
    assert sum(path.stat().st_size for path in FOLDER.iterdir()) < 3_500_000
