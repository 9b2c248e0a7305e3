"""What an orchestrator asks a coordinator: is it alive, is it ready, what are its numbers.

A standby is ready too: it is doing its job. A leader is ready while its last good pass is recent.
"""

import json
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING
from wsgiref.simple_server import WSGIRequestHandler, make_server

from prometheus_client import CollectorRegistry, make_wsgi_app

from codehub.coordinator.process import Readiness

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIEnvironment

STALE_PASS_SECONDS = 60.0


class _Quiet(WSGIRequestHandler):
    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the library's name
        """A probe every second is no news."""


def is_ready(readiness: Readiness) -> bool:
    return not readiness.leads or (readiness.pass_age is not None and readiness.pass_age < STALE_PASS_SECONDS)


def status_app(
    readiness: Callable[[], Readiness], registry: CollectorRegistry
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
        now = readiness()
        fine = path == "/healthz" or is_ready(now)
        start_response("200 OK" if fine else "503 Service Unavailable", [("Content-Type", "application/json")])
        body = {"leads": now.leads, "epoch": now.epoch, "last_pass_age_seconds": now.pass_age, "queued": now.queued}
        return [json.dumps(body).encode() + b"\n"]

    return app


@contextmanager
def serving_status(
    address: str | None, readiness: Callable[[], Readiness], registry: CollectorRegistry
) -> Iterator[int | None]:
    """Serve from a thread of its own while the context lasts; yields the port. Without an address, nothing."""
    if address is None:
        yield None
        return
    host, _, port = address.rpartition(":")
    with make_server(host, int(port), status_app(readiness, registry), handler_class=_Quiet) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield server.server_port
        finally:
            server.shutdown()
            thread.join()
