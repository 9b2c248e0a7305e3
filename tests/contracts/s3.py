"""A real S3 server (`rclone serve s3`), and one that answers what a test wants: no real one fails on order."""

import os
import socket
import subprocess
import sysconfig
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Event, Thread
from typing import NamedTuple

import pytest

from tests.real_services import free_port

KEY_ID, SECRET = "codehub-test-key-id", "codehub-test-secret-of-a-realistic-length"
BUCKET = "homes"


@contextmanager
def credentials(endpoint: str) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith("AWS_") or name.upper().endswith("_PROXY")]:
            patch.delenv(name)
        patch.setenv("AWS_ACCESS_KEY_ID", KEY_ID)
        patch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
        patch.setenv("CODEHUB_S3_ENDPOINT", endpoint)
        yield


@contextmanager
def rclone(directory: Path, host: str = "127.0.0.1") -> Iterator[str]:
    """Yields the endpoint; each folder of the directory is a bucket."""
    program = Path(sysconfig.get_path("scripts"), "rclone")
    (directory / BUCKET).mkdir(parents=True)
    port = free_port()
    command = [str(program), "serve", "s3", "--addr", f"{host}:{port}", "--auth-key", f"{KEY_ID},{SECRET}"]
    environment = {"PATH": os.defpath, "HOME": str(directory.parent), "RCLONE_CONFIG": os.devnull}
    with subprocess.Popen(
        [*command, str(directory)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment
    ) as server:
        try:
            _until_it_listens(host, port)
            yield f"http://{host}:{port}"
        finally:
            server.kill()  # it keeps nothing, and asked gently it waits for idle connections


def _until_it_listens(host: str, port: int) -> None:
    deadline = time.monotonic() + 30
    while True:
        try:
            socket.create_connection((host, port)).close()
        except ConnectionRefusedError:
            assert time.monotonic() < deadline, "the S3 server did not start"
            time.sleep(0.02)
        else:
            return


class Answer(NamedTuple):
    status: int
    body: bytes = b""
    headers: tuple[tuple[str, str], ...] = ()


class ScriptedStore:
    """Answers by (method, what the path ends with); `silent` swallows every question until the end."""

    def __init__(self) -> None:
        self.answers: dict[tuple[str, str], Answer] = {}
        self.otherwise = Answer(404)
        self.silent = False
        self.over = Event()

    def answer(self, method: str, path: str) -> Answer | None:
        if self.silent:
            self.over.wait(30)
            return None
        fitting = [a for (m, end), a in self.answers.items() if m == method and path.partition("?")[0].endswith(end)]
        return fitting[0] if fitting else self.otherwise


@contextmanager
def scripted() -> Iterator[tuple[str, ScriptedStore]]:
    store = ScriptedStore()

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

        def respond(self) -> None:
            answer = store.answer(self.command, self.path)
            if answer is None:
                return
            self.send_response(answer.status)
            headers = dict(answer.headers)
            headers.setdefault("Content-Length", str(len(answer.body)))
            headers.setdefault("Last-Modified", "Thu, 01 Jan 2026 00:00:00 GMT")
            headers.setdefault("ETag", '"0"')
            for name, value in headers.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(answer.body)

        do_GET = do_HEAD = do_PUT = do_DELETE = respond  # noqa: N815 - http.server's names

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", store
    finally:
        store.over.set()
        server.shutdown()
        thread.join()
        server.server_close()
