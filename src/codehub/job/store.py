"""The object store as the job sees it: one archive and its `.meta` under one key.

`file:///dir` and `s3://bucket` behave alike through obstore; store_address.py says how they are found. `.meta` is
written last, after the archive was read back and found equal: an object without it is nobody's archive. An object in
the store says whose the store is, and a job may be told whose it must be: a directory that has lost its mount, or
another bucket, would take an archive as well as the right one, and nobody would find it there again.

Where archives are (`file:///dir` or `s3://bucket`), how long to wait for the store, and what its errors mean.

Endpoint and credentials come from the environment (CODEHUB_S3_ENDPOINT, AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY,
AWS_REGION, …), never from arguments, which anyone on the machine could read. Of the errors only "not there" is an
answer and stays a FileNotFoundError; every other one means that the store could not be used, and says nothing about any
archive. The job and the adapters share this module.

What the job says while it works: JSON lines on stdout, nothing else.

The reader may be slow or gone (a coordinator that died is no reason to lose an archive), so a line that cannot be
written is dropped and the work goes on.
"""

import hashlib
import json
import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError
from obstore.store import LocalStore, S3Store

from codehub.job.compress import Lookahead
from codehub.job.errors import ExitCode, JobFailed, corrupted
from codehub.job.filesystem import start_writeback, sync_file

if TYPE_CHECKING:
    from obstore import WritableFile
import errno
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from obstore.exceptions import PermissionDeniedError, UnauthenticatedError

if TYPE_CHECKING:
    from obstore.store import ClientConfig, RetryConfig, S3Config
import select
from typing import Any

INTERVAL_SECONDS = 0.5
LAST_LINE_WAIT_SECONDS = 5.0


class ProgressReporter:
    """Writes progress lines at most twice a second. `bytes` and `files` grow within a `step`; `total_bytes` is an
    estimate."""

    def __init__(self, descriptor: int = 1) -> None:
        self._descriptor = descriptor
        self._due = 0.0
        self._step = ""
        self._total = 0
        self.bytes = 0
        self.files = 0

    def start(self, step: str, total_bytes: int) -> None:
        self._step, self._total, self.bytes, self.files, self._due = step, total_bytes, 0, 0, 0.0
        self.tick()

    def advance(self, bytes_: int, files: int = 0) -> None:
        self.bytes += bytes_
        self.files += files
        if time.monotonic() >= self._due:
            self.tick()

    def tick(self) -> None:
        self._due = time.monotonic() + INTERVAL_SECONDS
        self._write_line(
            {
                "event": "progress",
                "step": self._step,
                "bytes": self.bytes,
                "files": self.files,
                "total_bytes": max(self._total, self.bytes),
            },
            wait_seconds=0.0,
        )

    def done(self, **values: object) -> None:
        self._write_line({"event": "done", **values}, wait_seconds=LAST_LINE_WAIT_SECONDS)

    def failed(self, *, reason: str, detail: str, message: str) -> None:
        line = {"event": "failed", "reason": reason, "detail": detail, "message": message[:1000]}
        self._write_line(line, wait_seconds=LAST_LINE_WAIT_SECONDS)

    def warn(self, message: str) -> None:
        self._write_line({"event": "warning", "message": message[:1000]}, wait_seconds=0.0)

    def _write_line(self, line: dict[str, Any], wait_seconds: float) -> None:
        try:
            # A full pipe would block us for as long as its reader sleeps.
            if select.select([], [self._descriptor], [], wait_seconds)[1]:
                os.write(self._descriptor, json.dumps(line).encode() + b"\n")
        except OSError:
            pass


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


def parse_store(url: str) -> tuple[Path | None, str]:
    """The directory, or None and the bucket's name."""
    parts = urlsplit(url)
    if parts.scheme == "file" and not parts.netloc and parts.path.startswith("/"):
        return Path(unquote(parts.path)), ""
    if parts.scheme == "s3" and parts.netloc and parts.path in {"", "/"}:
        return None, parts.netloc
    raise ValueError("the archive store must be file:///directory or s3://bucket")


def with_read_timeout(store: S3Store, silence: timedelta) -> S3Store:
    """The same store with another limit for silence. For uploads: a store answers when it has all of a part, so it may
    be silent while the part is sent."""
    waiting: ClientConfig = {**(store.client_options or {}), "read_timeout": silence}
    return S3Store(config=store.config, client_options=waiting, retry_config=store.retry_config)


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


_NO_SPACE_TEXTS = (f"os error {errno.ENOSPC}", f"os error {errno.EDQUOT}")


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


T = TypeVar("T")
FORMAT = "codehub-home/1 pax tar, zstd"
SUFFIX = ".meta"


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


CHUNK = 1 << 20
CHUNKS_AHEAD = 4
SMALLEST_PART = 8 << 20
MOST_PARTS = 9_000
"""S3 allows 10,000; the rest is for an estimate that was too low."""
UPLOAD_MEMORY = 40 << 20
SLOWEST_UPLOAD = 100_000
"""Bytes a second of one part; slower is taken for none."""
AN_ANSWER = timedelta(seconds=60)
TIMEOUTS = StoreTimeouts(
    # A large home may be read for hours; what must not happen is that nothing comes.
    request=timedelta(days=1),
    silence=AN_ANSWER,
    connect=None,
    retries=4,
    retrying=timedelta(seconds=60),
    pause=timedelta(milliseconds=200),
)
_KEY_PART = re.compile(r"(?!\.\.?$)[A-Za-z0-9._=+@-]+")
"""What obstore stores under its own name; other characters it would encode."""


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
        if not isinstance(self.store, S3Store):
            return self
        again = self.store
        again = S3Store(config=again.config, client_options=again.client_options, retry_config=again.retry_config)
        return replace(self, store=again)

    def read(self) -> AbstractContextManager[Iterator[bytes]]:
        return Lookahead(self._streamed() if self.directory is None else self._ranges(), CHUNKS_AHEAD)

    def _streamed(self) -> Iterator[bytes]:
        # One request, for some S3 servers (`rclone serve s3`) answer ranges in a way obstore does not take.
        with _present(), translated("reading the archive"):
            for chunk in obstore.get(self.store, self.key).stream(min_chunk_size=CHUNK):
                yield bytes(chunk)

    def _ranges(self) -> Iterator[bytes]:
        """Read from a directory in ranges: obstore streams files in pieces of 8 KiB, at a third of the speed."""
        with _present(), translated("reading the archive"):
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
            store = with_read_timeout(store, AN_ANSWER + timedelta(seconds=size / SLOWEST_UPLOAD))
        return obstore.open_writer(store, self.key, buffer_size=size, max_concurrency=parallel)

    def start_writeback(self) -> None:
        for unfinished in self._unfinished(self.key):
            start_writeback(unfinished)

    def sync(self) -> None:
        """Put the object on disk, not only in a cache. Object stores promise that; directories must be asked."""
        if self.directory is not None:
            sync_file(self.directory / self.key, up_to=self.directory)

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
        if self.directory is not None:
            sync_file(self.directory / (self.key + SUFFIX), up_to=self.directory)
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


@contextmanager
def _present() -> Iterator[None]:
    try:
        yield
    except FileNotFoundError as error:
        raise JobFailed(ExitCode.ARCHIVE_NOT_FOUND, "the archive went away while it was read") from error


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
    """Whose the store must be. `key`: the object that names the owner."""

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


TRIES = 3


def with_tries(attempt: Callable[[int], T], progress: ProgressReporter, backoff_seconds: float) -> T:
    """Three tries, with back-off, for what may pass by itself; every other failure is raised at once. `attempt` gets
    its number, from 0."""
    for number in range(TRIES):
        try:
            return attempt(number)
        except JobFailed as failure:
            if not failure.transient or number == TRIES - 1:
                raise
            progress.warn(f"{failure.message}; trying again")
            time.sleep(backoff_seconds * 4**number)
    raise AssertionError("unreachable")
