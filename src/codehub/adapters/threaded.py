"""A blocking iterator in a thread of its own, read from asyncio with back-pressure.

The thread is never more than `depth` items ahead. When its reader leaves, it is told so at once, ends by itself and
closes the iterator, also if nobody waits for that.
"""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Generator
from contextlib import asynccontextmanager, closing, suppress
from typing import Generic, TypeVar

T = TypeVar("T")

LEAVE_SECONDS = 5.0

Gone = Callable[[], bool]
"""Asked by the iterator between any two steps that take long: is there still a reader?"""


@asynccontextmanager
async def threaded(
    produce: Callable[[Gone], Generator[T, None, None]], depth: int, name: str
) -> AsyncIterator[AsyncIterator[T]]:
    worker: _Worker[T] = _Worker(depth)
    # The thread alone holds the iterator, so that nothing it holds outlives it.
    thread = threading.Thread(target=worker.run, args=(produce,), name=name, daemon=True)
    thread.start()
    try:
        yield worker.items()
    finally:
        worker.leave()
        with suppress(TimeoutError):
            async with asyncio.timeout(LEAVE_SECONDS):
                await worker.ended.wait()
            thread.join(LEAVE_SECONDS)  # it has only to return


class _End:
    def __init__(self, error: BaseException | None) -> None:
        self.error = error


class _Worker(Generic[T]):
    def __init__(self, depth: int) -> None:
        self._loop = asyncio.get_running_loop()
        self._room = threading.Semaphore(depth)
        self._gone = threading.Event()
        self._items: asyncio.Queue[T | _End] = asyncio.Queue()
        self.ended = asyncio.Event()

    async def items(self) -> AsyncIterator[T]:
        while not isinstance(item := await self._items.get(), _End):
            self._room.release()
            yield item
        if item.error is not None:
            raise item.error

    def leave(self) -> None:
        self._gone.set()
        self._room.release()

    def run(self, produce: Callable[[Gone], Generator[T, None, None]]) -> None:
        error: BaseException | None = None
        try:
            with closing(produce(self._gone.is_set)) as produced:
                for item in produced:
                    self._room.acquire()
                    if self._gone.is_set():
                        break
                    self._tell(self._items.put_nowait, item)
        except BaseException as failure:  # noqa: BLE001 - whatever it is, the reader must hear of it
            error = None if self._gone.is_set() else failure
        self._tell(self._items.put_nowait, _End(error))
        self._tell(self.ended.set)
        del error  # its traceback knows this frame

    def _tell(self, what: Callable[..., None], *about: object) -> None:
        with suppress(RuntimeError):  # the loop is closed: there is no reader any more
            self._loop.call_soon_threadsafe(what, *about)
