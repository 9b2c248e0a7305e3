"""An engine elsewhere: TLS with proof on both sides, and a stream of events with a gap in it."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from uuid import UUID, uuid4

import pytest

from codehub.adapters.docker import DockerRuntime, Engine
from codehub.adapters.docker.events import EngineEvents
from codehub.domain.errors import Unreachable
from codehub.domain.naming import volume_name
from tests.certificates import Authority
from tests.docker_engine import DockerTestbed, sweep
from tests.eventually import SECONDS, eventually

pytestmark = pytest.mark.system

SOCKET = "/var/run/docker.sock"


@asynccontextmanager
async def served(secured: ssl.SSLContext | None = None) -> AsyncIterator[tuple[str, set[asyncio.Task[None]]]]:
    """The engine's socket at a port, as a remote engine serves it; its conversations can be cut."""
    talks: set[asyncio.Task[None]] = set()

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        talk = asyncio.current_task()
        assert talk is not None
        talks.add(talk)
        inner_reader, inner_writer = await asyncio.open_unix_connection(SOCKET)
        try:
            with suppress(OSError, asyncio.CancelledError):
                await asyncio.wait(
                    [
                        asyncio.ensure_future(_pump(reader, inner_writer)),
                        asyncio.ensure_future(_pump(inner_reader, writer)),
                    ],
                    return_when=asyncio.FIRST_COMPLETED,
                )
        finally:
            talks.discard(talk)
            for one in (writer, inner_writer):
                one.transport.abort()

    server = await asyncio.start_server(relay, "localhost", 0, ssl=secured)
    try:
        yield f"tcp://localhost:{server.sockets[0].getsockname()[1]}", talks
    finally:
        server.close()
        for talk in list(talks):
            talk.cancel()
        await asyncio.gather(*talks, return_exceptions=True)


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()


async def test_an_engine_is_spoken_to_by_tls_and_both_sides_are_proven(
    docker_testbed: DockerTestbed, tmp_path: Path
) -> None:
    authority = Authority()
    theirs, ours = authority.write(tmp_path / "theirs", "engine"), authority.write(tmp_path / "ours", "codehub")
    stranger = Authority().write(tmp_path / "stranger", "codehub")
    demanding = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(theirs / "ca.pem"))
    demanding.load_cert_chain(theirs / "cert.pem", theirs / "key.pem")
    demanding.verify_mode = ssl.CERT_REQUIRED
    async with served(demanding) as (host, _):
        engine = Engine(host, ours)
        site = docker_testbed.site()
        key = uuid4()
        try:
            assert await engine.version()
            runtime = docker_testbed.runtime(engine, site)
            await runtime.create_volume(key, volume_name(key, 1))
            assert set(await runtime.volumes()) == {key}
        finally:
            await sweep(engine, site.install_id)
            await engine.close()
        for wrong in (Engine(host, stranger), Engine(host.replace("tcp:", "http:"))):
            with pytest.raises(Unreachable):
                await wrong.version()
            await wrong.close()


async def test_after_a_gap_the_events_go_on_where_they_were_left(docker_testbed: DockerTestbed, engine: Engine) -> None:
    site = docker_testbed.site()
    runtime = docker_testbed.runtime(engine, site)
    missed = uuid4()
    heard: list[UUID] = []

    async def listen(hints: EngineEvents) -> None:
        async for key in hints.listen():
            heard.append(key)  # noqa: PERF401 - one by one, as they come

    async with served() as (host, talks):
        far = Engine(host)
        hints = EngineEvents(far, site.install_id)
        listening = asyncio.create_task(listen(hints))
        try:
            await _listens(runtime, heard)
            for talk in list(talks):
                talk.cancel()
            with pytest.raises(Unreachable):
                await asyncio.wait_for(listening, SECONDS)
            await runtime.create_volume(missed, volume_name(missed, 1))
            assert missed not in heard
            listening = asyncio.create_task(listen(hints))
            await eventually(lambda: missed in heard)
        finally:
            listening.cancel()
            await asyncio.gather(listening, return_exceptions=True)
            await sweep(engine, site.install_id)
            await far.close()


async def _listens(runtime: DockerRuntime, heard: list[UUID]) -> None:
    """Nobody says when a stream of events begins: volumes are made until one of them is heard of."""
    made: set[UUID] = set()

    async def one_is_heard_of() -> bool:
        key = uuid4()
        made.add(key)
        await runtime.create_volume(key, volume_name(key, 1))
        await asyncio.sleep(0.1)
        return not made.isdisjoint(heard)

    await eventually(one_is_heard_of)
