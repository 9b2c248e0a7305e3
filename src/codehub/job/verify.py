"""Looking at an archive without restoring it: is it there, is it what `.meta` says, what is in it."""

import hashlib
from collections.abc import Callable, Iterator

from codehub.job.compress import decompressed
from codehub.job.exit_codes import ExitCode
from codehub.job.failure import JobFailed, corrupted
from codehub.job.meta import Meta
from codehub.job.store import ArchiveStore
from codehub.job.tar_format import Member
from codehub.job.tar_reader import TarReader


def believed(store: ArchiveStore) -> Meta:
    """The `.meta` of an archive that is there and of the right length; its bytes are not looked at."""
    meta = store.read_meta()
    if meta is None:
        raise JobFailed(ExitCode.ARCHIVE_NOT_FOUND, "the archive has no .meta, so it is not believed")
    size = store.size()
    if size is None:
        raise JobFailed(ExitCode.ARCHIVE_NOT_FOUND, "the archive is not there, only its .meta")
    if size != meta.bytes:
        raise corrupted(f"the archive has {size} bytes and should have {meta.bytes}")
    return meta


def digest(store: ArchiveStore, advance: Callable[[int], None] = lambda _: None) -> str:
    """SHA-256 of what the store gives back now."""
    sha256 = hashlib.sha256()
    with store.read() as chunks:
        for chunk in chunks:
            sha256.update(chunk)
            advance(len(chunk))
    return sha256.hexdigest()


def verify(store: ArchiveStore) -> Meta:
    """Reads the whole archive: its hash, and every header in it."""
    meta = believed(store)
    if digest(store) != meta.sha256:
        raise corrupted("the archive's checksum is not the one in .meta")
    for _ in members(store):
        pass
    return meta


def members(store: ArchiveStore) -> Iterator[Member]:
    with store.read() as chunks:
        yield from TarReader(decompressed(chunks))
