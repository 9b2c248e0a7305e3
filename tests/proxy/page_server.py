"""A proxy that serves our pages in a test: it tells what it is told to tell, and writes down what it is asked for.

A sign-in goes to a server behind it, as in earnest: the relay hands bodies on and reads none itself.
"""

import asyncio
import json
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

from codehub.domain.access import access_to
from codehub.domain.workspace import Desired, Phase
from codehub.proxy.access.verdicts import Cap, Forward, Pending, Respond, UpstreamFailure, Verdict
from codehub.proxy.http.limits import ProxyLimits
from codehub.proxy.http.parser import RequestHead
from codehub.proxy.http.responses import date_line, problem, serialised
from codehub.proxy.pages.content import PageModel, workspace_page
from codehub.proxy.pages.render import answer, asset, sign_in_page, state
from codehub.proxy.pages.texts import Language, language
from codehub.proxy.server import ProxyServer
from tests import rows
from tests.eventually import eventually
from tests.proxy.fake_workspace import FakeWorkspace, Seen

Tell = Callable[[Language], PageModel]
Wake = Callable[[str | None], tuple[int, Tell]]
"""Asked which workspace is to give way; answers with a status and what to tell."""
SignIn = Callable[[dict[str, Any]], Respond]
_ROW = rows.with_home(phase=Phase.RUNNING, desired_state=Desired.RUNNING)
RUNNING = workspace_page(_ROW, access_to(_ROW), Language.ENGLISH, wakes=False)
IDE = b"<!doctype html><title>IDE</title><link rel=icon href=data:,><h1>The IDE</h1>"


class PageServer:
    """What the server tells. `tell` None: the workspace runs, and answers itself."""

    routes = ()

    def __init__(self, tell: Tell | None = None) -> None:
        self.tell = tell
        self.wake: Wake = lambda _: (500, self._tell)
        self.sign_in: SignIn = lambda _: problem(500, "Nobody said what to answer.")
        self.provider: str | None = None
        self.has_hosts = False
        self.woken: list[str | None] = []
        self.asked: list[RequestHead] = []
        self.polls = 0
        self._changed = asyncio.Event()

    async def __aenter__(self) -> Self:
        self._behind = FakeWorkspace()
        self._behind.answer = self._posted
        await self._behind.__aenter__()
        self.port = 0
        await self.come_back()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.go_away()
        await self._behind.__aexit__(kind, error, trace)

    async def go_away(self) -> None:
        await self._server.drain(0.0, 0.0)

    async def come_back(self) -> None:
        self._server = ProxyServer(self, ProxyLimits(tick=0.05))
        self.port = await self._server.listen("127.0.0.1", self.port)

    @property
    def url(self) -> str:
        return f"http://demo.localhost:{self.port}"

    def show(self, tell: Tell | None) -> None:
        self.tell = tell
        self._changed.set()
        self._changed = asyncio.Event()

    def asked_for(self, method: bytes, target: bytes) -> int:
        return sum((head.method, head.target) == (method, target) for head in self.asked)

    async def polled(self) -> None:
        """Wait until somebody has asked for news."""
        await eventually(lambda: self.polls > 0)

    # ── the authorizer ───────────────────────────────────────────────────────────────────────────────────────────────

    def decide(self, head: RequestHead) -> Verdict:
        self.asked.append(head)
        path, _, query = head.target.partition(b"?")
        spoken = language(head.fields.header(b"accept-language"))
        if path == b"/signin":
            return sign_in_page(spoken, self.provider, has_hosts=self.has_hosts)
        if path.startswith(b"/api/"):
            return Forward(self._behind.endpoint)
        if path.startswith(b"/_codehub/"):
            return self._reserved(head, path.removeprefix(b"/_codehub/"), query, spoken)
        if self.tell is None:
            return Respond(200, ((b"Content-Type", b"text/html"), (b"Cache-Control", b"no-store")), IDE)
        return answer(self.tell(spoken), head.fields.header(b"accept"), spoken)

    def _reserved(self, head: RequestHead, name: bytes, query: bytes, spoken: Language) -> Verdict:
        if name == b"state":
            return Pending(self._state(query.removeprefix(b"seen=").decode(), spoken))
        if name == b"wake":
            return self._wake(head, query, spoken)
        return asset(name) or problem(404, "There is no such asset.")

    def failed(self, head: RequestHead, forward: Forward, failure: UpstreamFailure) -> Respond:
        raise NotImplementedError

    def overloaded(self, head: RequestHead, cap: Cap) -> Respond:
        raise NotImplementedError

    async def _state(self, seen: str, spoken: Language) -> Respond:
        self.polls += 1
        while self._tell(spoken).version == seen:
            await self._changed.wait()
        return state(self._tell(spoken))

    def _tell(self, spoken: Language) -> PageModel:
        if self.tell is not None:
            return self.tell(spoken)
        return RUNNING

    def _wake(self, head: RequestHead, query: bytes, spoken: Language) -> Respond:
        assert head.method == b"POST"
        assert head.fields.header(b"content-type") == b"application/json", "what a form of another site cannot send"
        assert not query or query.startswith(b"instead=")
        instead = query.removeprefix(b"instead=").decode() or None
        self.woken.append(instead)
        status, tell = self.wake(instead)
        return state(tell(spoken), status)

    def _posted(self, seen: Seen) -> bytes:
        assert (seen.method, seen.target, seen.one("content-type")) == ("POST", "/api/v1/session", "application/json")
        return serialised(self.sign_in(json.loads(seen.body)), date_line(0), b"", body=True, close=False)
