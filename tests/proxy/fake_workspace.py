"""A workspace's server in a test: it reads with a parser that is not ours, writes down what it saw, and misbehaves on
request."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

import h11

from codehub.ports.runtime import Endpoint

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


@dataclass
class Seen:
    method: str
    target: str
    headers: list[tuple[str, str]]
    body: bytes = b""
    trailers: list[tuple[str, str]] = field(default_factory=list)

    def all(self, name: str) -> list[str]:
        return [value for each, value in self.headers if each.lower() == name.lower()]

    def one(self, name: str) -> str:
        (value,) = self.all(name)
        return value


Answer = Callable[[Seen], bytes]


class FakeWorkspace:
    """Answers each request with `answer`'s bytes, or leaves the whole connection to `handler`."""

    def __init__(self) -> None:
        self.seen: list[Seen] = []
        self.connections = 0
        self.open = 0
        self.received: list[bytearray] = []
        """What came over each connection, byte by byte."""
        self.answer: Answer = lambda _: OK
        self.handler: Handler | None = None

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.endpoint = Endpoint(host="127.0.0.1", port=self._server.sockets[0].getsockname()[1])
        self._tasks: set[asyncio.Task[None]] = set()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    @property
    def raw(self) -> bytes:
        return b"".join(self.received)

    async def stop_listening(self) -> None:
        self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        self.connections += 1
        self.open += 1
        try:
            with suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
                await (self.handler or self._converse)(reader, writer)
        finally:
            self.open -= 1
            writer.close()

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = h11.Connection(h11.SERVER)
        self.received.append(received := bytearray())
        while (seen := await self.read(connection, reader, received)) is not None:
            self.seen.append(seen)
            writer.write(self.answer(seen))
            await writer.drain()
            # What was written went past the parser: tell it that the answer is out.
            connection.send(h11.Response(status_code=200, headers=[("content-length", "0")]))
            connection.send(h11.EndOfMessage())
            connection.start_next_cycle()

    async def read(self, connection: h11.Connection, reader: asyncio.StreamReader, received: bytearray) -> Seen | None:
        seen: Seen | None = None
        while True:
            event = connection.next_event()
            if event is h11.NEED_DATA:
                data = await reader.read(65536)
                received += data
                connection.receive_data(data)
            elif isinstance(event, h11.Request):
                headers = [(name.decode(), value.decode("latin-1")) for name, value in event.headers.raw_items()]
                seen = Seen(event.method.decode(), event.target.decode(), headers)
            elif isinstance(event, h11.Data) and seen is not None:
                seen.body += bytes(event.data)
            elif isinstance(event, h11.EndOfMessage) and seen is not None:
                seen.trailers = [(name.decode(), value.decode()) for name, value in event.headers.raw_items()]
                return seen
            else:
                return None
