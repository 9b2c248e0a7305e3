"""One file, or one folder as a tar of its own, out of an archive's stream, which is read once and only forward.

A file of the folder whose first name lies outside it has its content further up in the stream: it is given when the
stream comes by, under its first name inside the folder, and its other names there become hard links to that one. Bytes
are proven before they are used: the pass that makes an index leaves the hash so far after each piece, and later readers
compare at each of those, so a file from the middle needs no read to the end. Blocking iterators run in a thread of
their own, never more than `depth` items ahead; when its reader leaves, the thread is told at once and ends by itself.
"""

import asyncio
import hashlib
import threading
from collections.abc import AsyncIterator, Callable, Generator, Iterable, Iterator
from contextlib import asynccontextmanager, closing, suppress
from typing import Generic, TypeVar

from codehub.adapters.object_store.index import ArchiveIndex
from codehub.job.archive import HashingReader, diagnose_hash_mismatch
from codehub.job.errors import JobFailed, corrupted, unreachable
from codehub.job.store import ArchiveStore, Meta
from codehub.job.tar_format import END_OF_ARCHIVE, HARD_LINK, Member, encode, padding
from codehub.job.tar_reader import TarReader

CHUNK = 1 << 18
PIECE = 1 << 20
LEAVE_SECONDS = 5.0
_MARK = 16
_HOLE = bytes(1 << 20)

T = TypeVar("T")
Bytes = bytes | memoryview
Gone = Callable[[], bool]
"""Tells an iterator, between any two steps that take long, whether its reader is gone."""


def file_bytes(reader: TarReader, index: ArchiveIndex, number: int) -> Iterator[bytes]:
    return _gathered(_file(reader, index, number))


def folder_tar(reader: TarReader, index: ArchiveIndex, folder: int) -> Iterator[bytes]:
    return _gathered(_folder(reader, index, folder))


def _file(reader: TarReader, index: ArchiveIndex, number: int) -> Iterator[Bytes]:
    member = reader.member_at(index.offset(index.holder(number)))
    if member.real_size is None:
        yield from reader.content()
        return
    position = 0
    for offset, length in reader.sparse_map(member):
        yield from _zeros(offset - position)
        yield from reader.part(length)
        position = offset + length
    yield from _zeros(member.real_size - position)


def _zeros(size: int) -> Iterator[Bytes]:
    for _ in range(size // len(_HOLE)):
        yield _HOLE
    yield _HOLE[: size % len(_HOLE)]


def _folder(reader: TarReader, index: ArchiveIndex, folder: int) -> Iterator[Bytes]:
    inside = range(folder, index.end(folder))
    names = _names_of_outsiders(index, inside)
    for holder, name in sorted(names.items()):
        member = reader.member_at(index.offset(holder))
        yield from _stored(reader, member._replace(path=index.path(name, folder)))
    cut = len(index.path(folder)) + 1 if folder else 0
    for number in inside if index.root_is_stored or folder else inside[1:]:
        holder = index.holder(number)
        if names.get(holder) == number:
            continue
        member = reader.member_at(index.offset(number))
        link = member.link if holder == number else index.path(names.get(holder, holder), folder)
        yield from _stored(reader, member._replace(path=member.path[cut:], link=link))
    yield END_OF_ARCHIVE


def _names_of_outsiders(index: ArchiveIndex, inside: range) -> dict[int, int]:
    """The first name inside the folder of each file whose content lies outside of it."""
    names: dict[int, int] = {}
    for number in inside:
        if index.kind(number) == HARD_LINK and (holder := index.holder(number)) not in inside:
            names.setdefault(holder, number)
    return names


def _stored(reader: TarReader, member: Member) -> Iterator[Bytes]:
    yield encode(member)
    yield from reader.content()
    yield padding(member.size)


def _gathered(parts: Iterable[Bytes]) -> Iterator[bytes]:
    """Puts small parts together: handing one over costs more than copying it."""
    held = bytearray()
    for part in parts:
        if not held and len(part) >= CHUNK:
            yield bytes(part)
            continue
        held += part
        if len(held) >= CHUNK:
            yield bytes(held)
            held.clear()
    if held:
        yield bytes(held)


def changed() -> JobFailed:
    return corrupted("the archive's checksum is not the one in .meta")


class PieceHasher:
    """Hashes the pieces that pass through, and keeps the hash so far after each as its mark."""

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
    """Yields each piece once its hash is right. One that is not is read once more, over other connections: damage is
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
    """Yields the last chunk only when all of them were found right: who stops before it has not got it all."""
    held = b""
    with store.read() as chunks:
        hashed = HashingReader(chunks)
        for chunk in hashed:
            if held:
                yield held
            held = chunk
    if hashed.hexdigest() != meta.sha256:
        raise diagnose_hash_mismatch(store, meta)
    yield held


def _pieces(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Yields the same bytes, cut at the same places whatever the chunks are; the last piece is shorter."""
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
