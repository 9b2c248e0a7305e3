"""A workspace agent as a process of its own, at a loopback address of its own, and servers behind it."""

import asyncio
import os
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, closing, suppress
from dataclasses import dataclass
from pathlib import Path

from codehub.agent.handshake import KEY_BYTES, dial
from codehub.agent.relay import listen

_PROGRAM = """
import os, sys
from codehub.agent.relay import Relay
import socket
Relay(socket.socket(fileno=int(sys.argv[1])), bytes.fromhex(sys.argv[2])).serve()
"""
Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@dataclass
class RunningAgent:
    address: tuple[str, int]
    key: bytes
    process: subprocess.Popen[bytes]

    async def open(self, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection(sock=await dial(self.address, self.key, port))

    @property
    def files(self) -> int:
        return len(list(Path(f"/proc/{self.process.pid}/fd").iterdir()))

    @property
    def peak_memory(self) -> int:
        found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{self.process.pid}/status").read_text())
        assert found is not None
        return int(found[1]) << 10


@asynccontextmanager
async def an_agent(host: str = "127.0.0.1", port: int = 0, key: bytes | None = None) -> AsyncIterator[RunningAgent]:
    key = key or os.urandom(KEY_BYTES)
    with closing(listen(host, port)) as listener:
        words = [sys.executable, "-c", _PROGRAM, str(listener.fileno()), key.hex()]
        process = subprocess.Popen(words, pass_fds=[listener.fileno()])
        address = listener.getsockname()
    try:
        yield RunningAgent(address, key, process)
    finally:
        process.kill()
        process.wait()


@asynccontextmanager
async def a_server(handler: Handler, host: str = "127.0.0.1") -> AsyncIterator[int]:
    """Ends with whatever it still serves."""
    serving: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        serving.add(task)
        try:
            with suppress(ConnectionError, asyncio.CancelledError):
                await handler(reader, writer)
        finally:
            serving.discard(task)
            writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()

    async with await asyncio.start_server(serve, host, 0) as server:
        port: int = server.sockets[0].getsockname()[1]
        yield port
        for task in serving:
            task.cancel()
        await asyncio.gather(*serving)
