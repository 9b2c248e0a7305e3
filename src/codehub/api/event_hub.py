"""All event streams of this process: a topic per owner while somebody listens, and the two channels that concern all
of them, resyncs and the end of somebody's access."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any, Final

from codehub.api.event_topic import AGAIN_SECONDS, Listener, Topic
from codehub.domain.errors import CodeHubError, LimitReached, Unreachable
from codehub.ports.signals import Bus
from codehub.ports.views import Owned, WorkspaceViews
from codehub.telemetry import EVENT_LISTENERS, EVENT_LISTENERS_CUT, Metrics, get_logger
from codehub.usecases.announcements import AUTH_CHANNEL

log = get_logger(__name__)

RECHECK_SECONDS: Final = 30.0
MOST_PER_USER: Final = 10
JOIN_PATIENCE_SECONDS: Final = 2.0


class EventHub:
    def __init__(
        self,
        bus: Bus,
        views: WorkspaceViews,
        render: Callable[[Owned], dict[str, Any]],
        metrics: Metrics,
        sse_prefix: str = "codehub:sse:",
    ) -> None:
        self._bus = bus
        self._views = views
        self._render = render
        self._metrics = metrics
        self._prefix = sse_prefix
        self._topics: dict[str | None, tuple[Topic, asyncio.Task[None]]] = {}
        self._watchers: list[asyncio.Task[None]] = []
        self._listeners: set[Listener] = set()
        self._recheck_now = asyncio.Event()
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
        tasks = [*self._watchers, *(task for _, task in self._topics.values())]
        self._topics.clear()
        self._watchers = []
        await _ended(tasks)

    @contextmanager
    def admitted(self, listener: Listener) -> Iterator[None]:
        """Around all of a stream and its answer's head, so that a refusal is an answer and not a broken stream. Counted
        here and now: no burst gets by."""
        if sum(one.user_id == listener.user_id for one in self._listeners) >= MOST_PER_USER:
            message = f"You have {MOST_PER_USER} event streams open here. Close some of them."
            raise LimitReached(message, code="stream_limit")
        self._enter(listener)
        try:
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
            self._topics[owner_id] = topic, asyncio.create_task(self._supervised(channel, topic.run))
        return self._topics[owner_id][0]

    async def _drop(self, owner_id: str | None, topic: Topic) -> None:
        present = self._topics.get(owner_id)
        if present is not None and present[0] is topic:
            del self._topics[owner_id]
            await _ended([present[1]])

    def _watch(self) -> None:
        if not self._watchers and not self._closed:
            self._watchers = [
                asyncio.create_task(self._supervised("resync", self._hear_resyncs)),
                asyncio.create_task(self._supervised("auth", self._hear_access)),
                asyncio.create_task(self._supervised("recheck", self._recheck_regularly)),
            ]

    async def _supervised(self, name: str, run: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Nothing dies silently: it is begun again, and begins with a resync or a look at everybody."""
        while True:
            try:
                await run()
            except Unreachable as error:
                log.warning("bus lost", component=name, error=str(error))
            except Exception:
                log.exception("events crashed", component=name)
            await asyncio.sleep(AGAIN_SECONDS)

    async def _hear_resyncs(self) -> None:
        async for _ in self._bus.subscribe(f"{self._prefix}resync", self._resync_all):
            self._resync_all()

    def _resync_all(self) -> None:
        for topic, _ in self._topics.values():
            topic.resync()

    async def _hear_access(self) -> None:
        async for message in self._bus.subscribe(AUTH_CHANNEL, self._recheck_now.set):
            await self._recheck([one for one in self._listeners if str(one.user_id) == _user(message)])

    async def _recheck_regularly(self) -> None:
        """And after every gap in which somebody's end may have been missed."""
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(RECHECK_SECONDS):
                    await self._recheck_now.wait()
            self._recheck_now.clear()
            await self._recheck(self._listeners)

    async def _recheck(self, listeners: "set[Listener] | list[Listener]") -> None:
        for listener in list(listeners):
            try:
                allowed = await listener.still_allowed()
            except CodeHubError as error:
                log.warning("cannot ask who still may listen", error=str(error))
                return
            if not allowed:
                listener.end("signed_out")


def _user(message: Mapping[str, Any]) -> str:
    return str(message.get("user_id", ""))


async def _ended(tasks: "list[asyncio.Task[None]]") -> None:
    for task in tasks:
        task.cancel()
    for task in tasks:
        with suppress(asyncio.CancelledError):
            await task
