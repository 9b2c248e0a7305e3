"""Bytes through the agent: as they are, both ways, at any speed, and ended as they were ended."""

import asyncio
import os
import socket
import struct
from contextlib import suppress

import pytest

from codehub.agent.handshake import NotAllowed, NothingListens
from tests.agent.running_agent import a_server, an_agent
from tests.eventually import eventually
from tests.real_services import free_port

MIB = 1 << 20


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(1 << 16):
        writer.write(data)
        await writer.drain()
    writer.close()


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "0.0.0.0", "127.0.0.3"])
async def test_a_server_is_reached_wherever_it_listens_inside(host: str) -> None:
    """127.0.0.3 stands for the container's own address: the agent is reached there."""
    async with an_agent("127.0.0.3") as agent, a_server(echo, host) as port:
        reader, writer = await agent.open(port)
        writer.write(b"hello")
        assert await reader.readexactly(5) == b"hello"
        writer.close()


async def test_many_megabytes_pass_both_ways_at_once_to_whoever_is_slow() -> None:
    sent = os.urandom(64 * MIB)
    async with an_agent() as agent, a_server(echo) as port:
        reader, writer = await agent.open(port)

        async def send() -> None:
            for begin in range(0, len(sent), 100_003):
                writer.write(sent[begin : begin + 100_003])
                await writer.drain()
            writer.write_eof()

        sending = asyncio.create_task(send())
        await asyncio.sleep(0.3)  # nobody reads: everything on the way fills up
        assert await reader.read(-1) == sent
        await sending
        assert agent.peak_memory < 32 * MIB
        writer.close()


async def test_an_end_is_passed_on_as_an_end_and_the_other_way_stays_open() -> None:
    async def answers_after_the_end(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked = await reader.read(-1)
        await asyncio.sleep(0.1)
        writer.write(b"you said " + asked)
        writer.close()

    async with an_agent() as agent, a_server(answers_after_the_end) as port:
        reader, writer = await agent.open(port)
        writer.write(b"this")
        writer.write_eof()
        assert await reader.read(-1) == b"you said this"
        writer.close()


async def test_a_broken_answer_is_no_whole_one() -> None:
    async def breaks(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(b"half of ")
        await writer.drain()
        await asyncio.sleep(0.1)
        sock = writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        writer.close()

    async with an_agent() as agent, a_server(breaks) as port:
        reader, writer = await agent.open(port)
        writer.write(b"x")
        with pytest.raises(ConnectionResetError):
            await reader.read(-1)
        writer.close()


async def test_who_leaves_is_missed_inside() -> None:
    left = asyncio.Event()

    async def waits(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            await reader.read(-1)
        left.set()
        writer.close()

    async with an_agent() as agent, a_server(waits) as port:
        _, writer = await agent.open(port)
        writer.transport.abort()
        async with asyncio.timeout(10):
            await left.wait()


async def test_nothing_listens_and_not_allowed_are_told_apart() -> None:
    async with an_agent() as agent:
        with pytest.raises(NothingListens):
            await agent.open(free_port())
        with pytest.raises(NotAllowed):
            await agent.open(0)
        with pytest.raises(NothingListens):  # no command runs here, and so no other beside it
            await agent.open(agent.address[1])


async def test_a_thousand_connections_leave_nothing_behind() -> None:
    async with an_agent() as agent, a_server(echo) as port:
        reader, writer = await agent.open(port)
        before = agent.files
        for _ in range(20):
            opened = await asyncio.gather(*(agent.open(port) for _ in range(50)))
            for number, (_, other) in enumerate(opened):
                other.transport.abort() if number % 2 else other.close()
            with pytest.raises(NothingListens):
                await agent.open(free_port())

        async def as_before() -> bool:
            return agent.files <= before

        await eventually(as_before)
        writer.write(b"still here")
        assert await reader.readexactly(10) == b"still here"
        writer.close()
