"""What passed the front doors: sums that several doors add to, for a day."""

import asyncio
from datetime import timedelta

from codehub.adapters.memory import MemoryDatabase
from codehub.adapters.postgres import PostgresDatabase
from codehub.domain.history import TrafficMinute
from tests.contracts.databases import Database


async def aged(database: Database, hours: float) -> None:
    """All that is there was written so long ago."""
    span = timedelta(hours=hours)
    if isinstance(database, MemoryDatabase):
        known = database.state.traffic
        older = {at - span: TrafficMinute(at - span, one.requests, one.socket_seconds) for at, one in known.items()}
        known.clear()
        known.update(older)
    else:
        assert isinstance(database, PostgresDatabase)
        async with database.sessions.writing() as connection:
            await connection.execute("UPDATE traffic SET minute = minute - $1::interval", span)


async def kept(database: Database) -> list[TrafficMinute]:
    assert isinstance(database, MemoryDatabase | PostgresDatabase)
    return list((await database.views().history_data()).traffic)


async def test_doors_add_to_one_sum(database: Database) -> None:
    assert isinstance(database, MemoryDatabase | PostgresDatabase)
    await asyncio.gather(*(database.traffic().add(3, 1.5) for _ in range(4)))
    minutes = await kept(database)
    assert (sum(one.requests for one in minutes), sum(one.socket_seconds for one in minutes)) == (12, 6.0)
    now = await database.views().now()
    assert all(one.at.second == one.at.microsecond == 0 for one in minutes)
    assert all(timedelta() <= now - one.at < timedelta(minutes=5) for one in minutes)


async def test_a_day_is_kept_and_no_more(database: Database) -> None:
    assert isinstance(database, MemoryDatabase | PostgresDatabase)
    await database.traffic().add(1, 0.0)
    await aged(database, 2)
    await database.traffic().add(2, 0.0)
    await aged(database, 21.5)
    await database.traffic().add(4, 0.0)
    assert [one.requests for one in await kept(database)] == [1, 2, 4]
    await aged(database, 1)
    assert [one.requests for one in await kept(database)] == [2, 4]
    await database.traffic().add(8, 0.0)
    await aged(database, -0.75)
    assert [one.requests for one in await kept(database)] == [2, 4, 8]  # what was too old is gone
