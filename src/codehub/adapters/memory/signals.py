"""Bus, activity and notices in memory."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from uuid import UUID

from codehub.adapters.memory.fault_injection import Network, effect
from codehub.domain.errors import Unreachable
from codehub.domain.notices import Notice


@dataclass(slots=True)
class SignalsState:
    listeners: dict[str, list[asyncio.Queue[Mapping[str, Any] | None]]] = field(default_factory=dict)
    activity: dict[UUID, datetime] = field(default_factory=dict)

    def sever(self) -> None:
        """Every listener loses its connection."""
        for listener in [one for some in self.listeners.values() for one in some]:
            listener.put_nowait(None)


class MemoryBus:
    def __init__(self, state: SignalsState | None = None, network: Network | None = None) -> None:
        self.state = state or SignalsState()
        self._network = network or Network()

    @effect("bus.publish")
    def publish(self, channel: str, message: Mapping[str, Any]) -> None:
        for name, listeners in self.state.listeners.items():
            if name == channel or (name.endswith("*") and channel.startswith(name[:-1])):
                for listener in listeners:
                    listener.put_nowait(message)

    async def subscribe(
        self, channel: str, listening: Callable[[], None] | None = None
    ) -> AsyncIterator[Mapping[str, Any]]:
        """Yields the messages of a channel. A None in the queue is a connection that is lost."""
        listener: asyncio.Queue[Mapping[str, Any] | None] = asyncio.Queue()

        def join() -> None:
            self.state.listeners.setdefault(channel, []).append(listener)

        await self._network.call("bus.subscribe", join)
        try:
            if listening is not None:
                listening()
            while (message := await listener.get()) is not None:
                yield message
            raise Unreachable("bus: connection lost")
        finally:
            self.state.listeners[channel].remove(listener)


class MemoryActivity:
    def __init__(self, state: SignalsState | None = None, network: Network | None = None) -> None:
        self.state = state or SignalsState()
        self._network = network or Network()

    @effect("activity.record")
    def record(self, seen: Mapping[UUID, datetime]) -> None:
        for key, at in seen.items():
            self.state.activity[key] = max(at, self.state.activity.get(key, at))

    @effect("activity.read")
    def read(self) -> Mapping[UUID, datetime]:
        return dict(self.state.activity)

    @effect("activity.forget")
    def forget(self, written: Mapping[UUID, datetime]) -> None:
        for key, at in written.items():
            if self.state.activity.get(key) == at:
                del self.state.activity[key]


class MemoryNotifier:
    def __init__(self) -> None:
        self.notices: list[Notice] = []

    async def notify(self, notice: Notice) -> None:
        self.notices.append(notice)
