"""Bytes that are known to be the archive's before they are used.

The one pass that makes an index reads the whole archive, compares its hash with the one in `.meta`, and leaves a mark
after each piece: the hash so far. Later readers hash as they go and compare at each mark, so that a file from the
middle of an archive is proven without reading the archive to its end.
"""

import hashlib
from collections.abc import Iterable, Iterator

from codehub.job.failure import JobFailed, corrupted
from codehub.job.meta import Meta

PIECE = 1 << 20
_MARK = 16


def changed() -> JobFailed:
    return corrupted("the archive's checksum is not the one in .meta")


class Marking:
    """Hashes what passes through, and leaves marks."""

    def __init__(self) -> None:
        self._hash = hashlib.sha256()
        self.marks = bytearray()

    def through(self, chunks: Iterable[bytes]) -> Iterator[bytes]:
        for piece in _pieces(chunks):
            self._hash.update(piece)
            self.marks += self._hash.digest()[:_MARK]
            yield piece

    @property
    def sha256(self) -> str:
        return self._hash.hexdigest()


def proven(chunks: Iterable[bytes], marks: bytes) -> Iterator[bytes]:
    """Gives each piece once it is found right."""
    so_far = hashlib.sha256()
    for number, piece in enumerate(_pieces(chunks)):
        so_far.update(piece)
        if so_far.digest()[:_MARK] != marks[number * _MARK : (number + 1) * _MARK]:
            raise changed()
        yield piece


def whole(chunks: Iterable[bytes], meta: Meta) -> Iterator[bytes]:
    """Gives the last chunk only when all of them were found right: who stops before it has not got it all."""
    so_far, held = hashlib.sha256(), b""
    for chunk in chunks:
        so_far.update(chunk)
        if held:
            yield held
        held = chunk
    if so_far.hexdigest() != meta.sha256:
        raise changed()
    yield held


def _pieces(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """The same bytes, cut at the same places whatever the chunks are; the last piece is shorter."""
    held = bytearray()
    for chunk in chunks:
        if not held and len(chunk) == PIECE:
            yield chunk
            continue
        held += chunk
        while len(held) >= PIECE:
            yield bytes(held[:PIECE])
            del held[:PIECE]
    if held:
        yield bytes(held)
