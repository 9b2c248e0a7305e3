"""What an orchestrator asks a process of ours: is it alive, is it ready, what are its numbers.

Every question has a thread of its own and a few seconds, so that whoever connects and says nothing is in nobody's way,
neither while we serve nor when we end.
"""

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from socketserver import ThreadingMixIn
from typing import TYPE_CHECKING, NamedTuple
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from prometheus_client import CollectorRegistry, make_wsgi_app

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIEnvironment

QUESTION_SECONDS = 5.0


class Status(NamedTuple):
    ready: bool
    said: Mapping[str, object]


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True
    block_on_close = False

    def handle_error(self, request: object, client_address: object) -> None:
        """One who went away in the middle, or said nothing for too long, is no news."""


class _Handler(WSGIRequestHandler):
    timeout = QUESTION_SECONDS

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the library's name
        """A probe every second is no news."""


def status_app(
    status: Callable[[], Status], registry: CollectorRegistry
) -> "Callable[[WSGIEnvironment, StartResponse], Iterable[bytes]]":
    metrics = make_wsgi_app(registry)

    def app(environ: "WSGIEnvironment", start_response: "StartResponse") -> Iterable[bytes]:
        path = environ.get("PATH_INFO", "/")
        if path == "/metrics":
            page: Iterable[bytes] = metrics(environ, start_response)
            return page
        if path not in ("/healthz", "/readyz"):
            start_response("404 Not Found", [("Content-Type", "text/plain")])
            return [b"/healthz, /readyz or /metrics\n"]
        now = status()
        fine = path == "/healthz" or now.ready
        start_response("200 OK" if fine else "503 Service Unavailable", [("Content-Type", "application/json")])
        return [json.dumps(now.said).encode() + b"\n"]

    return app


@asynccontextmanager
async def serving_status(
    address: str | None, status: Callable[[], Status], registry: CollectorRegistry
) -> AsyncIterator[int | None]:
    """Serve from threads while the context lasts; yields the port. Without an address, nothing."""
    if address is None:
        yield None
        return
    host, _, port = address.rpartition(":")
    with make_server(host, int(port), status_app(status, registry), _Server, _Handler) as server:
        thread = threading.Thread(target=server.serve_forever, name="codehub-status", daemon=True)
        thread.start()
        try:
            yield server.server_port
        finally:
            await asyncio.to_thread(server.shutdown)
            thread.join()
