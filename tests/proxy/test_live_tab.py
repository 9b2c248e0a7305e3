"""A real tab of a real browser on a real code-server, through the real relay: left alone, then worked in."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from codehub.adapters.ide import IdeError, ensure_code_server
from codehub.bootstrap.runtimes import ide_cache_dir
from codehub.proxy.access.verdicts import Forward
from codehub.proxy.presence.tap import IdePresence, may_be_activity
from codehub.settings import load_settings
from tests.chromium import installed
from tests.proxy.harness import ProxyHarness
from tests.proxy.recording.scenarios import LOOP
from tests.proxy.recording.workbench import Tab, code_server, tab

pytestmark = [pytest.mark.system, pytest.mark.timeout(1500)]

SETTLED = 20.0
"""A tab that has just been opened has settled when nothing was seen for so long."""
OVER = 5.0
"""What followed from something done has settled when nothing was seen for so long."""
PATIENCE = 300.0


@pytest.fixture(scope="module", autouse=True)
def _tools() -> None:
    if installed() is None:
        pytest.skip("chromium is not there")
    settings = load_settings(database_url="postgresql://unused", redis_url="redis://unused", ide_command=None)
    try:
        asyncio.run(ensure_code_server(ide_cache_dir(settings), lambda text, fraction: None))
    except IdeError as error:
        pytest.skip(f"code-server is not in the cache and cannot be installed: {error}")


class Watch:
    """What the proxy sees of one tab. Its folder is the home itself, and a terminal is open."""

    tab: Tab
    proxy: ProxyHarness

    def __init__(self) -> None:
        self.last = time.monotonic()
        self.times = 0

    def seen(self) -> None:
        self.last = time.monotonic()
        self.times += 1

    async def add_user(self, seconds: float = OVER) -> None:
        async with asyncio.timeout(PATIENCE):
            while time.monotonic() - self.last < seconds:
                await asyncio.sleep(0.5)

    async def alone(self, seconds: float) -> None:
        times, asked = self.times, len(self.proxy.authorizer.asked)
        await asyncio.sleep(seconds)
        assert self.times == times
        heads = self.proxy.authorizer.asked[asked:]
        assert [head.target for head in heads if may_be_activity(head.method, head.target)] == []

    async def sees(self, doing: Awaitable[object]) -> None:
        before = self.times
        await doing
        async with asyncio.timeout(PATIENCE):
            while self.times == before:
                await asyncio.sleep(0.05)
        await self.add_user()


@asynccontextmanager
async def watched_tab() -> AsyncIterator[Watch]:
    watch = Watch()
    async with AsyncExitStack() as stack:
        endpoint, _ = await stack.enter_async_context(code_server())
        forward = Forward(endpoint, tap=lambda: IdePresence(watch.seen, rest=0.0))
        watch.proxy = await stack.enter_async_context(ProxyHarness(endpoint, forward=forward))
        watch.tab = await stack.enter_async_context(tab(watch.proxy.port))
        assert watch.times > 0
        await watch.tab.open_terminal()
        await watch.tab.click_terminal()
        await watch.add_user(SETTLED)
        yield watch


async def test_a_tab_left_alone_is_nobody_and_each_kind_of_work_is_somebody() -> None:
    async with watched_tab() as watch:
        keyboard = watch.tab.page.keyboard
        await watch.alone(40.0)
        await watch.sees(keyboard.press("#"))
        await keyboard.press("Enter")
        await watch.tab.click_terminal()
        await keyboard.type(LOOP)
        await watch.tab.reads(LOOP[:20])  # what is typed before the shell listens may be lost
        await keyboard.press("Enter")
        await watch.tab.reads("tick 2")
        await watch.sees(watch.tab.reads("tick 6"))
        await watch.sees(watch.tab.open_file("style.css"))
        await watch.sees(keyboard.type("a { "))
        await watch.sees(watch.tab.complete())
        await keyboard.press("Escape")
        await watch.add_user()
        await watch.sees(keyboard.press("Control+s"))


@pytest.mark.long
async def test_ten_minutes_alone() -> None:
    async with watched_tab() as watch:
        await watch.alone(600.0)
        await watch.sees(watch.tab.page.keyboard.press("#"))
