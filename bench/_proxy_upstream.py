"""A fast upstream for the proxy's benchmark: the answers are ready-made, and each WebSocket message comes back."""

import asyncio
import sys
from typing import cast

import uvloop

from bench._proxy_load import WORK

BODY = b"x" * 1024
HEAD = (
    b"HTTP/1.1 200 OK\r\nServer: upstream\r\nDate: Sun, 15 Nov 2026 10:00:00 GMT\r\n"
    b'Content-Type: text/plain; charset=utf-8\r\nCache-Control: no-cache\r\nETag: "5f1b"\r\nVary: Accept-Encoding\r\n'
)
SMALL = HEAD + b"Content-Length: %d\r\n\r\n" % len(BODY) + BODY
SWITCH = (
    b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Accept: x\r\n\r\n"
)
ECHO = b"\x82\x3a" + WORK
"""The echo as a server sends it: unmasked."""
PIECE = b"y" * (1 << 18)


class Answering(asyncio.Protocol):
    def __init__(self) -> None:
        self.upgraded = False
        self.left = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        if self.upgraded:
            self.transport.write(ECHO)
        elif data.startswith(b"GET /big/"):
            self.left = int(data[9 : data.index(b" ", 9)])
            self.transport.write(HEAD + b"Content-Length: %d\r\n\r\n" % self.left)
            self.more()
        elif data.startswith(b"GET /ws"):
            self.upgraded = True
            self.transport.write(SWITCH)
        else:
            self.transport.write(SMALL)

    def more(self) -> None:
        self.paused = False
        while self.left and not self.paused:
            piece = PIECE if self.left >= len(PIECE) else PIECE[: self.left]
            self.left -= len(piece)
            self.transport.write(piece)

    def pause_writing(self) -> None:
        self.paused = True

    def resume_writing(self) -> None:
        self.more()


async def serve() -> None:
    server = await asyncio.get_running_loop().create_server(Answering, "127.0.0.1", 0, backlog=4096)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(serve())
    sys.exit(0)
