"""zstd in both directions, in bounded memory, and the thread that produces chunks ahead of it.

A few threads only: each costs about 15 MB and a home must be archived in less than 200. Decompression never yields
more than one chunk at a time, however much a small input would expand to. Packing and downloading wait for disks and
networks and leave the interpreter free while zstd works, so one thread on each side keeps two cores busy.
"""

import os
import threading
from collections.abc import Generator, Iterable, Iterator
from contextlib import suppress
from queue import Empty, Full, Queue
from types import TracebackType
from typing import BinaryIO, Generic, TypeVar, cast

import zstandard

from codehub.job.errors import corrupted

T = TypeVar("T")

LEVEL = 3
MOST_THREADS = 4
CHUNK = 1 << 20
LARGEST_WINDOW = 32 << 20
_STOP_CHECK_SECONDS = 0.2


def compressed(chunks: Iterable[bytes | bytearray]) -> Iterator[bytes]:
    threads = min(MOST_THREADS, len(os.sched_getaffinity(0)))
    chunker = zstandard.ZstdCompressor(LEVEL, threads=threads, write_checksum=True).chunker(chunk_size=CHUNK)
    for chunk in chunks:
        yield from chunker.compress(chunk)
    yield from chunker.finish()  # type: ignore[no-untyped-call]


def decompressed(chunks: Iterable[bytes]) -> Iterator[bytes]:
    decompressor = zstandard.ZstdDecompressor(max_window_size=LARGEST_WINDOW)
    source = cast("BinaryIO", _Reader(chunks))
    with decompressor.stream_reader(source, read_size=CHUNK, read_across_frames=True) as reader:
        while True:
            try:
                chunk = reader.read(CHUNK)
            except zstandard.ZstdError as error:
                raise corrupted(f"it cannot be decompressed: {error}") from error
            if not chunk:
                return
            yield chunk


class _Reader:
    """A stream of chunks as the file object that zstandard asks for."""

    def __init__(self, chunks: Iterable[bytes]) -> None:
        self._chunks = iter(chunks)
        self._chunk = memoryview(b"")

    def read(self, size: int) -> bytes:
        if not self._chunk:
            self._chunk = memoryview(next(self._chunks, b""))
        piece, self._chunk = self._chunk[:size], self._chunk[size:]
        return bytes(piece)


class Lookahead(Generic[T]):
    """Runs a producer in a thread of its own, a bounded number of items ahead, within a `with` block: leaving it ends
    the thread. A failure of the producer is raised to the consumer, and a consumer that gives up stops the producer."""

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
                self._queue.put(item, timeout=_STOP_CHECK_SECONDS)
            except Full:
                continue
            return True
        return False
