"""What the engine says has changed, as workspace ids, from its stream of events.

After a gap the stream goes on where it was left, so a container that died meanwhile is still heard of.
"""

import json
import re
from collections.abc import AsyncIterator, Mapping
from typing import Any
from uuid import UUID

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


class Hints:
    def __init__(self, engine: Engine, install_id: str) -> None:
        self._engine = engine
        self._install_id = install_id
        self._heard_at: int | None = None

    async def listen(self) -> AsyncIterator[UUID]:
        with looking():
            async with self._engine.own_client() as docker:
                since = {} if self._heard_at is None else {"since": _seconds(self._heard_at)}
                events = docker.events.subscribe(filters=_FILTERS, **since)
                while (event := await events.get()) is not None:
                    moment = int(event.get("timeNano", 0))
                    self._heard_at = max(self._heard_at or 0, moment + 1)
                    about = self.about(event)
                    if about is not None:
                        yield about
        raise Unreachable("the Docker engine's events have ended")

    def about(self, event: Mapping[str, Any]) -> UUID | None:
        actor = event.get("Actor") or {}
        attributes = actor.get("Attributes") or {}
        if event.get("Type") == "volume":
            # Its labels are not in the event. Whose it is, the look that follows will say.
            found = _VOLUME.fullmatch(str(actor.get("ID")))
            return _uuid(found[1]) if found else None
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
