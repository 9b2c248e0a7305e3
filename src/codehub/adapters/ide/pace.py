"""Steps whose length can only be guessed, as a bar that neither stands still nor goes back."""

import asyncio
import math
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

Progress = Callable[[str, float], None]
"""(what is being done, how much is done: 0 to 1)"""

_TICK_SECONDS = 0.5


class Pace:
    def __init__(self, report: Progress, total_seconds: float) -> None:
        self._report = report
        self._total = total_seconds
        self._done = 0.0

    @asynccontextmanager
    async def step(self, text: str, seconds: float) -> AsyncIterator[None]:
        self._say(text, self._done)
        ticking = asyncio.create_task(self._tick(text, seconds))
        try:
            yield
        finally:
            ticking.cancel()
        self._done += seconds

    def finish(self, text: str) -> None:
        self._say(text, self._total)

    async def _tick(self, text: str, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        began = loop.time()
        while True:
            await asyncio.sleep(_TICK_SECONDS)
            self._say(text, self._done + seconds * (1 - math.exp((began - loop.time()) / seconds)))

    def _say(self, text: str, done: float) -> None:
        self._report(text, min(done / self._total, 1.0))
