"""A browser's end of the wire in a test: requests that it may send again, and WebSockets that say how they ended."""

import asyncio
import os
from collections.abc import Mapping
from dataclasses import dataclass

from codehub.proxy.websocket.frames import unmasked

TIMEOUT_SECONDS = 150.0
CLOSE = 8
BINARY = 2


@dataclass(frozen=True)
class Answer:
    status: int
    headers: Mapping[str, str]
    body: bytes

    def cookies(self) -> str:
        """Those it sets, as a browser would send them back."""
        return "; ".join(
            cookie.partition(";")[0] for cookie in self.headers.get("set-cookie", "").split("\n") if cookie
        )


class Cut(Exception):
    """The connection ended before the answer did; `got` is what had come."""

    def __init__(self, got: bytes) -> None:
        super().__init__(f"cut after {len(got)} bytes: {got[:200]!r}")
        self.got = got


_opened: list["Connection"] = []


def hang_up() -> None:
    """Close whatever a test left open."""
    while _opened:
        _opened.pop().close()


class NotUpgraded(Exception):
    def __init__(self, status: int, said: str) -> None:
        super().__init__(f"not upgraded: {status} {said}")
        self.status = status


class Connection:
    """One connection to a front door."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self.used = 0
        _opened.append(self)

    @classmethod
    async def open(cls, port: int) -> "Connection":
        async with asyncio.timeout(TIMEOUT_SECONDS):
            return cls(*await asyncio.open_connection("127.0.0.1", port, limit=1 << 18))

    def send(self, host: str, path: str, headers: Mapping[str, str], method: str = "GET", body: bytes = b"") -> None:
        lines = [f"{method} {path} HTTP/1.1", f"Host: {host}", *(f"{name}: {value}" for name, value in headers.items())]
        if body:
            lines.append(f"Content-Length: {len(body)}")
        self.writer.write("\r\n".join((*lines, "", "")).encode("latin-1") + body)

    async def head(self) -> tuple[int, dict[str, str]]:
        try:
            async with asyncio.timeout(TIMEOUT_SECONDS):
                raw = await self.reader.readuntil(b"\r\n\r\n")
        except asyncio.IncompleteReadError as error:
            raise Cut(error.partial) from None
        except ConnectionError:
            raise Cut(b"") from None
        first, *lines = raw.decode("latin-1").split("\r\n")
        headers: dict[str, str] = {}
        for line in lines[:-2]:
            name, _, value = line.partition(":")
            name, value = name.lower(), value.strip()
            headers[name] = f"{headers[name]}\n{value}" if name in headers else value
        return int(first.split(" ")[1]), headers

    async def answer(self) -> Answer:
        status, headers = await self.head()
        length = 0 if status in (101, 204, 304) else int(headers["content-length"])
        try:
            async with asyncio.timeout(TIMEOUT_SECONDS):
                body = await self.reader.readexactly(length)
        except asyncio.IncompleteReadError as error:
            raise Cut(error.partial) from None
        except ConnectionError:
            raise Cut(b"") from None
        self.used += 1
        return Answer(status, headers, body)

    def close(self) -> None:
        self.writer.close()

    def abort(self) -> None:
        self.writer.transport.abort()


class WebSocket:
    def __init__(self, network: Connection) -> None:
        self.network = network

    @classmethod
    async def open(cls, port: int, host: str, headers: Mapping[str, str], path: str = "/ws") -> "WebSocket":
        network = await Connection.open(port)
        asked = {
            "Connection": "Upgrade",
            "Upgrade": "websocket",
            "Sec-WebSocket-Version": "13",
            "Sec-WebSocket-Key": os.urandom(12).hex(),
            "Origin": f"http://{host}",
        }
        network.send(host, path, asked | dict(headers))
        status, said = await network.head()
        if status != 101:
            rest = await network.reader.read(2000)
            network.close()
            raise NotUpgraded(status, f"{said} {rest!r}")
        return cls(network)

    def send(self, payload: bytes, opcode: int = BINARY) -> None:
        key, size = os.urandom(4), len(payload)
        length = bytes([0x80 | size]) if size < 126 else b"\xfe" + size.to_bytes(2, "big")
        self.network.writer.write(bytes([0x80 | opcode]) + length + key + unmasked(payload, key))

    async def receive(self) -> tuple[int, bytes]:
        """(opcode, payload). Raises Cut when the connection ends without a frame."""
        try:
            async with asyncio.timeout(TIMEOUT_SECONDS):
                first, length = await self.network.reader.readexactly(2)
                if length > 125:
                    length = int.from_bytes(await self.network.reader.readexactly(2 if length == 126 else 8), "big")
                return first & 0xF, await self.network.reader.readexactly(length)
        except asyncio.IncompleteReadError as error:
            raise Cut(error.partial) from None
        except ConnectionError:
            raise Cut(b"") from None

    async def echoed(self, payload: bytes) -> bool:
        self.send(payload)
        return await self.receive() == (BINARY, payload)

    async def ended(self) -> int | None:
        """The code it was closed with; None when it ended without one."""
        try:
            while True:
                opcode, payload = await self.receive()
                if opcode == CLOSE:
                    return int.from_bytes(payload[:2], "big")
        except Cut:
            return None

    def close(self) -> None:
        self.network.close()


class Browser:
    """Asks one after the other on a kept connection. What may be repeated it sends again, once, if the connection ends
    before a byte of the answer: as browsers do."""

    def __init__(self, port: int, host: str, headers: Mapping[str, str]) -> None:
        self.port, self.host, self.headers = port, host, headers
        self.repeated = 0
        self._network: Connection | None = None

    async def get(self, path: str, **more: str) -> Answer:
        for _ in range(3):
            fresh = self._network is None
            network = self._network = self._network or await Connection.open(self.port)
            try:
                network.send(self.host, path, {**self.headers, **more})
                answer = await network.answer()
            except Cut as cut:
                self.leave()
                if cut.got or fresh:
                    raise
                self.repeated += 1
                continue
            if answer.headers.get("connection") == "close":
                self.leave()
            return answer
        raise AssertionError("every kept connection was closed under us")

    def leave(self) -> None:
        if self._network is not None:
            self._network.close()
            self._network = None
