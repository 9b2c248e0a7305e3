"""What is done in a tab while it is recorded. Marks that begin with `quiet` are times in which nobody does anything."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from codehub.proxy.access.verdicts import Forward
from tests.proxy.harness import ProxyHarness
from tests.proxy.recording.recorder import Recorder
from tests.proxy.recording.workbench import SETTINGS, Tab, code_server, tab

SETTLES = 60.0
"""How long a tab that was just opened still works by itself."""
LOOP = "for i in 1 2 3 4 5 6; do sleep 3; echo tick $i; done"


@dataclass
class Session:
    recorder: Recorder
    proxy: ProxyHarness
    tab: Tab
    rests: int = 0

    async def quiet(self, seconds: float, what: str = "rest") -> None:
        self.rests += 1
        self.recorder.mark(f"quiet {self.rests}: {what}")
        await asyncio.sleep(seconds)

    async def does(self, what: str, doing: Awaitable[object], lasts: float = 4.0) -> None:
        """Mark something that is done; what follows from it is over when `lasts` is."""
        self.recorder.mark(what)
        await doing
        await asyncio.sleep(lasts)

    async def output(self, what: str) -> None:
        """Mark output that comes while no key is pressed."""
        await self.does("a command", self.tab.page.keyboard.type(f"\n{LOOP}\n"), lasts=5.0)
        await self.does(what, self.tab.reads("tick 6"))


@dataclass(frozen=True)
class Scenario:
    plays: Callable[[Session], Awaitable[None]]
    settings: Mapping[str, object] = field(default_factory=lambda: SETTINGS)
    git: bool = False


async def at_work(session: Session) -> None:
    keyboard = session.tab.page.keyboard
    await session.quiet(240.0, "the home is open, and a terminal")
    await session.does("a key in the terminal", keyboard.press("#"))
    await session.quiet(10.0)
    await session.output("terminal output")
    await session.quiet(10.0)
    await session.does("opening a file", session.tab.open_file("style.css"), lasts=10.0)
    await session.quiet(10.0)
    await session.does("typing in an editor", keyboard.type("a { "), lasts=10.0)
    await session.quiet(10.0)
    await session.does("a completion", session.tab.complete(), lasts=10.0)
    await session.quiet(10.0)
    await session.does("closing the list", keyboard.press("Escape"))
    await session.does("a save", keyboard.press("Control+s"), lasts=10.0)
    await session.quiet(10.0)
    await session.does("a search", session.tab.search("margin"), lasts=10.0)
    await session.quiet(30.0)
    await hidden(session)


async def reconnected(session: Session) -> None:
    await session.quiet(10.0)
    session.recorder.mark("quiet: the sockets are cut, and made anew")
    assert session.proxy.server.abort_sockets(lambda _: True) == 2
    await asyncio.sleep(60.0)
    await session.does("a key in the terminal", session.tab.page.keyboard.press("#"))
    await session.quiet(10.0)
    await session.output("terminal output")
    await session.quiet(20.0)


async def hidden(session: Session) -> None:
    session.recorder.mark("quiet: another tab is in front")
    await session.tab.page.evaluate(LEFT)
    await asyncio.sleep(40.0)
    await session.does("coming back to the tab", session.tab.page.evaluate(BACK), lasts=15.0)


LEFT = """() => {
    document.hasFocus = () => false;
    Object.defineProperty(document, 'visibilityState', {value: 'hidden', configurable: true});
    Object.defineProperty(document, 'hidden', {value: true, configurable: true});
    document.dispatchEvent(new Event('visibilitychange'));
    window.dispatchEvent(new Event('blur'));
}"""
BACK = """() => {
    delete document.hasFocus;
    delete document.visibilityState;
    delete document.hidden;
    document.dispatchEvent(new Event('visibilitychange'));
    window.dispatchEvent(new Event('focus'));
}"""
"""Hide or show a tab: a driven browser believes that all its tabs are in front, so each is told."""


async def chatty(session: Session) -> None:
    await session.does("opening a file", session.tab.open_file("style.css"), lasts=20.0)
    await session.quiet(90.0, "a file of a repository is open")


SCENARIOS = {
    "at-work": Scenario(at_work),
    "reconnected": Scenario(reconnected),
    "chatty": Scenario(chatty, settings={**SETTINGS, "chat.disableAIFeatures": False}, git=True),
}


@asynccontextmanager
async def session(scenario: Scenario) -> AsyncIterator[Session]:
    """A tab whose folder is the home itself, with a terminal open, that has settled."""
    recorder = Recorder()
    async with (
        code_server(git=scenario.git, settings=scenario.settings) as (endpoint, _),
        ProxyHarness(endpoint, forward=Forward(endpoint, tap=recorder.tap)) as proxy,
    ):
        recorder.note_requests(proxy)
        recorder.mark("load")
        async with tab(proxy.port) as opened:
            await opened.open_terminal()
            recorder.mark("settling")
            await asyncio.sleep(SETTLES)
            yield Session(recorder, proxy, opened)
            recorder.mark("end")
