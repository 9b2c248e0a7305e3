"""Does a workspace's IDE answer? Any HTTP status line counts: a login page, even an error, is an IDE that is up."""

import asyncio
from collections.abc import Awaitable
from contextlib import suppress

ANSWER_SECONDS = 2.0
_QUESTION = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def answers_http(connecting: Awaitable[Streams]) -> bool:
    """Asks over the connection that `connecting` gives, which may fail: then nobody answers."""
    try:
        async with asyncio.timeout(ANSWER_SECONDS):
            reader, writer = await connecting
            try:
                writer.write(_QUESTION)
                return (await reader.read(5)).startswith(b"HTTP/")
            finally:
                writer.close()
                with suppress(OSError):
                    await writer.wait_closed()
    except (OSError, TimeoutError):
        return False
