"""Runs the producing half of a pipeline in its own thread, a bounded number of chunks ahead.

Packing and downloading wait for disks and networks and leave the interpreter free while zstd works, so one thread on
each side is enough to keep two cores busy. A failure of the producer is raised to the consumer, and a consumer that
gives up stops the producer.
"""

import threading
from collections.abc import Generator, Iterator
from contextlib import suppress
from queue import Empty, Full, Queue
from types import TracebackType
from typing import Generic, TypeVar

T = TypeVar("T")
_PATIENCE_SECONDS = 0.2


class Lookahead(Generic[T]):
    """Use in a `with` block: leaving it ends the thread."""

    def __init__(self, producer: Iterator[T], depth: int) -> None:
        self._producer = producer
        self._queue: Queue[T | BaseException | None] = Queue(depth)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="lookahead", daemon=True)

    def __enter__(self) -> Iterator[T]:
        self._thread.start()
        return self._items()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        with suppress(Empty):
            while True:  # a producer that waits for room goes on at once, and sees that it may stop
                self._queue.get_nowait()
        # Bounded: after a failure the thread may sit in a network call; it is a daemon and can be left there.
        self._thread.join(timeout=10.0)

    def _items(self) -> Iterator[T]:
        while (item := self._queue.get()) is not None:
            if isinstance(item, BaseException):
                raise item
            yield item

    def _run(self) -> None:
        try:
            for item in self._producer:
                if not self._put(item):
                    return
            self._put(None)
        except BaseException as error:  # noqa: BLE001 - whatever it is, the consumer must hear of it
            self._put(error)
        finally:
            # Now, not when the last traceback that knows it is gone: it may hold a connection.
            if isinstance(self._producer, Generator):
                self._producer.close()

    def _put(self, item: T | BaseException | None) -> bool:
        while not self._stop.is_set():
            try:
                self._queue.put(item, timeout=_PATIENCE_SECONDS)
            except Full:
                continue
            return True
        return False
