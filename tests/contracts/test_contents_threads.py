"""What stands between blocking readers and asyncio: threads that end with their reader, and indexes made once."""

import asyncio
import os
import threading
from collections.abc import Generator, Iterator
from contextlib import closing
from pathlib import Path

import psutil
import pytest

from codehub.adapters.object_store.contents import ObjectContents
from codehub.adapters.object_store.extract import Gone, threaded
from codehub.adapters.object_store.index import ArchiveIndex, Children, IndexBuilder, IndexCache, MemoryReservation
from codehub.domain.errors import Unreachable
from codehub.job.errors import JobFailed
from codehub.job.tar_format import DIRECTORY, HARD_LINK, REGULAR, Member
from tests.contracts.s3 import BUCKET, credentials, rclone
from tests.contracts.shared_threads import no_shared_thread
from tests.job.harness import JobHarness


class Producer:
    """Counts as fast as it can until nobody listens."""

    def __init__(self, last: int | None = None) -> None:
        self.last = last
        self.made = 0
        self.closed = threading.Event()

    def __call__(self, gone: Gone) -> Generator[int, None, None]:
        try:
            while self.made != self.last:
                self.made += 1
                yield self.made
        finally:
            self.closed.set()


async def test_items_arrive_in_order_and_come_to_an_end() -> None:
    producer = Producer(last=1000)
    async with threaded(producer, 3, "test-thread") as items:
        assert [item async for item in items] == list(range(1, 1001))
    assert producer.closed.is_set()


async def test_the_thread_is_never_far_ahead() -> None:
    producer = Producer()
    async with threaded(producer, 3, "test-thread") as items:
        for taken in range(1, 50):
            assert await anext(items) == taken
            await asyncio.sleep(0.001)
            # What waits, what was just taken, and what the thread holds in its hand.
            assert producer.made <= taken + 3 + 1
    assert producer.closed.is_set()


@pytest.mark.parametrize("error", [ValueError("no"), KeyboardInterrupt(), Unreachable("away")])
async def test_a_failure_reaches_the_reader(error: BaseException) -> None:
    def produce(_gone: Gone) -> Generator[int, None, None]:
        yield 1
        raise error

    async with threaded(produce, 3, "test-thread") as items:
        assert await anext(items) == 1
        with pytest.raises(type(error)):
            await anext(items)


async def test_a_reader_that_is_cancelled_ends_the_thread() -> None:
    closed = threading.Event()
    asked = asyncio.Event()
    loop = asyncio.get_running_loop()

    def produce(gone: Gone) -> Generator[int, None, None]:
        try:
            while not gone():
                loop.call_soon_threadsafe(asked.set)
                closed.wait(0.01)
            yield 1
        finally:
            closed.set()

    async def read() -> None:
        async with threaded(produce, 3, "test-thread") as items:
            await anext(items)

    reader = asyncio.create_task(read())
    await asked.wait()
    reader.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reader
    assert closed.is_set()
    assert named_threads("test-thread") == []


def named_threads(*prefixes: str) -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith(prefixes)]


# ── in the real thing ────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(params=["directory", pytest.param("s3", marks=pytest.mark.system)])
def harness(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[JobHarness]:
    harness = JobHarness(tmp_path)
    # It cannot be compressed, so much is left to read when the reader leaves.
    (harness.home / "large").write_bytes(os.urandom(48 << 20))
    (harness.home / "last").write_bytes(b"the end")
    if request.param == "directory":
        assert harness.archive().code == 0
        yield harness
        return
    with rclone(tmp_path / "s3") as endpoint, credentials(endpoint):
        harness.store_url = f"s3://{BUCKET}"
        assert harness.archive().code == 0
        yield harness


def connections() -> int:
    """Ours to anybody; servers of other tests listen and do not count."""
    return len([c for c in psutil.Process().net_connections("tcp") if c.status == psutil.CONN_ESTABLISHED])


@pytest.mark.parametrize("what", ["file", "folder", "original"])
async def test_a_reader_that_leaves_takes_threads_and_connections_along(harness: JobHarness, what: str) -> None:
    with closing(ObjectContents(harness.store_url)) as contents:
        await contents.tree(harness.key, "")
        before = connections()
        for _ in range(5):
            asked = contents.original(harness.key) if what == "original" else None
            async with asked or contents.content(harness.key, "large" if what == "file" else "") as content:
                assert await anext(content.chunks)
            assert named_threads("contents-file", "contents-original", "lookahead") == []
        async with asyncio.timeout(60):  # an idle connection that nobody wants would be closed after 90 s
            while connections() > before:
                await asyncio.sleep(0.01)


async def test_a_listing_that_nobody_waits_for_is_given_up(harness: JobHarness) -> None:
    with closing(ObjectContents(harness.store_url)) as contents:
        reader = asyncio.create_task(contents.tree(harness.key, ""))
        while not named_threads("contents-index"):
            assert not reader.done()
            await asyncio.sleep(0)
        reader.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reader
        while named_threads("contents-index", "lookahead"):
            await asyncio.sleep(0.01)
        assert contents.indexes.entries == 0
        assert [entry.name for entry in (await contents.tree(harness.key, "")).entries] == ["large", "last"]


async def test_many_who_ask_at_once_cause_one_pass(harness: JobHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    passes: list[str] = []
    with closing(ObjectContents(harness.store_url)) as contents:
        make = contents.indexes._make

        async def counted(key: str, reservation: MemoryReservation) -> ArchiveIndex:
            passes.append(key)
            return await make(key, reservation)

        monkeypatch.setattr(contents.indexes, "_make", counted)
        listings = await asyncio.gather(*(contents.tree(harness.key, "") for _ in range(20)))
        async with contents.content(harness.key, "last") as content:
            assert [chunk async for chunk in content.chunks] == [b"the end"]
        assert len({listing.entries for listing in listings}) == 1
        assert passes == [harness.key]


async def test_a_page_of_a_large_folder_looks_at_its_own_entries_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness = JobHarness(tmp_path)
    for number in range(300):
        (harness.home / f"{number:03}").touch()
    for number in (7, 200):
        (harness.home / f"folder {number:03}").mkdir()
    assert harness.archive().code == 0
    looks: list[int] = []
    look = ArchiveIndex.kind

    def counted(index: ArchiveIndex, number: int) -> bytes:
        looks.append(number)
        return look(index, number)

    with closing(ObjectContents(harness.store_url)) as contents:
        await contents.tree(harness.key, "")
        monkeypatch.setattr(ArchiveIndex, "kind", counted)
        page = await contents.tree(harness.key, "", 1, 2)
    assert [entry.name for entry in page.entries] == ["folder 200", "000"]
    assert page.has_more
    assert len(set(looks)) <= 3, "the folder itself and what the page holds"


async def test_a_listing_needs_no_thread_that_others_share(tmp_path: Path) -> None:
    harness = JobHarness(tmp_path)
    (harness.home / "here").touch()
    assert harness.archive().code == 0
    with no_shared_thread(), closing(ObjectContents(harness.store_url)) as contents:
        async with asyncio.timeout(30):
            assert [entry.name for entry in (await contents.tree(harness.key, "")).entries] == ["here"]


# ── the shelf ────────────────────────────────────────────────────────────────────────────────────────────────────────


def index_of(entries: int) -> ArchiveIndex:
    builder = IndexBuilder()
    for number in range(entries - 1):
        builder.add(Member(b"%06d" % number, REGULAR, 0o644, 0, 0, 0), 0)
    return builder.finish("", b"")


class Maker:
    """Makes an index of as many entries as its key says, when it is let."""

    def __init__(self) -> None:
        self.made: list[str] = []
        self.given_up: list[str] = []
        self.let = asyncio.Event()
        self.let.set()

    async def __call__(self, key: str, reservation: MemoryReservation) -> ArchiveIndex:
        try:
            await self.let.wait()
        except asyncio.CancelledError:
            self.given_up.append(key)
            raise
        self.made.append(key)
        if key == "broken":
            raise Unreachable("away")
        index = index_of(int(key))
        reservation.cover(index.memory_bytes)
        return index


def bytes_of(*entries: int) -> int:
    return sum(index_of(count).memory_bytes for count in entries)


async def test_the_shelf_keeps_the_last_used_within_its_bound() -> None:
    maker = Maker()
    indexes = IndexCache(maker, bytes_of(4000, 5000) + (3 << 20), most_at_once=4)
    for key in ("4000", "5000", "4000", "2000", "5000"):
        assert len(await indexes.get(key, turn="ann")) == int(key)
        assert indexes.memory.taken <= indexes.memory.most
    assert indexes.memory.taken == bytes_of(4000, 5000, 2000), "there was room for all"
    smaller = IndexCache(maker, bytes_of(6000) * 2, most_at_once=4)  # half of it for the one that is made
    maker.made.clear()
    for key in ("4000", "5000", "4000", "2000", "5000"):
        assert len(await smaller.get(key, turn="ann")) == int(key)
        assert smaller.memory.taken <= smaller.memory.most
    assert maker.made == ["4000", "5000", "2000", "5000"], "4000 was used after 5000, so 5000 went first"


async def test_one_that_is_larger_than_half_of_the_memory_is_refused_and_costs_nothing() -> None:
    maker = Maker()
    indexes = IndexCache(maker, bytes_of(4000) * 3, most_at_once=4)
    with pytest.raises(JobFailed, match="too many files to browse"):
        await indexes.get("9000", turn="ann")
    assert indexes.memory.taken == 0
    assert len(await indexes.get("4000", turn="ann")) == 4000


async def test_what_is_still_read_counts_until_its_reader_is_done() -> None:
    maker = Maker()
    indexes = IndexCache(maker, bytes_of(4000) * 2 + 100, most_at_once=4)
    reading = [await indexes.get("4000", turn="ann")]
    indexes.forget("4000")
    assert indexes.memory.taken == bytes_of(4000)
    reading.clear()
    await asyncio.sleep(0)  # the task that made it is done, and forgotten by the loop
    assert indexes.memory.taken == 0


async def test_a_failure_is_told_to_all_who_wait_and_not_kept() -> None:
    maker = Maker()
    indexes = IndexCache(maker, most_bytes=1 << 20, most_at_once=4)
    outcomes = await asyncio.gather(*(indexes.get("broken", turn="ann") for _ in range(3)), return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [Unreachable] * 3
    with pytest.raises(Unreachable):
        await indexes.get("broken", turn="ann")
    assert maker.made == ["broken", "broken"]


async def test_it_is_made_while_anybody_waits_and_no_longer() -> None:
    maker = Maker()
    maker.let.clear()
    indexes = IndexCache(maker, most_bytes=1 << 20, most_at_once=4)
    first, second = (asyncio.create_task(indexes.get("7", turn="ann")) for _ in range(2))
    await asyncio.sleep(0)
    first.cancel()
    await asyncio.wait([first])
    assert maker.given_up == []
    second.cancel()
    await asyncio.wait([second])
    await asyncio.sleep(0)
    assert maker.given_up == ["7"]
    maker.let.set()
    assert len(await indexes.get("7", turn="ann")) == 7


async def test_only_so_many_are_made_at_once() -> None:
    maker = Maker()
    maker.let.clear()
    running = 0
    most = 0

    async def make(key: str, reservation: MemoryReservation) -> ArchiveIndex:
        nonlocal running, most
        running += 1
        most = max(most, running)
        try:
            return await maker(key, reservation)
        finally:
            running -= 1

    indexes = IndexCache(make, most_bytes=1 << 20, most_at_once=2)
    asked = [asyncio.create_task(indexes.get(str(number), turn=str(number))) for number in range(1, 8)]
    for _ in range(20):
        await asyncio.sleep(0)
    maker.let.set()
    assert [len(index) for index in await asyncio.gather(*asked)] == list(range(1, 8))
    assert most == 2


async def test_one_owner_takes_one_place_only() -> None:
    """However many workspaces they have."""
    running: list[str] = []
    let = asyncio.Event()

    async def make(key: str, reservation: MemoryReservation) -> ArchiveIndex:
        running.append(key)
        await let.wait()
        return index_of(1)

    indexes = IndexCache(make, most_bytes=1 << 20, most_at_once=4)
    greedy = [f"homes/greedy-{number}/op/home.tar.zst" for number in range(4)]
    greedy += [f"homes/greedy-0/op-{number}/home.tar.zst" for number in range(2)]
    asked = [asyncio.create_task(indexes.get(key, turn="greedy")) for key in greedy]
    asked.append(asyncio.create_task(indexes.get("homes/other/op-1/home.tar.zst", turn="other")))
    for _ in range(20):
        await asyncio.sleep(0)
    assert running == [greedy[0], "homes/other/op-1/home.tar.zst"]
    asked[1].cancel()
    let.set()
    await asyncio.gather(asked[0], *asked[2:])
    assert sorted(running) == sorted({*greedy, "homes/other/op-1/home.tar.zst"} - {greedy[1]})


async def test_whose_archive_it_is_says_whose_place_it_takes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    running: list[str] = []
    let = asyncio.Event()

    async def make(key: str, reservation: MemoryReservation) -> ArchiveIndex:
        running.append(key)
        await let.wait()
        raise Unreachable("away")

    async def content(key: str, owner: str) -> None:
        async with contents.content(key, "", owner=owner):
            pass

    with closing(ObjectContents(f"file://{tmp_path}")) as contents:
        monkeypatch.setattr(contents.indexes, "_make", make)
        asked = [
            asyncio.create_task(one)
            for one in (
                contents.tree("a/op/home.tar.zst", "", owner="ann"),
                content("b/op/home.tar.zst", "ann"),
                contents.tree("c/op/home.tar.zst", "", owner="ann"),
                content("d/op/home.tar.zst", "bob"),
            )
        ]
        for _ in range(20):
            await asyncio.sleep(0)
        assert running == ["a/op/home.tar.zst", "d/op/home.tar.zst"]
        let.set()
        outcomes = await asyncio.gather(*asked, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [Unreachable] * 4


# ── links ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def deep_and_linked(depth: int, links: int) -> IndexBuilder:
    """A file at the end of each of two deep branches, and further names of the two in turn."""
    builder = IndexBuilder()
    targets = []
    for branch in (b"a", b"b"):
        path = branch
        for _ in range(depth):
            builder.add(Member(path, DIRECTORY, 0o755, 0, 0, 0), 0)
            path += b"/d"
        builder.add(Member(path, REGULAR, 0o644, 0, 0, 0), 0)
        targets.append(path)
    for number in range(links):
        builder.add(Member(b"l%06d" % number, HARD_LINK, 0o644, 0, 0, 0, link=targets[number % 2]), 0)
    return builder


def test_links_into_deep_folders_are_found_without_going_down_for_each(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = 0
    look = ArchiveIndex.children

    def counted(index: ArchiveIndex, folder: int) -> Children:
        nonlocal looks
        looks += 1
        return look(index, folder)

    monkeypatch.setattr(ArchiveIndex, "children", counted)
    depth, links = 300, 2000
    index = deep_and_linked(depth, links).finish("", b"")
    assert looks <= 2 * depth + 1
    first_link = 2 * (depth + 1) + 1
    assert [index.holder(first_link + number) for number in range(4)] == [depth + 1, 2 * (depth + 1)] * 2


def test_links_that_cross_in_any_order_are_found() -> None:
    builder = IndexBuilder()
    for path, kind, link in (
        (b"a", DIRECTORY, b""),
        (b"a/b", DIRECTORY, b""),
        (b"a/b/x", REGULAR, b""),
        (b"a/b/y", HARD_LINK, b"a/b/x"),
        (b"a/c", HARD_LINK, b"a/b/y"),
        (b"a0", HARD_LINK, b"a/c"),
        (b"ab", HARD_LINK, b"a/b/x"),
        (b"b", HARD_LINK, b"ab"),
        (b"c", HARD_LINK, b"a0"),
    ):
        builder.add(Member(path, kind, 0o644, 0, 0, 0, link=link), 0)
    index = builder.finish("", b"")
    file = index.find(b"a/b/x")
    assert [index.holder(number) for number in index.hard_links()] == [file] * 6


def test_nobody_waits_for_links_that_nobody_wants() -> None:
    class NobodyWants(Exception):
        pass

    asked = 0

    def go_on() -> None:
        nonlocal asked
        asked += 1
        if asked == 3:
            raise NobodyWants

    with pytest.raises(NobodyWants):
        deep_and_linked(3, 100).finish("", b"", go_on)
