"""Activity: who was seen when, in memory and on a real Redis."""

from collections.abc import AsyncIterator
from datetime import timedelta
from uuid import UUID, uuid4

import pytest

from codehub.adapters.memory import MemoryActivity
from codehub.adapters.redis import RedisConnection
from codehub.ports.signals import Activity
from tests.rows import NOW

TICK = timedelta(microseconds=1)
A, B = UUID(int=1), UUID(int=2)


@pytest.fixture(params=["memory", pytest.param("redis", marks=pytest.mark.system)])
async def activity(request: pytest.FixtureRequest) -> AsyncIterator[Activity]:
    if request.param == "memory":
        yield MemoryActivity()
        return
    connection = RedisConnection.open(request.getfixturevalue("fresh_redis"))
    yield connection.activity("test:activity")
    await connection.close()


async def test_what_was_recorded_is_read_to_the_microsecond(activity: Activity) -> None:
    assert await activity.read() == {}
    await activity.record({})
    await activity.record({A: NOW, B: NOW + TICK})
    assert await activity.read() == {A: NOW, B: NOW + TICK}


async def test_the_later_time_wins(activity: Activity) -> None:
    await activity.record({A: NOW + TICK, B: NOW})
    await activity.record({A: NOW, B: NOW + TICK})
    assert await activity.read() == {A: NOW + TICK, B: NOW + TICK}


async def test_newer_activity_is_not_forgotten(activity: Activity) -> None:
    await activity.record({A: NOW, B: NOW})
    seen = await activity.read()
    await activity.record({A: NOW + TICK})
    await activity.forget({**seen, uuid4(): NOW})
    assert await activity.read() == {A: NOW + TICK}
    await activity.forget(seen)
    await activity.forget({})
    assert await activity.read() == {A: NOW + TICK}


async def test_many_at_once(activity: Activity) -> None:
    many = {UUID(int=n): NOW + n * TICK for n in range(5000)}
    await activity.record(many)
    assert await activity.read() == many
    await activity.forget(many)
    assert await activity.read() == {}
