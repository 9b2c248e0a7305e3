"""Archives that no honest job writes, built from the honest encoder with one thing wrong."""

import hashlib
from collections.abc import Iterable
from datetime import UTC, datetime

import zstandard

from codehub.job.store import Meta, encode_meta
from codehub.job.tar_format import (
    DIRECTORY,
    END_OF_ARCHIVE,
    HARD_LINK,
    PAX,
    REGULAR,
    SYMLINK,
    Member,
    encode,
    padded,
)
from tests.job.harness import JobHarness


def directory(path: bytes) -> bytes:
    return encode(Member(path, DIRECTORY, 0o755, 0, 0, 0))


def file(path: bytes, content: bytes = b"pwned") -> bytes:
    return encode(Member(path, REGULAR, 0o644, 0, 0, 0, size=len(content))) + padded(content)


def symlink(path: bytes, target: bytes) -> bytes:
    return encode(Member(path, SYMLINK, 0o777, 0, 0, 0, link=target))


def hard_link(path: bytes, target: bytes) -> bytes:
    return encode(Member(path, HARD_LINK, 0o644, 0, 0, 0, link=target))


def of_kind(path: bytes, kind: bytes) -> bytes:
    return encode(Member(path, kind, 0o644, 0, 0, 0))


def extended(records: bytes, then: bytes, *, size: int | None = None) -> bytes:
    """Any extended header, also one that lies about its size."""
    length = len(records) if size is None else size
    return encode(Member(b"pax", PAX, 0o644, 0, 0, 0, size=length)) + padded(records) + then


def record(key: bytes, value: bytes) -> bytes:
    rest = len(key) + len(value) + 3
    length = rest + len(str(rest))
    return b"%d %s=%s\n" % (rest + len(str(length)), key, value)


def sparse(path: bytes, sparse_map: bytes, data: bytes, real_size: int) -> bytes:
    content = padded(sparse_map) + data
    return encode(Member(path, REGULAR, 0o644, 0, 0, 0, size=len(content), real_size=real_size)) + padded(content)


def publish(
    harness: JobHarness, parts: Iterable[bytes], *, end: bytes = END_OF_ARCHIVE, content_bytes: int = 0
) -> None:
    """Believed like any proven archive: hostile content with a right checksum."""
    compressor = zstandard.ZstdCompressor().compressobj()
    data = b"".join([*(compressor.compress(part) for part in [*parts, end]), compressor.flush()])
    harness.object.parent.mkdir(parents=True, exist_ok=True)
    harness.object.write_bytes(data)
    sha256 = hashlib.sha256(data).hexdigest()
    harness.meta.write_bytes(encode_meta(Meta(sha256, len(data), 0, content_bytes, datetime.now(UTC).isoformat())))
