"""Who is slow slows the other side down; the proxy holds little of what is between them."""

import asyncio
import resource

from tests.proxy.fake_workspace import OK, FakeWorkspace
from tests.proxy.harness import ProxyHarness, get, in_time
from tests.proxy.test_websocket import SWITCH, upgraded

SIZE = 200_000_000
PIECE = b"p" * 1_000_000
ROOM = 40_000_000
"""How much the proxy may hold: far less than what passes, more than buffers and kernels need."""


def peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


async def send(writer: asyncio.StreamWriter, sent: list[int]) -> None:
    for _ in range(SIZE // len(PIECE)):
        writer.write(PIECE)
        await writer.drain()
        sent[0] += len(PIECE)


async def stalls(sent: list[int]) -> int:
    """Wait until nothing more is taken; returns how much was."""
    before = -1
    while sent[0] != before or not before:
        before = sent[0]
        await asyncio.sleep(0.3)
    return before


async def test_a_slow_client_stops_a_download_and_then_gets_all_of_it(
    proxy: ProxyHarness, workspace: FakeWorkspace
) -> None:
    sent = [0]

    async def download(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % SIZE)
        await send(writer, sent)

    workspace.handler = download
    raw = await proxy.connect()
    before = peak()
    raw.write(get())
    await raw.head()
    assert await in_time(stalls(sent)) < ROOM
    received = 0
    while data := await in_time(raw.reader.read(1 << 20)):
        received += len(data)
        if received == SIZE:
            break
    assert received == SIZE
    assert peak() - before < ROOM
    raw.close()


async def test_a_slow_workspace_stops_an_upload_and_then_gets_all_of_it(
    proxy: ProxyHarness, workspace: FakeWorkspace
) -> None:
    go_on, received = asyncio.Event(), [0]

    async def upload(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        await go_on.wait()
        while received[0] < SIZE:
            received[0] += len(await reader.read(1 << 20))
        writer.write(OK)

    workspace.handler = upload
    raw = await proxy.connect()
    before, sent = peak(), [0]
    raw.write(get("/", f"Content-Length: {SIZE}", method="POST"))
    sending = asyncio.create_task(send(raw.writer, sent))
    assert await in_time(stalls(sent)) < ROOM
    go_on.set()
    await in_time(sending)
    assert (await raw.answer())[1] == b"ok"
    assert received == [SIZE]
    assert peak() - before < ROOM
    raw.close()


async def test_a_slow_reader_of_a_socket_stops_the_other_side(proxy: ProxyHarness, workspace: FakeWorkspace) -> None:
    sent = [0]

    async def flood(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(SWITCH)
        await send(writer, sent)

    workspace.handler = flood
    raw = await upgraded(proxy)
    before = peak()
    assert await in_time(stalls(sent)) < ROOM
    received = 0
    while data := await in_time(raw.reader.read(1 << 20)):
        received += len(data)
    assert received == SIZE
    assert peak() - before < ROOM
    raw.close()


async def test_a_client_that_asks_and_never_reads_is_not_served_without_end(
    proxy: ProxyHarness, workspace: FakeWorkspace
) -> None:
    body = b"x" * 100_000
    workspace.answer = lambda _: b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n" + body
    raw = await proxy.connect()
    raw.reader._transport.pause_reading()  # type: ignore[attr-defined]
    raw.write(get() * 2000)
    asked = [0]

    async def count() -> None:
        while True:
            asked[0] = len(workspace.seen)
            await asyncio.sleep(0.05)

    counting = asyncio.create_task(count())
    stopped = await in_time(stalls(asked))
    counting.cancel()
    assert 0 < stopped < 1000
    raw.reader._transport.resume_reading()  # type: ignore[attr-defined]
    for _ in range(2000):
        assert len((await raw.answer())[1]) == 100_000
    raw.close()
