"""`archive`: a volume into an object that was read back, compared and understood before anyone believes it.

The order is the promise: upload, read back, `.meta`. Killed in between, the object has no `.meta` and the next run
replaces it. An archive that has both is finished and is never touched again.

Right bytes are not enough to delete a volume for: they also have to be an archive that restore takes, so they are read
by the reader that restore uses. And a wrong answer is not a wrong object: what would end a workspace's way is believed
when it was heard alike more than once, each time over other connections.
"""

import hashlib
import os
import stat
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

from codehub.job.compress import Lookahead, compressed, decompressed
from codehub.job.errors import ExitCode, JobFailed, corrupted, from_os_error, show, unreachable
from codehub.job.filesystem import OPEN_DIRECTORY, listed, opened_volume, refuse_mounts
from codehub.job.ignore import Ignore, read_ignore
from codehub.job.pack import Packer, Totals
from codehub.job.progress import ProgressReporter, with_tries
from codehub.job.staging import refuse_unfinished_restore
from codehub.job.store import ArchiveStore, Meta, Owner, open_store, refuse_wrong_owner, translated
from codehub.job.tar_format import BLOCK, END_OF_ARCHIVE
from codehub.job.tar_reader import TarReader
from codehub.job.volume import home_entries

CHUNKS_AHEAD = 8
WRITEBACK_EVERY = 32 << 20
MEMBER_OVERHEAD = 4096
INLINE = 4096
"""How much of a file that has no blocks of its own may lie beside its inode."""
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
    """The archive's `.meta` and the hash of what the store gives back now."""
    meta = checked_meta(store)
    with store.read() as chunks:
        return meta, HashingReader(chunks, advance).hexdigest()


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


@dataclass
class Estimate:
    """How much there is to archive, before the first byte is sent. S3 takes at most 10,000 parts, so the part size must
    be right from the start: `most_bytes` is never too low for a volume at rest. `likely_bytes` counts a file with
    several names once and is what people see as the total."""

    likely_bytes: int = 0
    most_bytes: int = 0

    def add(self, status: os.stat_result) -> None:
        self.likely_bytes += BLOCK
        self.most_bytes += MEMBER_OVERHEAD
        if stat.S_ISREG(status.st_mode):
            allocated = status.st_blocks * 512 or INLINE
            self.likely_bytes += min(status.st_size, allocated) // max(1, status.st_nlink)
            # A compressing filesystem allocates less than it holds, though hardly eight times less than zstd needs.
            self.most_bytes += min(status.st_size, allocated * 8)


def estimate(volume: int, ignore: Ignore) -> Estimate:
    found = Estimate()
    stack = [(os.dup(volume), b"", home_entries(volume))]
    while stack:
        descriptor, path, names = stack[-1]
        if not names:
            os.close(descriptor)
            stack.pop()
            continue
        name = names.pop()
        child = path + b"/" + name if path else name
        try:
            status = os.stat(name, dir_fd=descriptor, follow_symlinks=False)
            is_directory = stat.S_ISDIR(status.st_mode)
            if ignore.matches(child, is_directory=is_directory):
                continue
            found.add(status)
            if is_directory:
                inner = os.open(name, OPEN_DIRECTORY, dir_fd=descriptor)
                stack.append((inner, child, listed(inner)))
        except OSError as error:
            raise from_os_error(error, f"cannot read {show(child)}") from error
    return found


@dataclass(frozen=True)
class ArchiveRequest:
    volume: Path
    store_url: str
    key: str
    backoff_seconds: float = 1.0
    owner: Owner | None = None


def archive(request: ArchiveRequest, progress: ProgressReporter) -> None:
    meta, left_out = with_tries(lambda number: _attempt(request, progress, number), progress, request.backoff_seconds)
    progress.done(key=request.key, left_out=left_out, **asdict(meta))


def _attempt(request: ArchiveRequest, progress: ProgressReporter, number: int) -> tuple[Meta, int]:
    store = open_store(request.store_url, request.key)
    refuse_wrong_owner(store, request.owner)
    finished = _finished(store, progress)
    if finished is not None:
        store.remove_leftovers()
        return finished, 0
    try:
        with opened_volume(request.volume) as volume:
            refuse_unfinished_restore(volume)
            refuse_mounts(volume)
            sha256, size, totals = _upload(volume, store, progress, number)
        store.sync()
    except OSError as error:
        raise from_os_error(error, "cannot archive the volume") from error
    _prove(store, sha256, size, progress)
    meta = Meta(sha256, size, totals.files, totals.content_bytes, datetime.now(UTC).isoformat())
    refuse_wrong_owner(store, request.owner)  # it may have been unmounted meanwhile
    if not store.create_meta(meta):
        meta = _accept_other(store, meta)
    return meta, totals.left_out


def _finished(store: ArchiveStore, progress: ProgressReporter) -> Meta | None:
    """The `.meta` of an archive that is finished already, proven once more: it may be hours old, and the volume goes
    next. One that lost its bytes or its proof is made again: the volume is still here."""
    try:
        meta = checked_meta(store) if _has_meta(store) else None
        if meta is None or _is_proven(store, meta.sha256, meta.bytes, progress):
            return meta
        raise diagnose_hash_mismatch(store, meta)
    except JobFailed as failure:
        if failure.code not in (ExitCode.ARCHIVE_CORRUPTED, ExitCode.ARCHIVE_NOT_FOUND):
            raise
    store.delete_meta()
    return None


def _has_meta(store: ArchiveStore) -> bool:
    try:
        return store.read_meta() is not None
    except JobFailed as failure:
        if failure.code is not ExitCode.ARCHIVE_CORRUPTED:
            raise
    return True


def _upload(volume: int, store: ArchiveStore, progress: ProgressReporter, number: int) -> tuple[str, int, Totals]:
    ignore = read_ignore(volume)
    for warning in ignore.warnings:
        progress.warn(f".codehubignore: {warning}")
    expected = estimate(volume, ignore)
    progress.start("pack", expected.likely_bytes)
    packer = Packer(volume, ignore, progress)
    sha256, size = hashlib.sha256(), 0
    try:
        # An upload that failed may have had too many parts, so each try allows for a home twice as large.
        with (
            translated("uploading"),
            store.writer(expected.most_bytes << number) as writer,
            Lookahead(compressed(packer.stream()), CHUNKS_AHEAD) as chunks,
        ):
            for chunk in chunks:
                sha256.update(chunk)
                size += len(chunk)
                writer.write(chunk)
                if size // WRITEBACK_EVERY > (size - len(chunk)) // WRITEBACK_EVERY:
                    store.start_writeback()
            if store.read_meta() is not None:
                raise JobFailed(ExitCode.CONFLICT, "another job proved this archive meanwhile", transient=True)
    except FileNotFoundError as error:
        raise unreachable("uploading: the object store lost the upload (was it restarted?)") from error
    return sha256.hexdigest(), size, packer.totals


def _prove(store: ArchiveStore, sha256: str, size: int, progress: ProgressReporter) -> None:
    if not _is_proven(store, sha256, size, progress):
        raise unreachable("the object store does not give back what was sent")


def _is_proven(store: ArchiveStore, sha256: str, size: int, progress: ProgressReporter) -> bool:
    """Whether the store gives back what it should; raises if it does, and no restore would take it."""
    progress.start("prove", size)
    try:
        return store.size() == size and matches_hash(store, sha256, progress.advance)
    except JobFailed as failure:
        if failure.code not in MAY_BE_CORRUPTION:
            raise
        message = f"no restore would take this home's archive, so the volume stays ({failure.message})"
        raise JobFailed(ExitCode.ACTION_FAILED, message) from failure


def _accept_other(store: ArchiveStore, ours: Meta) -> Meta:
    """The `.meta` of somebody who finished this archive meanwhile. The same tree gives the same bytes, so theirs must
    be ours."""
    theirs = store.reopened().read_meta()
    if theirs is None:
        raise unreachable("the object store has a .meta and does not give it back")
    if theirs.sha256 != ours.sha256:
        raise JobFailed(ExitCode.CONFLICT, "another archive with other content was proven under this key meanwhile")
    return theirs


def empty_archive(created_at: datetime) -> tuple[bytes, Meta]:
    """The archive of a home that was never started: the object, and the `.meta` to write once it is stored. It has no
    member for the home itself, so restoring it leaves the new volume's owner and mode as they were made."""
    data = b"".join(compressed([END_OF_ARCHIVE]))
    sha256 = hashlib.sha256(data).hexdigest()
    return data, Meta(sha256, len(data), files=0, content_bytes=0, created_at=created_at.isoformat())
