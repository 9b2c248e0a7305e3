"""The API's HTTP server: uvicorn in a process that handles signals itself and may have other work.

Event streams never end by themselves, so they are ended first; other requests get a few seconds to finish.
"""

import asyncio
import contextlib
import socket
from collections.abc import Callable, Iterator

import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from codehub.api.errors import BY_STATUS, problem
from codehub.api.events import EventHub

GRACE_SECONDS = 5
KEEP_ALIVE_SECONDS = 30
"""Well beyond how long the front door keeps an idle connection, so that the API never closes one just as the next
request is sent on it."""
LONGEST_HEAD_BYTES = 128 << 10
"""The most bytes before a request's headers are complete; smaller ones are refused by the API itself, more clearly."""


class LimitedHttpProtocol(HttpToolsProtocol):
    """Refuses a request that cannot be read, or whose headers never end, with a problem as everything else is refused,
    and closes the connection."""

    _is_head = True
    _head_bytes = 0

    def on_message_begin(self) -> None:
        self._is_head, self._head_bytes = True, 0
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._is_head = False
        super().on_headers_complete()

    def data_received(self, data: bytes) -> None:
        self._head_bytes += len(data)
        super().data_received(data)
        if self._is_head and self._head_bytes > LONGEST_HEAD_BYTES and not self.transport.is_closing():
            self.send_400_response("The request's address and headers are too large.")

    def send_400_response(self, msg: str) -> None:
        title, code = BY_STATUS[400]
        answer = problem(400, title, code, msg, {"Connection": "close"})
        head = b"".join(b"%s: %s\r\n" % header for header in answer.raw_headers)
        self.transport.write(b"HTTP/1.1 400 Bad Request\r\n" + head + b"\r\n" + bytes(answer.body))
        self.transport.close()


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.up = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.up.set()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leaves signals to the process, which cancels the server."""
        yield


def listen_on(host: str, port: int) -> socket.socket:
    """A listening socket. OSError if the address is in use."""
    listening = socket.create_server((host, port), backlog=1024)
    # Whatever it accepts inherits this. asyncio's own loop sets it only on sockets that name their protocol, which
    # these do not, and an answer's body would wait 40 ms until its head is acknowledged.
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listening


def listen_on_unix_socket(path: str) -> socket.socket:
    """A listening unix socket, which is reached only by who may enter its directory."""
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listening.bind(path)
    listening.listen(1024)
    return listening


async def serve(
    app: FastAPI, listening: socket.socket, ready: Callable[[], None], *, trusted_proxies: str | None = None
) -> None:
    """Serves until cancelled, and then ends gracefully. `trusted_proxies`: comma-separated addresses whose word on the
    client's address is believed; by default nobody's, not even this machine's, on which the workspaces run."""
    config = uvicorn.Config(
        app,
        http=LimitedHttpProtocol,
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=trusted_proxies is not None,
        forwarded_allow_ips=trusted_proxies or "",
        lifespan="on",
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=GRACE_SECONDS,
    )
    server = _Server(config)
    hub: EventHub = app.state.hub
    serving = asyncio.ensure_future(server.serve([listening]))
    up = asyncio.ensure_future(server.up.wait())
    try:
        await asyncio.wait([serving, up], return_when=asyncio.FIRST_COMPLETED)
        if server.up.is_set():
            ready()
        await asyncio.shield(serving)
    finally:
        up.cancel()
        await hub.close()
        server.should_exit = True
        await serving
