"""Proxies between a client and a real server: one breaks connections, the other changes answers.

Both work on real sockets, so that what is tested is how the real client libraries meet it.
"""

import http.client
import select
import socket
import struct
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from enum import StrEnum
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Event, Thread
from typing import NamedTuple

_CHUNK = 1 << 16


class Break(StrEnum):
    """How an exchange of a question and its answer breaks off."""

    CONNECT = "connect"  # the connection is closed before anything is sent
    SEND = "send"  # within the question
    RECEIVE = "receive"  # the question arrives, and nothing of the answer
    HALF_ANSWER = "half an answer"
    HANG = "hang"  # the question arrives, and the answer never does


class BreakingProxy:
    """`choose` is asked at the beginning of each exchange; None lets it pass."""

    def __init__(self, listener: socket.socket, upstream: Callable[[], socket.socket]) -> None:
        self.choose: Callable[[], Break | None] = lambda: None
        self._listener = listener
        self._upstream = upstream
        self._over = Event()
        self._threads: list[Thread] = []

    def run(self) -> None:
        while not self._over.is_set():
            if not select.select([self._listener], [], [], 0.1)[0]:
                continue
            client, _ = self._listener.accept()
            thread = Thread(target=self._serve, args=(client,), daemon=True)
            thread.start()
            self._threads.append(thread)

    def close(self) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join(5)

    def _serve(self, client: socket.socket) -> None:
        with suppress(OSError), client, self._upstream() as server:
            # Closed with a reset, as a connection that is cut is.
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self._exchange(client, server)

    def _exchange(self, client: socket.socket, server: socket.socket) -> None:
        asking, way = False, None
        while not self._over.is_set():
            for ready in select.select([client, server], [], [], 0.1)[0]:
                if ready is client and not asking:
                    way = self.choose()
                asking = ready is client
                goes_on = self._carry(client, server, way) if asking else self._carry_back(server, client, way)
                if not goes_on:
                    return

    def _carry(self, client: socket.socket, server: socket.socket, way: Break | None) -> bool:
        """False: here it breaks off."""
        data = b"" if way is Break.CONNECT else client.recv(_CHUNK)
        server.sendall(data[: len(data) // 2] if way is Break.SEND else data)
        return bool(data) and way is not Break.SEND

    def _carry_back(self, server: socket.socket, client: socket.socket, way: Break | None) -> bool:
        data = b"" if way is Break.RECEIVE else server.recv(_CHUNK)
        if way is Break.HANG:
            self._over.wait(30)
            return False
        client.sendall(data[: len(data) // 2] if way is Break.HALF_ANSWER else data)
        return bool(data) and way is not Break.HALF_ANSWER


@contextmanager
def breaking(address: tuple[str, int] | Path, at: Path | None = None) -> Iterator[tuple[int, BreakingProxy]]:
    """Before the server at `address`, on a port of its own, or `at` that path as a unix socket (the port is then 0)."""

    def connect() -> socket.socket:
        if isinstance(address, Path):
            server = socket.socket(socket.AF_UNIX)
            server.connect(str(address))
            return server
        return socket.create_connection(address)

    if at is None:
        listener = socket.create_server(("127.0.0.1", 0))
    else:
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(str(at))
        listener.listen(64)
    proxy = BreakingProxy(listener, connect)
    thread = Thread(target=proxy.run, daemon=True)
    thread.start()
    try:
        yield (listener.getsockname()[1] if at is None else 0), proxy
    finally:
        proxy.close()
        thread.join(5)
        listener.close()


class Answered(NamedTuple):
    status: int
    body: bytes
    length: int
    """What Content-Length says; of a HEAD that is not the body's."""


class ChangingProxy:
    """`change` gets each answer of an HTTP server with what was asked for, and gives the one that is sent."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.change: Callable[[str, str, Answered], Answered] = lambda _method, _path, answered: answered

    def ask(
        self, method: str, path: str, headers: list[tuple[str, str]], body: bytes
    ) -> tuple[Answered, list[tuple[str, str]]]:
        """The answer, as it is to be sent, and its headers."""
        with closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)) as connection:
            connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
            for name, value in headers:
                connection.putheader(name, value)
            connection.endheaders(body or None)
            with connection.getresponse() as found:
                data = found.read()
                length = int(found.getheader("Content-Length") or len(data))
                return self.change(method, path, Answered(found.status, data, length)), found.getheaders()


@contextmanager
def changing(port: int) -> Iterator[tuple[int, ChangingProxy]]:
    """Before the HTTP server at that port, on another; the Host that was asked for is kept, since requests are signed
    with it."""
    proxy = ChangingProxy(port)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: object) -> None:
            pass

        def respond(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            answered, headers = proxy.ask(self.command, self.path, list(self.headers.items()), body)
            self.send_response(answered.status)
            for name, value in headers:
                if name not in {"Content-Length", "Transfer-Encoding"}:
                    self.send_header(name, value)
            self.send_header("Content-Length", str(answered.length if self.command == "HEAD" else len(answered.body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(answered.body)

        do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = respond  # noqa: N815 - http.server's names

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield server.server_port, proxy
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
