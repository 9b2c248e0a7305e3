"""A network between us and a server that can be cut without a word, or break."""

import asyncio
from asyncio import StreamReader, StreamWriter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

Connect = Callable[[], Awaitable[tuple[StreamReader, StreamWriter]]]


class Network:
    def __init__(self, connect: Connect) -> None:
        self._connect = connect
        self._flows = asyncio.Event()
        self._flows.set()
        self._writers: list[StreamWriter] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self.port = 0

    def cut(self) -> None:
        """From now on every byte is lost on the way; both ends believe that the connection lives."""
        self._flows.clear()

    def mend(self) -> None:
        self._flows.set()

    def sever(self) -> None:
        """Every connection breaks; new ones are possible."""
        for writer in self._writers:
            writer.transport.abort()
        self._writers.clear()

    async def serve(self, reader: StreamReader, writer: StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self._writers.append(writer)
        try:
            await self._flows.wait()
            far_reader, far_writer = await self._connect()
            self._writers.append(far_writer)
            await asyncio.gather(self._carry(reader, far_writer), self._carry(far_reader, writer))
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            self._tasks.discard(task)

    async def _carry(self, source: StreamReader, target: StreamWriter) -> None:
        while data := await source.read(65536):
            await self._flows.wait()
            target.write(data)
            await target.drain()
        target.close()

    async def close(self) -> None:
        self.sever()
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.sleep(0.01)  # aborted transports close in the loop's next turns


@asynccontextmanager
async def network_to(connect: Connect) -> AsyncIterator[Network]:
    network = Network(connect)
    server = await asyncio.start_server(network.serve, "127.0.0.1", 0)
    network.port = server.sockets[0].getsockname()[1]
    try:
        yield network
    finally:
        await asyncio.sleep(0.05)  # a connection that is just being let in must be let in, or its socket leaks
        server.close()
        await network.close()
        await server.wait_closed()
