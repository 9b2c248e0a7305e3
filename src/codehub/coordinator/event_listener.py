"""The event listener: a notification of PostgreSQL becomes a Redis message for browsers, and a wake for our own queue.

Payloads are ids only. After a gap anything may have changed: everybody is told to read afresh.
"""

import asyncio
from collections.abc import Callable
from uuid import UUID

import structlog

from codehub.domain.errors import Unreachable
from codehub.ports.signals import Bus, Change, ChangeFeed, Channel
from codehub.telemetry import EVENT_GAPS, EVENTS_PUBLISHED, Metrics
from codehub.usecases.bus_listener import BusListener, Message, workspace_in

log = structlog.get_logger()

MOST_UNSENT = 10_000
"""When more than this many changes wait for a slow bus they are dropped: everybody is told to read afresh instead."""

RESYNC_SECONDS = 1.0
"""The pause between two tries to tell a bus that did not answer that something was missed."""


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
        sender: str = "",
    ) -> None:
        self._feed = feed
        self._bus = bus
        self._wake = wake
        self._resync = resync
        self._metrics = metrics
        self._sse_prefix = sse_prefix
        self._wake_prefix = wake_prefix
        self._sender = sender

    async def run(self) -> None:
        """Runs until the feed is lost; the restarted listener begins with a resync."""
        heard: asyncio.Queue[Change | None] = asyncio.Queue(MOST_UNSENT)
        tasks = [asyncio.create_task(self._listen(heard)), asyncio.create_task(self._publish_all(heard))]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _listen(self, heard: "asyncio.Queue[Change | None]") -> None:
        def listening() -> None:
            self._metrics.add(EVENT_GAPS)
            self._resync()
            heard.put_nowait(None)

        async for change in self._feed.changes(listening):
            self._hear(change, heard)
        await heard.join()

    def _hear(self, change: Change, heard: "asyncio.Queue[Change | None]") -> None:
        """Note a change. A wake goes to our own queue at once: a Redis that hangs delays no workspace."""
        if change.channel in (Channel.WAKE, Channel.DELETED):
            self._wake(change.workspace_id)
        if heard.full():
            _forget(heard)
            heard.put_nowait(None)
        heard.put_nowait(change)

    async def _publish_all(self, heard: "asyncio.Queue[Change | None]") -> None:
        """Publish changes as they come. What could not be sent is made good by a resync, as soon as the bus answers
        again."""
        resync = f"{self._sse_prefix}resync", {"type": "resync"}
        while True:
            change = await heard.get()
            sent = await self._publish(*(resync if change is None else self._message(change)))
            heard.task_done()
            while not sent:
                await asyncio.sleep(RESYNC_SECONDS)
                sent = await self._publish(*resync)

    def _message(self, change: Change) -> tuple[str, dict[str, str]]:
        workspace_id = str(change.workspace_id)
        match change.channel:
            case Channel.WAKE:
                return f"{self._wake_prefix}wc", {"type": "wake", "id": workspace_id, "sender": self._sender}
            case Channel.SSE:
                return f"{self._sse_prefix}{change.owner_id}", {"type": "updated", "id": workspace_id}
            case Channel.DELETED:
                return f"{self._sse_prefix}{change.owner_id}", {"type": "deleted", "id": workspace_id}

    async def _publish(self, channel: str, message: dict[str, str]) -> bool:
        try:
            await self._bus.publish(channel, message)
        except Unreachable as error:
            log.warning("event not published", channel=channel, error=str(error))
            return False
        self._metrics.add(EVENTS_PUBLISHED, channel="wake" if channel.startswith(self._wake_prefix) else "sse")
        return True


class WakeListener:
    """Hears hints from other processes on the channel of wakes, as JSON objects: one with a workspace's id asks for a
    look at that one at once, any other for a look at all. What this process has published itself, it has acted on
    already."""

    def __init__(
        self, bus: Bus, channel: str, wake: Callable[[UUID], None], resync: Callable[[], None], sender: str
    ) -> None:
        self._wake = wake
        self._resync = resync
        self._sender = sender
        self.run = BusListener(bus, channel, self._hear).listen_once
        """Listens until the bus is lost: hints may get lost, and the periodic passes see what they would have told."""

    async def _hear(self, message: Message) -> None:
        workspace_id = workspace_in(message)
        if message.get("sender") == self._sender:
            return
        if workspace_id is None:
            self._resync()
        else:
            self._wake(workspace_id)


def _forget(heard: "asyncio.Queue[Change | None]") -> None:
    while not heard.empty():
        heard.get_nowait()
        heard.task_done()
