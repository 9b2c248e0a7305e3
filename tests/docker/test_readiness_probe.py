"""Who has just been started is watched until it answers, and told once."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from uuid import UUID, uuid4

from codehub.adapters.readiness_probe import ReadinessProbe
from codehub.domain.errors import Unreachable
from codehub.ports.runtime import Endpoint
from tests.real_services import free_port


@asynccontextmanager
async def an_ide(port: int) -> AsyncIterator[None]:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", port):
        yield


async def test_it_is_told_when_it_answers_and_not_before() -> None:
    port, key = free_port(), uuid4()

    async def endpoint(_: UUID) -> Endpoint:
        return Endpoint(host="127.0.0.1", port=port)

    answers = ReadinessProbe(endpoint)
    answers.watch(key)
    answers.watch(key)  # started again meanwhile: still one
    await asyncio.sleep(0.1)
    assert answers.heard.empty()
    async with an_ide(port):
        assert await asyncio.wait_for(answers.heard.get(), 10) == key
        await asyncio.sleep(0.1)
        assert answers.heard.empty()
    await answers.close()


async def test_an_engine_that_is_away_is_no_answer() -> None:
    async def endpoint(_: UUID) -> Endpoint:
        raise Unreachable("away")

    answers = ReadinessProbe(endpoint)
    answers.watch(uuid4())
    await asyncio.sleep(0.05)
    assert answers.heard.empty()
    await answers.close()


async def test_those_that_are_watched_for_end_with_the_runtime() -> None:
    async def endpoint(_: UUID) -> Endpoint:
        return Endpoint(host="127.0.0.1", port=free_port())

    answers = ReadinessProbe(endpoint)
    for _ in range(3):
        answers.watch(uuid4())
    await asyncio.sleep(0.05)
    await answers.close()
    assert answers._watches == {}
