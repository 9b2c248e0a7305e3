"""The machine's own clock and randomness."""

import asyncio
import random
import time
from uuid import UUID, uuid4


class SystemClock:
    def monotonic(self) -> float:
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class RandomIds:
    def new(self) -> UUID:
        return uuid4()

    def jitter(self) -> float:
        return random.uniform(-1, 1)  # noqa: S311 - spreads retries, guards nothing
