"""The proxy in a test: an authorizer that does as it is told, a server with short deadlines, and raw sockets to it."""

import asyncio
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Self, TypeVar

from codehub.ports.runtime import Endpoint
from codehub.proxy.access.verdicts import Cap, Forward, Respond, UpstreamFailure, Verdict
from codehub.proxy.http.headers import Network
from codehub.proxy.http.limits import ProxyLimits
from codehub.proxy.http.parser import RequestHead
from codehub.proxy.http.responses import failure_problem, overload_problem
from codehub.proxy.server import ProxyServer

LIMITS = ProxyLimits(tick=0.05, pool_idle_seconds=60.0, unrepeatable_idle_seconds=60.0)
PATIENCE = 60.0
T = TypeVar("T")


class StubAuthorizer:
    """An authorizer that forwards everything to one endpoint, unless a path has a verdict of its own."""

    def __init__(self, forward: Forward) -> None:
        self.forward = forward
        self.verdicts: dict[bytes, Callable[[], Verdict]] = {}
        self.asked: list[RequestHead] = []
        self.routes = (forward.route,)
        self.failures: list[UpstreamFailure] = []

    def decide(self, head: RequestHead) -> Verdict:
        self.asked.append(head)
        told = self.verdicts.get(head.target)
        return told() if told else self.forward

    def failed(self, head: RequestHead, forward: Forward, failure: UpstreamFailure) -> Respond:
        self.failures.append(failure)
        return failure_problem(failure)

    def overloaded(self, head: RequestHead, cap: Cap) -> Respond:
        return overload_problem(cap)


class ProxyHarness:
    def __init__(self, endpoint: Endpoint, limits: ProxyLimits = LIMITS, forward: Forward | None = None) -> None:
        self.authorizer = StubAuthorizer(forward or Forward(endpoint))
        self.limits = limits
        self.trusted_proxies: tuple[Network, ...] = ()

    async def __aenter__(self) -> Self:
        self.server = ProxyServer(self.authorizer, self.limits, trusted_proxies=self.trusted_proxies)
        self.port = await self.server.listen("127.0.0.1", 0)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.server.drain(0.0, 0.0)
        assert self.server.connections == 0

    async def connect(self) -> "RawConnection":
        return RawConnection(*await asyncio.open_connection("127.0.0.1", self.port, limit=1 << 20))

    async def ask(self, request: bytes) -> bytes:
        """Everything that comes back for these bytes, until the proxy closes or has nothing more to say."""
        raw = await self.connect()
        try:
            raw.write(request)
            raw.writer.write_eof()
            return await in_time(raw.reader.read())
        finally:
            raw.close()


class RawConnection:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    def write(self, data: bytes) -> None:
        self.writer.write(data)

    async def head(self) -> bytes:
        return await in_time(self.reader.readuntil(b"\r\n\r\n"))

    async def answer(self) -> tuple[bytes, bytes]:
        """Read one answer with a counted or chunked body; returns the body without its coding."""
        head = await self.head()
        for line in head.lower().split(b"\r\n"):
            if line.startswith(b"content-length:"):
                return head, await in_time(self.reader.readexactly(int(line[15:])))
        return head, await self.chunks() if b"transfer-encoding: chunked" in head.lower() else b""

    async def chunks(self) -> bytes:
        body = b""
        while size := int(await in_time(self.reader.readline()), 16):
            body += await in_time(self.reader.readexactly(size))
            assert await in_time(self.reader.readexactly(2)) == b"\r\n"
        assert await in_time(self.reader.readexactly(2)) == b"\r\n"
        return body

    async def rest(self) -> bytes:
        return await in_time(self.reader.read())

    def close(self) -> None:
        self.writer.close()


async def in_time(waited: Awaitable[T]) -> T:
    async with asyncio.timeout(PATIENCE):
        return await waited


def get(path: str = "/", *lines: str, method: str = "GET", host: str = "w.localhost") -> bytes:
    return "\r\n".join((f"{method} {path} HTTP/1.1", f"Host: {host}", *lines, "", "")).encode("latin-1")


def status(answer: bytes) -> int:
    return int(answer[9:12])
