"""Holes in files: found when archiving, made again when restoring.

The map (offset, length of each piece of data) is held as packed integers and bounded: a file with more pieces than
that has its smallest holes stored as zeros, which costs space but never data.
"""

import errno
import os
from array import array
from collections.abc import Iterator

from codehub.job.tar_format import padded

MOST_PIECES = 1 << 20


class Pieces:
    """Pieces of data in a sparse file, in order, as alternating offsets and lengths."""

    def __init__(self, numbers: "array[int] | None" = None) -> None:
        self._numbers = array("Q") if numbers is None else numbers

    def __len__(self) -> int:
        return len(self._numbers) // 2

    def __iter__(self) -> Iterator[tuple[int, int]]:
        numbers = iter(self._numbers)
        return zip(numbers, numbers, strict=True)

    def add(self, offset: int, length: int) -> None:
        self._numbers.append(offset)
        self._numbers.append(length)

    def extend_last(self, end: int) -> None:
        self._numbers[-1] = end - self._numbers[-2]

    @property
    def end(self) -> int:
        return self._numbers[-2] + self._numbers[-1] if self._numbers else 0

    @property
    def data_bytes(self) -> int:
        return sum(self._numbers[1::2])


def may_have_holes(status: os.stat_result) -> bool:
    return status.st_blocks * 512 < status.st_size


def find_pieces(descriptor: int, size: int) -> Pieces:
    smallest_hole = 1
    while True:
        pieces = Pieces()
        for start, end in _data_ranges(descriptor, size):
            if len(pieces) and start - pieces.end < smallest_hole:
                pieces.extend_last(end)
            else:
                pieces.add(start, end - start)
            if len(pieces) > MOST_PIECES:
                break
        else:
            return pieces
        smallest_hole = max(8192, smallest_hole * 2)


def _data_ranges(descriptor: int, size: int) -> Iterator[tuple[int, int]]:
    position = 0
    while position < size:
        try:
            start = os.lseek(descriptor, position, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:
                return
            raise
        position = min(os.lseek(descriptor, start, os.SEEK_HOLE), size)
        if start < position:
            yield start, position


def encode_map(pieces: Pieces, size: int) -> bytes:
    """GNU sparse format 1.0. An empty piece at the end tells other tars how long the file is."""
    lines = [b"%d" % (len(pieces) + 1)]
    lines += [b"%d\n%d" % piece for piece in pieces]
    lines.append(b"%d\n0\n" % size)
    return padded(b"\n".join(lines))
