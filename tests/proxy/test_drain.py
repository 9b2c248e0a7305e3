"""The end of a server: nobody new, what is under way finishes, what would stay for ever is given its time."""

import asyncio

import pytest

from tests.proxy.fake_workspace import OK, FakeWorkspace
from tests.proxy.harness import ProxyHarness, get, in_time, status
from tests.proxy.test_websocket import echo, upgraded


async def test_requests_finish_and_idle_connections_close(proxy: ProxyHarness, workspace: FakeWorkspace) -> None:
    go_on = asyncio.Event()

    async def held(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        await go_on.wait()
        writer.write(OK)
        await reader.read()

    workspace.handler = held
    idle, working = await proxy.connect(), await proxy.connect()
    working.write(get())
    while not workspace.open:
        await asyncio.sleep(0.01)
    draining = asyncio.create_task(proxy.server.drain(10.0, 10.0))
    assert await idle.rest() == b""
    with pytest.raises(OSError, match=r"refused|reset"):
        await proxy.connect()
    go_on.set()
    head, body = await working.answer()
    assert (status(head), body) == (200, b"ok")
    assert b"Connection: close" in head
    assert await working.rest() == b""
    await in_time(draining)
    assert proxy.server.connections == 0
    idle.close()
    working.close()


async def test_upgraded_sockets_get_their_time_and_no_more(proxy: ProxyHarness, workspace: FakeWorkspace) -> None:
    workspace.handler = echo
    raw = await upgraded(proxy)
    draining = asyncio.create_task(proxy.server.drain(30.0, 0.3))
    raw.write(b"last words")
    assert await in_time(raw.reader.readexactly(10)) == b"last words"
    assert await raw.rest() == b""
    await in_time(draining)
    assert proxy.server.connections == 0
    raw.close()


async def test_a_request_that_does_not_end_is_ended(proxy: ProxyHarness, workspace: FakeWorkspace) -> None:
    async def endless(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf")
        await reader.read()

    workspace.handler = endless
    raw = await proxy.connect()
    raw.write(get())
    await raw.head()
    await in_time(proxy.server.drain(0.2, 0.1))
    assert await raw.rest() == b"half"
    raw.close()
    assert proxy.server.connections == 0
