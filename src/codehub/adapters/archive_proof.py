"""Bytes that are known to be the archive's before they are used.

The one pass that makes an index reads the whole archive, compares its hash with the one in `.meta`, and leaves a mark
after each piece: the hash so far. Later readers hash as they go and compare at each mark, so that a file from the
middle of an archive is proven without reading the archive to its end.
"""

import hashlib
from collections.abc import Iterable, Iterator

from codehub.job.errors import JobFailed, corrupted, unreachable
from codehub.job.store import ArchiveStore, Meta
from codehub.job.verify import Hashed, damage_or_wrong_answer

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


def proven(store: ArchiveStore, marks: bytes) -> Iterator[bytes]:
    """Gives each piece once it is found right. One that is not is read once more, over other connections: damage is
    what comes wrong in the same way twice."""
    given, wrong = 0, None
    while True:
        with store.read() as chunks:
            for number, mark, piece in _marked(chunks):
                if mark != marks[number * _MARK : (number + 1) * _MARK]:
                    break
                if number == given:
                    given += 1
                    yield piece
            else:
                number, mark = given, b""
        if given == len(marks) // _MARK:
            return
        if wrong == (number, mark):
            raise changed()
        if wrong is not None and number <= wrong[0]:
            raise unreachable("the archive is read differently each time; try again")
        wrong, store = (number, mark), store.reopened()


def _marked(chunks: Iterable[bytes]) -> Iterator[tuple[int, bytes, bytes]]:
    so_far = hashlib.sha256()
    for number, piece in enumerate(_pieces(chunks)):
        so_far.update(piece)
        yield number, so_far.digest()[:_MARK], piece


def whole(store: ArchiveStore, meta: Meta) -> Iterator[bytes]:
    """Gives the last chunk only when all of them were found right: who stops before it has not got it all."""
    held = b""
    with store.read() as chunks:
        hashed = Hashed(chunks)
        for chunk in hashed:
            if held:
                yield held
            held = chunk
    if hashed.of_all() != meta.sha256:
        raise damage_or_wrong_answer(store, meta)
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
