"""GET /events: server-sent events. A snapshot first, then whole objects as they change; a reconnect begins anew."""

from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from sse_starlette import EventSourceResponse, ServerSentEvent
from starlette.types import Receive, Send
from starlette.types import Scope as ASGIScope

from codehub.api.access_watch import access_check
from codehub.api.dependencies import Parts, Reader, problems
from codehub.api.event_topics import SNAPSHOT, Event, EventHub, Listener
from codehub.domain.identity import Caller, Scope

router = APIRouter(tags=["events"])

RECONNECT_MILLISECONDS = 2_000
SEND_SECONDS = 30.0

_EXAMPLE = 'event: workspace_deleted\ndata: {"id": "6f1c2b54-8d0e-4a7b-9f57-0c1d6b0f2a11"}\n\n'
_STREAM: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "snapshot {workspaces}, then workspace_updated (a whole workspace), workspace_deleted {id}, "
        "progress {id, operation, op_id, progress, updated_at}, idle_warning {id, stops_at, becomes}, heartbeat {}; "
        "for admins, notice {subject, details}. "
        "Another snapshot may come at any time and replaces everything. The stream ends when the session does.",
        "content": {"text/event-stream": {"schema": {"type": "string"}, "example": _EXAMPLE}},
    }
}


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
