"""Redis: the bus between the processes, and the activity that waits to be written down. Losing it loses no data.

A client here never reconnects on its own: whoever listens must learn of a gap, because messages were lost in it.
Time limits are ours, not the client's: its own uses asyncio.wait_for, which before Python 3.12 loses a cancellation
that comes together with the answer, and whoever was to end then goes on for ever.
"""

import asyncio
import json
import re
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime, timedelta
from itertools import chain
from typing import Any, Final, Self
from uuid import UUID

import structlog
from redis.asyncio import Redis
from redis.asyncio.client import PubSub
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from codehub.domain.errors import Unreachable

log = structlog.get_logger(__name__)

SIGN_OF_LIFE_SECONDS = 5.0
_LONGEST_MESSAGE = 200
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)

# Newer activity stays: each member goes only if its score is still the one that was written down.
_FORGET: Final = """
for i = 1, #ARGV, 2 do
    local score = redis.call('ZSCORE', KEYS[1], ARGV[i])
    if score and tonumber(score) == tonumber(ARGV[i + 1]) then
        redis.call('ZREM', KEYS[1], ARGV[i])
    end
end
"""
_FORGET_AT_ONCE: Final = 1000


class RedisConnection:
    """The connection to Redis, opened once per process: hands out the bus and the activity. Connects on first use."""

    def __init__(self, client: Redis, timeout_seconds: float) -> None:
        self._client = client
        self._timeout = timeout_seconds

    @classmethod
    def open(cls, url: str, *, timeout_seconds: float = 5.0) -> Self:
        client = Redis.from_url(
            url,
            decode_responses=True,
            retry=Retry(NoBackoff(), 0),
            socket_timeout=None,
            socket_connect_timeout=timeout_seconds,
            health_check_interval=0,
        )
        return cls(client, timeout_seconds)

    async def close(self) -> None:
        await self._client.aclose()

    async def version(self) -> str:
        async with _answered(self._timeout):
            found: Any = await self._client.info("server")
        return str(found["redis_version"])

    def bus(self, prefix: str = "") -> "RedisBus":
        return RedisBus(self._client, prefix, self._timeout)

    def activity(self, key: str = "codehub:activity") -> "RedisActivity":
        return RedisActivity(self._client, key, self._timeout)


@asynccontextmanager
async def _answered(seconds: float | None) -> AsyncIterator[None]:
    """Limits the calls inside in time, and turns their errors into Unreachable. A call that is cut off midway leaves
    its connection closed, so no later call reads its answer."""
    try:
        async with asyncio.timeout(seconds):
            yield
    except (RedisError, OSError) as error:
        detail = " ".join(str(error).split()) or type(error).__name__
        raise Unreachable(f"Redis does not answer: {detail[:_LONGEST_MESSAGE]}") from error


class RedisBus:
    def __init__(self, client: Redis, prefix: str, timeout_seconds: float) -> None:
        self._client = client
        self._prefix = prefix
        self._timeout = timeout_seconds

    async def publish(self, channel: str, message: Mapping[str, Any]) -> None:
        async with _answered(self._timeout):
            await self._client.publish(self._prefix + channel, json.dumps(message))

    async def subscribe(
        self, channel: str, listening: Callable[[], None] | None = None
    ) -> AsyncIterator[Mapping[str, Any]]:
        listener = self._client.pubsub()
        name = self._prefix + channel
        try:
            async with _answered(self._timeout):
                await (listener.psubscribe(_pattern(name)) if name.endswith("*") else listener.subscribe(name))
                await _confirmed(listener)
            if listening is not None:
                listening()
            while True:
                async with _answered(None):
                    data = await _next(listener, self._timeout)
                if (message := _message(data)) is not None:
                    yield message
        finally:
            with suppress(RedisError, OSError):
                await listener.aclose()  # type: ignore[no-untyped-call] # redis-py's own


def _pattern(name: str) -> str:
    """The channel as a Redis pattern: only the last star is one, the rest is what it says."""
    return re.sub(r"([*?\[\]\\])", r"\\\1", name[:-1]) + "*"


async def _confirmed(listener: PubSub) -> None:
    """Waits until the server has us on its list: whatever is published from now on is heard."""
    while True:
        heard = await listener.get_message(timeout=None)
        if heard is not None and heard["type"] in ("subscribe", "psubscribe"):
            return


async def _next(listener: PubSub, timeout_seconds: float) -> str:
    """The next message. A cut network looks like a quiet channel, so silence is answered by a ping, and a ping's
    silence is the end."""
    pinged = False
    while True:
        heard = await listener.get_message(timeout=SIGN_OF_LIFE_SECONDS)
        if heard is not None and heard["type"] in ("message", "pmessage"):
            return str(heard["data"])
        if heard is None and pinged:
            raise Unreachable("Redis went silent.")
        pinged = heard is None
        if pinged:
            async with asyncio.timeout(timeout_seconds):
                await listener.ping()


def _message(data: str) -> Mapping[str, Any] | None:
    try:
        message = json.loads(data)
    except ValueError:
        message = None
    if isinstance(message, dict):
        return message
    log.warning("bus_message_unreadable", data=data)
    return None


class RedisActivity:
    """The last activity in each workspace, as a sorted set. Scores are whole microseconds, which a double holds
    exactly, so that equal means equal."""

    def __init__(self, client: Redis, key: str, timeout_seconds: float) -> None:
        self._client = client
        self._key = key
        self._timeout = timeout_seconds
        self._forget = client.register_script(_FORGET)

    async def record(self, seen: Mapping[UUID, datetime]) -> None:
        if seen:
            async with _answered(self._timeout):
                await self._client.zadd(self._key, {str(key): _score(at) for key, at in seen.items()}, gt=True)

    async def read(self) -> Mapping[UUID, datetime]:
        async with _answered(self._timeout):
            found: Any = await self._client.zrange(self._key, 0, -1, withscores=True)
        return {UUID(member): _EPOCH + timedelta(microseconds=score) for member, score in found}

    async def forget(self, written: Mapping[UUID, datetime]) -> None:
        pairs: list[tuple[str | int, ...]] = [(str(key), _score(at)) for key, at in written.items()]
        for start in range(0, len(pairs), _FORGET_AT_ONCE):
            some = list(chain.from_iterable(pairs[start : start + _FORGET_AT_ONCE]))
            async with _answered(self._timeout):
                await self._forget(keys=[self._key], args=some)


def _score(at: datetime) -> int:
    return (at - _EPOCH) // _MICROSECOND
