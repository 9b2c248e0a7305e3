"""A real PostgreSQL and a real Redis for any test that asks: one of each per pytest process, started on first use.

They run on an event loop in a thread of its own, so that synchronous and asynchronous fixtures of every scope can ask
for them, also by `request.getfixturevalue` from inside a running loop.
"""

import asyncio
import socket
import tempfile
from collections.abc import Callable, Coroutine, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager
from pathlib import Path
from threading import Thread
from typing import Any, TypeVar
from urllib.parse import urlsplit
from uuid import uuid4

import asyncpg
import pytest
from redis.asyncio import Redis

from codehub.adapters.embedded import EmbeddedServer, embedded_postgres, embedded_redis

T = TypeVar("T")


class ServiceLoop:
    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = Thread(target=self._loop.run_forever, name="real services", daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(timeout=100)

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


@pytest.fixture(scope="session")
def service_loop() -> Iterator[ServiceLoop]:
    loop = ServiceLoop()
    yield loop
    loop.close()


@pytest.fixture(scope="session")
def postgres_url(service_loop: ServiceLoop) -> Iterator[str]:
    """The server's own database: tests take `fresh_database` and leave this one empty."""
    with _serving(embedded_postgres, service_loop) as server:
        yield server.url


@pytest.fixture(scope="session")
def redis_url(service_loop: ServiceLoop) -> Iterator[str]:
    with _serving(embedded_redis, service_loop) as server:
        yield server.url


@pytest.fixture
def fresh_database(postgres_url: str, service_loop: ServiceLoop) -> Iterator[str]:
    with temporary_database(postgres_url, service_loop) as url:
        yield url


@pytest.fixture
def fresh_redis(redis_url: str, service_loop: ServiceLoop) -> str:
    service_loop.run(_flush(redis_url))
    return redis_url


@contextmanager
def temporary_database(
    postgres_url: str, service_loop: ServiceLoop, template: str = "template0", prefix: str = "test"
) -> Iterator[str]:
    """A copy of `template`, which nobody may be connected to; a migrated one saves each test the migrations."""
    name = f"{prefix}_{uuid4().hex}"
    service_loop.run(_execute(postgres_url, f'CREATE DATABASE "{name}" TEMPLATE "{template}"'))
    try:
        yield urlsplit(postgres_url)._replace(path=f"/{name}").geturl()
    finally:
        service_loop.run(_execute(postgres_url, f'DROP DATABASE "{name}" WITH (FORCE)'))


def database_name(url: str) -> str:
    return urlsplit(url).path.removeprefix("/")


@contextmanager
def _serving(
    server: Callable[..., AbstractAsyncContextManager[EmbeddedServer]], service_loop: ServiceLoop
) -> Iterator[EmbeddedServer]:
    # Not tmp_path: pytest keeps the last three of those, and a cluster is 40 MB.
    with tempfile.TemporaryDirectory(prefix="codehub-test-") as directory:
        context = server(Path(directory), durable=False)
        running = service_loop.run(_enter(context))
        try:
            yield running
        finally:
            service_loop.run(_leave(context))


async def _enter(context: AbstractAsyncContextManager[T]) -> T:
    return await context.__aenter__()


async def _leave(context: AbstractAsyncContextManager[Any]) -> None:
    await context.__aexit__(None, None, None)


async def _execute(url: str, statement: str) -> None:
    connection = await asyncpg.connect(url)
    try:
        await connection.execute(statement)
    finally:
        await connection.close()


async def _flush(url: str) -> None:
    client = Redis.from_url(url)
    try:
        await client.flushall()
    finally:
        await client.aclose()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
