"""Listening on one channel of the bus: subscribe, hand each message over, begin again after a loss, tell of the gap.

Messages may be lost with the connection. So whoever listens is told when a subscription begins, because anything may
have changed before it, and when one is lost, because nothing is heard until the next.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final
from uuid import UUID

from codehub.domain.errors import Unreachable
from codehub.ports.signals import Bus
from codehub.telemetry import get_logger

log = get_logger(__name__)

RETRY_SECONDS: Final = 0.5

Message = Mapping[str, Any]


def _ignore() -> None: ...


class BusListener:
    def __init__(
        self,
        bus: Bus,
        channel: str,
        handle: Callable[[Message], Awaitable[None]],
        *,
        subscribed: Callable[[], None] = _ignore,
        lost: Callable[[], None] = _ignore,
    ) -> None:
        """`handle` gets one message after the other. What it raises ends the listener."""
        self.is_subscribed = False
        self.losses = 0
        """How often a subscription was lost or could not be made."""
        self._bus = bus
        self._channel = channel
        self._handle = handle
        self._subscribed = subscribed
        self._lost = lost

    async def run(self) -> None:
        """Listens until it is cancelled."""
        while True:
            try:
                await self.listen_once()
            except Unreachable as error:
                log.warning("bus lost", channel=self._channel, error=str(error))
            await asyncio.sleep(RETRY_SECONDS)

    async def listen_once(self) -> None:
        """Listens until the subscription is lost, for whoever has a restart policy of its own. Raises Unreachable."""
        try:
            async for message in self._bus.subscribe(self._channel, self._begin):
                await self._handle(message)
        finally:
            self.is_subscribed = False
            self.losses += 1
            self._lost()

    def _begin(self) -> None:
        self.is_subscribed = True
        self._subscribed()


def workspace_in(message: Message) -> UUID | None:
    """The workspace that a message is about; None if it names none."""
    try:
        return UUID(message["id"])
    except (KeyError, ValueError, TypeError, AttributeError):
        return None
