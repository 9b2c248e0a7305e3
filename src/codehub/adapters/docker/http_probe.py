"""Does a workspace's IDE answer? Any HTTP status line counts: a login page, even an error, is an IDE that is up.

It is asked the way that everything goes, through the agent, so that nobody else's answer is taken for it.
"""

import asyncio
from contextlib import suppress

from codehub.agent.dial import dial
from codehub.ports.runtime import Endpoint

_ANSWER_SECONDS = 2.0
_QUESTION = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"


async def accepts(endpoint: Endpoint) -> bool:
    """Does anybody listen there?"""
    try:
        async with asyncio.timeout(_ANSWER_SECONDS):
            _, writer = await _open(endpoint)
    except (OSError, TimeoutError):
        return False
    writer.close()
    return True


async def answers_http(endpoint: Endpoint) -> bool:
    try:
        async with asyncio.timeout(_ANSWER_SECONDS):
            reader, writer = await _open(endpoint)
            try:
                writer.write(_QUESTION)
                return (await reader.read(5)).startswith(b"HTTP/")
            finally:
                writer.close()
                with suppress(OSError):
                    await writer.wait_closed()
    except (OSError, TimeoutError):
        return False


async def _open(endpoint: Endpoint) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    if endpoint.inside is None or endpoint.host is None or endpoint.port is None:
        return await asyncio.open_connection(endpoint.host, endpoint.port)
    proven = await dial((endpoint.host, endpoint.port), endpoint.inside.key, endpoint.inside.port)
    return await asyncio.open_connection(sock=proven)
