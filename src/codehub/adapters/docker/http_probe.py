"""Is there an IDE at that address? Any HTTP status line counts: a login page, even an error, is an IDE that is up."""

import asyncio
from contextlib import suppress

from codehub.ports.runtime import Endpoint

_ANSWER_SECONDS = 2.0
_QUESTION = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"


async def accepts(endpoint: Endpoint) -> bool:
    """Does anybody listen there?"""
    try:
        async with asyncio.timeout(_ANSWER_SECONDS):
            _, writer = await asyncio.open_connection(endpoint.host, endpoint.port)
    except (OSError, TimeoutError):
        return False
    writer.close()
    return True


async def answers_http(endpoint: Endpoint) -> bool:
    try:
        async with asyncio.timeout(_ANSWER_SECONDS):
            reader, writer = await asyncio.open_connection(endpoint.host, endpoint.port)
            try:
                writer.write(_QUESTION)
                return (await reader.read(5)).startswith(b"HTTP/")
            finally:
                writer.close()
                with suppress(OSError):
                    await writer.wait_closed()
    except (OSError, TimeoutError):
        return False
