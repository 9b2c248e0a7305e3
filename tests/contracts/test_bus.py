"""Bus: messages between the processes, in memory and on a real Redis."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

import pytest

from codehub.adapters import redis
from codehub.adapters.memory import MemoryBus
from codehub.adapters.redis import RedisConnection
from codehub.domain.errors import Unreachable
from codehub.ports.signals import Bus
from tests.contracts.network import network_to


@pytest.fixture(params=["memory", pytest.param("redis", marks=pytest.mark.system)])
async def bus(request: pytest.FixtureRequest) -> AsyncIterator[Bus]:
    if request.param == "memory":
        yield MemoryBus()
        return
    connection = RedisConnection.open(request.getfixturevalue("fresh_redis"))
    yield connection.bus(prefix="test:")
    await connection.close()


@asynccontextmanager
async def listening(bus: Bus, channel: str) -> AsyncIterator["asyncio.Queue[Mapping[str, Any]]"]:
    """Up when it yields: it has heard something."""
    heard: asyncio.Queue[Mapping[str, Any]] = asyncio.Queue()

    async def listen() -> None:
        async for message in bus.subscribe(channel):
            if "mark" not in message:
                heard.put_nowait(message)
            else:
                up.set()

    up = asyncio.Event()
    task = asyncio.ensure_future(listen())
    async with asyncio.timeout(10):
        while not up.is_set():
            await bus.publish(channel, {"mark": 1})
            await asyncio.sleep(0.01)
    try:
        yield heard
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_what_is_published_is_heard_in_order(bus: Bus) -> None:
    messages = [{"type": "wake", "n": n, "text": "김 «x»\n", "deep": {"a": [None, True]}} for n in range(50)]
    async with listening(bus, "a") as heard:
        for message in messages:
            await bus.publish("a", message)
        async with asyncio.timeout(5):
            assert [await heard.get() for _ in messages] == messages


async def test_nobody_listening_is_success(bus: Bus) -> None:
    await bus.publish("nobody", {"n": 1})


async def test_channels_are_apart_and_listeners_equal(bus: Bus) -> None:
    async with listening(bus, "a") as one, listening(bus, "a") as two, listening(bus, "b") as other:
        await bus.publish("a", {"n": 1})
        await bus.publish("b", {"n": 2})
        async with asyncio.timeout(5):
            assert await one.get() == await two.get() == {"n": 1}
            assert await other.get() == {"n": 2}
        assert one.empty()


async def test_nothing_of_before_is_heard(bus: Bus) -> None:
    await bus.publish("a", {"n": 0})
    async with listening(bus, "a") as heard:
        await bus.publish("a", {"n": 1})
        async with asyncio.timeout(5):
            assert await heard.get() == {"n": 1}


async def test_whoever_listens_hears_all_that_comes_after(bus: Bus) -> None:
    """Each time anew: no mark is needed once it says that it listens."""
    for number in range(20):
        up = asyncio.Event()
        waiting = asyncio.ensure_future(anext(bus.subscribe("a", up.set)))
        async with asyncio.timeout(5):
            await up.wait()
            await bus.publish("a", {"n": number})
            assert await waiting == {"n": number}


async def test_a_star_is_every_channel_that_begins_so(bus: Bus) -> None:
    up = asyncio.Event()
    messages = bus.subscribe("[a]:*", up.set)
    waiting = asyncio.ensure_future(anext(messages))
    async with asyncio.timeout(5):
        await up.wait()
        for channel in ("a:1", "[b]:1", "[a]:1", "[a]:"):
            await bus.publish(channel, {"channel": channel})
        assert [await waiting, await anext(messages)] == [{"channel": "[a]:1"}, {"channel": "[a]:"}]


# ── Redis alone ──────────────────────────────────────────────────────────────────────────────────────────────────────


@asynccontextmanager
async def through_network(redis_url: str) -> AsyncIterator[tuple[Any, RedisConnection]]:
    place = urlsplit(redis_url)
    socket = place.path if place.scheme == "unix" else None
    host, port = place.hostname or "127.0.0.1", place.port or 6379

    async def connect() -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if socket:
            return await asyncio.open_unix_connection(f"/{socket.lstrip('/')}")
        return await asyncio.open_connection(host, port)

    async with network_to(connect) as network:
        account = f"{place.username or ''}:{place.password}@" if place.password else ""
        connection = RedisConnection.open(f"redis://{account}127.0.0.1:{network.port}/0", timeout_seconds=3)
        try:
            yield network, connection
        finally:
            await connection.close()


async def subscribed(bus: Bus) -> "asyncio.Future[Mapping[str, Any]]":
    """What waits for the first message, once the server has it on its list."""
    up = asyncio.Event()
    waiting = asyncio.ensure_future(anext(bus.subscribe("a", up.set)))
    await asyncio.wait_for(up.wait(), 30)
    return waiting


@pytest.mark.system
async def test_a_lost_connection_is_told_not_hidden(fresh_redis: str) -> None:
    async with through_network(fresh_redis) as (network, connection):
        bus = connection.bus()
        waiting = await subscribed(bus)
        network.sever()
        with pytest.raises(Unreachable):
            await asyncio.wait_for(waiting, 30)
        await bus.publish("a", {"n": 1})


@pytest.mark.system
async def test_a_silent_network_is_told(fresh_redis: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redis, "SIGN_OF_LIFE_SECONDS", 2.0)
    async with through_network(fresh_redis) as (network, connection):
        bus = connection.bus()
        waiting = await subscribed(bus)
        await asyncio.sleep(5)  # quiet, and alive
        assert not waiting.done()
        network.cut()
        with pytest.raises(Unreachable):
            await asyncio.wait_for(waiting, 30)
        with pytest.raises(Unreachable):
            await asyncio.wait_for(bus.publish("a", {"n": 1}), 30)


async def test_whoever_publishes_can_be_cancelled(bus: Bus) -> None:
    """Also at the instant of the answer: a publisher that misses its end would go on for ever."""

    async def publish_for_ever() -> None:
        while True:
            await bus.publish("a", {"n": 1})
            await asyncio.sleep(0)

    for turns in range(200):
        publisher = asyncio.ensure_future(publish_for_ever())
        for _ in range(turns % 50):
            await asyncio.sleep(0)
        publisher.cancel()
        async with asyncio.timeout(5):
            await asyncio.wait([publisher])


@pytest.mark.system
async def test_a_message_that_is_none_is_passed_over(fresh_redis: str) -> None:
    connection = RedisConnection.open(fresh_redis)
    bus = connection.bus()
    async with listening(bus, "a") as heard:
        for rubbish in ("{", "[1]", "null"):
            await connection._client.publish("a", rubbish)
        await bus.publish("a", {"n": 1})
        async with asyncio.timeout(5):
            assert await heard.get() == {"n": 1}
    await connection.close()


@pytest.mark.system
async def test_no_redis_is_unreachable() -> None:
    connection = RedisConnection.open("redis://127.0.0.1:1/0", timeout_seconds=1)
    with pytest.raises(Unreachable):
        await connection.bus().publish("a", {})
    with pytest.raises(Unreachable):
        await anext(connection.bus().subscribe("a"))
    with pytest.raises(Unreachable):
        await connection.activity().read()
    await connection.close()
