"""The object store as the job sees it: one archive and its `.meta` under one key, in `file:///dir` or `s3://bucket`.

`.meta` is written last, after the archive was read back and found equal: an object without it is nobody's archive. An
object in the store says whose the store is: a directory that has lost its mount, or another bucket, would take an
archive as well as the right one, and nobody would find it there again. Endpoint and credentials come from the
environment (CODEHUB_S3_ENDPOINT, AWS_…), never from arguments, which anyone on the machine could read. Of the store's
errors only "not there" is an answer and stays a FileNotFoundError; every other one says nothing about any archive.
"""

import errno
import hashlib
import json
import os
import re
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError, PermissionDeniedError, UnauthenticatedError
from obstore.store import LocalStore, S3Store

from codehub.job.compress import Lookahead
from codehub.job.errors import ExitCode, JobFailed, corrupted
from codehub.job.filesystem import start_writeback, sync_file

if TYPE_CHECKING:
    from obstore import WritableFile
    from obstore.store import ClientConfig, RetryConfig, S3Config

FORMAT = "codehub-home/1 pax tar, zstd"
SUFFIX = ".meta"
CHUNK = 1 << 20
CHUNKS_AHEAD = 4
SMALLEST_PART = 8 << 20
MOST_PARTS = 9_000
"""S3 allows 10,000; the rest is for an estimate that was too low."""
UPLOAD_MEMORY = 40 << 20
SLOWEST_UPLOAD = 100_000
"""Bytes a second of one part; slower is taken for none."""
AN_ANSWER = timedelta(seconds=60)
_NO_SPACE_TEXTS = (f"os error {errno.ENOSPC}", f"os error {errno.EDQUOT}")
_KEY_PART = re.compile(r"(?!\.\.?$)[A-Za-z0-9._=+@-]+")
"""What obstore stores under its own name; other characters it would encode."""


@dataclass(frozen=True)
class StoreTimeouts:
    """How long to wait for the store. `request`: for a whole answer, however large; `silence`: while nothing comes;
    None sets no limit of its own."""

    request: timedelta
    silence: timedelta | None
    connect: timedelta | None
    retries: int
    retrying: timedelta
    pause: timedelta | None = None
    longest_pause: timedelta = timedelta(seconds=2)


TIMEOUTS = StoreTimeouts(
    # A large home may be read for hours; what must not happen is that nothing comes.
    request=timedelta(days=1),
    silence=AN_ANSWER,
    connect=None,
    retries=4,
    retrying=timedelta(seconds=60),
    pause=timedelta(milliseconds=200),
)


def parse_store(url: str) -> tuple[Path | None, str]:
    """The directory, or None and the bucket's name."""
    parts = urlsplit(url)
    if parts.scheme == "file" and not parts.netloc and parts.path.startswith("/"):
        return Path(unquote(parts.path)), ""
    if parts.scheme == "s3" and parts.netloc and parts.path in {"", "/"}:
        return None, parts.netloc
    raise ValueError("the archive store must be file:///directory or s3://bucket")


def _reconnected(store: S3Store, changed: "ClientConfig | None" = None) -> S3Store:
    """The same store over connections of its own, with other client options where `changed` says so."""
    options: ClientConfig = {**(store.client_options or {}), **(changed or {})}
    return S3Store(config=store.config, client_options=options, retry_config=store.retry_config)


def open_bucket(bucket: str, timeouts: StoreTimeouts) -> S3Store:
    endpoint = os.environ.get("CODEHUB_S3_ENDPOINT")
    region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION") or "us-east-1"
    address: S3Config = {"endpoint": endpoint} if endpoint else {}
    waiting: ClientConfig = {"timeout": timeouts.request}
    if timeouts.silence is not None:
        waiting["read_timeout"] = timeouts.silence
    if timeouts.connect is not None:
        waiting["connect_timeout"] = timeouts.connect
    retries: RetryConfig = {"max_retries": timeouts.retries, "retry_timeout": timeouts.retrying}
    if timeouts.pause is not None:
        retries["backoff"] = {"init_backoff": timeouts.pause, "max_backoff": timeouts.longest_pause, "base": 2}
    return S3Store(
        bucket,
        config={"region": region, **address},
        client_options={"allow_http": (endpoint or "").startswith("http://"), **waiting},
        retry_config=retries,
    )


@contextmanager
def translated(doing: str) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError as error:
        if "NoSuchBucket" in str(error):
            raise JobFailed(ExitCode.UNREACHABLE, f"{doing}: the bucket does not exist") from error
        raise
    except AlreadyExistsError:
        raise
    except (PermissionDeniedError, UnauthenticatedError) as error:
        why = f"{doing}: the object store refuses these credentials; correct them ({first_line(error)})"
        raise JobFailed(ExitCode.ACCESS_DENIED, why) from error
    except (BaseError, OSError) as error:
        if is_full(error):
            raise JobFailed(ExitCode.DISK_FULL, f"{doing}: no space left for archives") from error
        raise JobFailed(ExitCode.UNREACHABLE, f"{doing}: {first_line(error)}", transient=True) from error


def is_full(error: BaseException) -> bool:
    """Whether the store has no room left for objects, which is a definite answer."""
    full = isinstance(error, OSError) and error.errno in {errno.ENOSPC, errno.EDQUOT}
    return full or any(text in str(error) for text in _NO_SPACE_TEXTS)


def first_line(error: BaseException) -> str:
    """The error without the pages of debugging detail that obstore appends."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:300]


@dataclass(frozen=True)
class Meta:
    sha256: str
    bytes: int
    """Length of the object."""
    files: int
    """Members that are no directories."""
    content_bytes: int
    """What restoring it costs, in the measure of restore's `--max-bytes`."""
    created_at: str
    format: str = FORMAT


def encode_meta(meta: Meta) -> bytes:
    return json.dumps(asdict(meta), indent=1).encode() + b"\n"


def decode_meta(data: bytes) -> Meta:
    unreadable = corrupted("the archive's .meta cannot be read", evidence=hashlib.sha256(data).hexdigest())
    try:
        values = json.loads(data)
        meta = Meta(**{name: values[name] for name in Meta.__dataclass_fields__})
        numbers = (meta.bytes, meta.files, meta.content_bytes)
        well_formed = len(bytes.fromhex(meta.sha256)) == 32 and all(type(n) is int and n >= 0 for n in numbers)
        datetime.fromisoformat(meta.created_at)
    except (ValueError, KeyError, TypeError) as error:
        raise unreadable from error
    if not well_formed:
        raise unreadable
    if meta.format != FORMAT:
        raise corrupted(f"the archive's format is unknown: {str(meta.format)[:80]}")
    return meta


@dataclass(frozen=True)
class ArchiveStore:
    store: LocalStore | S3Store
    key: str
    directory: Path | None
    """Where the objects are files, for what only files need."""

    def read_meta(self) -> Meta | None:
        try:
            with translated("reading .meta"):
                return decode_meta(bytes(obstore.get(self.store, self.key + SUFFIX).bytes()))
        except FileNotFoundError:
            return None

    def size(self) -> int | None:
        try:
            with translated("looking at the archive"):
                return obstore.head(self.store, self.key)["size"]
        except FileNotFoundError:
            return None

    def reopened(self) -> "ArchiveStore":
        """The same archive over connections of its own: an answer that came wrong over one is not asked for there."""
        return replace(self, store=_reconnected(self.store)) if isinstance(self.store, S3Store) else self

    def read(self) -> AbstractContextManager[Iterator[bytes]]:
        return Lookahead(self._chunks(), CHUNKS_AHEAD)

    def _chunks(self) -> Iterator[bytes]:
        try:
            with translated("reading the archive"):
                yield from self._streamed() if self.directory is None else self._ranges()
        except FileNotFoundError as error:
            raise JobFailed(ExitCode.ARCHIVE_NOT_FOUND, "the archive went away while it was read") from error

    def _streamed(self) -> Iterator[bytes]:
        # One request, for some S3 servers (`rclone serve s3`) answer ranges in a way obstore does not take.
        for chunk in obstore.get(self.store, self.key).stream(min_chunk_size=CHUNK):
            yield bytes(chunk)

    def _ranges(self) -> Iterator[bytes]:
        """Read from a directory in ranges: obstore streams files in pieces of 8 KiB, at a third of the speed."""
        size = obstore.head(self.store, self.key)["size"]
        for start in range(0, size, CHUNK):
            yield obstore.get_range(self.store, self.key, start=start, end=min(start + CHUNK, size)).to_bytes()

    def writer(self, most_bytes: int) -> "AbstractContextManager[WritableFile]":
        """An upload: complete when the block ends well, aborted when it does not; never half there."""
        self._make_directories()
        self.remove_leftovers()
        size = part_size(most_bytes)
        parallel = max(1, UPLOAD_MEMORY // size - 1)
        store = self.store
        if isinstance(store, S3Store):
            # The store answers when it has all of a part, so it may be silent while the part is sent.
            store = _reconnected(store, {"read_timeout": AN_ANSWER + timedelta(seconds=size / SLOWEST_UPLOAD)})
        return obstore.open_writer(store, self.key, buffer_size=size, max_concurrency=parallel)

    def start_writeback(self) -> None:
        for unfinished in self._unfinished(self.key):
            start_writeback(unfinished)

    def sync(self, suffix: str = "") -> None:
        """Put the object on disk, not only in a cache. Object stores promise that; directories must be asked."""
        if self.directory is not None:
            sync_file(self.directory / (self.key + suffix), up_to=self.directory)

    def create_meta(self, meta: Meta) -> bool:
        """Write the `.meta`; False when there is one already."""
        # Not every S3 server heeds If-None-Match, so look first as well.
        if self.read_meta() is not None:
            return False
        try:
            with translated("writing .meta"):
                obstore.put(self.store, self.key + SUFFIX, encode_meta(meta), mode="create", use_multipart=False)
        except AlreadyExistsError:
            return False
        self.sync(SUFFIX)
        return True

    def delete_meta(self) -> None:
        with translated("removing .meta"):
            obstore.delete(self.store, self.key + SUFFIX)

    def _make_directories(self) -> None:
        """The directories of the key, owned by the store's owner, though a container's root writes into them."""
        if self.directory is None or not self.directory.is_dir():
            return
        owner = self.directory.stat()
        missing = [place for place in (self.directory / self.key).parents if not place.exists()]
        for place in reversed(missing):
            place.mkdir(exist_ok=True)
            if os.geteuid() == 0:
                os.chown(place, owner.st_uid, owner.st_gid)

    def remove_leftovers(self) -> None:
        """Remove the files that killed uploads into a directory have left; else only the collector would."""
        for key in (self.key, self.key + SUFFIX):
            for leftover in self._unfinished(key):
                leftover.unlink(missing_ok=True)

    def _unfinished(self, key: str) -> list[Path]:
        """The files of unfinished uploads: obstore writes `name#1` in a directory, and renames it when it is whole."""
        if self.directory is None:
            return []
        path = self.directory / key
        return list(path.parent.glob(path.name + "#*")) if path.parent.is_dir() else []


def part_size(most_bytes: int) -> int:
    needed = -(-most_bytes // MOST_PARTS)
    return max(SMALLEST_PART, -(-needed // (1 << 20)) << 20)


def open_store(url: str, key: str, timeouts: StoreTimeouts = TIMEOUTS) -> ArchiveStore:
    if not all(_KEY_PART.fullmatch(part) for part in key.split("/")):
        raise JobFailed(ExitCode.USAGE, "the key must be a relative path of plain names")
    try:
        directory, bucket = parse_store(url)
        if directory is None:
            return ArchiveStore(open_bucket(bucket, timeouts), key, None)
    except ValueError as error:
        raise JobFailed(ExitCode.USAGE, str(error)) from error
    except BaseError as error:
        raise JobFailed(ExitCode.USAGE, f"the object store's configuration is wrong: {error}") from error
    if not directory.is_dir():
        raise JobFailed(ExitCode.UNREACHABLE, f"the archive directory {directory} is not there", transient=True)
    return ArchiveStore(LocalStore(directory), key, directory)


@dataclass(frozen=True)
class Owner:
    """The installation whose store it must be. `key`: the object in the store that names the owner."""

    key: str
    name: str


def refuse_wrong_owner(store: ArchiveStore, owner: Owner | None) -> None:
    if owner is None:
        return
    try:
        with translated("reading whose the archive store is"):
            found = bytes(obstore.get(store.store, owner.key).bytes()).decode(errors="replace").strip()
    except FileNotFoundError as error:
        message = f"the archive store has no mark {owner.key}, and should be {owner.name}'s: is its disk mounted?"
        raise JobFailed(ExitCode.OTHER_STORE, message) from error
    if found != owner.name:
        raise JobFailed(ExitCode.OTHER_STORE, f"the archive store is {found[:100]}'s, and should be {owner.name}'s")
