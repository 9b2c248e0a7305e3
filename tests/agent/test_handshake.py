"""Whose agent is it, and who asks: both are proven before anything else passes."""

import asyncio
import os
from contextlib import suppress

import pytest

from codehub.agent.handshake import (
    ANSWER_BYTES,
    HELLO_BYTES,
    KEY_BYTES,
    NONCE_BYTES,
    PROTOCOL,
    NotProven,
    Transcript,
    dial,
)
from tests.agent.running_agent import RunningAgent, a_server, an_agent


async def answers_once(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    del reader
    writer.write(b"reached")
    writer.close()


async def raw(agent: RunningAgent) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection(*agent.address)


async def test_another_start_s_agent_is_found_out() -> None:
    async with an_agent() as agent, a_server(answers_once) as port:
        with pytest.raises(NotProven):
            await dial(agent.address, os.urandom(KEY_BYTES), port)


async def test_whoever_does_not_prove_itself_to_the_agent_gets_nowhere() -> None:
    async with an_agent() as agent, a_server(answers_once) as port:
        for wrong in (os.urandom(32), b"\0" * 32):
            reader, writer = await raw(agent)
            writer.write(PROTOCOL + os.urandom(NONCE_BYTES))
            await reader.readexactly(ANSWER_BYTES)
            writer.write(port.to_bytes(2, "big") + wrong)
            assert await reader.read(-1) == b""
            writer.close()


async def test_a_proof_is_good_for_one_connection_and_one_port() -> None:
    async with an_agent() as agent, a_server(answers_once) as port, a_server(answers_once) as other:
        nonce = os.urandom(NONCE_BYTES)
        reader, writer = await raw(agent)
        writer.write(PROTOCOL + nonce)
        answer = await reader.readexactly(ANSWER_BYTES)
        proof = Transcript(agent.key, agent.address, nonce, answer[:NONCE_BYTES]).callers_proof(port)
        writer.write(other.to_bytes(2, "big") + proof)
        assert await reader.read(-1) == b"", "another port"
        writer.close()
        reader, writer = await raw(agent)
        writer.write(PROTOCOL + nonce)
        await reader.readexactly(ANSWER_BYTES)
        writer.write(port.to_bytes(2, "big") + proof)
        assert await reader.read(-1) == b"", "another connection"
        writer.close()


async def test_what_is_no_handshake_is_ended() -> None:
    async with an_agent() as agent:
        reader, writer = await raw(agent)
        writer.write(b"GET / HTTP/1.1\r\nHost: workspace\r\n\r\n" + b"x" * HELLO_BYTES)
        with suppress(ConnectionResetError):
            assert await reader.read(-1) == b""
        writer.close()


async def test_a_handshake_that_is_passed_on_to_the_real_agent_proves_nothing() -> None:
    """Somebody at another address who could reach the real agent would else be taken for it."""
    async with an_agent("127.0.0.2") as agent:

        async def passes_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            theirs, ours = await raw(agent)
            ours.write(await reader.readexactly(HELLO_BYTES))
            writer.write(await theirs.readexactly(ANSWER_BYTES))
            ours.close()
            heard.append(await reader.read(-1))
            over.set()

        heard: list[bytes] = []
        over = asyncio.Event()
        async with a_server(passes_on) as between:
            with pytest.raises(NotProven):
                await dial(("127.0.0.1", between), agent.key, 3000)
            await over.wait()
        assert heard == [b""]
