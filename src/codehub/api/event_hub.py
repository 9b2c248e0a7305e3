"""All event streams of this process: a topic per owner while somebody listens, and the channels that concern many of
them: resyncs, and notices to admins. Who may no longer listen is found by the access watch."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Final

from codehub.api.access_watch import AccessWatch
from codehub.api.event_topic import Listener, Topic, event
from codehub.api.supervision import ended, supervised
from codehub.domain.errors import LimitReached
from codehub.ports.signals import NOTICES, Bus
from codehub.ports.views import Owned, WorkspaceViews
from codehub.telemetry import EVENT_LISTENERS, EVENT_LISTENERS_CUT, Metrics

MOST_PER_USER: Final = 10
JOIN_PATIENCE_SECONDS: Final = 2.0


class EventHub:
    def __init__(
        self,
        bus: Bus,
        views: WorkspaceViews,
        render: Callable[[Owned], dict[str, Any]],
        metrics: Metrics,
        access: AccessWatch,
        sse_prefix: str = "codehub:sse:",
    ) -> None:
        self._bus = bus
        self._views = views
        self._render = render
        self._metrics = metrics
        self._access = access
        self._prefix = sse_prefix
        self._topics: dict[str | None, tuple[Topic, asyncio.Task[None]]] = {}
        self._shared: list[asyncio.Task[None]] = []
        self._listeners: set[Listener] = set()
        self._closed = False

    @asynccontextmanager
    async def listening(self, owner_id: str | None, listener: Listener) -> AsyncIterator[Listener]:
        """`owner_id` None: everybody's. The first event is a snapshot."""
        self._watch()
        topic = self._topic(owner_id)
        try:
            await topic.join(listener, JOIN_PATIENCE_SECONDS)
            yield listener
        finally:
            topic.leave(listener)
            if topic.is_deserted:
                await self._drop(owner_id, topic)

    async def close(self) -> None:
        """Every stream ends; their readers come back to another process."""
        self._closed = True
        for listener in list(self._listeners):
            listener.end("closing")
        tasks = [task for _, task in self._topics.values()]
        tasks += self._shared
        self._topics.clear()
        self._shared = []
        await ended(tasks)

    @contextmanager
    def admitted(self, listener: Listener) -> Iterator[None]:
        """Around all of a stream and its answer's head, so that a refusal is an answer and not a broken stream. Counted
        here and now: no burst gets by."""
        if sum(one.user_id == listener.user_id for one in self._listeners) >= MOST_PER_USER:
            message = f"You have {MOST_PER_USER} event streams open here. Close some of them."
            raise LimitReached(message, code="stream_limit")
        self._enter(listener)
        try:
            with self._access.watching(listener):
                yield
        finally:
            self._leave(listener)

    def _enter(self, listener: Listener) -> None:
        self._listeners.add(listener)
        self._metrics.set(EVENT_LISTENERS, len(self._listeners))
        if self._closed:
            listener.end("closing")

    def _leave(self, listener: Listener) -> None:
        self._listeners.discard(listener)
        self._metrics.set(EVENT_LISTENERS, len(self._listeners))
        if listener.why is not None:
            self._metrics.add(EVENT_LISTENERS_CUT, why=listener.why)

    def _topic(self, owner_id: str | None) -> Topic:
        if owner_id not in self._topics:
            channel = f"{self._prefix}{'*' if owner_id is None else owner_id}"
            topic = Topic(owner_id, channel, self._bus, self._views, self._render)
            self._topics[owner_id] = topic, asyncio.create_task(supervised(channel, topic.run))
        return self._topics[owner_id][0]

    async def _drop(self, owner_id: str | None, topic: Topic) -> None:
        present = self._topics.get(owner_id)
        if present is not None and present[0] is topic:
            del self._topics[owner_id]
            await ended([present[1]])

    def _watch(self) -> None:
        if not self._shared and not self._closed:
            listening = {"resync": self._hear_resyncs, NOTICES: self._hear_notices}
            self._shared = [asyncio.create_task(supervised(name, run)) for name, run in listening.items()]

    async def _hear_resyncs(self) -> None:
        async for _ in self._bus.subscribe(f"{self._prefix}resync", self._resync_all):
            self._resync_all()

    async def _hear_notices(self) -> None:
        async for message in self._bus.subscribe(f"{self._prefix}{NOTICES}"):
            notice = event("notice", {key: message.get(key) for key in ("subject", "details")})
            for listener in self._listeners:
                if listener.is_admin:
                    listener.give(notice)

    def _resync_all(self) -> None:
        for topic, _ in self._topics.values():
            topic.resync()
