"""A real coordinator over a real Kubernetes cluster, with a bucket that its pods reach."""

import json
import os
import signal
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest

from codehub.adapters.kubernetes import KubernetesRuntime
from codehub.bootstrap.services import open_services
from codehub.domain.naming import container_name
from codehub.settings import load_settings
from tests.contracts.s3 import BUCKET, credentials, rclone
from tests.docker_engine import CODEHUB_IMAGE, WORKSPACE_IMAGE
from tests.kubernetes_cluster import KUBECONFIG, KubernetesTestbed
from tests.system.deployment import Deployment

CLUSTER = Path(KUBECONFIG).parent
"""Where the cluster keeps the process numbers of its parts, if it runs on this machine."""


def part(name: str) -> int:
    """The process number of a part of the cluster."""
    file = CLUSTER / f"{name}.pid"
    if not file.is_file():
        pytest.skip(f"the cluster's {name} is no process of this machine's that we know of")
    return int(file.read_text())


@contextmanager
def standing_still(name: str) -> Iterator[None]:
    """A part of the cluster does nothing meanwhile."""
    number = part(name)
    os.kill(number, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(number, signal.SIGCONT)


@contextmanager
def killed(name: str) -> Iterator[None]:
    """A part of the cluster is killed, and started again with the same words afterwards."""
    number = part(name)
    words = Path(f"/proc/{number}/cmdline").read_bytes().decode().rstrip("\0").split("\0")
    os.kill(number, signal.SIGKILL)
    try:
        yield
    finally:
        with (CLUSTER / "log" / f"{name}.log").open("a") as log:
            outputs = [(os.POSIX_SPAWN_DUP2, log.fileno(), number) for number in (1, 2)]
            pid = os.posix_spawn(words[0], words, os.environ, file_actions=outputs, setsid=True)
        (CLUSTER / f"{name}.pid").write_text(str(pid))


@dataclass
class KubernetesDeployment(Deployment):
    testbed: KubernetesTestbed = field(kw_only=True)
    given: dict[str, str] = field(default_factory=dict)

    @property
    def runtime(self) -> KubernetesRuntime:
        assert isinstance(self.services.runtime, KubernetesRuntime)
        return self.services.runtime

    def environment(self, database_url: str) -> dict[str, str]:
        unused = {"CODEHUB_IDE_COMMAND"}
        inherited = {name: value for name, value in super().environment(database_url).items() if name not in unused}
        return inherited | self.given

    async def home(self, key: UUID) -> Path:
        name = (await self.row(key)).home_store_key
        assert name is not None
        return self.testbed.mountpoint(name)

    def inside(self, key: UUID, script: str) -> str:
        """In the workspace's terminal, as its user."""
        return self.testbed.kubectl("exec", container_name(key), "-c", "workspace", "--", "sh", "-c", script).strip()

    def pods(self, key: UUID) -> list[dict[str, Any]]:
        """Every pod that has to do with the workspace, jobs' too."""
        found: list[dict[str, Any]] = self.testbed.get("pods", "-l", f"codehub.workspace={key}")["items"]
        return found

    def evict(self, key: UUID) -> None:
        """As `kubectl drain` does it with a pod."""
        name, namespace = container_name(key), self.testbed.namespace
        wish = {
            "apiVersion": "policy/v1beta1",
            "kind": "Eviction",
            "metadata": {"name": name, "namespace": namespace},
        }
        path = f"/api/v1/namespaces/{namespace}/pods/{name}/eviction"
        self.testbed.kubectl("create", "--raw", path, "-f", "-", given=json.dumps(wish))

    @contextmanager
    def cordoned(self) -> Iterator[None]:
        """No node takes new pods meanwhile."""
        nodes = [one["metadata"]["name"] for one in self.testbed.get("nodes")["items"]]
        self.testbed.kubectl("cordon", *nodes)
        try:
            yield
        finally:
            self.testbed.kubectl("uncordon", *nodes)

    async def close(self) -> None:
        for coordinator in self.coordinators:
            if coordinator.process.poll() is None:
                coordinator.process.kill()
                coordinator.process.wait()
        self.testbed.sweep(self.runtime.site.install_id)


@asynccontextmanager
async def kubernetes_deployed(
    testbed: KubernetesTestbed, database_url: str, redis_url: str, **more: str
) -> AsyncIterator[KubernetesDeployment]:
    """On a database that is migrated. Nobody coordinates yet."""
    with (
        tempfile.TemporaryDirectory(prefix="codehub-test-") as name,
        rclone(Path(name) / "buckets", testbed.address) as endpoint,
        credentials(endpoint),
        pytest.MonkeyPatch.context() as ours,
    ):
        directory = Path(name)
        for place in ("bin", "gates"):
            (directory / place).mkdir()
        given = {
            "CODEHUB_RUNTIME": "kubernetes",
            "CODEHUB_INSTALL_ID": f"test-{uuid4().hex[:12]}",
            "CODEHUB_IMAGE": CODEHUB_IMAGE,
            "CODEHUB_WORKSPACE_IMAGE": WORKSPACE_IMAGE,
            "CODEHUB_WORKSPACE_MEMORY_BYTES": str(1 << 30),
            "CODEHUB_WORKSPACE_CPU": "0.2",
            "CODEHUB_KUBERNETES_NAMESPACE": testbed.namespace,
            "CODEHUB_KUBERNETES_DISK_BYTES": str(64 << 20),
            **more,
        }
        ours.setenv("KUBECONFIG", KUBECONFIG)
        common = {"database_url": database_url, "redis_url": redis_url, "data_dir": directory}
        settings = load_settings(**common, archive_url=f"s3://{BUCKET}", max_running_per_user=100, **given)
        async with open_services(settings) as services:
            given["KUBECONFIG"] = KUBECONFIG
            site = KubernetesDeployment(directory, services, database_url, redis_url, testbed=testbed, given=given)
            try:
                yield site
            except BaseException:
                for coordinator in site.coordinators:
                    print(coordinator.log_tail())
                print(testbed.kubectl("get", "pods,pvc,events", check=False)[-4000:])
                raise
            finally:
                await site.close()
