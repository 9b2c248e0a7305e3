"""Waiting for what must come, with a bound: real processes take their time, and a loaded machine more of it."""

import asyncio
from collections.abc import Awaitable, Callable

SECONDS = 150.0
"""Far more than anything takes: it only ends what hangs."""


async def eventually(check: Callable[[], bool | Awaitable[bool]], seconds: float = SECONDS) -> None:
    async with asyncio.timeout(seconds):
        while not await _holds(check()):
            await asyncio.sleep(0.01)


async def _holds(answer: bool | Awaitable[bool]) -> bool:
    return answer if isinstance(answer, bool) else await answer
