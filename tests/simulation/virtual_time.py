"""A stock event loop whose time jumps to the next timer: hours pass in milliseconds, and always in the same order."""

import asyncio
import selectors
from collections.abc import Coroutine
from itertools import count
from typing import Any, TypeVar

T = TypeVar("T")


class Deadlock(RuntimeError):
    """Nothing is scheduled and nobody can ever wake."""


class Livelock(RuntimeError):
    """Much happens and no time passes."""


BUSY_ROUNDS = 1_000
MOST_ROUNDS = 50_000
"""A scenario takes 6,000 rounds at most, and 15 of them without time passing."""


class _Selector(selectors.SelectSelector):
    loop: "VirtualLoop"
    rounds = 0
    total = 0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise Deadlock
        self.rounds = 0 if timeout else self.rounds + 1
        self.total += 1
        if self.rounds > BUSY_ROUNDS or self.total > MOST_ROUNDS:
            self.rounds = self.total = 0
            raise Livelock
        self.loop.now += timeout
        return []


class _Task(asyncio.Task[Any]):
    """A task that is hashed by a counter, so that sets of tasks have the same order in every run."""

    _numbers = count()

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._number = next(_Task._numbers)
        super().__init__(*args, **kwargs)

    def __hash__(self) -> int:
        return self._number

    def __eq__(self, other: object) -> bool:
        return self is other


class VirtualLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        selector = _Selector()
        self.now = 0.0
        selector.loop = self
        super().__init__(selector)
        self.set_task_factory(_make_task)  # type: ignore[arg-type]  # the stubs know no subclass

    def time(self) -> float:
        return self.now


def _make_task(loop: asyncio.AbstractEventLoop, coro: Coroutine[Any, Any, T], **kwargs: Any) -> asyncio.Task[T]:
    return _Task(coro, loop=loop, **kwargs)


def run(main: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end in virtual time; whatever is left is cancelled."""
    _Task._numbers = count()
    loop = VirtualLoop()
    try:
        asyncio.set_event_loop(loop)
        return loop.run_until_complete(main)
    finally:
        left = asyncio.all_tasks(loop)
        for task in sorted(left, key=hash):
            task.cancel()
        loop.run_until_complete(asyncio.gather(*sorted(left, key=hash), return_exceptions=True))
        loop.run_until_complete(loop.shutdown_asyncgens())
        asyncio.set_event_loop(None)
        loop.close()


class VirtualClock:
    """A machine's own clock: virtual time, started at another moment."""

    def __init__(self, offset: float = 0.0) -> None:
        self._offset = offset

    def monotonic(self) -> float:
        return asyncio.get_running_loop().time() + self._offset

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
