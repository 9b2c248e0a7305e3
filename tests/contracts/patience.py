"""Waiting for what must come, with a bound: real processes take their time, and a loaded machine more of it."""

import asyncio
from collections.abc import Awaitable, Callable

SECONDS = 20.0


async def eventually(check: Callable[[], Awaitable[bool]], seconds: float = SECONDS) -> None:
    async with asyncio.timeout(seconds):
        while not await check():
            await asyncio.sleep(0.01)
