"""What an editor that nobody touches costs, with CodeHub's extension and script in it and without, in one run.

One workspace on this machine and one tab of Chromium at a time. After a tab has settled, the CPU time of the browser,
of the workspace and of CodeHub itself is read over a while, the two kinds of tabs in turn; the medians are compared.
"""

import argparse
import asyncio
import statistics
import sys
from collections.abc import Iterable

import psutil
from playwright.async_api import Route

from codehub.adapters.ide import ensure_code_server
from codehub.bootstrap.runtimes import ide_cache_dir
from codehub.settings import load_settings
from tests.browser.end_to_end.browser_user import BrowserUser
from tests.browser.end_to_end.installation import Installation, Person, Workspace, installation
from tests.chromium import chromium

OURS = ("**/_codehub/**", "**/extensions/codehub/**")
"""What the front door and the extension add to VS Code's page."""
KINDS = ("without", "with")
PARTS = ("browser", "workspace", "codehub")


async def main() -> None:
    options = _parser().parse_args()
    given = load_settings(database_url="postgresql://unused", redis_url="redis://unused", ide_command=None)
    ide = await ensure_code_server(ide_cache_dir(given), lambda _text, _fraction: None)
    seen: dict[str, list[list[float]]] = {kind: [] for kind in KINDS}
    with installation(ide.directory.parent) as hub:
        ann = hub.person()
        desk = await ann.workspace("desk", "RUNNING", standby_ttl_seconds=0)
        for number in range(options.rounds):
            for kind in KINDS:
                seen[kind].append(await _measured(hub, ann, desk, kind, options.settle, options.seconds))
                print(f"round {number + 1}, {kind}: {_row(seen[kind][-1])}", flush=True)
    medians = {kind: [statistics.median(column) for column in zip(*seen[kind], strict=True)] for kind in KINDS}
    for kind in KINDS:
        print(f"median, {kind}: {_row(medians[kind])}")
    print(f"with / without: {sum(medians['with']) / sum(medians['without']):.2f}")


async def _measured(
    hub: Installation, ann: Person, desk: Workspace, kind: str, settle: float, seconds: float
) -> list[float]:
    """Percent of one core that each part takes."""
    async with chromium() as browser, BrowserUser.at(browser, hub) as user:
        await user.signs_in(ann)
        if kind == "without":
            for pattern in OURS:
                await user.context.route(pattern, _missing)
        tab = await user.opens(desk.url)
        await tab.open_file("notes.txt")
        is_there = await tab.page.locator("text=/Sleeps in|Stays awake/").count() > 0
        await asyncio.sleep(settle)
        is_there = is_there or await tab.page.locator("text=/Sleeps in|Stays awake/").count() > 0
        if is_there != (kind == "with"):
            raise SystemExit(f"a tab {kind} the extension has its item in the status bar: {is_there}")
        before = _cpu_seconds(hub, desk)
        await asyncio.sleep(seconds)
        after = _cpu_seconds(hub, desk)
    return [100 * (after[part] - before[part]) / seconds for part in PARTS]


async def _missing(route: Route) -> None:
    await route.fulfill(status=404)


def _cpu_seconds(hub: Installation, desk: Workspace) -> dict[str, float]:
    me, ours = psutil.Process(), psutil.Process(hub.running.process.pid)
    codehub = [ours, *ours.children(recursive=True)]
    browser = [each for each in me.children(recursive=True) if each not in codehub]
    return {"browser": _sum(browser), "workspace": _sum(desk.processes()), "codehub": _sum(codehub)}


def _sum(processes: Iterable[psutil.Process]) -> float:
    total = 0.0
    for process in processes:
        try:
            spent = process.cpu_times()
        except psutil.NoSuchProcess:
            continue
        total += spent.user + spent.system
    return total


def _row(percents: list[float]) -> str:
    parts = ", ".join(f"{part} {percent:.2f} %" for part, percent in zip(PARTS, percents, strict=True))
    return f"{parts}, together {sum(percents):.2f} % of a core"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--settle", type=float, default=60.0, help="seconds that a tab is left alone before")
    parser.add_argument("--seconds", type=float, default=60.0, help="that are measured")
    return parser


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
