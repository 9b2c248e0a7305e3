"""A person who keeps millions of files cannot take the API's memory by having them looked into."""

import asyncio
import gc
import random
import tracemalloc

import pytest

from codehub.adapters.object_store.index import ArchiveIndex, IndexBuilder, IndexCache, MemoryReservation
from codehub.domain.errors import Unreachable
from codehub.job.errors import JobFailed
from codehub.job.tar_format import DIRECTORY, HARD_LINK, REGULAR, SYMLINK, Member

MEMORY = 8 << 20


def built(
    entries: int, name_bytes: int, reservation: MemoryReservation | None = None, kind: bytes = REGULAR
) -> ArchiveIndex:
    """An archive of folders of a hundred entries each, with names of that length."""
    builder = IndexBuilder(reservation.cover) if reservation else IndexBuilder()
    for number in range(entries):
        folder = b"%08d" % (number // 100)
        if number % 100 == 0:
            builder.add(Member(folder, DIRECTORY, 0o755, 0, 0, 0), number)
        path = folder + b"/" + b"%08d" % number + b"x" * (name_bytes - 8)
        is_first = number % 100 == 0
        first = folder + b"/" + b"%08d" % (number // 100 * 100) + b"x" * (name_bytes - 8)
        link = b"" if kind == REGULAR or is_first else first
        builder.add(Member(path, REGULAR if is_first else kind, 0o644, 0, 1, 0, link=link), number)
    return builder.finish("", b"")


@pytest.mark.parametrize(
    ("name_bytes", "kind"), [(8, REGULAR), (200, REGULAR), (24, SYMLINK), (24, HARD_LINK)], ids=str
)
def test_an_index_takes_no_more_than_it_says(name_bytes: int, kind: bytes) -> None:
    built(1_000, name_bytes, kind=kind)
    gc.collect()
    tracemalloc.start()
    try:
        index = built(20_000, name_bytes, kind=kind)
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(index) > 20_000
    assert held <= index.memory_bytes * 1.02
    assert index.memory_bytes <= held * 1.35, "nor is much of the memory left unused"


async def test_many_large_archives_at_once_stay_within_the_memory() -> None:
    """Each archive is looked into by another user, all at once, with sizes that nobody told before."""
    taken: list[int] = []
    sizes = random.Random(7)

    async def make(key: str, reservation: MemoryReservation) -> ArchiveIndex:
        await reservation.reserve(64 << 10)

        def watched(size: int) -> None:
            reservation.cover(size)
            taken.append(indexes.memory.taken)

        def work() -> ArchiveIndex:
            builder = IndexBuilder(watched)
            for number in range(sizes.randint(5_000, 40_000)):
                builder.add(Member(b"%08d" % number, REGULAR, 0o644, 0, 1, 0), number)
            return builder.finish("", b"")

        return await asyncio.to_thread(work)

    async def looked(person: str) -> int | type[Exception]:
        try:
            return len(await indexes.get(person, turn=person))
        except (Unreachable, JobFailed) as error:
            return type(error)

    indexes = IndexCache(make, MEMORY, most_at_once=4)
    outcomes = await asyncio.gather(*(looked(str(number)) for number in range(12)))
    assert taken
    assert max(taken) <= MEMORY
    assert [outcome for outcome in outcomes if isinstance(outcome, int)]
    for number in range(12):
        indexes.forget(str(number))
    gc.collect()
    assert indexes.memory.taken == 0, "whatever became of them, nothing stays taken"


async def test_an_archive_of_countless_entries_is_refused_before_it_has_taken_much() -> None:
    async def make(_key: str, reservation: MemoryReservation) -> ArchiveIndex:
        return built(10_000_000, 8, reservation)

    indexes = IndexCache(make, MEMORY, most_at_once=4)
    with pytest.raises(JobFailed, match="too many files to browse"):
        await indexes.get("endless", turn="mallory")
    assert indexes.memory.taken == 0
