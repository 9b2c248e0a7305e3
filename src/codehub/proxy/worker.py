"""The life of one worker process: serve on the sockets it inherits, say so, drain when told, never outlive its keeper.

Its standard input is the leash: it ends when the supervisor lets go or dies, whichever way.
"""

import asyncio
import contextlib
import os
import signal
import socket
import sys

from codehub.proxy.census import census
from codehub.proxy.server import ProxyServer

LISTEN_FDS = "CODEHUB_PROXY_LISTEN_FDS"
READY = b"ready\n"
CENSUS_SECONDS = 5.0


async def serve_worker(server: ProxyServer, requests_seconds: float = 30.0, upgraded_seconds: float = 10.0) -> None:
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    await loop.connect_read_pipe(lambda: _Leash(stop), sys.stdin)
    for descriptor in os.environ[LISTEN_FDS].split(","):
        await server.listen_on(socket.socket(fileno=int(descriptor)))
    os.write(sys.stdout.fileno(), READY)
    telling = asyncio.ensure_future(_tell(server))
    await stop.wait()
    await server.drain(requests_seconds, upgraded_seconds)
    telling.cancel()
    _say(census(server))


async def _tell(server: ProxyServer) -> None:
    while True:
        await asyncio.sleep(CENSUS_SECONDS)
        _say(census(server))


def _say(line: bytes) -> None:
    with contextlib.suppress(OSError):  # nobody listens any more
        os.write(sys.stdout.fileno(), line)


class _Leash(asyncio.Protocol):
    def __init__(self, stop: asyncio.Event) -> None:
        self._stop = stop

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        self._stop.set()
