"""The load of the proxy's benchmark: many connections, each asking again as soon as it is answered.

The requests are browsers' that work in several workspaces: a dozen headers, in 200 different heads that come round
again and again (`requests`), or in heads of which each is new (`heads`), as of a crowd. All answers of one proxy have
one length, which the first one tells; from then on bytes are counted, not parsed.
"""

import asyncio
import json
import os
import sys
import time
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import cycle, islice
from typing import cast

import uvloop

SITES = "CODEHUB_BENCH_SITES"
"""The environment variable that holds the hosts and the cookie for each, as JSON."""
TIMEOUT_SECONDS = 30.0
"""How long each connection may take to be answered once; only then is measured."""
HEADS = 200
CROWD = 4096
"""The number of heads that are new: more than any proxy would remember, and each of them comes as seldom as it can."""
BROWSER = b"Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/%d.0.0.0 Safari/537.36"
KINDS = (
    (b"document", b"navigate", b"text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,*/*;q=0.8"),
    (b"script", b"no-cors", b"*/*"),
    (b"style", b"no-cors", b"text/css,*/*;q=0.1"),
    (b"image", b"no-cors", b"image/avif,image/webp,image/apng,image/svg+xml,image/*,*/*;q=0.8"),
    (b"font", b"cors", b"*/*"),
    (b"empty", b"cors", b"application/json"),
)
KEY = b"\x37\xfa\x21\x3d"
WORK = b"\x01" + bytes(11) + b"\x2d" + b"m" * 45
"""A message as a workbench sends it: type, ids and length, then the content."""
MESSAGE = b"\x82\xba" + KEY + bytes(byte ^ KEY[at % 4] for at, byte in enumerate(WORK))
ECHO_BYTES = 2 + len(WORK)


def sites() -> list[tuple[bytes, bytes]]:
    return [(host.encode(), cookie.encode()) for host, cookie in json.loads(os.environ[SITES])]


def like_a_browser(number: int, site: tuple[bytes, bytes]) -> bytes:
    destination, mode, accept = KINDS[number % len(KINDS)]
    host, cookie = site
    return (
        b'Host: %b\r\nConnection: keep-alive\r\nsec-ch-ua: "Chromium";v="%d", "Not=A?Brand";v="24"\r\n'
        b'sec-ch-ua-mobile: ?0\r\nsec-ch-ua-platform: "Linux"\r\nUser-Agent: %b\r\nAccept: %b\r\n'
        b"Sec-Fetch-Site: same-origin\r\nSec-Fetch-Mode: %b\r\nSec-Fetch-Dest: %b\r\n"
        b"Referer: http://%b/folder/%d\r\nAccept-Encoding: gzip, deflate, br, zstd\r\n"
        b"Accept-Language: en-GB,en;q=0.9\r\nCookie: theme=dark; %b; vscode-tkn=0f8b7c\r\n"
    ) % (host, 130 + number % 9, BROWSER % (130 + number % 9), accept, mode, destination, host, number, cookie)


def asked(number: int) -> bytes:
    known = sites()
    target = b"/workbench/part-%d/file-%d.js?v=%d" % (number % 17, number, number % 7)
    return b"GET %b HTTP/1.1\r\n%b\r\n" % (target, like_a_browser(number, known[number % len(known)]))


def upgrade(number: int) -> bytes:
    known = sites()
    host, cookie = known[number % len(known)]
    return (
        b"GET /ws HTTP/1.1\r\nHost: %b\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nOrigin: http://%b\r\n"
        b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub2%06d\r\nCookie: theme=dark; %b\r\n\r\n"
    ) % (host, host, number, cookie)


class Asking(asyncio.Protocol):
    """Asks, waits for an answer as long as the first (or the echo of a message), notes the time, asks the next."""

    def __init__(self, questions: Iterator[bytes], upgrade: bytes) -> None:
        self.questions, self.upgrade = questions, upgrade
        self.taken: list[float] = []
        self.length = ECHO_BYTES if upgrade else 0
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
        """Read the first answer: whether it is the expected one, and how long it is."""
        self.first = first
        head, end, body = first.partition(b"\r\n\r\n")
        if not end or (not self.upgrade and len(body) < 1024):
            return
        assert (b" 101 " if self.upgrade else b" 200 ") in head.partition(b"\r\n")[0], head
        if not self.upgrade:
            self.length = len(first)
        self.first = None
        self.ask()


async def ask(
    port: int, connections: int, seconds: float, questions: Sequence[bytes], *, upgraded: bool = False
) -> dict[str, float]:
    """Measure requests. Each connection asks one site, as a browser's does; it begins elsewhere in its questions, and
    goes round."""
    loop = asyncio.get_running_loop()
    asking: list[Asking] = []
    for number in range(connections):
        its = questions if upgraded else questions[number % len(sites()) :: len(sites())]
        begin = number * len(its) // connections
        mine, first = islice(cycle(its), begin, None), upgrade(number) if upgraded else b""
        _, protocol = await loop.create_connection(partial(Asking, mine, first), "127.0.0.1", port)
        asking.append(protocol)
    async with asyncio.timeout(TIMEOUT_SECONDS):
        while not all(protocol.taken for protocol in asking):
            await asyncio.sleep(0.05)
    await asyncio.sleep(min(0.5, seconds / 4))
    warm = sum(len(protocol.taken) for protocol in asking)
    for protocol in asking:
        protocol.taken.clear()
    began = time.perf_counter()
    await asyncio.sleep(seconds)
    took = time.perf_counter() - began
    taken = sorted(each for protocol in asking for each in protocol.taken)
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
        question = b"GET /big/%d HTTP/1.1\r\n%b\r\n" % (self.size, like_a_browser(0, sites()[0]))
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
    def __init__(self, number: int, upgraded: "asyncio.Future[None]") -> None:
        self.number, self.upgraded = number, upgraded

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        cast("asyncio.Transport", transport).write(upgrade(self.number))

    def data_received(self, data: bytes) -> None:
        if self.upgraded.done():
            return
        if b" 101 " in data:
            self.upgraded.set_result(None)
        else:
            self.upgraded.set_exception(ConnectionError(str(data)))


async def idle(port: int, connections: int) -> dict[str, float]:
    """Open idle sockets, say so, and hold them until the caller has measured."""
    loop = asyncio.get_running_loop()
    for number in range(connections):
        upgraded: asyncio.Future[None] = loop.create_future()
        await loop.create_connection(partial(Idle, number, upgraded), "127.0.0.1", port)
        await upgraded
    print("{}", flush=True)
    await loop.run_in_executor(None, sys.stdin.readline)
    return {}


async def main(what: str, port: int, amount: int, seconds: float) -> dict[str, float]:
    if what in ("requests", "heads"):
        questions = [asked(number) for number in range(HEADS if what == "requests" else CROWD)]
        return await ask(port, amount, seconds, questions)
    if what == "messages":
        return await ask(port, amount, seconds, [MESSAGE], upgraded=True)
    if what == "download":
        return await download(port, amount)
    return await idle(port, amount)


if __name__ == "__main__":
    print(json.dumps(uvloop.run(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])))), flush=True)
