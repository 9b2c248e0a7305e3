"""Answers that last, event streams and downloads, last no longer than the right to them.

Whoever takes one is asked about again when the bus tells that their access changed, after every gap in which that may
have been missed, and every so often in any case; never for each piece that is sent.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from typing import Final, Protocol
from uuid import UUID

from fastapi import Request

from codehub.api.dependencies import ApiParts, address_of
from codehub.api.supervision import ended, supervised
from codehub.domain.credentials import SESSION_COOKIE
from codehub.domain.errors import CodeHubError, Forbidden, NotFound, Unauthenticated
from codehub.domain.identity import Caller
from codehub.ports.signals import Bus
from codehub.telemetry import get_logger
from codehub.usecases.bus_listener import BusListener, Message
from codehub.usecases.revocations import AUTH_CHANNEL

log = get_logger(__name__)

RECHECK_SECONDS: Final = 30.0

StillAllowed = Callable[[], Awaitable[bool]]


class Guest(Protocol):
    """Whoever takes such an answer. `end` ends it."""

    user_id: UUID
    still_allowed: StillAllowed

    def end(self, why: str) -> None: ...


class AccessWatch:
    def __init__(self, bus: Bus) -> None:
        self._guests: set[Guest] = set()
        self._watchers: list[asyncio.Task[None]] = []
        self._recheck_now = asyncio.Event()
        self._listener = BusListener(bus, AUTH_CHANNEL, self._hear, subscribed=self._recheck_now.set)
        self._closed = False

    @contextmanager
    def watching(self, guest: Guest) -> Iterator[None]:
        self._watch()
        self._guests.add(guest)
        try:
            yield
        finally:
            self._guests.discard(guest)

    async def close(self) -> None:
        self._closed = True
        watchers, self._watchers = self._watchers, []
        await ended(watchers)

    def _watch(self) -> None:
        if not self._watchers and not self._closed:
            self._watchers = [
                asyncio.create_task(supervised("auth", self._listener.run)),
                asyncio.create_task(supervised("recheck", self._recheck_regularly)),
            ]

    async def _hear(self, message: Message) -> None:
        user_id = message.get("user_id")
        await self._recheck([guest for guest in self._guests if str(guest.user_id) == user_id])

    async def _recheck_regularly(self) -> None:
        """And after every gap in which somebody's end may have been missed."""
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(RECHECK_SECONDS):
                    await self._recheck_now.wait()
            self._recheck_now.clear()
            await self._recheck(self._guests)

    async def _recheck(self, guests: Collection[Guest]) -> None:
        for guest in list(guests):
            try:
                allowed = await guest.still_allowed()
            except CodeHubError as error:
                log.warning("cannot ask who still may stay", error=str(error))
                return
            if not allowed and guest in self._guests:  # who has left meanwhile needs no end
                guest.end("signed_out")


def lasting(request: Request, parts: ApiParts, ask: Callable[[Caller], Awaitable[object]]) -> StillAllowed:
    """Whether what this request came with still names somebody, and `ask` does not refuse them."""
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
