"""An API server that only lets itself be looked at, for helm's `lookup`: what a chart renders may depend on what is
there already, and that needs no cluster to be tried."""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import yaml  # type: ignore[import-untyped]

Manifest = dict[str, Any]
PLURALS = {"Namespace": "namespaces", "Secret": "secrets", "ServiceAccount": "serviceaccounts"}


def path_of(manifest: Manifest) -> str:
    told = manifest["metadata"]
    place = f"namespaces/{told['namespace']}/" if "namespace" in told else ""
    return f"/api/v1/{place}{PLURALS[manifest['kind']]}/{told['name']}"


def resources() -> Manifest:
    kinds = [
        {"name": plural, "singularName": "", "namespaced": kind != "Namespace", "kind": kind, "verbs": ["get"]}
        for kind, plural in PLURALS.items()
    ]
    return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": "v1", "resources": kinds}


@contextmanager
def api_server(objects: Sequence[Manifest], place: Path) -> Iterator[tuple[str, ...]]:
    """Serves these objects; yields the words by which helm asks there."""
    answers = {"/api/v1": resources(), **{path_of(one): {"apiVersion": "v1", **one} for one in objects}}

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found = answers.get(self.path.partition("?")[0])
            missing = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "NotFound", "code": 404}
            body = json.dumps(found or missing).encode()
            self.send_response(200 if found else 404)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class names it so
            """Says nothing: a test's output is its own."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever)
    thread.start()
    try:
        yield ("--dry-run=server", "--kubeconfig", str(write_kubeconfig(place, server.server_port)))
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def write_kubeconfig(place: Path, port: int) -> Path:
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "test",
        "clusters": [{"name": "test", "cluster": {"server": f"http://127.0.0.1:{port}"}}],
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
        "users": [{"name": "test", "user": {}}],
    }
    path = place / "kubeconfig"
    path.write_text(yaml.safe_dump(config))
    return path
