"""Looking at an archive without restoring it: is it there, is it what `.meta` says, what is in it.

Its bytes being right is not enough to delete a volume for: they also have to be an archive that restore takes, so they
are read by the reader that restore uses.
"""

import hashlib
from collections.abc import Callable, Iterator

from codehub.job.compress import decompressed
from codehub.job.exit_codes import ExitCode
from codehub.job.failure import JobFailed, corrupted
from codehub.job.lookahead import Lookahead
from codehub.job.meta import Meta
from codehub.job.store import ArchiveStore
from codehub.job.tar_format import Member
from codehub.job.tar_reader import TarReader

CHUNKS_AHEAD = 8
MAY_BE_CORRUPTION = (ExitCode.REFUSED_MEMBER, ExitCode.ARCHIVE_CORRUPTED)


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
    if not gives_back(store, meta.sha256):
        raise corrupted("the archive's checksum is not the one in .meta")
    return meta


def gives_back(store: ArchiveStore, sha256: str, advance: Callable[[int], None] = lambda _: None) -> bool:
    """Whether what the store gives back now has this hash; raises if it has, and no restore would take it."""
    try:
        return _read_as_restore_does(store, advance) == sha256
    except JobFailed as failure:
        # What cannot be read may simply be damaged, which only all of it can tell.
        if failure.code in MAY_BE_CORRUPTION and digest(store) != sha256:
            return False
        raise


def _read_as_restore_does(store: ArchiveStore, advance: Callable[[int], None]) -> str:
    sha256 = hashlib.sha256()

    def hashed(chunks: Iterator[bytes]) -> Iterator[bytes]:
        for chunk in chunks:
            sha256.update(chunk)
            advance(len(chunk))
            yield chunk

    with store.read() as chunks, Lookahead(decompressed(hashed(chunks)), CHUNKS_AHEAD) as blocks:
        reader = TarReader(blocks)
        for member in reader:
            if member.real_size is not None:
                reader.sparse_map(member)
    return sha256.hexdigest()


def members(store: ArchiveStore) -> Iterator[Member]:
    with store.read() as chunks:
        yield from TarReader(decompressed(chunks))
