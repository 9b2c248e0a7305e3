"""What the engine says has changed, as workspace ids, from its stream of events, and who answers for the first time.

After a gap the stream goes on where it was left, so a container that died meanwhile is still heard of.
"""

import asyncio
import json
import re
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing
from typing import Any
from uuid import UUID

from aiodocker.channel import ChannelSubscriber

from codehub.adapters.docker.engine import Engine, looking
from codehub.adapters.docker.payloads import JOB, ROLE_LABEL, WORKSPACE
from codehub.domain.errors import Unreachable
from codehub.domain.naming import INSTALL_LABEL, WORKSPACE_LABEL

_FILTERS = json.dumps(
    {
        "type": ["container", "volume"],
        "event": ["create", "start", "die", "oom", "destroy", "pause", "unpause"],
    }
)
_VOLUME = re.compile(r"ws-([0-9a-f-]{36})-home(-\d+)?")


class EngineEvents:
    def __init__(self, engine: Engine, install_id: str, answered: "asyncio.Queue[UUID] | None" = None) -> None:
        self._engine = engine
        self._install_id = install_id
        self._answered: asyncio.Queue[UUID] = answered or asyncio.Queue()
        self._heard_at: int | None = None

    async def listen(self) -> AsyncIterator[UUID]:
        with looking():
            async with self._engine.own_client() as docker:
                since = {} if self._heard_at is None else {"since": _seconds(self._heard_at)}
                events = docker.events.subscribe(filters=_FILTERS, **since)
                async with aclosing(self._either(events)) as heard:
                    async for about in heard:
                        yield about
        raise Unreachable("the Docker engine's events have ended")

    async def _either(self, events: ChannelSubscriber) -> AsyncGenerator[UUID, None]:
        event, answer = asyncio.ensure_future(events.get()), asyncio.ensure_future(self._answered.get())
        try:
            while True:
                await asyncio.wait((event, answer), return_when=asyncio.FIRST_COMPLETED)
                if answer.done():
                    yield answer.result()
                    answer = asyncio.ensure_future(self._answered.get())
                if event.done():
                    if (said := event.result()) is None:
                        return
                    if (about := self._noted(said)) is not None:
                        yield about
                    event = asyncio.ensure_future(events.get())
        finally:
            event.cancel()
            answer.cancel()

    def _noted(self, event: Mapping[str, Any]) -> UUID | None:
        moment = int(event.get("timeNano", 0))
        self._heard_at = max(self._heard_at or 0, moment + 1)
        return self.about(event)

    def about(self, event: Mapping[str, Any]) -> UUID | None:
        actor = event.get("Actor") or {}
        attributes = actor.get("Attributes") or {}
        if event.get("Type") == "volume":
            # Its labels are not in the event. Whose it is, the look that follows will say.
            found = _VOLUME.fullmatch(str(actor.get("ID")))
            return _uuid(found[1]) if found else None
        if event.get("Action") == "create":
            return None  # by us, and about to be started
        if attributes.get(INSTALL_LABEL) != self._install_id or attributes.get(ROLE_LABEL) not in {WORKSPACE, JOB}:
            return None
        return _uuid(str(attributes.get(WORKSPACE_LABEL)))


def _seconds(nanoseconds: int) -> str:
    return f"{nanoseconds // 10**9}.{nanoseconds % 10**9:09d}"


def _uuid(text: str) -> UUID | None:
    try:
        return UUID(text)
    except ValueError:
        return None
