"""Screenshots of the dashboard for docs/screens/dashboard: `python -m tests.browser.screenshots` takes all of them, or
those that are named behind it.

They show the same data every time: a person with workspaces in every state, and an admin with something to recover.
"""

import asyncio
import sys
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any
from uuid import UUID, uuid4

from playwright.async_api import Page

from codehub.domain.errors import ErrorReason
from codehub.domain.history import TrafficMinute
from codehub.domain.identity import Role
from codehub.domain.ledger import LedgerEntry, LedgerKind
from codehub.domain.naming import archive_key
from codehub.domain.secrets import Dotfiles, GitIdentity, SecretKind, SecretName, template_owner, user_owner
from codehub.domain.workspace import Desired, Operation, Phase
from codehub.ports.archives import StoredObject
from codehub.ports.secrets import Sealed, StoredSecret
from codehub.ports.stores import Actor
from tests.browser.dashboard_harness import DashboardHarness, archiving, dashboard_harness, failure
from tests.browser.deployment import DashboardUser
from tests.chromium import chromium

DESKTOP = {"width": 1140, "height": 700}
PHONE = {"width": 375, "height": 667}

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "screens" / "dashboard"


@dataclass(frozen=True)
class ShownWorkspaces:
    running: UUID
    broken: UUID
    archived: UUID
    point: UUID


async def fill(harness: DashboardHarness) -> ShownWorkspaces:
    for name in ("ann", "bob", "chris"):
        await harness.person(name)
    await harness.person("admin", Role.ADMIN)
    running = _running(harness)
    _asleep(harness)
    broken = _broken(harness)
    archived, point = _archived(harness)
    _busy_day(harness)
    for number, owner in enumerate(("bob", "bob", "chris")):
        harness.put(owner, f"service-{number + 1}", (Phase.RUNNING, Phase.STANDBY, Phase.ARCHIVED)[number])
    for days, size in ((0.6, 1_420_000_000), (2.2, 318_000_000)):
        key, at = archive_key("", archived, uuid4()), harness.ago(days=days)
        harness.backends.archives.state.unfinished[key] = StoredObject(key, size, at)
    await _own_things(harness)
    return ShownWorkspaces(running, broken, archived, point)


async def _own_things(harness: DashboardHarness) -> None:
    """Set what ann has in every workspace, one of which cannot be decrypted any more, and a template's variable."""
    owner, ann = user_owner(harness.people["ann"]), Actor("ann")
    keeping = harness.app.state.parts.secrets
    public_key = f"ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAI{'3xK9vQ' * 7}Wb ann@codehub:code.example.org"
    for of, kind, name, public, key in (
        (owner, SecretKind.VARIABLE, "NPM_TOKEN", "", "first"),
        (owner, SecretKind.VARIABLE, "STAGING_DATABASE_URL", "", "lost"),
        (owner, SecretKind.GIT_TOKEN, "git.example.com", "ann", "first"),
        (owner, SecretKind.SSH_KEY, "code.example.org", public_key, "first"),
        (template_owner("default"), SecretKind.VARIABLE, "LICENSE_KEY", "", "first"),
    ):
        stored = StoredSecret(SecretName(of, kind, name), public, Sealed(key, b"kept"))
        await keeping.secrets.put(stored, ann if of == owner else Actor("admin"))
    await keeping.profiles.set_git_identity(harness.people["ann"], GitIdentity("Ann Lee", "ann@example.com"), ann)
    await keeping.profiles.set_dotfiles(
        harness.people["ann"], Dotfiles("https://git.example.com/ann/dotfiles.git", "./install.sh"), ann
    )


def _running(harness: DashboardHarness) -> UUID:
    running = harness.put(
        "ann", "web-shop", Phase.RUNNING, description="The shop’s front end", created_at=harness.ago(hours=3),
        last_access_at=harness.ago(minutes=2), phase_changed_at=harness.ago(hours=2),
        git_url="https://git.example.com/team/web-shop.git",
    )  # fmt: skip
    harness.told(
        running,
        (9_000, "ann", LedgerKind.CREATED, None, Desired.RUNNING, "", "web-shop"),
        (8_999, "controller", LedgerKind.OPERATION_BEGAN, Operation.NONE, Operation.PROVISIONING, "", ""),
        (8_998, "controller", LedgerKind.PHASE, Phase.PENDING, Phase.STANDBY, "", ""),
        (8_997, "controller", LedgerKind.PHASE, Phase.STANDBY, Phase.RUNNING, "", ""),
        (1_300, "ttl", LedgerKind.WISH, Desired.RUNNING, Desired.STANDBY, "idle", ""),
        (1_299, "controller", LedgerKind.OPERATION_BEGAN, Operation.NONE, Operation.STOPPING, "", ""),
        (1_298, "controller", LedgerKind.OPERATION_ENDED, Operation.STOPPING, Operation.NONE, "", ""),
        (1_298, "controller", LedgerKind.PHASE, Phase.RUNNING, Phase.STANDBY, "", ""),
        (121, "ann", LedgerKind.WISH, Desired.STANDBY, Desired.RUNNING, "asked", ""),
        (121, "controller", LedgerKind.OPERATION_BEGAN, Operation.NONE, Operation.STARTING, "", ""),
        (120.9, "controller", LedgerKind.OPERATION_ENDED, Operation.STARTING, Operation.NONE, "", ""),
        (120.9, "controller", LedgerKind.PHASE, Phase.STANDBY, Phase.RUNNING, "", ""),
    )
    return running.id


def _asleep(harness: DashboardHarness) -> None:
    """Add one workspace that is being archived, and one at rest."""
    harness.put(
        "ann", "data-pipeline", Phase.STANDBY, description="Nightly import", created_at=harness.ago(days=1),
        last_access_at=harness.ago(hours=5), phase_changed_at=harness.ago(minutes=4),
        **archiving(1_214_000_000, 3_402_000_000, 21_380),
    )  # fmt: skip
    harness.put(
        "ann", "docs", Phase.STANDBY, description="The handbook", created_at=harness.ago(days=2),
        last_access_at=harness.ago(minutes=40), phase_changed_at=harness.ago(minutes=9),
    )  # fmt: skip


def _archived(harness: DashboardHarness) -> tuple[UUID, UUID]:
    """Add an archived workspace with restore points and one that is being restored; returns the first and its newest
    restore point."""
    archived = harness.put(
        "ann", "thesis", Phase.ARCHIVED, description="2025", created_at=harness.ago(days=40),
        last_access_at=harness.ago(days=12), phase_changed_at=harness.ago(days=12),
    )  # fmt: skip
    point = harness.point(archived, 12, 812_000_000, 18_211, present=True)
    harness.point(archived, 19, 798_000_000, 17_902)
    harness.point(archived, 33, 640_100_000, 15_020)
    progress = archiving(412_000_000, 655_000_000, 4_120)["op_progress"]
    harness.put(
        "ann", "playground", Phase.ARCHIVED, created_at=harness.ago(days=41), last_access_at=harness.ago(hours=1),
        desired_state=Desired.RUNNING, operation=Operation.RESTORING, op_id=uuid4(), op_progress=progress,
    )  # fmt: skip
    return archived.id, point


def _busy_day(harness: DashboardHarness) -> None:
    """Add office hours, as a ledger remembers them."""
    random = Random(7)
    ledger = harness.backends.database.state.ledger
    for _ in range(46):
        key, began = uuid4(), random.triangular(2, 15, 9) * 60
        took, lasted = random.triangular(2, 14, 3), random.uniform(20, 110)
        ended = max(began - lasted, 1)
        for minutes, kind, before, after in (
            (began + took / 60, LedgerKind.OPERATION_BEGAN, Operation.NONE, Operation.STARTING),
            (began, LedgerKind.PHASE, Phase.STANDBY, Phase.RUNNING),
            (ended, LedgerKind.PHASE, Phase.RUNNING, Phase.STANDBY),
        ):
            ledger.append(
                LedgerEntry(harness.ago(minutes=minutes), key, "controller", kind, before, after, "", None, "")
            )
    ledger.sort(key=lambda entry: entry.at)
    swing = 1.0
    for minute in range(1, 24 * 60):
        at = harness.ago(minutes=minute).replace(second=0, microsecond=0)
        busy = max(0.04, 1 - abs(minute / 60 - 8) / 6)
        swing = swing if minute % 15 else random.uniform(0.8, 1.15)
        sockets = 60 * 14 * busy * swing
        harness.backends.database.state.traffic[at] = TrafficMinute(
            at, int(900 * busy * random.uniform(0.6, 1.3)), sockets
        )
    other = harness.put("chris", "paper", Phase.ARCHIVED, created_at=harness.ago(days=60))
    for hours in (3, 4.5, 6, 7, 7.5, 9, 11, 14):
        harness.point(other, hours / 24, int(random.uniform(2e8, 3e9)), 4_000)


def _broken(harness: DashboardHarness) -> UUID:
    info = failure(
        ErrorReason.RETRY_EXCEEDED,
        "STARTING failed 3 times. The last time: the container ended with exit code 137 (out of memory).",
        harness.ago(minutes=6),
        last_reason="ActionFailed",
        exit_code=137,
    )
    broken = harness.put(
        "ann", "ml-lab", Phase.ERROR, description="Training notebooks", created_at=harness.ago(days=3),
        last_access_at=harness.ago(minutes=9), phase_changed_at=harness.ago(minutes=6), error_info=info,
    )  # fmt: skip
    return broken.id


@dataclass(frozen=True)
class Screen:
    name: str
    who: str
    path: Callable[[ShownWorkspaces], str]
    before: Callable[[Page], Awaitable[Any]] | None = None
    pictured: bool = True
    whole: bool = False
    """The picture shows all of the page, however long."""


async def _open_create(page: Page) -> None:
    await page.locator(".page-head .button.primary").click()
    await page.get_by_role("dialog").wait_for()


async def _open_files(page: Page) -> None:
    await page.locator(".files tbody tr").nth(3).wait_for()


async def _open_template_secrets(page: Page) -> None:
    await page.locator("table .menu-place button").last.click()
    await page.get_by_role("menuitem").nth(1).click()
    await page.get_by_text("LICENSE_KEY").first.wait_for()


SCREENS = (
    Screen("workspaces", "ann", lambda _: "/"),
    Screen("create", "ann", lambda _: "/", _open_create),
    Screen("workspace", "ann", lambda workspaces: f"/workspaces/{workspaces.running}"),
    Screen("trouble", "ann", lambda workspaces: f"/workspaces/{workspaces.broken}"),
    Screen("history", "ann", lambda workspaces: f"/workspaces/{workspaces.running}/history"),
    Screen(
        "restore-points",
        "ann",
        lambda workspaces: f"/workspaces/{workspaces.archived}/points?point={workspaces.point}",
        _open_files,
    ),
    Screen("settings", "ann", lambda workspaces: f"/workspaces/{workspaces.running}/settings"),
    Screen("logs", "ann", lambda workspaces: f"/workspaces/{workspaces.running}/logs", pictured=False),
    Screen("account", "ann", lambda _: "/account"),
    Screen("account-empty", "admin", lambda _: "/account", pictured=False),
    Screen("admin", "admin", lambda _: "/admin", whole=True),
    Screen("admin-errors", "admin", lambda _: "/admin/errors"),
    Screen("admin-people", "admin", lambda _: "/admin/users"),
    Screen("admin-garbage", "admin", lambda _: "/admin/garbage"),
    Screen("admin-audit", "admin", lambda _: "/admin/audit"),
    Screen("admin-workspaces", "admin", lambda _: "/admin/workspaces", pictured=False),
    Screen("admin-templates", "admin", lambda _: "/admin/templates", pictured=False),
    Screen("admin-template-secrets", "admin", lambda _: "/admin/templates", _open_template_secrets, pictured=False),
)
LOOKS = (
    ("desktop-light", {"viewport": DESKTOP, "color_scheme": "light"}),
    ("desktop-dark", {"viewport": DESKTOP, "color_scheme": "dark"}),
    ("phone-light", {"viewport": PHONE, "color_scheme": "light", "has_touch": True}),
    ("phone-dark", {"viewport": PHONE, "color_scheme": "dark", "has_touch": True}),
)


async def shown(user: DashboardUser, screen: Screen, workspaces: ShownWorkspaces) -> Page:
    """Open a page and wait until it has come to rest."""
    await user.goes(screen.path(workspaces))
    if screen.before:
        await screen.before(user.page)
    await user.page.wait_for_timeout(700)
    return user.page


async def taken(harness: DashboardHarness, folder: Path, names: Collection[str]) -> list[Path]:
    workspaces = await fill(harness)
    found = []
    for look, options in LOOKS:
        users = {name: await harness.user(name, reduced_motion="reduce", **options) for name in ("ann", "admin")}
        for screen in SCREENS:
            if screen.name not in names:
                continue
            page = await shown(users[screen.who], screen, workspaces)
            path = folder / f"{screen.name}-{look}.png"
            await page.screenshot(path=path, animations="disabled", full_page=screen.whole)
            found.append(path)
    return found


async def main(named: Collection[str]) -> None:
    known = [screen.name for screen in SCREENS if screen.pictured]
    if unknown := set(named) - set(known):
        sys.exit(f"there is no picture of {', '.join(sorted(unknown))}; there are: {', '.join(known)}")
    FOLDER.mkdir(parents=True, exist_ok=True)
    async with chromium() as browser, dashboard_harness(browser) as harness:
        for path in await taken(harness, FOLDER, named or known):
            print(path.relative_to(FOLDER.parents[2]), path.stat().st_size)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1:]))
