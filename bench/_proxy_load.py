"""The load of the proxy's benchmark: many connections, each asking again as soon as it is answered.

The requests are a browser's that loads a page: a dozen headers, in 48 different heads that come round again and again.
All answers of one proxy have one length, which the first one tells; from then on bytes are counted, not parsed.
"""

import asyncio
import json
import sys
import time
from functools import partial
from itertools import cycle
from typing import cast

import uvloop

COOKIE = b"Cookie: theme=dark; __Host-codehub_session=42; vscode-tkn=0f8b7c\r\n"
BROWSER = b"Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/140.0.0.0 Safari/537.36"
KINDS = (
    (b"document", b"navigate", b"text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,*/*;q=0.8"),
    (b"script", b"no-cors", b"*/*"),
    (b"style", b"no-cors", b"text/css,*/*;q=0.1"),
    (b"image", b"no-cors", b"image/avif,image/webp,image/apng,image/svg+xml,image/*,*/*;q=0.8"),
    (b"font", b"cors", b"*/*"),
    (b"empty", b"cors", b"application/json"),
)


def like_a_browser(kind: int) -> bytes:
    destination, mode, accept = KINDS[kind % len(KINDS)]
    return (
        b"Host: bench.localhost:8000\r\nConnection: keep-alive\r\nUser-Agent: %b\r\nAccept: %b\r\n"
        b"Sec-Fetch-Site: same-origin\r\nSec-Fetch-Mode: %b\r\nSec-Fetch-Dest: %b\r\n"
        b"Referer: http://bench.localhost:8000/folder/%d\r\nAccept-Encoding: gzip, deflate, br, zstd\r\n"
        b"Accept-Language: en-GB,en;q=0.9\r\n%b"
    ) % (BROWSER, accept, mode, destination, kind, COOKIE)


REQUESTS = [b"GET /static/file-%d.js HTTP/1.1\r\n%b\r\n" % (kind, like_a_browser(kind)) for kind in range(48)]
UPGRADE = (
    b"GET /ws HTTP/1.1\r\nHost: bench.localhost:8000\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    b"Origin: http://bench.localhost:8000\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZQ==\r\n"
    + COOKIE
    + b"\r\n"
)
GREETING = b"\x82\xc0\0\0\0\0\x02" + bytes(11) + b'\x33{"type":"connectionType","desiredConnectionType":1}'
MESSAGE = (
    b"\x82\xba\0\0\0\0\x01"
    + bytes(11)
    + b"\x2d\x04\x04\x06\x64\x06\x07\x01\x0eremoteterminal\x01\x06$input\x04\x02\x06\x02\x01\x09make test"
)
"""A key in an IDE's terminal as a browser sends it, 64 bytes in all; so are the answers."""


class Asking(asyncio.Protocol):
    """Asks, waits for an answer as long as the first, notes the time, asks the next."""

    def __init__(self, questions: list[bytes], upgrade: bytes) -> None:
        self.questions, self.upgrade = cycle(questions), upgrade
        self.taken: list[float] = []
        self.length = len(questions[0]) if upgrade else 0
        self.got = 0
        self.first: bytes | None = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        if self.upgrade:
            self.transport.write(self.upgrade)
        else:
            self.ask()

    def ask(self) -> None:
        self.asked = time.perf_counter()
        self.transport.write(next(self.questions))

    def data_received(self, data: bytes) -> None:
        if self.first is not None:
            self.learn(self.first + data)
            return
        self.got += len(data)
        if self.got >= self.length:
            self.taken.append(time.perf_counter() - self.asked)
            self.got = 0
            self.ask()

    def learn(self, first: bytes) -> None:
        """The first answer: what is it, and how long?"""
        self.first = first
        head, end, body = first.partition(b"\r\n\r\n")
        if not end or (not self.upgrade and len(body) < 1024):
            return
        assert (b" 101 " if self.upgrade else b" 200 ") in head.partition(b"\r\n")[0], head
        if not self.upgrade:
            self.length = len(first)
        self.first = None
        if self.upgrade:
            self.transport.write(GREETING)
        self.ask()


async def ask(port: int, connections: int, seconds: float, questions: list[bytes], upgrade: bytes) -> dict[str, float]:
    loop = asyncio.get_running_loop()
    asking: list[Asking] = []
    for _ in range(connections):
        _, protocol = await loop.create_connection(lambda: Asking(questions, upgrade), "127.0.0.1", port)
        asking.append(protocol)
    await asyncio.sleep(min(0.5, seconds / 4))
    warm = sum(len(protocol.taken) for protocol in asking)
    for protocol in asking:
        protocol.taken.clear()
    began = time.perf_counter()
    await asyncio.sleep(seconds)
    took = time.perf_counter() - began
    taken = sorted(each for protocol in asking for each in protocol.taken)
    assert all(protocol.taken for protocol in asking), "a connection was never answered"
    return {
        "total": len(taken) + warm,
        "per_second": len(taken) / took,
        "p50_ms": taken[len(taken) // 2] * 1000,
        "p99_ms": taken[len(taken) * 99 // 100] * 1000,
    }


class Downloading(asyncio.Protocol):
    def __init__(self, size: int, done: "asyncio.Future[None]") -> None:
        self.size, self.done = size, done
        self.got = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        question = b"GET /big/%d HTTP/1.1\r\n%b\r\n" % (self.size, like_a_browser(0))
        cast("asyncio.Transport", transport).write(question)

    def data_received(self, data: bytes) -> None:
        self.got += len(data)
        if self.got > self.size and not self.done.done():
            self.done.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.done.done():
            self.done.set_exception(exc or ConnectionError(f"closed after {self.got} bytes"))


async def download(port: int, size: int) -> dict[str, float]:
    loop = asyncio.get_running_loop()
    done: asyncio.Future[None] = loop.create_future()
    began = time.perf_counter()
    await loop.create_connection(lambda: Downloading(size, done), "127.0.0.1", port)
    await done
    return {"bytes_per_second": size / (time.perf_counter() - began)}


class Idle(asyncio.Protocol):
    def __init__(self, upgraded: "asyncio.Future[None]") -> None:
        self.upgraded = upgraded

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        cast("asyncio.Transport", transport).write(UPGRADE)

    def data_received(self, data: bytes) -> None:
        if self.upgraded.done():
            return
        if b" 101 " in data:
            self.upgraded.set_result(None)
        else:
            self.upgraded.set_exception(ConnectionError(str(data)))


async def idle(port: int, connections: int) -> dict[str, float]:
    """Opens them, says so, and holds them until the caller has measured."""
    loop = asyncio.get_running_loop()
    for _ in range(connections):
        upgraded: asyncio.Future[None] = loop.create_future()
        await loop.create_connection(partial(Idle, upgraded), "127.0.0.1", port)
        await upgraded
    print("{}", flush=True)
    await loop.run_in_executor(None, sys.stdin.readline)
    return {}


async def main(what: str, port: int, amount: int, seconds: float) -> dict[str, float]:
    if what == "requests":
        return await ask(port, amount, seconds, REQUESTS, b"")
    if what == "messages":
        return await ask(port, amount, seconds, [MESSAGE], UPGRADE)
    if what == "download":
        return await download(port, amount)
    return await idle(port, amount)


if __name__ == "__main__":
    print(json.dumps(uvloop.run(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])))), flush=True)
