"""The chart installed for real: a release in a namespace of its own, with the trial's stores.

There may be no registry here, so PostgreSQL, Redis and the S3 server are an image of the test's own, with the same
programs from their wheels. Every object and every command is the chart's.
"""

import json
import os
import re
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import pytest
import yaml  # type: ignore[import-untyped]

from tests.browser.end_to_end.installation import COOKIE
from tests.docker_engine import CODEHUB_IMAGE, WORKSPACE_IMAGE
from tests.kubernetes.chart import CHART, RELEASE, helm_program
from tests.system.compose_site import STORES_IMAGE, build_stores

KUBECONFIG = os.environ.get("CODEHUB_TEST_KUBECONFIG", "")
POSTGRES_IMAGE = "codehub-test-postgres:latest"
SECONDS = 300.0
QUICK = {"COORDINATOR_ACTIVE_INTERVAL": 0.5, "COORDINATOR_IDLE_INTERVAL": 2}


def build_postgres() -> None:
    """The stores' image, run as PostgreSQL's own is: by its entrypoint."""
    build_stores()
    with tempfile.TemporaryDirectory() as name:
        Path(name, "Dockerfile").write_text(f'FROM {STORES_IMAGE}\nENTRYPOINT ["start-postgres"]\n')
        subprocess.run(["docker", "build", "--quiet", "--tag", POSTGRES_IMAGE, name], check=True, capture_output=True)


def trial_values() -> dict[str, Any]:
    def image(name: str) -> dict[str, str]:
        repository, _, tag = name.rpartition(":")
        return {"repository": repository, "tag": tag}

    store = {"enabled": True, "image": STORES_IMAGE, "runAsUser": 1000}
    return {
        "image": image(CODEHUB_IMAGE),
        "workspaceImage": image(WORKSPACE_IMAGE),
        "trial": {"postgresql": {**store, "image": POSTGRES_IMAGE}, "redis": store, "archives": store},
        "settings": {**QUICK, "CODEHUB_WORKSPACE_MEMORY_BYTES": 1 << 30, "CODEHUB_WORKSPACE_CPU": 1},
    }


@dataclass
class Release:
    namespace: str
    values: dict[str, Any] = field(default_factory=trial_values)

    def kubectl(self, *words: str, check: bool = True) -> str:
        command = ["kubectl", "--kubeconfig", KUBECONFIG, "--namespace", self.namespace, *words]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=SECONDS)
        assert not check or done.returncode == 0, done.stderr
        return done.stdout.strip()

    def get(self, *words: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.kubectl("get", *words, "--output=json"))
        return found

    def names(self, kind: str, selector: str = "") -> set[str]:
        return {one["metadata"]["name"] for one in self.get(kind, "--selector", selector)["items"]}

    def may(self, account: str, verb: str, resource: str, *where: str) -> bool:
        """Whether the cluster lets this account do that. After a slash is a part of the resource, not a name."""
        kind, _, part = resource.partition("/")
        what = (kind, f"--subresource={part}", f"--as=system:serviceaccount:{self.namespace}:codehub-{account}")
        return self.kubectl("auth", "can-i", verb, *what, *where, check=False) == "yes"

    def may_read_namespace(self, account: str, name: str) -> bool:
        who = f"--as=system:serviceaccount:{self.namespace}:codehub-{account}"
        return self.kubectl("auth", "can-i", "get", f"namespaces/{name}", who, check=False) == "yes"

    def helm(self, *words: str, check: bool = True, more: Mapping[str, Any] | None = None) -> str:
        with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
            yaml.safe_dump({**self.values, **(more or {})}, file)
            place = ("--kubeconfig", KUBECONFIG, "--namespace", self.namespace)
            values = ("--values", file.name) if words[0] in {"install", "upgrade"} else ()
            command = [helm_program(), *words, *place, *values]
            done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=2 * SECONDS)
        assert not check or done.returncode == 0, f"{done.stdout[-6000:]}\n{done.stderr}\n{self.told()}"
        return done.stdout

    def install(self) -> str:
        return self.helm("install", RELEASE, str(CHART), "--wait", f"--timeout={SECONDS:.0f}s")

    def upgrade(self, **more: Mapping[str, Any]) -> str:
        return self.helm("upgrade", RELEASE, str(CHART), "--wait", f"--timeout={SECONDS:.0f}s", more=more)

    def test(self) -> str:
        """What the doctor found, whatever it is."""
        return self.helm("test", RELEASE, "--logs", "--timeout=15m", check=False)

    def told(self) -> str:
        """What a person would look at first when it does not work."""
        pods = self.kubectl("get", "pods", "--output=wide", check=False)
        logs = [
            self.kubectl("logs", f"deployment/codehub-{part}", "--all-containers", "--tail=15", check=False)
            for part in ("coordinator", "api", "proxy")
        ]
        return "\n".join([pods, *logs])[-8000:]

    @property
    def address(self) -> str:
        """The front door's, as this machine reaches it: it is the cluster's node."""
        return f"http://{self.get('service', 'codehub-proxy')['spec']['clusterIP']}"

    def first_admin(self) -> str:
        said = self.kubectl("exec", "deployment/codehub-api", "--", "codehub", "admin", "first-admin")
        found = re.search(r"^Password: (\S+)$", said, re.MULTILINE)
        assert found, said
        return found[1]

    @contextmanager
    def admin(self, password: str) -> Iterator[httpx.Client]:
        """Signed in as a browser is: with the cookie, from the platform's own origin."""
        headers = {"Host": "localhost:8000", "Origin": "http://localhost:8000"}
        with httpx.Client(base_url=self.address, headers=headers, timeout=60, trust_env=False) as client:
            answer = client.post("/api/v1/session", json={"username": "admin", "password": password})
            assert answer.status_code == 201, answer.text
            client.headers["Cookie"] = f"{COOKIE}={answer.cookies[COOKIE]}"
            client.cookies.clear()
            yield client

    def opened(self, http: httpx.Client, workspace: str) -> int:
        """The status of the IDE's health page, come to as the dashboard does: by a ticket, at the workspace's host."""
        ticket = httpx.URL(http.post(f"/api/v1/workspaces/{workspace}/ticket", json={}).json()["url"])
        host = f"{ticket.host}:{ticket.port}"
        with httpx.Client(base_url=self.address, headers={"Host": host}, timeout=60, trust_env=False) as browser:
            entered = browser.get(ticket.raw_path.decode())
            cookies = [one.partition(";")[0] for one in entered.headers.get_list("set-cookie")]
            assert cookies, entered.text
            return browser.get("/healthz", headers={"Cookie": "; ".join(cookies)}).status_code


def becomes(http: httpx.Client, workspace: str, phase: str) -> None:
    """Waits until the workspace is at rest where it was wished."""

    def seen() -> bool:
        shown = http.get(f"/api/v1/workspaces/{workspace}").json()
        assert shown["phase"] != "ERROR", shown
        return bool((shown["phase"], shown["operation"], shown["desired_state"]) == (phase, "NONE", phase))

    until(seen, f"{workspace} is {phase}")


def until(there: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + SECONDS
    while not there():
        assert time.monotonic() < deadline, f"it does not come to that: {what}"
        time.sleep(0.5)


@contextmanager
def release() -> Iterator[Release]:
    if not KUBECONFIG:
        pytest.skip("no Kubernetes cluster: CODEHUB_TEST_KUBECONFIG names none")
    build_postgres()
    found = Release(f"codehub-install-{uuid4().hex[:8]}")
    found.kubectl("create", "namespace", found.namespace)
    try:
        yield found
    finally:
        found.kubectl("delete", "namespace", found.namespace, "--wait=false", check=False)
