"""What is inside the archives of an object store, a directory (`file:///dir`) or S3 (`s3://bucket`).

The first look at an archive reads it once, proves it and keeps an index; downloads read as far as they must and prove
what they read. All blocking work is in threads, each with a bounded number of chunks in hand, whatever the size.
"""

import asyncio
from collections.abc import AsyncIterator, Generator, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from datetime import timedelta

from codehub.adapters.object_store.extract import Gone, PieceHasher, file_bytes, folder_tar, proven, threaded, whole
from codehub.adapters.object_store.index import (
    ArchiveIndex,
    IndexBuilder,
    IndexCache,
    MemoryReservation,
    expected_bytes,
)
from codehub.domain.errors import BackendError, ErrorReason, Unreachable
from codehub.domain.naming import ARCHIVE_FILE
from codehub.job.archive import MAY_BE_CORRUPTION, HashingReader, checked_meta, diagnose_hash_mismatch
from codehub.job.compress import Lookahead, decompressed
from codehub.job.errors import JobFailed, outcome_of, refused
from codehub.job.store import ArchiveStore, Meta, StoreTimeouts, open_store, parse_store
from codehub.job.tar_reader import TarReader
from codehub.ports.archives import (
    Content,
    EntryKind,
    Listing,
    folder_content,
    must_be_folder,
    must_have_bytes,
    not_there,
    to_bytes,
)

_THREADS = 8
_LISTERS = 2
"""Threads beside those who wait for the store: what is in an index is listed while the store is silent, too."""
_PASSES_AT_ONCE = 4
_CHUNKS_AHEAD = 4
_TIMEOUTS = StoreTimeouts(
    request=timedelta(days=1),
    silence=timedelta(seconds=15),
    connect=timedelta(seconds=5),
    retries=1,
    retrying=timedelta(seconds=8),
)


class ObjectContents:
    """`index_bytes`: the memory of all indexes together; one index has at most half of it."""

    def __init__(self, store_url: str, *, index_bytes: int = 256 << 20, answer_seconds: float = 15.0) -> None:
        parse_store(store_url)
        self._url = store_url
        self._seconds = answer_seconds
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="contents")
        self._listers = ThreadPoolExecutor(_LISTERS, thread_name_prefix="contents-listing")
        self.indexes = IndexCache(self._index, index_bytes, _PASSES_AT_ONCE)

    async def tree(self, key: str, path: str, start: int = 0, most: int | None = None, *, owner: str = "") -> Listing:
        index = await self.indexes.get(key, turn=owner)
        return await asyncio.get_running_loop().run_in_executor(self._listers, _listing, index, path, start, most)

    @asynccontextmanager
    async def content(self, key: str, path: str, *, owner: str = "") -> AsyncIterator[Content]:
        index = await self.indexes.get(key, turn=owner)
        store, meta = await self._believed(key)
        if meta.sha256 != index.sha256:  # it was found damaged and made again
            self.indexes.forget(key)
            index = await self.indexes.get(key, turn=owner)
        number = _found(index, path)
        entry = index.entry(number)
        must_have_bytes(path, entry)
        is_file = entry.kind is EntryKind.FILE
        extract = file_bytes if is_file else folder_tar

        def read(gone: Gone) -> Generator[bytes, None, None]:
            with _explained():
                reader = TarReader(_while_read(gone, decompressed(proven(store, index.marks))))
                yield from extract(reader, index, number)

        async with threaded(read, _CHUNKS_AHEAD, "contents-file") as chunks:
            honest = self._forgetting(key, chunks)
            yield Content(entry.name, entry.size, honest) if is_file else folder_content(entry.name, honest)

    @asynccontextmanager
    async def original(self, key: str) -> AsyncIterator[Content]:
        store, meta = await self._believed(key)

        def read(gone: Gone) -> Generator[bytes, None, None]:
            with _explained():
                yield from _while_read(gone, whole(store, meta))

        async with threaded(read, _CHUNKS_AHEAD, "contents-original") as chunks:
            yield Content(ARCHIVE_FILE, meta.bytes, self._forgetting(key, chunks))

    def close(self) -> None:
        for threads in (self._threads, self._listers):
            threads.shutdown(wait=False, cancel_futures=True)

    async def _believed(self, key: str) -> tuple[ArchiveStore, Meta]:
        def ask() -> tuple[ArchiveStore, Meta]:
            with _explained():
                store = open_store(self._url, key, _TIMEOUTS)
                return store, checked_meta(store)

        try:
            async with asyncio.timeout(self._seconds):
                return await asyncio.get_running_loop().run_in_executor(self._threads, ask)
        except TimeoutError as error:
            raise Unreachable(f"the object store did not answer within {self._seconds:g} s") from error

    async def _index(self, key: str, reservation: MemoryReservation) -> ArchiveIndex:
        store, meta = await self._believed(key)
        with _explained():
            await reservation.reserve(expected_bytes(meta.files))

        def read(gone: Gone) -> Generator[ArchiveIndex, None, None]:
            with _explained():
                yield _indexed(store, meta, gone, reservation)

        async with threaded(read, 1, "contents-index") as made:
            return await anext(made)

    async def _forgetting(self, key: str, chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        """Forgets the index of what was found damaged, so that it is looked at anew when somebody asks again."""
        try:
            async for chunk in chunks:
                yield chunk
        except BackendError:
            self.indexes.forget(key)
            raise


def _listing(index: ArchiveIndex, path: str, start: int, most: int | None) -> Listing:
    folder = _found(index, path)
    must_be_folder(path, index.entry(folder))
    listed = index.children(folder).listed
    end = len(listed) if most is None else start + most
    return Listing(path, tuple(index.entry(number) for number in listed[start:end]), end < len(listed))


class _NobodyReads(Exception):
    pass


def _must_be_read(gone: Gone) -> None:
    if gone():
        raise _NobodyReads


def _while_read(gone: Gone, chunks: Iterable[bytes]) -> Iterator[bytes]:
    for chunk in chunks:
        _must_be_read(gone)
        yield chunk


def _found(index: ArchiveIndex, path: str) -> int:
    number = index.find(to_bytes(path))
    if number is None:
        raise not_there(path)
    return number


def _indexed(store: ArchiveStore, meta: Meta, gone: Gone, reservation: MemoryReservation) -> ArchiveIndex:
    """A member that looks hostile in an archive with a wrong checksum is damage, or an answer that came wrong; it is
    not malice."""
    builder, hasher = IndexBuilder(reservation.cover), PieceHasher()

    def heeding(_size: int) -> None:
        _must_be_read(gone)

    with store.read() as chunks:
        hashed = HashingReader(chunks, heeding)
        try:
            with Lookahead(decompressed(hasher.through(hashed)), _CHUNKS_AHEAD) as blocks:
                reader = TarReader(blocks)
                for member in reader:
                    builder.add(member, reader.offset)
        except JobFailed as failure:
            if failure.code not in MAY_BE_CORRUPTION:
                raise
            if hashed.hexdigest() == meta.sha256:
                raise refused(failure.message.removeprefix("archive refused: ")) from failure
        if hashed.hexdigest() == meta.sha256:
            return builder.finish(meta.sha256, bytes(hasher.marks), lambda: _must_be_read(gone))
    raise diagnose_hash_mismatch(store, meta, heeding)


@contextmanager
def _explained() -> Iterator[None]:
    """The job's failures as the house's errors."""
    try:
        yield
    except JobFailed as failure:
        if "InvalidObjectState" in str(failure.__cause__):
            message = "the archive is in cold storage; have it thawed first"
            raise BackendError(message, reason=ErrorReason.ARCHIVE_ACCESS_ERROR) from failure
        reason = ErrorReason(outcome_of(failure.code).reason)
        if reason is ErrorReason.UNREACHABLE:
            raise Unreachable(failure.message) from failure
        raise BackendError(failure.message, reason=reason) from failure
