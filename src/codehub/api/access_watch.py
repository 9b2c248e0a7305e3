"""Long responses, event streams and downloads, end when their caller may no longer read them.

The caller is authorised again when the bus tells that their access changed, after every gap in which that may have been
missed, and every so often in any case; never for each piece that is sent.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final, Protocol
from uuid import UUID

from fastapi import Request

from codehub.api.dependencies import ApiParts, address_of
from codehub.domain.credentials import SESSION_COOKIE
from codehub.domain.errors import CodeHubError, Forbidden, NotFound, Unauthenticated
from codehub.domain.identity import Caller
from codehub.ports.signals import Bus
from codehub.telemetry import get_logger
from codehub.usecases.bus_listener import BusListener, Message
from codehub.usecases.revocations import AUTH_CHANNEL

log = get_logger(__name__)

RESTART_SECONDS: Final = 0.5
RECHECK_SECONDS: Final = 30.0

StillAllowed = Callable[[], Awaitable[bool]]


async def supervised(name: str, run: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Runs a task that lasts as long as the process: when it ends or fails, that is logged and it is started again."""
    while True:
        try:
            await run()
        except Exception:
            log.exception("events crashed", component=name)
        await asyncio.sleep(RESTART_SECONDS)


async def cancel_and_wait(tasks: Collection["asyncio.Task[None]"]) -> None:
    for task in tasks:
        task.cancel()
    for task in tasks:
        with suppress(asyncio.CancelledError):
            await task


class WatchedResponse(Protocol):
    """An event stream or download that `end` ends once `still_allowed` says that its user may not read it."""

    user_id: UUID
    still_allowed: StillAllowed

    def end(self, why: str) -> None: ...


class AccessWatch:
    """Ends the long responses of this process when their callers lose access."""

    def __init__(self, bus: Bus) -> None:
        self._responses: set[WatchedResponse] = set()
        self._watchers: list[asyncio.Task[None]] = []
        self._recheck_now = asyncio.Event()
        self._listener = BusListener(bus, AUTH_CHANNEL, self._hear, subscribed=self._recheck_now.set)
        self._closed = False

    @contextmanager
    def watching(self, response: WatchedResponse) -> Iterator[None]:
        self._watch()
        self._responses.add(response)
        try:
            yield
        finally:
            self._responses.discard(response)

    async def close(self) -> None:
        self._closed = True
        watchers, self._watchers = self._watchers, []
        await cancel_and_wait(watchers)

    def _watch(self) -> None:
        if not self._watchers and not self._closed:
            self._watchers = [
                asyncio.create_task(supervised("auth", self._listener.run)),
                asyncio.create_task(supervised("recheck", self._recheck_regularly)),
            ]

    async def _hear(self, message: Message) -> None:
        user_id = message.get("user_id")
        await self._recheck([one for one in self._responses if str(one.user_id) == user_id])

    async def _recheck_regularly(self) -> None:
        """Checks all responses every so often, and after every gap in which a revocation may have been missed."""
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(RECHECK_SECONDS):
                    await self._recheck_now.wait()
            self._recheck_now.clear()
            await self._recheck(self._responses)

    async def _recheck(self, responses: Collection[WatchedResponse]) -> None:
        for response in list(responses):
            try:
                allowed = await response.still_allowed()
            except CodeHubError as error:
                log.warning("cannot ask who still may stay", error=str(error))
                return
            if not allowed and response in self._responses:  # one that is over needs no end
                response.end("signed_out")


def access_check(request: Request, parts: ApiParts, ask: Callable[[Caller], Awaitable[object]]) -> StillAllowed:
    """A check whether the request's credential still names somebody whom `ask` does not refuse."""
    cookie, address = request.cookies.get(SESSION_COOKIE), address_of(request)
    kind, _, token = request.headers.get("authorization", "").partition(" ")
    bearer = token.strip() if kind.lower() == "bearer" else None

    async def still_allowed() -> bool:
        try:
            await ask(await parts.identity.caller(session_token=cookie, bearer=bearer, address=address))
        except (Unauthenticated, Forbidden, NotFound):
            return False
        return True

    return still_allowed


class StreamCaller:
    """The caller of an answer that goes on for a while, such as a download. `why`: why it was ended, which interrupts
    whatever it waits for."""

    def __init__(self, user_id: UUID, still_allowed: StillAllowed) -> None:
        self.user_id = user_id
        self.still_allowed = still_allowed
        self.why: str | None = None
        self.interruption = asyncio.timeout(None)

    def end(self, why: str) -> None:
        if self.why is None:
            self.why = why
            self.interruption.reschedule(asyncio.get_running_loop().time())
