"""A line that is slow but never still carries an archive all the same."""

import os
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from codehub.job.store import TIMEOUTS, open_store

PIECE = 1 << 16


class SlowServer(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), SlowHandler)
        self.stored: dict[str, bytes] = {}


class SlowHandler(BaseHTTPRequestHandler):
    """As much of S3 as one upload of one part needs, at a few megabytes a second."""

    server: SlowServer
    protocol_version = "HTTP/1.1"

    def do_PUT(self) -> None:
        missing, pieces = int(self.headers["Content-Length"]), []
        while missing and (piece := self.rfile.read(min(PIECE, missing))):
            pieces.append(piece)
            missing -= len(piece)
            time.sleep(0.02)
        if not missing:
            self.server.stored[self.path] = b"".join(pieces)
            self.send_response(200)
            self.send_header("ETag", '"1"')
            self.send_header("Content-Length", "0")
            self.end_headers()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Nothing on stderr."""


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> Iterator[SlowServer]:
    server = SlowServer()
    monkeypatch.setenv("CODEHUB_S3_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "x")
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.system
def test_a_part_may_take_longer_than_an_answer(slow: SlowServer) -> None:
    content = os.urandom(4 << 20)
    timeouts = replace(TIMEOUTS, silence=timedelta(seconds=0.4), retries=0)
    with open_store("s3://homes", "a/home.tar.zst", timeouts).writer(len(content)) as writer:
        writer.write(content)
    assert list(slow.stored.values()) == [content]
