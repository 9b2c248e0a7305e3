"""Looking at an archive without restoring it: is it there, is it what `.meta` says, what is in it.

Its bytes being right is not enough to delete a volume for: they also have to be an archive that restore takes, so they
are read by the reader that restore uses. And a wrong answer is not a wrong object: what would end a workspace's way is
believed when it was heard alike more than once, each time over other connections.
"""

import hashlib
import threading
from collections.abc import Callable, Iterable, Iterator

from codehub.job.compress import Lookahead, decompressed
from codehub.job.errors import ExitCode, JobFailed, corrupted, unreachable
from codehub.job.store import ArchiveStore, Meta
from codehub.job.tar_format import Member
from codehub.job.tar_reader import TarReader

CHUNKS_AHEAD = 8
MAY_BE_CORRUPTION = (ExitCode.REFUSED_MEMBER, ExitCode.ARCHIVE_CORRUPTED)
_TO_BE_CONFIRMED = (ExitCode.ARCHIVE_NOT_FOUND, ExitCode.ARCHIVE_CORRUPTED)

Advance = Callable[[int], None]


class HashingReader:
    """Chunks on their way to a reader, and the hash of all of them: also of those that a reader who gave up has left.

    The lock is for a reader's thread that is still waiting for a chunk when the rest is read in its stead."""

    def __init__(self, chunks: Iterable[bytes], advance: Advance = lambda _: None) -> None:
        self._chunks = iter(chunks)
        self._sha256 = hashlib.sha256()
        self._advance = advance
        self._lock = threading.Lock()

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        with self._lock:
            chunk = next(self._chunks)
            self._sha256.update(chunk)
        self._advance(len(chunk))
        return chunk

    def hexdigest(self) -> str:
        for _ in self:
            pass
        return self._sha256.hexdigest()


def checked_meta(store: ArchiveStore) -> Meta:
    """The `.meta` of an archive that is there and of the right length; its bytes are not looked at."""
    try:
        return _checked_once(store)
    except JobFailed as failure:
        if failure.code not in _TO_BE_CONFIRMED:
            raise
        return _confirmed(store.reopened(), failure)


def _checked_once(store: ArchiveStore) -> Meta:
    meta = store.read_meta()
    if meta is None:
        raise JobFailed(ExitCode.ARCHIVE_NOT_FOUND, "the archive has no .meta, so it is not believed")
    size = store.size()
    if size is None:
        raise JobFailed(ExitCode.ARCHIVE_NOT_FOUND, "the archive is not there, only its .meta")
    if size != meta.bytes:
        raise corrupted(f"the archive has {size} bytes and should have {meta.bytes}")
    return meta


def _confirmed(store: ArchiveStore, first: JobFailed) -> Meta:
    try:
        return _checked_once(store)
    except JobFailed as second:
        alike = (second.code, second.message, second.evidence) == (first.code, first.message, first.evidence)
        if alike or second.code not in _TO_BE_CONFIRMED:
            raise
        raise unreachable(f"the object store answers differently each time ({first.message})") from second


def digest(store: ArchiveStore, advance: Advance = lambda _: None) -> str:
    """SHA-256 of what the store gives back now."""
    with store.read() as chunks:
        return HashingReader(chunks, advance).hexdigest()


def verify(store: ArchiveStore) -> Meta:
    """Reads the whole archive: its hash, and every header in it."""
    meta = checked_meta(store)
    if not matches_hash(store, meta.sha256):
        raise diagnose_hash_mismatch(store, meta)
    return meta


def diagnose_hash_mismatch(store: ArchiveStore, meta: Meta, advance: Advance = lambda _: None) -> JobFailed:
    """The error for an archive that was read and had another hash than `.meta` says. Damage cannot be mended by its
    user, so `.meta` and bytes are read twice more, and only what they say alike is believed."""
    first = _reading(store.reopened(), advance)
    if first == (meta, meta.sha256):
        return unreachable("the archive was not read right; another reading was")
    if first[0] != meta or _reading(store.reopened(), advance) != first:
        return unreachable("the archive is read differently each time")
    return corrupted("the archive's checksum is not the one in .meta")


def _reading(store: ArchiveStore, advance: Advance) -> tuple[Meta, str]:
    return checked_meta(store), digest(store, advance)


def matches_hash(store: ArchiveStore, sha256: str, advance: Advance = lambda _: None) -> bool:
    """Whether what the store gives back now has this hash; raises if it has, and no restore would take it."""
    with store.read() as chunks:
        hashed = HashingReader(chunks, advance)
        try:
            with Lookahead(decompressed(hashed), CHUNKS_AHEAD) as blocks:
                _read_as_restore_does(blocks)
        except JobFailed as failure:
            # What cannot be read may simply be damaged, which only all of it can tell.
            if failure.code in MAY_BE_CORRUPTION and hashed.hexdigest() != sha256:
                return False
            raise
        return hashed.hexdigest() == sha256


def _read_as_restore_does(blocks: Iterator[bytes]) -> None:
    reader = TarReader(blocks)
    for member in reader:
        if member.real_size is not None:
            reader.sparse_map(member)


def members(store: ArchiveStore) -> Iterator[Member]:
    with store.read() as chunks:
        yield from TarReader(decompressed(chunks))
