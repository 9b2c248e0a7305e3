"""GET /events: server-sent events. A snapshot first, then whole objects as they change; a reconnect begins anew.

There is a topic for each owner (and one of everybody's workspaces, for admins) while somebody listens to it. A topic
has one bus subscription, reads each change once and gives it to every listener. Messages carry ids and may be lost; a
fresh snapshot makes up for that after every gap of the bus or of the database, and whenever somebody joins. The access
watch ends the streams of those whose access was revoked.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any, Final
from uuid import UUID

from fastapi import APIRouter, Query, Request
from sse_starlette import EventSourceResponse, ServerSentEvent
from starlette.types import Receive, Send
from starlette.types import Scope as ASGIScope

from codehub.api.access_watch import RESTART_SECONDS, AccessWatch, access_check, cancel_and_wait, supervised
from codehub.api.dependencies import Parts, Reader, problems
from codehub.domain.errors import CodeHubError, LimitReached
from codehub.domain.identity import Caller, Scope
from codehub.ports.signals import NOTICES, Bus
from codehub.ports.views import OwnedWorkspace, WorkspaceViews
from codehub.telemetry import EVENT_LISTENERS, EVENT_LISTENERS_CUT, Metrics, get_logger
from codehub.usecases.bus_listener import BusListener, Message, workspace_in
from codehub.usecases.start_secrets import OWNER_NOTICE

log = get_logger(__name__)

MOST_WAITING: Final = 256
"""Events a listener may be behind; one that is further behind is cut off and begins anew with a snapshot."""

MOST_PER_USER: Final = 10
JOIN_TIMEOUT_SECONDS: Final = 2.0
SEND_SECONDS: Final = 30.0
RECONNECT_MILLISECONDS: Final = 2_000

SNAPSHOT: Final = "snapshot"
_REPLACED: Final = frozenset({SNAPSHOT, "workspace_updated", "workspace_deleted", "progress"})
"""The events that a newer snapshot replaces, since it holds all that they say."""

_PROGRESS_FIELDS: Final = frozenset({"progress", "updated_at"})
"""A change of these fields alone is sent as `progress`, not as the whole workspace."""

_EXAMPLE = 'event: workspace_deleted\ndata: {"id": "6f1c2b54-8d0e-4a7b-9f57-0c1d6b0f2a11"}\n\n'
_STREAM: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "snapshot {workspaces}, then workspace_updated (a whole workspace), workspace_deleted {id}, "
        "progress {id, operation, op_id, progress, updated_at}, idle_warning {id, stops_at, becomes}, heartbeat {}; "
        "notice {subject, details}, for owners of what concerns their workspaces, for admins of the installation. "
        "Another snapshot may come at any time and replaces everything. The stream ends when the session does.",
        "content": {"text/event-stream": {"schema": {"type": "string"}, "example": _EXAMPLE}},
    }
}

router = APIRouter(tags=["events"])


@dataclass(frozen=True)
class Event:
    """A server-sent event, whose `data` is one line."""

    name: str
    data: str

    @cached_property
    def encoded(self) -> bytes:
        """The event's bytes in a stream, made once for all listeners."""
        return f"event: {self.name}\r\ndata: {self.data}\r\n\r\n".encode()


def event(name: str, data: object) -> Event:
    return Event(name, json.dumps(data))


class Listener:
    """The queue of one event stream. `still_allowed` says whether its user may still listen. `is_admin`: it gets the
    notices to admins, too. `why`: why it was ended."""

    def __init__(self, user_id: UUID, still_allowed: Callable[[], Awaitable[bool]], *, is_admin: bool = False) -> None:
        self.user_id = user_id
        self.is_admin = is_admin
        self.still_allowed = still_allowed
        self.why: str | None = None
        self._waiting: asyncio.Queue[Event | None] = asyncio.Queue()

    def give(self, given: Event) -> None:
        if self.why is not None:
            return
        if given.name == SNAPSHOT:
            self._forget_replaced()
        if self._waiting.qsize() >= MOST_WAITING:
            self.end("slow")
        else:
            self._waiting.put_nowait(given)

    def _forget_replaced(self) -> None:
        """Drops queued events that a new snapshot replaces, so that a listener who does not read keeps one snapshot."""
        waiting = [self._waiting.get_nowait() for _ in range(self._waiting.qsize())]
        for kept in waiting:
            if kept is None or kept.name not in _REPLACED:
                self._waiting.put_nowait(kept)

    def end(self, why: str) -> None:
        """Drops the queued events, so that the reader gets the end next."""
        if self.why is None:
            self.why = why
            while not self._waiting.empty():
                self._waiting.get_nowait()
            self._waiting.put_nowait(None)

    async def all_waiting(self) -> list[Event]:
        """All queued events, for one write; waits until there is one. Empty: the stream is over."""
        waiting = [await self._waiting.get()]
        while not self._waiting.empty():
            waiting.append(self._waiting.get_nowait())
        return [] if self.why is not None else [given for given in waiting if given is not None]


class Topic:
    """The events of one owner's workspaces, or of everybody's, for all who listen to them in this process."""

    def __init__(
        self,
        owner_id: str | None,
        channel: str,
        bus: Bus,
        views: WorkspaceViews,
        render: Callable[[OwnedWorkspace], dict[str, Any]],
    ) -> None:
        self.listeners: set[Listener] = set()
        self._owner_id = owner_id
        self._channel = channel
        self._listener = BusListener(bus, channel, self._hear, subscribed=self._subscribed, lost=self._lost)
        self._views = views
        self._render = render
        self._joining: set[Listener] = set()
        self._changed: dict[UUID, None] = {}
        self._must_resync = False
        self._wake = asyncio.Event()
        self._listening = asyncio.Event()
        self._last: dict[UUID, dict[str, Any] | None] = {}
        """Each workspace as last sent; None = sent as deleted; absent = the next one is sent whole."""
        self._newest: tuple[dict[UUID, dict[str, Any]], Event] | None = None
        """What the last snapshot was made from, and the snapshot."""

    @property
    def is_deserted(self) -> bool:
        return not self.listeners and not self._joining

    async def join(self, listener: Listener) -> None:
        """Adds a listener, whose first event is a snapshot. A bus that does not answer delays it only for a while."""
        try:
            async with asyncio.timeout(JOIN_TIMEOUT_SECONDS):
                await self._listening.wait()
        except TimeoutError:
            log.warning("events without a bus: a snapshot now, and another when it is back", channel=self._channel)
        self._joining.add(listener)
        self._wake.set()

    def leave(self, listener: Listener) -> None:
        self._joining.discard(listener)
        self.listeners.discard(listener)

    def resync(self) -> None:
        self._must_resync = True
        self._wake.set()

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._listener.run())
            tasks.create_task(self._serve())

    def _subscribed(self) -> None:
        self._listening.set()
        self.resync()

    def _lost(self) -> None:
        self._listening.clear()

    async def _hear(self, message: Message) -> None:
        kind, workspace_id = message.get("type"), workspace_in(message)
        if workspace_id is not None and kind in ("updated", "deleted"):
            self._changed[workspace_id] = None
            self._wake.set()
        elif workspace_id is not None and kind == "idle_warning":
            self._tell(event(kind, {key: message.get(key) for key in ("id", "stops_at", "becomes")}))
        elif kind == OWNER_NOTICE and self._owner_id is not None:
            self._tell(event("notice", {key: message.get(key) for key in ("subject", "details")}))

    async def _serve(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            try:
                await self._turn()
            except CodeHubError as error:
                log.warning("events wait for the database", channel=self._channel, error=str(error))
                await asyncio.sleep(RESTART_SECONDS)
                self.resync()

    async def _turn(self) -> None:
        if self._must_resync or self._joining:
            await self._snapshot()
        ids, self._changed = list(self._changed), {}
        if ids:
            found = await self._views.some(ids)
            for workspace_id in ids:
                self._update(workspace_id, found.get(workspace_id))

    async def _snapshot(self) -> None:
        """Sends a snapshot to those who join, or to all; changes that were told before the read are in it."""
        for_all, joining, heard = self._must_resync, set(self._joining), list(self._changed)
        self._must_resync = False
        rows = {o.workspace.id: self._render(o) for o in await self._views.everything(self._owner_id)}
        snapshot = self._snapshot_of(rows)
        self._joining -= joining
        if for_all:
            self._last = dict(rows)
            for workspace_id in heard:
                self._changed.pop(workspace_id, None)
        else:
            # Those who were here before have not seen this: what differs is sent to all of them whole.
            self._last = {key: seen for key, seen in self._last.items() if seen == rows.get(key)}
        for listener in joining | (self.listeners if for_all else set()):
            listener.give(snapshot)
        self.listeners |= joining

    def _snapshot_of(self, rows: dict[UUID, dict[str, Any]]) -> Event:
        """The snapshot of these rows; the last one as long as nothing differs, since it may be large and many may
        join."""
        if self._newest is None or self._newest[0] != rows:
            self._newest = rows, event(SNAPSHOT, {"workspaces": list(rows.values())})
        return self._newest[1]

    def _update(self, workspace_id: UUID, owned: OwnedWorkspace | None) -> None:
        if owned is not None and self._owner_id not in (None, owned.workspace.owner_id):
            return
        if owned is None or owned.workspace.deleted_at is not None:
            if self._last.get(workspace_id, {}) is not None:
                self._last[workspace_id] = None
                self._tell(event("workspace_deleted", {"id": str(workspace_id)}))
            return
        new, old = self._render(owned), self._last.get(workspace_id)
        if new == old:
            return
        self._last[workspace_id] = new
        if old is not None and {key for key in new if new[key] != old[key]} <= _PROGRESS_FIELDS and new["progress"]:
            told = ("id", "operation", "op_id", "progress", "updated_at")
            self._tell(event("progress", {key: new[key] for key in told}))
        else:
            self._tell(event("workspace_updated", new))

    def _tell(self, told: Event) -> None:
        for listener in self.listeners:
            listener.give(told)


class EventHub:
    """The event streams of this process: its topics, its listeners, and the bus channels that concern all topics."""

    def __init__(
        self,
        bus: Bus,
        views: WorkspaceViews,
        render: Callable[[OwnedWorkspace], dict[str, Any]],
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
        """Gives the listener this owner's events, or everybody's for None; the first is a snapshot."""
        self._watch()
        topic = self._topic(owner_id)
        try:
            await topic.join(listener)
            yield listener
        finally:
            topic.leave(listener)
            if topic.is_deserted:
                await self._drop(owner_id, topic)

    async def close(self) -> None:
        """Ends every stream; their clients connect again, to another process."""
        self._closed = True
        for listener in list(self._listeners):
            listener.end("closing")
        tasks = [task for _, task in self._topics.values()]
        tasks += self._shared
        self._topics.clear()
        self._shared = []
        await cancel_and_wait(tasks)

    @contextmanager
    def admitted(self, listener: Listener) -> Iterator[None]:
        """Counts a stream from before its response's head until its end. LimitReached comes before the head, so that it
        is a response and not a broken stream."""
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
            await cancel_and_wait([present[1]])

    def _watch(self) -> None:
        if not self._shared and not self._closed:
            listeners = {
                "resync": BusListener(
                    self._bus, f"{self._prefix}resync", self._hear_resync, subscribed=self._resync_all
                ),
                NOTICES: BusListener(self._bus, f"{self._prefix}{NOTICES}", self._hear_notice),
            }
            self._shared = [asyncio.create_task(supervised(name, each.run)) for name, each in listeners.items()]

    async def _hear_resync(self, _: Message) -> None:
        self._resync_all()

    async def _hear_notice(self, message: Message) -> None:
        notice = event("notice", {key: message.get(key) for key in ("subject", "details")})
        for listener in self._listeners:
            if listener.is_admin:
                listener.give(notice)

    def _resync_all(self) -> None:
        for topic, _ in self._topics.values():
            topic.resync()


@router.get(
    "/events",
    operation_id="streamEvents",
    response_class=EventSourceResponse,
    responses={**_STREAM, **problems(401, 403, 422, 429)},
)
async def stream_events(
    request: Request,
    parts: Parts,
    caller: Reader,
    *,
    everybody: Annotated[bool, Query(alias="all", description="Everybody's; for admins.")] = False,
) -> EventSourceResponse:
    if everybody:
        caller.must(Scope.ADMIN)
    needed = Scope.ADMIN if everybody else Scope.READ
    is_admin = caller.may(Scope.ADMIN)

    async def may_listen(now: Caller) -> None:
        now.must(needed, *([Scope.ADMIN] if is_admin else []))

    hub: EventHub = request.app.state.hub
    listener = Listener(caller.user.id, access_check(request, parts, may_listen), is_admin=is_admin)

    async def stream() -> AsyncIterator[bytes]:
        async with hub.listening(None if everybody else caller.user.owner_id, listener):
            yield b"retry: %d\r\n" % RECONNECT_MILLISECONDS
            while events := await listener.all_waiting():
                for write in writes(events):
                    yield write

    return EventStream(
        hub.admitted(listener),
        stream(),
        ping=parts.site.heartbeat,
        ping_message_factory=lambda: ServerSentEvent("{}", event="heartbeat"),
        send_timeout=SEND_SECONDS,
    )


class EventStream(EventSourceResponse):
    """An event stream that is counted from its beginning until it is over, however it ends."""

    def __init__(self, admitted: AbstractContextManager[None], stream: AsyncIterator[bytes], **how: Any) -> None:  # noqa: ANN401 - as its parent's
        super().__init__(stream, **how)
        self._admitted = admitted

    async def __call__(self, scope: ASGIScope, receive: Receive, send: Send) -> None:
        with self._admitted:
            await super().__call__(scope, receive, send)


def writes(events: Sequence[Event]) -> Iterator[bytes]:
    """The events' bytes in as few writes as can be; snapshots by themselves, since listeners share their large
    bytes."""
    small: list[bytes] = []
    for event in events:
        if event.name != SNAPSHOT:
            small.append(event.encoded)
            continue
        if small:
            yield b"".join(small)
            small = []
        yield event.encoded
    if small:
        yield b"".join(small)
