"""The HTTP server of a process without an API: is it alive, is it ready, and its metrics.

Every request has a thread of its own and a few seconds, so that whoever connects and sends nothing holds up neither
other requests nor the end of the process.
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

REQUEST_SECONDS = 5.0


class ProcessStatus(NamedTuple):
    ready: bool
    details: Mapping[str, object]


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True
    block_on_close = False

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that went away in the middle, or sent nothing for too long, is not logged."""


class _Handler(WSGIRequestHandler):
    timeout = REQUEST_SECONDS

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the library's name
        """A probe that comes every second is not logged."""


def status_app(
    status: Callable[[], ProcessStatus], registry: CollectorRegistry
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
        return [json.dumps(now.details).encode() + b"\n"]

    return app


@asynccontextmanager
async def serving_status(
    address: str | None, status: Callable[[], ProcessStatus], registry: CollectorRegistry
) -> AsyncIterator[int | None]:
    """Serves from threads while the context lasts, and yields the port; without an address, serves nothing."""
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
