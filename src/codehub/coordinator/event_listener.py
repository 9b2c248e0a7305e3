"""The event listener: what PostgreSQL tells becomes Redis messages for browsers, and wakes for our own queue.

Payloads are ids only. After a gap anything may have changed: everybody is told to take a fresh look.
"""

from collections.abc import Callable
from uuid import UUID

import structlog

from codehub.domain.errors import Unreachable
from codehub.ports.signals import Bus, Change, ChangeFeed, Channel
from codehub.telemetry import EVENT_GAPS, EVENTS_PUBLISHED, Metrics

log = structlog.get_logger()


class EventListener:
    def __init__(
        self,
        feed: ChangeFeed,
        bus: Bus,
        wake: Callable[[UUID], None],
        resync: Callable[[], None],
        metrics: Metrics,
        sse_prefix: str = "codehub:sse:",
        wake_prefix: str = "codehub:wake:",
    ) -> None:
        self._feed = feed
        self._bus = bus
        self._wake = wake
        self._resync = resync
        self._metrics = metrics
        self._sse_prefix = sse_prefix
        self._wake_prefix = wake_prefix

    async def run(self) -> None:
        """Until the feed is lost; whoever restarts us begins with a resync."""
        self._metrics.add(EVENT_GAPS)
        self._resync()
        await self._publish(f"{self._sse_prefix}resync", {"type": "resync"})
        async for change in self._feed.changes():
            await self._pass_on(change)

    async def _pass_on(self, change: Change) -> None:
        workspace_id = str(change.workspace_id)
        match change.channel:
            case Channel.WAKE:
                self._wake(change.workspace_id)
                await self._publish(f"{self._wake_prefix}wc", {"type": "wake", "id": workspace_id})
            case Channel.SSE:
                await self._publish(f"{self._sse_prefix}{change.owner_id}", {"type": "updated", "id": workspace_id})
            case Channel.DELETED:
                self._wake(change.workspace_id)
                await self._publish(f"{self._sse_prefix}{change.owner_id}", {"type": "deleted", "id": workspace_id})

    async def _publish(self, channel: str, message: dict[str, str]) -> None:
        try:
            await self._bus.publish(channel, message)
            self._metrics.add(EVENTS_PUBLISHED, channel="wake" if channel.startswith(self._wake_prefix) else "sse")
        except Unreachable as error:
            log.warning("event not published", channel=channel, error=str(error))
