"""`archive`: a volume into an object that was read back, compared and understood before anyone believes it.

The order is the promise: upload, read back, `.meta`. Killed in between, the object has no `.meta` and the next run
replaces it. An archive that has both is finished and is never touched again.
"""

import hashlib
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

from codehub.job.compress import compressed
from codehub.job.estimate import estimate
from codehub.job.exit_codes import ExitCode
from codehub.job.failure import JobFailed, from_os_error, unreachable
from codehub.job.ignore import read_ignore
from codehub.job.lookahead import Lookahead
from codehub.job.meta import Meta
from codehub.job.mounts import refuse_mounts
from codehub.job.owner import Owner, refuse_anothers
from codehub.job.pack import Packer, Totals
from codehub.job.progress import Progress
from codehub.job.retry import with_tries
from codehub.job.staging import refuse_unfinished_restore
from codehub.job.store import ArchiveStore, open_store
from codehub.job.store_errors import translated
from codehub.job.verify import MAY_BE_CORRUPTION, believed, gives_back
from codehub.job.volume import opened

CHUNKS_AHEAD = 8
SETTLE_EVERY = 32 << 20


@dataclass(frozen=True)
class ArchiveRequest:
    volume: Path
    store_url: str
    key: str
    backoff_seconds: float = 1.0
    owner: Owner | None = None


def archive(request: ArchiveRequest, progress: Progress) -> None:
    meta, left_out = with_tries(lambda number: _attempt(request, progress, number), progress, request.backoff_seconds)
    progress.done(key=request.key, left_out=left_out, **asdict(meta))


def _attempt(request: ArchiveRequest, progress: Progress, number: int) -> tuple[Meta, int]:
    store = open_store(request.store_url, request.key)
    refuse_anothers(store, request.owner)
    finished = _finished(store)
    if finished is not None:
        store.remove_leftovers()
        return finished, 0
    try:
        with opened(request.volume) as volume:
            refuse_unfinished_restore(volume)
            refuse_mounts(volume)
            sha256, size, totals = _upload(volume, store, progress, number)
        store.settle()
    except OSError as error:
        raise from_os_error(error, "cannot archive the volume") from error
    _prove(store, sha256, size, progress)
    meta = Meta(sha256, size, totals.files, totals.content_bytes, datetime.now(UTC).isoformat())
    refuse_anothers(store, request.owner)  # it may have been unmounted meanwhile
    if not store.create_meta(meta):
        meta = _accept_other(store, meta)
    return meta, totals.left_out


def _finished(store: ArchiveStore) -> Meta | None:
    """The volume is still here, so an archive that lost its bytes or its proof is simply made again."""
    try:
        return believed(store) if _has_meta(store) else None
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


def _upload(volume: int, store: ArchiveStore, progress: Progress, number: int) -> tuple[str, int, Totals]:
    ignore = read_ignore(volume)
    for oddity in ignore.oddities:
        progress.warn(f".codehubignore: {oddity}")
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
                if size // SETTLE_EVERY > (size - len(chunk)) // SETTLE_EVERY:
                    store.start_settling()
            if store.read_meta() is not None:
                raise JobFailed(ExitCode.CONFLICT, "another job proved this archive meanwhile", transient=True)
    except FileNotFoundError as error:
        raise unreachable("uploading: the object store lost the upload (was it restarted?)") from error
    return sha256.hexdigest(), size, packer.totals


def _prove(store: ArchiveStore, sha256: str, size: int, progress: Progress) -> None:
    progress.start("prove", size)
    try:
        proven = store.size() == size and gives_back(store, sha256, progress.advance)
    except JobFailed as failure:
        if failure.code not in MAY_BE_CORRUPTION:
            raise
        message = f"no restore would take this home's archive, so the volume stays ({failure.message})"
        raise JobFailed(ExitCode.ACTION_FAILED, message) from failure
    if not proven:
        raise unreachable("the object store does not give back what was sent")


def _accept_other(store: ArchiveStore, ours: Meta) -> Meta:
    """Someone finished this archive meanwhile. The same tree gives the same bytes, so theirs must be ours."""
    theirs = store.reopened().read_meta()
    if theirs is None:
        raise unreachable("the object store has a .meta and does not give it back")
    if theirs.sha256 != ours.sha256:
        raise JobFailed(ExitCode.CONFLICT, "another archive with other content was proven under this key meanwhile")
    return theirs
