"""zstd in both directions, in bounded memory.

A few threads only: each costs about 15 MB and a home must be archived in less than 200. Decompression never yields
more than one chunk at a time, however much a small input would expand to.
"""

import os
from collections.abc import Iterable, Iterator
from typing import BinaryIO, cast

import zstandard

from codehub.job.failure import corrupted

LEVEL = 3
MOST_THREADS = 4
CHUNK = 1 << 20
LARGEST_WINDOW = 32 << 20


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
    """Chunks as the file object zstandard asks for."""

    def __init__(self, chunks: Iterable[bytes]) -> None:
        self._chunks = iter(chunks)
        self._chunk = memoryview(b"")

    def read(self, size: int) -> bytes:
        if not self._chunk:
            self._chunk = memoryview(next(self._chunks, b""))
        piece, self._chunk = self._chunk[:size], self._chunk[size:]
        return bytes(piece)
