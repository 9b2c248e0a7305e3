"""What passed the front doors, in memory."""

from collections.abc import Callable
from datetime import datetime

from codehub.adapters.memory.wire import Wire
from codehub.domain.history import SPAN, Minute


class MemoryTraffic:
    def __init__(self, minutes: dict[datetime, Minute], now: Callable[[], datetime], wire: Wire) -> None:
        self._minutes = minutes
        self._now = now
        self._wire = wire

    async def add(self, requests: int, socket_seconds: float) -> None:
        def write() -> None:
            now = self._now()
            at = now.replace(second=0, microsecond=0)
            known = self._minutes.get(at, Minute(at, 0, 0.0))
            self._minutes[at] = Minute(at, known.requests + requests, known.socket_seconds + socket_seconds)
            for old in [minute for minute in self._minutes if minute <= now - SPAN]:
                del self._minutes[old]

        await self._wire.call("traffic.add", write)
