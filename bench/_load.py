"""The load of the API's benchmark: raw keep-alive connections, so that the measured server is the bottleneck and not
the client.

A request client asks again as soon as it is answered. A stream client holds an event stream and notes when each change
arrives.
"""

import asyncio
import re
import statistics
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from typing import cast

import psutil

_LENGTH = re.compile(rb"\r\ncontent-length: (\d+)\r\n", re.IGNORECASE)
_CHANGE = re.compile(rb'"memo": "change (\d+)\."')
_CHANGE_BYTES = 40
TIMEOUT_SECONDS = 60.0
COME_BACK_SECONDS = 2.0
_EVENT_ENDS = b"\r\n\r\n\r\n"
"""How an event ends: two line ends are the event's, one is of the chunk that it came in."""


@dataclass(frozen=True)
class Rate:
    per_second: float
    p50_ms: float
    p99_ms: float
    client_cpu: float
    """How many processors the client used meanwhile, and (below) the server's process."""
    server_cpu: float = 0.0


def http_get(path: str, token: str) -> bytes:
    return f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {token}\r\n\r\n".encode()


class RequestClient(asyncio.Protocol):
    def __init__(self, requests: Iterator[bytes], took: list[float], until: float) -> None:
        self.over: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        """The body of the last answer."""
        self._requests = requests
        self._took = took
        self._until = until
        self._asked = 0.0
        self._got = b""
        self._missing = -1

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._ask()

    def _ask(self) -> None:
        self._got, self._missing = b"", -1
        self._transport.write(next(self._requests))
        self._asked = time.perf_counter()

    def data_received(self, data: bytes) -> None:
        self._got += data
        if self._missing < 0:
            head = self._got.find(b"\r\n\r\n")
            if head < 0:
                return
            length = _LENGTH.search(self._got, 0, head + 2)
            if length is None or not self._got.startswith(b"HTTP/1.1 200"):
                self._transport.abort()
                self.over.set_exception(AssertionError(self._got[:500]))
                return
            self._missing = head + 4 + int(length[1])
        if len(self._got) >= self._missing:
            self._answered()

    def _answered(self) -> None:
        now = time.perf_counter()
        self._took.append(now - self._asked)
        if now < self._until:
            self._ask()
        else:
            self._transport.close()
            self.over.set_result(self._got.partition(b"\r\n\r\n")[2])

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.over.done():
            self.over.set_exception(exc or ConnectionError("the server hung up"))


async def ask(port: int, requests: Sequence[bytes], connections: int, seconds: float, server: psutil.Process) -> Rate:
    """Ask from many connections. Each begins elsewhere in the requests, and goes round."""

    async def one(number: int, took: list[float], until: float) -> None:
        begin = number * len(requests) // connections
        mine = islice(cycle(requests), begin, None)
        await _connected(port, lambda: RequestClient(mine, took, until))

    return await timed(one, connections, seconds, server)


async def ask_once(port: int, request: bytes) -> bytes:
    return await _connected(port, lambda: RequestClient(cycle([request]), [], 0.0))


async def _connected(port: int, make: Callable[[], RequestClient]) -> bytes:
    _, client = await asyncio.get_running_loop().create_connection(make, "127.0.0.1", port)
    return await client.over


async def timed(
    one: Callable[[int, list[float], float], Awaitable[None]],
    connections: int,
    seconds: float,
    server: psutil.Process | None = None,
) -> Rate:
    """Run `one(number, took, until)` for each connection, which appends what each of its requests took."""
    took: list[float] = []
    began, cpu, served = time.perf_counter(), time.process_time(), processor_seconds(server)
    await asyncio.gather(*(one(number, took, began + seconds) for number in range(connections)))
    wall = time.perf_counter() - began
    return Rate(
        len(took) / wall,
        *percentiles(took),
        (time.process_time() - cpu) / wall,
        (processor_seconds(server) - served) / wall,
    )


def processor_seconds(process: psutil.Process | None) -> float:
    times = process.cpu_times() if process else None
    return float(times.user + times.system) if times else 0.0


def percentiles(took: Sequence[float]) -> tuple[float, float]:
    """The median and the 99th percentile of seconds, in milliseconds."""
    cuts = statistics.quantiles(took, n=100)
    return cuts[49] * 1000, cuts[98] * 1000


class StreamClient(asyncio.Protocol):
    def __init__(self, request: bytes) -> None:
        self.joined: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done when the snapshot is here, to its end."""
        self.heard: dict[int, float] = {}
        self.is_cut = False
        self._request = request
        self._tail = b""
        self._snapshot_began = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        self.transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        now, text = time.perf_counter(), self._tail + data
        if not self.joined.done():
            if text.startswith(b"HTTP/1.1 ") and not text.startswith(b"HTTP/1.1 200"):
                self.transport.abort()
                return
            self._snapshot_began = self._snapshot_began or b"event: snapshot" in text
            if self._snapshot_began and text.endswith(_EVENT_ENDS):
                self.joined.set_result(None)
            self._tail = text[-_CHANGE_BYTES:]
            return
        seen = 0
        for change in _CHANGE.finditer(text):
            self.heard.setdefault(int(change[1]), now)
            seen = change.end()
        self._tail = text[max(seen, len(text) - _CHANGE_BYTES) :]

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_cut = True
        if not self.joined.done():
            self.joined.set_exception(ConnectionError(f"no stream, or half of it: {exc}"))


async def hear(port: int, requests: Sequence[bytes]) -> tuple[list[StreamClient], int]:
    """All stream clients, each with its snapshot, and how often one was turned away and came back, as browsers do."""
    loop, refused = asyncio.get_running_loop(), 0

    async def one(request: bytes) -> StreamClient:
        nonlocal refused
        while True:
            _, client = await loop.create_connection(lambda: StreamClient(request), "127.0.0.1", port)
            try:
                await client.joined
            except ConnectionError:
                refused += 1
                await asyncio.sleep(COME_BACK_SECONDS)
            else:
                return client

    async with asyncio.timeout(TIMEOUT_SECONDS):
        return await asyncio.gather(*(one(request) for request in requests)), refused
