"""The Archives port's promises, kept alike in memory, in a directory and on a real S3 server."""

from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol
from uuid import uuid4

import obstore
import pytest

from codehub.adapters.memory import MemoryArchives
from codehub.adapters.memory.archives import ArchivesState, StoredArchive
from codehub.adapters.object_store.archives import ObjectArchives
from codehub.domain.errors import Unreachable
from codehub.domain.judge import ArchiveState
from codehub.domain.naming import archive_key, meta_key
from codehub.job.archive import empty_archive
from codehub.job.store import encode_meta
from codehub.ports.archives import Archives
from tests.contracts.s3 import BUCKET, Answer, ScriptedStore, credentials, rclone, scripted
from tests.real_services import free_port

PREFIX = "team-a/homes-"


class Store(Protocol):
    """The store behind the port, where things happen to archives."""

    archives: Archives

    def begin(self, key: str) -> None:
        """An upload that was cut off before its `.meta`."""
        ...

    def cut(self, key: str) -> None:
        """The object is no longer what it was."""
        ...


class MemoryStore:
    def __init__(self) -> None:
        self.state = ArchivesState()
        self.archives: Archives = MemoryArchives(self.state)

    def begin(self, key: str) -> None:
        self.state.objects[key] = StoredArchive((), datetime.now(UTC))

    def cut(self, key: str) -> None:
        self.state.objects[key].state = ArchiveState.CORRUPTED


class RealStore:
    def __init__(self, archives: ObjectArchives, directory: Path) -> None:
        self.archives: Archives = archives
        self.directory = directory
        self._store = archives._store

    def begin(self, key: str) -> None:
        obstore.put(self._store, key, b"half of it")

    def cut(self, key: str) -> None:
        obstore.put(self._store, key, bytes(obstore.get(self._store, key).bytes())[:-1])


@pytest.fixture(params=["memory", "directory", pytest.param("s3", marks=pytest.mark.system)])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    with ExitStack() as stack:
        if request.param == "memory":
            yield MemoryStore()
            return
        directory = tmp_path / "archives"
        url = directory.as_uri()
        if request.param == "s3":
            stack.enter_context(credentials(stack.enter_context(rclone(directory))))
            url = f"s3://{BUCKET}"
        archives = ObjectArchives(url, PREFIX, make_directory=True)
        stack.callback(archives.close)
        yield RealStore(archives, directory)


@pytest.fixture
def archives(store: Store) -> Archives:
    return store.archives


@pytest.fixture
def key() -> str:
    return archive_key(PREFIX, uuid4(), uuid4())


async def test_nothing_is_there_at_first(archives: Archives, key: str) -> None:
    assert list(await archives.inventory()) == []
    assert list(await archives.objects()) == []
    assert await archives.look(key) is ArchiveState.NOT_FOUND
    await archives.delete(key)


async def test_an_empty_archive_is_made_once(archives: Archives, key: str) -> None:
    made = await archives.create_empty(key)
    assert (made.key, made.files) == (key, 0)
    assert await archives.create_empty(key) == made
    assert await archives.look(key) is ArchiveState.READABLE
    assert list(await archives.inventory()) == [key]


async def test_the_collector_sees_object_and_meta(archives: Archives, key: str) -> None:
    made = await archives.create_empty(key)
    objects = {stored.key: stored for stored in await archives.objects()}
    assert set(objects) == {key, meta_key(key)}
    assert objects[key].bytes == made.bytes
    assert objects[key].modified_at.tzinfo is not None


async def test_without_meta_it_is_no_archive_until_it_is_made_anew(store: Store, key: str) -> None:
    archives = store.archives
    store.begin(key)
    assert await archives.look(key) is ArchiveState.NOT_FOUND
    assert list(await archives.inventory()) == []
    assert [stored.key for stored in await archives.objects()] == [key]
    await archives.create_empty(key)
    assert await archives.look(key) is ArchiveState.READABLE


async def test_one_that_lost_bytes_is_corrupted(store: Store, key: str) -> None:
    await store.archives.create_empty(key)
    store.cut(key)
    assert await store.archives.look(key) is ArchiveState.CORRUPTED


async def test_a_store_is_claimed_once(archives: Archives, key: str) -> None:
    assert await archives.owner() is None
    assert await archives.claim("this") == "this"
    assert (await archives.claim("that"), await archives.owner()) == ("this", "this")
    await archives.create_empty(key)
    assert {stored.key for stored in await archives.objects()} == {key, meta_key(key)}


async def test_deleting_takes_both_and_is_repeatable(archives: Archives, key: str) -> None:
    other = archive_key(PREFIX, uuid4(), uuid4())
    for each in (key, other):
        await archives.create_empty(each)
    await archives.delete(key)
    await archives.delete(key)
    assert await archives.look(key) is ArchiveState.NOT_FOUND
    assert {stored.key for stored in await archives.objects()} == {other, meta_key(other)}


# ── what only real stores can do ─────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[RealStore]:
    archives = ObjectArchives((tmp_path / "archives").as_uri(), PREFIX, make_directory=True)
    yield RealStore(archives, tmp_path / "archives")
    archives.close()


@pytest.fixture
def script(key: str) -> Iterator[tuple[Archives, ScriptedStore]]:
    """An S3 that has the archive `key`, and does to it what a test says."""
    data, meta = empty_archive(datetime.now(UTC))
    with scripted() as (endpoint, store), credentials(endpoint):
        archives = ObjectArchives(f"s3://{BUCKET}", PREFIX, answer_seconds=2.0)
        store.answers = {
            ("GET", meta_key(key)): Answer(200, encode_meta(meta)),
            ("HEAD", key): Answer(200, data),
            ("GET", key): Answer(200, data),
            ("GET", BUCKET): Answer(200, EMPTY_LISTING),
        }
        yield archives, store
        archives.close()


EMPTY_LISTING = b'<?xml version="1.0"?><ListBucketResult><Name>homes</Name><KeyCount>0</KeyCount></ListBucketResult>'
NO_BUCKET = b'<?xml version="1.0"?><Error><Code>NoSuchBucket</Code><Message>it is gone</Message></Error>'
FROZEN = b'<?xml version="1.0"?><Error><Code>InvalidObjectState</Code><Message>it is cold</Message></Error>'


def questions(archives: Archives, key: str) -> list[Callable[[], Awaitable[object]]]:
    return [
        archives.inventory,
        archives.objects,
        lambda: archives.look(key),
        lambda: archives.create_empty(key),
        lambda: archives.delete(key),
    ]


async def test_what_a_cut_off_upload_left_is_seen_and_removed_alone(directory: RealStore, key: str) -> None:
    await directory.archives.create_empty(key)
    left = {f"{key}#1", f"{meta_key(key)}#12"}
    for name in (*left, "elsewhere#1"):
        (directory.directory / name).write_bytes(b"half")
    found = {stored.key: stored for stored in await directory.archives.objects()}
    assert set(found) == {key, meta_key(key), *left}
    assert (found[f"{key}#1"].bytes, found[f"{key}#1"].modified_at.tzinfo) == (4, UTC)
    assert list(await directory.archives.inventory()) == [key]
    for name in left:
        await directory.archives.delete(name)
        await directory.archives.delete(name)
    assert {stored.key for stored in await directory.archives.objects()} == {key, meta_key(key)}
    assert await directory.archives.look(key) is ArchiveState.READABLE


async def test_meta_goes_before_its_object(directory: RealStore, key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that whoever is interrupted leaves no proof of an object that is gone."""
    await directory.archives.create_empty(key)
    removed: list[str] = []
    really = obstore.delete

    def delete(store: Any, path: Any) -> None:
        removed.append(path)
        really(store, path)

    monkeypatch.setattr(obstore, "delete", delete)
    await directory.archives.delete(key)
    assert removed == [meta_key(key), key]


async def test_a_store_that_is_not_there_belongs_to_nobody_we_know(directory: RealStore) -> None:
    directory.directory.rmdir()
    with pytest.raises(Unreachable):
        await directory.archives.owner()
    with pytest.raises(Unreachable):
        await directory.archives.claim("this")


async def test_an_empty_directory_below_a_lost_mount_says_that_it_is_nobodys(directory: RealStore, key: str) -> None:
    await directory.archives.claim("this")
    await directory.archives.create_empty(key)
    mount, disk = directory.directory, directory.directory.with_name("disk")
    mount.rename(disk)
    mount.mkdir()
    assert await directory.archives.owner() is None
    assert list(mount.iterdir()) == []
    mount.rmdir()
    disk.rename(mount)
    assert await directory.archives.owner() == "this"
    assert await directory.archives.look(key) is ArchiveState.READABLE


async def test_a_key_beside_the_prefix_is_not_ours(directory: RealStore, key: str) -> None:
    for foreign in ("team-a/other/home.tar.zst", "team-b/homes-x/y/home.tar.zst", "elsewhere"):
        directory.begin(foreign)
        directory.begin(meta_key(foreign))
    await directory.archives.create_empty(key)
    assert list(await directory.archives.inventory()) == [key]
    assert {stored.key for stored in await directory.archives.objects()} == {key, meta_key(key)}


async def test_a_meta_without_its_object_vouches_for_nothing(directory: RealStore, key: str) -> None:
    await directory.archives.create_empty(key)
    (directory.directory / key).unlink()
    assert await directory.archives.look(key) is ArchiveState.NOT_FOUND
    assert list(await directory.archives.inventory()) == []
    await directory.archives.create_empty(key)
    assert await directory.archives.look(key) is ArchiveState.READABLE


async def test_a_meta_that_cannot_be_read_is_corruption(directory: RealStore, key: str) -> None:
    await directory.archives.create_empty(key)
    (directory.directory / meta_key(key)).write_text("{}")
    assert await directory.archives.look(key) is ArchiveState.CORRUPTED


async def test_a_directory_that_is_not_there_is_no_answer(directory: RealStore, key: str) -> None:
    await directory.archives.create_empty(key)
    away = directory.directory.with_name("unmounted")
    directory.directory.rename(away)
    for ask in questions(directory.archives, key):
        with pytest.raises(Unreachable):
            await ask()
    assert not directory.directory.exists()
    away.rename(directory.directory)
    assert await directory.archives.look(key) is ArchiveState.READABLE


async def test_an_operators_directory_is_not_made_up(tmp_path: Path, key: str) -> None:
    archives = ObjectArchives((tmp_path / "mount").as_uri(), PREFIX)
    for ask in questions(archives, key):
        with pytest.raises(Unreachable):
            await ask()
    assert not (tmp_path / "mount").exists()
    archives.close()


async def test_refused_connections_are_no_answer(key: str) -> None:
    with credentials(f"http://127.0.0.1:{free_port()}"):
        archives = ObjectArchives(f"s3://{BUCKET}", PREFIX)
        for ask in questions(archives, key):
            with pytest.raises(Unreachable):
                await ask()
        archives.close()


@pytest.mark.parametrize("status", [401, 403, 429, 500, 503])
async def test_a_store_that_refuses_or_fails_is_no_answer(
    script: tuple[Archives, ScriptedStore], key: str, status: int
) -> None:
    archives, store = script
    store.answers, store.otherwise = {}, Answer(status)
    for ask in questions(archives, key):
        with pytest.raises(Unreachable):
            await ask()


async def test_a_bucket_that_is_gone_is_no_answer(script: tuple[Archives, ScriptedStore], key: str) -> None:
    archives, store = script
    store.answers, store.otherwise = {}, Answer(404, NO_BUCKET)
    for ask in questions(archives, key):
        with pytest.raises(Unreachable):
            await ask()


async def test_silence_is_no_answer(script: tuple[Archives, ScriptedStore], key: str) -> None:
    archives, store = script
    store.silent = True
    with pytest.raises(Unreachable):
        await archives.look(key)


async def test_what_a_store_that_is_there_does_not_have_is_not_found(
    script: tuple[Archives, ScriptedStore], key: str
) -> None:
    archives, store = script
    assert await archives.look(key) is ArchiveState.READABLE
    assert await archives.look(archive_key(PREFIX, uuid4(), uuid4())) is ArchiveState.NOT_FOUND
    del store.answers["HEAD", key]
    assert await archives.look(key) is ArchiveState.NOT_FOUND


async def test_a_cold_object_has_expired_unless_it_was_thawed(script: tuple[Archives, ScriptedStore], key: str) -> None:
    archives, store = script
    thawed = store.answers["GET", key]
    store.answers["GET", key] = Answer(403, FROZEN)
    assert await archives.look(key) is ArchiveState.EXPIRED
    store.answers["GET", key] = Answer(403)
    with pytest.raises(Unreachable):
        await archives.look(key)
    store.answers["GET", key] = thawed
    assert await archives.look(key) is ArchiveState.READABLE


@pytest.mark.parametrize("url", ["homes", "/srv/homes", "ftp://x", "s3://", "s3://bucket/path", "file://host/x"])
def test_a_store_is_named_plainly(url: str) -> None:
    with pytest.raises(ValueError, match="file:///directory or s3://bucket"):
        ObjectArchives(url, PREFIX)
