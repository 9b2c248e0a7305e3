"""A real PostgreSQL and a real Redis for any test that asks: one of each per pytest process, started on first use.

They run on an event loop in a thread of its own, so that synchronous and asynchronous fixtures of every scope can ask
for them, also by `request.getfixturevalue` from inside a running loop.
"""

import asyncio
import os
import secrets
import socket
import tempfile
from collections.abc import Callable, Coroutine, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager
from itertools import cycle
from pathlib import Path
from threading import Thread
from typing import Any, TypeVar
from urllib.parse import urlsplit
from uuid import uuid4

import asyncpg
import pytest
from redis.asyncio import Redis

from codehub.adapters.embedded import EmbeddedServer, embedded_postgres, embedded_redis
from tests.eventually import SECONDS

T = TypeVar("T")

PORTS_PER_WORKER = 1000
PRIVILEGED_PORTS, USUAL_FIRST_OF_THE_KERNEL = 1024, 32768


class ServiceLoop:
    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = Thread(target=self._loop.run_forever, name="real services", daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(timeout=SECONDS)

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
    """A port that nobody else is given before somebody listens there, which may be seconds later: not the kernel, and
    not another worker of this run. Another run is unlikely to be at the same place of the range."""
    return next(port for port in _PORTS if _can_be_bound(port))


def _can_be_bound(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def _own_ports() -> range:
    """Below those that the kernel gives to whoever asks for any; where it leaves no room, where it usually does."""
    worker = os.environ.get("PYTEST_XDIST_WORKER", "").removeprefix("gw")
    place = int(worker) + 1 if worker.isdigit() else 0  # 0: without xdist
    kernels = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    above, below = place * PORTS_PER_WORKER, (place + 1) * PORTS_PER_WORKER
    end = kernels if kernels - below > PRIVILEGED_PORTS else USUAL_FIRST_OF_THE_KERNEL
    return range(end - below, end - above)


def _in_turn(ports: range) -> Iterator[int]:
    """Again and again, from any of them on."""
    first = secrets.randbelow(len(ports))
    return cycle([*ports[first:], *ports[:first]])


_PORTS = _in_turn(_own_ports())
