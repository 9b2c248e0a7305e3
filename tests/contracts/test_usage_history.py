"""What workspaces used in the last hour: kept for each, by the present leader alone, and no longer."""

from datetime import timedelta
from uuid import UUID, uuid4

import pytest

from codehub.adapters.memory import MemoryDatabase
from codehub.adapters.postgres import PostgresDatabase
from codehub.domain.errors import Stale
from codehub.domain.usage import DiskUsage, Usage, UsageSample
from codehub.ports.stores import UsageHistory
from tests.contracts.databases import Database, epoch_of, new_term

FULL = Usage(0.5, 2.0, 1 << 40, 2 << 40, DiskUsage(5 << 40, 6 << 40, 7 << 40, 1 << 40))
MINUTE = timedelta(minutes=1)


def history_of(database: Database) -> UsageHistory:
    assert isinstance(database, MemoryDatabase | PostgresDatabase)
    return database.usage_history()


async def aged(database: Database, span: timedelta) -> None:
    """All that is there was recorded so long ago."""
    if isinstance(database, MemoryDatabase):
        for samples in database.state.usage.values():
            samples[:] = [UsageSample(one.at - span, one.usage) for one in samples]
    else:
        assert isinstance(database, PostgresDatabase)
        async with database.sessions.writing() as connection:
            await connection.execute("UPDATE workspace_usage SET at = at - $1::interval", span)


async def used(history: UsageHistory, key: UUID) -> list[Usage]:
    return [one.usage for one in await history.of(key)]


async def test_what_is_not_known_stays_unknown(database: Database) -> None:
    history, epoch = history_of(database), await epoch_of(database)
    samples = [FULL, Usage(), Usage(cpu=0.0, memory_bytes=0), Usage(disk=DiskUsage(None, None, 10, 0))]
    for usage in samples:
        key = uuid4()
        await history.record({key: usage}, epoch)
        assert await used(history, key) == [usage]


async def test_samples_are_each_workspace_s_own_and_in_order(database: Database) -> None:
    history, epoch = history_of(database), await epoch_of(database)
    one, other = uuid4(), uuid4()
    await history.record({one: Usage(cpu=1.0), other: FULL}, epoch)
    await aged(database, MINUTE)
    await history.record({one: Usage(cpu=2.0)}, epoch)
    await history.record({}, epoch)
    assert [usage.cpu for usage in await used(history, one)] == [1.0, 2.0]
    assert await used(history, other) == [FULL]
    assert await used(history, uuid4()) == []
    first, second = await history.of(one)
    assert timedelta() < second.at - first.at < 2 * MINUTE


async def test_the_newest_is_told_while_it_is_recent(database: Database) -> None:
    history, epoch = history_of(database), await epoch_of(database)
    one, other = uuid4(), uuid4()
    await history.record({one: Usage(cpu=1.0), other: FULL}, epoch)
    await aged(database, 2 * MINUTE)
    await history.record({one: Usage(cpu=2.0)}, epoch)
    found = await history.newest([one, other, uuid4()], 5 * MINUTE)
    assert {key: sample.usage for key, sample in found.items()} == {one: Usage(cpu=2.0), other: FULL}
    assert list(await history.newest([one, other], MINUTE)) == [one]
    assert not await history.newest([], MINUTE)


async def test_an_hour_is_kept_and_no_more(database: Database) -> None:
    history, epoch = history_of(database), await epoch_of(database)
    key, gone = uuid4(), uuid4()
    await history.record({key: Usage(cpu=1.0), gone: FULL}, epoch)
    await aged(database, 59 * MINUTE)
    await history.record({key: Usage(cpu=2.0)}, epoch)
    assert len(await history.of(key)) == 2
    await aged(database, MINUTE)
    assert [usage.cpu for usage in await used(history, key)] == [2.0]
    await history.record({key: Usage(cpu=3.0)}, epoch)
    await aged(database, -10 * MINUTE)
    assert [usage.cpu for usage in await used(history, key)] == [2.0, 3.0], "what was too old is gone"
    assert await used(history, gone) == []


async def test_a_term_that_is_over_records_nothing(database: Database) -> None:
    history, key = history_of(database), uuid4()
    async with new_term(database, "first") as old:
        await history.record({key: Usage(cpu=1.0)}, old)
    async with new_term(database, "second"):
        with pytest.raises(Stale):
            await history.record({key: Usage(cpu=2.0)}, old)
    assert [usage.cpu for usage in await used(history, key)] == [1.0]
