"""`restore`: an archive into a volume, whole or not at all.

The tree is unpacked beside the home and only takes its place when the archive's hash was found right. A finished
restore is recognised by its stamp and not repeated.
"""

import os
from dataclasses import dataclass
from pathlib import Path

from codehub.job import staging
from codehub.job.archive import MAY_BE_CORRUPTION, HashingReader, checked_meta, diagnose_hash_mismatch
from codehub.job.compress import Lookahead, decompressed
from codehub.job.errors import ExitCode, JobFailed, from_os_error, refused, show
from codehub.job.filesystem import opened_volume, refuse_mounts
from codehub.job.progress import ProgressReporter, with_tries
from codehub.job.store import ArchiveStore, Meta, Owner, open_store, refuse_wrong_owner
from codehub.job.unpack import Unpacker
from codehub.job.volume import Stamp, begun_name, describe_home, staging_name, stamp_name

CHUNKS_AHEAD = 8


@dataclass(frozen=True)
class RestoreRequest:
    volume: Path
    store_url: str
    key: str
    op_id: str
    max_bytes: int | None = 0
    """0 sets no limit; None is what the disk has free, which an earlier attempt's leftovers do not lessen."""
    backoff_seconds: float = 1.0
    owner: Owner | None = None


def restore(request: RestoreRequest, progress: ProgressReporter) -> None:
    stamp = with_tries(lambda _: _attempt(request, progress), progress, request.backoff_seconds)
    progress.done(key=stamp.key, sha256=stamp.sha256, bytes=stamp.bytes, files=stamp.files, op_id=stamp.op_id)


def _attempt(request: RestoreRequest, progress: ProgressReporter) -> Stamp:
    try:
        staging.grant_owner_access(request.volume)
        with opened_volume(request.volume) as volume:
            stamp = staging.finished(volume, request.op_id)
            if stamp is not None and stamp.is_for(request.key, request.op_id):
                staging.finish(volume, stamp)
                return stamp
            refuse_mounts(volume)
            stamp = staging.committed(volume, request.op_id)
            if stamp is None or not stamp.is_for(request.key, request.op_id):
                stamp = _unpack(volume, request, progress)
            staging.put_in_place(volume, stamp)
            return stamp
    except OSError as error:
        raise from_os_error(error, "cannot restore into the volume") from error


def _unpack(volume: int, request: RestoreRequest, progress: ProgressReporter) -> Stamp:
    staging.refuse_foreign_content(volume)
    store = open_store(request.store_url, request.key)
    refuse_wrong_owner(store, request.owner)
    meta = checked_meta(store)
    if request.max_bytes and request.max_bytes < meta.content_bytes:
        raise refused(f"it needs {meta.content_bytes} bytes and this volume may hold {request.max_bytes}")
    progress.start("unpack", meta.content_bytes)
    try:
        with staging.fresh_tree(volume, request.op_id) as tree:
            ours = frozenset(name(request.op_id) for name in (begun_name, staging_name, stamp_name))
            most = _free_bytes(tree, meta) if request.max_bytes is None else request.max_bytes
            unpacker = Unpacker(tree, most, progress, reserved=ours)
            _stream_into(unpacker, store, meta)
        home = describe_home(unpacker.home)
        stamp = Stamp(request.key, meta.sha256, request.op_id, meta.bytes, unpacker.files, home)
        staging.commit(volume, stamp)
    except BaseException:
        staging.abandon(volume, request.op_id)
        raise
    if unpacker.first_with_lost_xattrs is not None:
        lost = f"{unpacker.lost_xattrs} extended attributes cannot be kept by this user or filesystem"
        progress.warn(f"{lost} (the first: of {show(unpacker.first_with_lost_xattrs)})")
    return stamp


def _free_bytes(tree: int, meta: Meta) -> int:
    """How much the disk has free; raises DISK_FULL if the home needs more. It is not found out by filling the disk,
    which others have their homes on."""
    disk = os.fstatvfs(tree)
    free = disk.f_bavail * disk.f_frsize
    if free < meta.content_bytes:
        message = f"the home needs {meta.content_bytes} bytes and the disk has {free} free"
        raise JobFailed(ExitCode.DISK_FULL, message)
    return free


def _stream_into(unpacker: Unpacker, store: ArchiveStore, meta: Meta) -> None:
    """Unpack the archive and check its hash. A member that looks hostile in an archive with a wrong checksum is damage,
    or an answer that came wrong; it is not malice."""
    cause: JobFailed | None = None
    with store.read() as chunks:
        hashed = HashingReader(chunks)
        try:
            with Lookahead(decompressed(hashed), CHUNKS_AHEAD) as blocks:
                unpacker.unpack(blocks)
        except JobFailed as failure:
            if failure.code not in MAY_BE_CORRUPTION:
                raise
            if hashed.hexdigest() == meta.sha256:
                raise (failure if failure.code is ExitCode.REFUSED_MEMBER else refused(failure.message)) from failure
            cause = failure
        right = cause is None and hashed.hexdigest() == meta.sha256
    if not right:
        raise diagnose_hash_mismatch(store, meta) from cause
