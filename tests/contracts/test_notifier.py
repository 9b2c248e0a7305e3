"""Telling the admins is best effort: it reaches a webhook that is there, and never fails the teller."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from codehub.adapters.memory import MemoryNotifier
from codehub.adapters.notifiers import LogNotifier, WebhookNotifier
from codehub.domain.notices import Notice
from codehub.telemetry import Metrics


class Webhook(ThreadingHTTPServer):
    status = 200

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.bodies: list[object] = []
        self.paths: list[str] = []


class Handler(BaseHTTPRequestHandler):
    server: Webhook

    def do_POST(self) -> None:
        self.server.paths.append(self.path)
        self.server.bodies.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        self.send_response(self.server.status)
        self.send_header("Location", "/elsewhere")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the library's name
        pass


@pytest.fixture
def webhook() -> Iterator[Webhook]:
    with Webhook() as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def outcomes(metrics: Metrics) -> dict[str, float]:
    return {
        sample.labels["outcome"]: sample.value
        for family in metrics.registry.collect()
        for sample in family.samples
        if sample.name == "codehub_notifications_total"
    }


@pytest.mark.parametrize(("status", "outcome"), [(200, "sent"), (204, "sent"), (404, "refused"), (500, "refused")])
async def test_a_webhook_is_told(webhook: Webhook, status: int, outcome: str) -> None:
    webhook.status, metrics = status, Metrics()
    address = f"http://127.0.0.1:{webhook.server_port}/hook?token=secret"
    await WebhookNotifier(address, metrics).notify(
        Notice("workspace in ERROR", {"workspace": "w", "reason": "Timeout"})
    )
    assert webhook.bodies == [{"subject": "workspace in ERROR", "details": {"workspace": "w", "reason": "Timeout"}}]
    assert outcomes(metrics) == {outcome: 1}


async def test_a_redirect_is_not_followed(webhook: Webhook) -> None:
    webhook.status = 307
    await WebhookNotifier(f"http://127.0.0.1:{webhook.server_port}/hook", Metrics()).notify(Notice("x", {}))
    assert webhook.paths == ["/hook"]


async def test_a_webhook_that_is_not_there_fails_nobody() -> None:
    metrics = Metrics()
    await WebhookNotifier("http://127.0.0.1:1/", metrics).notify(Notice("x", {}))
    assert outcomes(metrics) == {"unreachable": 1}


async def test_the_others_never_raise_either() -> None:
    memory = MemoryNotifier()
    await memory.notify(Notice("x", {"event": "y"}))
    await LogNotifier().notify(Notice("x", {"workspace": "w"}))
    assert memory.notices == [("x", {"event": "y"})]
