"""Tasks that last as long as the process: one that ends or fails is logged and started again."""

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from contextlib import suppress
from typing import Any, Final

from codehub.telemetry import get_logger

log = get_logger(__name__)

AGAIN_SECONDS: Final = 0.5


async def supervised(name: str, run: Callable[[], Coroutine[Any, Any, None]]) -> None:
    while True:
        try:
            await run()
        except Exception:
            log.exception("events crashed", component=name)
        await asyncio.sleep(AGAIN_SECONDS)


async def ended(tasks: Iterable["asyncio.Task[None]"]) -> None:
    tasks = list(tasks)
    for task in tasks:
        task.cancel()
    for task in tasks:
        with suppress(asyncio.CancelledError):
            await task
