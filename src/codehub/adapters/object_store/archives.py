"""Archives in an object store: a directory (`file:///dir`) or S3 (`s3://bucket`), both through obstore.

Only "not there" said by a store that is there counts as an answer; everything else is Unreachable, so that no outage,
lost mount or wrong password makes an archive look lost. Endpoint and credentials come from the environment, as for the
storage job (CODEHUB_S3_ENDPOINT, AWS_…), and what an archive consists of is the job's to say.
"""

import asyncio
import re
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError
from obstore.store import LocalStore, S3Store

from codehub.domain.errors import BackendError, Unreachable
from codehub.domain.judge import ArchiveState
from codehub.domain.naming import meta_key, owner_key
from codehub.job.archive import empty_archive
from codehub.job.errors import JobFailed
from codehub.job.filesystem import sync_file
from codehub.job.store import (
    Meta,
    StoreTimeouts,
    decode_meta,
    encode_meta,
    first_line,
    is_full,
    open_bucket,
    parse_store,
)
from codehub.ports.archives import StoredObject
from codehub.ports.jobs import JobResult

if TYPE_CHECKING:
    from obstore import ObjectMeta

T = TypeVar("T")

_THREADS = 8
_LIST_TAKES_LONGER = 20.0
_ONE_REQUEST = timedelta(seconds=5)
_TIMEOUTS = StoreTimeouts(_ONE_REQUEST, silence=None, connect=_ONE_REQUEST, retries=1, retrying=timedelta(seconds=8))
_UNFINISHED = re.compile(r"#\d+$")
"""How obstore names the file of an upload into a directory until it is whole; its own listing leaves them out."""


class _Seen(NamedTuple):
    """What one look says of an archive; of two bad ones the `evidence` tells whether they say the same."""

    state: ArchiveState
    evidence: str = ""


class ObjectArchives:
    """The archives below `prefix` in one store. `make_directory` is for a directory of our own; an operator's mount
    must not be made up when it is gone."""

    def __init__(
        self, store_url: str, prefix: str, *, make_directory: bool = False, answer_seconds: float = 15.0
    ) -> None:
        self._directory, self._bucket = parse_store(store_url)
        self.name = "s3" if self._directory is None else "directory"
        if make_directory and self._directory is not None:
            try:
                self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            except OSError as error:
                raise BackendError(
                    f"the archive directory {self._directory} cannot be made: {error.strerror}"
                ) from error
        self._prefix = prefix
        self._answer_seconds = answer_seconds
        # obstore's own async calls can abort the interpreter at its exit (pyo3-async-runtimes issue 40), so its
        # blocking calls run in threads; our own, because in an outage each of them is stuck for seconds.
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="archives")

    async def inventory(self) -> Collection[str]:
        keys = {listed["path"] for listed in await self._ask(self._list, _LIST_TAKES_LONGER)}
        return [key for key in keys if meta_key(key) in keys]

    async def objects(self) -> Collection[StoredObject]:
        return await self._ask(self._objects, _LIST_TAKES_LONGER)

    async def look(self, key: str) -> ArchiveState:
        return await self._ask(lambda: self._look(key))

    async def create_empty(self, key: str) -> JobResult:
        return await self._ask(lambda: self._create_empty(key))

    async def delete(self, key: str) -> None:
        await self._ask(lambda: self._delete(key))

    async def owner(self) -> str | None:
        return await self._ask(self._owner)

    async def claim(self, install: str) -> str:
        return await self._ask(lambda: self._claim(install))

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _ask(self, question: Callable[[], T], longer: float = 1.0) -> T:
        def asked() -> T:
            with self._answered():
                return question()

        seconds = self._answer_seconds * longer
        try:
            async with asyncio.timeout(seconds):
                return await asyncio.get_running_loop().run_in_executor(self._threads, asked)
        except TimeoutError as error:
            raise Unreachable(f"the object store did not answer within {seconds:g} s") from error

    @contextmanager
    def _answered(self) -> Iterator[None]:
        if self._directory is not None and not self._directory.is_dir():
            raise Unreachable(f"the archive directory {self._directory} is not there")
        try:
            yield
        except (BaseError, OSError) as error:
            if is_full(error):
                raise BackendError("there is no space left for archives") from error
            raise Unreachable(f"the object store did not answer: {first_line(error)}") from error

    @cached_property
    def _store(self) -> LocalStore | S3Store:
        # Not before the first question: a directory that is not there yet is an outage, not a wrong setting.
        return self._opened()

    def _opened(self) -> LocalStore | S3Store:
        if self._directory is None:
            return open_bucket(self._bucket, _TIMEOUTS)
        return LocalStore(self._directory, automatic_cleanup=True)

    def _list(self) -> "list[ObjectMeta]":
        # The store lists by whole path segments; a prefix may end within one.
        segments = self._prefix.rpartition("/")[0]
        listed = obstore.list(self._store, segments or None).collect()
        mine = [found for found in listed if found["path"].startswith(self._prefix)]
        return [found for found in mine if found["path"] != owner_key(self._prefix)]

    def _objects(self) -> list[StoredObject]:
        listed = [StoredObject(found["path"], found["size"], found["last_modified"]) for found in self._list()]
        return listed if self._directory is None else [*listed, *self._unfinished(self._directory)]

    def _unfinished(self, directory: Path) -> Iterator[StoredObject]:
        for path in directory.rglob("*#*"):
            name = path.relative_to(directory).as_posix()
            if name.startswith(self._prefix) and _UNFINISHED.search(name):
                with suppress(FileNotFoundError):  # finished, or removed, meanwhile
                    seen = path.stat()
                    yield StoredObject(name, seen.st_size, datetime.fromtimestamp(seen.st_mtime, UTC))

    def _look(self, key: str) -> ArchiveState:
        """A wrong answer is not a wrong object: bad news is believed when it is heard twice, over different
        connections."""
        first = self._seen(self._store, key)
        if first.state is ArchiveState.READABLE:
            return first.state
        second = self._seen(self._opened(), key)
        if second.state is not ArchiveState.READABLE and second != first:
            raise Unreachable(f"the object store answers differently each time ({first.state}, {second.state})")
        return second.state

    def _seen(self, store: LocalStore | S3Store, key: str) -> "_Seen":
        try:
            meta = _meta(store, key)
            size = obstore.head(store, key)["size"] if meta is not None else None
        except FileNotFoundError:
            meta, size = None, None
        except JobFailed as failure:
            return _Seen(ArchiveState.CORRUPTED, failure.evidence)
        if meta is None:
            self._confirm_that_the_store_is_there(store, key)
            return _Seen(ArchiveState.NOT_FOUND)
        if size != meta.bytes:
            return _Seen(ArchiveState.CORRUPTED, f"{size} bytes, and should have {meta.bytes}")
        return _Seen(ArchiveState.READABLE if _can_be_read(store, key) else ArchiveState.EXPIRED)

    def _confirm_that_the_store_is_there(self, store: LocalStore | S3Store, key: str) -> None:
        """A bucket or directory that is gone says "not found" for every object in it. Its listing tells them apart."""
        if self._directory is not None:
            if not self._directory.is_dir():
                raise Unreachable(f"the archive directory {self._directory} is not there")
            return
        obstore.list(store, key.rpartition("/")[0] or None).collect()

    def _create_empty(self, key: str) -> JobResult:
        present = self._finished(key)
        if present is not None:
            return _result(key, present)
        data, meta = empty_archive(datetime.now(UTC))
        # Without its `.meta` an object is nobody's archive, so a half-made one is simply replaced.
        obstore.put(self._store, key, data, use_multipart=False)
        self._settle(key)
        if bytes(obstore.get(self._store, key).bytes()) != data:
            raise Unreachable(f"the object store does not give back what was written (archive {key})")
        with suppress(AlreadyExistsError):
            obstore.put(self._store, meta_key(key), encode_meta(meta), mode="create", use_multipart=False)
            self._settle(meta_key(key))
        present = self._finished(key)
        if present is None:
            raise Unreachable(f"the object store does not keep what was written (archive {key})")
        return _result(key, present)

    def _finished(self, key: str) -> Meta | None:
        """The `.meta` of a finished archive. One whose object is gone or cut off vouches for nothing and is removed."""
        try:
            meta = _meta(self._store, key)
        except JobFailed as failure:
            if self._look(key) is not ArchiveState.CORRUPTED:
                raise Unreachable(f"the object store answers differently each time ({failure.message})") from failure
            raise BackendError(f"archive {key}: {failure.message}") from failure
        if meta is None:
            return None
        with suppress(FileNotFoundError):
            if obstore.head(self._store, key)["size"] == meta.bytes:
                return meta
        self._remove(meta_key(key))
        return None

    def _settle(self, key: str) -> None:
        """Makes an archive in a directory durable, which object stores promise by themselves."""
        if self._directory is not None:
            sync_file(self._directory / key, up_to=self._directory)

    def _owner(self) -> str | None:
        try:
            return bytes(obstore.get(self._store, owner_key(self._prefix)).bytes()).decode().strip()
        except FileNotFoundError:
            self._confirm_that_the_store_is_there(self._store, owner_key(self._prefix))
            return None

    def _claim(self, install: str) -> str:
        # Not every S3 server heeds If-None-Match, so look before and after as well.
        present = self._owner()
        if present is not None:
            return present
        with suppress(AlreadyExistsError):
            obstore.put(self._store, owner_key(self._prefix), install.encode(), mode="create", use_multipart=False)
            self._settle(owner_key(self._prefix))
        return self._owner() or install

    def _delete(self, key: str) -> None:
        if self._directory is not None and _UNFINISHED.search(key):
            (self._directory / key).unlink(missing_ok=True)
            return
        self._remove(meta_key(key))
        self._remove(key)

    def _remove(self, key: str) -> None:
        try:
            obstore.delete(self._store, key)
        except FileNotFoundError as error:
            if "NoSuchBucket" in str(error):
                raise


def _result(key: str, meta: Meta) -> JobResult:
    return JobResult(key, meta.sha256, meta.bytes, meta.files)


def _meta(store: LocalStore | S3Store, key: str) -> Meta | None:
    try:
        return decode_meta(bytes(obstore.get(store, meta_key(key)).bytes()))
    except FileNotFoundError:
        return None


def _can_be_read(store: LocalStore | S3Store, key: str) -> bool:
    """Whether the object can be read: a cold one has its size and cannot, unless it was thawed, and only asking
    tells."""
    try:
        obstore.get(store, key)  # its bytes are left unread
    except (BaseError, OSError) as error:
        if "InvalidObjectState" in str(error):
            return False
        raise
    return True
