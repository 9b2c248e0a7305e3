"""The end of a server: nobody new, what is under way finishes, what would stay for ever is given its time."""

import asyncio

import pytest

from tests.proxy.doors import Door, get, patient, status
from tests.proxy.test_websocket import echo, upgraded
from tests.proxy.workspaces import OK, Workspace


async def test_requests_finish_and_idle_connections_close(door: Door, workspace: Workspace) -> None:
    go_on = asyncio.Event()

    async def held(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        await go_on.wait()
        writer.write(OK)
        await reader.read()

    workspace.handler = held
    idle, working = await door.connect(), await door.connect()
    working.write(get())
    while not workspace.open:
        await asyncio.sleep(0.01)
    draining = asyncio.create_task(door.server.drain(10.0, 10.0))
    assert await idle.rest() == b""
    with pytest.raises(OSError, match=r"refused|reset"):
        await door.connect()
    go_on.set()
    head, body = await working.answer()
    assert (status(head), body) == (200, b"ok")
    assert b"Connection: close" in head
    assert await working.rest() == b""
    await patient(draining)
    assert door.server.connections == 0
    idle.close()
    working.close()


async def test_upgraded_sockets_get_their_time_and_no_more(door: Door, workspace: Workspace) -> None:
    workspace.handler = echo
    raw = await upgraded(door)
    draining = asyncio.create_task(door.server.drain(30.0, 0.3))
    raw.write(b"last words")
    assert await patient(raw.reader.readexactly(10)) == b"last words"
    assert await raw.rest() == b""
    await patient(draining)
    assert door.server.connections == 0
    raw.close()


async def test_a_request_that_does_not_end_is_ended(door: Door, workspace: Workspace) -> None:
    async def endless(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf")
        await reader.read()

    workspace.handler = endless
    raw = await door.connect()
    raw.write(get())
    await raw.head()
    await patient(door.server.drain(0.2, 0.1))
    assert await raw.rest() == b"half"
    raw.close()
    assert door.server.connections == 0
