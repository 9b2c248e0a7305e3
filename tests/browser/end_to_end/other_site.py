"""A page of somebody else's, on an origin that is neither ours nor a workspace's."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from html import escape


@asynccontextmanager
async def other_site(body: str) -> AsyncIterator[str]:
    """Its address."""
    page = f"<!doctype html><title>elsewhere</title>{body}".encode()
    head = f"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: {len(page)}\r\nConnection: close\r\n\r\n"

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(head.encode() + page)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"


def link(address: str) -> str:
    return f'<a href="{escape(address)}">the workspace</a>'
