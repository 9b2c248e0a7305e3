"""A whole CodeHub on Kubernetes, as `codehub up` serves it to browsers, with its archives in a real S3 server."""

import os
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

from codehub.domain.naming import WORKSPACE_LABEL
from tests.browser.end_to_end.installation import QUICK, Person
from tests.contracts import s3
from tests.docker_engine import CODEHUB_IMAGE, WORKSPACE_IMAGE
from tests.kubernetes_cluster import KUBECONFIG, KubernetesTestbed
from tests.real_services import free_port
from tests.system.docker_installation import TTL, DockerInstallation, DockerWorkspace, prepared
from tests.system.local_instance import temporary_data_dir, up


@dataclass(frozen=True)
class KubernetesWorkspace(DockerWorkspace):
    """Its home is a claim, its container a pod's."""

    testbed: KubernetesTestbed

    @property
    def volume(self) -> str:
        return self._names("pvc")

    @property
    def home(self) -> Path:
        return self.testbed.mountpoint(self.volume)

    def containers(self) -> str:
        return self._names("pods")

    def inside(self, script: str) -> str:
        words = ("exec", self.containers(), "-c", "workspace", "--", "sh", "-c", script)
        return self.testbed.kubectl(*words).strip()

    def kill(self) -> None:
        self.testbed.kill_container(self.testbed.get("pod", self.containers())["metadata"]["uid"])

    def _names(self, kind: str) -> str:
        found = self.testbed.get(kind, "-l", f"{WORKSPACE_LABEL}={self.id}")["items"]
        return " ".join(one["metadata"]["name"] for one in found)


@dataclass
class KubernetesInstallation(DockerInstallation):
    testbed: KubernetesTestbed | None = None

    async def desk(self, person: Person, name: str) -> KubernetesWorkspace:
        answer = person.http.post("/api/v1/workspaces", json={"name": name, "desired_state": "RUNNING"})
        assert answer.status_code == 201, answer.text
        assert self.testbed is not None
        made = answer.json()
        desk = KubernetesWorkspace(person.http, self.data, made["id"], name, made["url"], self.store, self.testbed)
        await prepared(desk)
        return desk


@asynccontextmanager
async def kubernetes_installation(testbed: KubernetesTestbed, store: Path) -> AsyncIterator[KubernetesInstallation]:
    install, port = f"test-{uuid4().hex[:12]}", free_port()
    with temporary_data_dir() as directory, s3.rclone(store, testbed.address) as endpoint:
        (directory / "home").mkdir()
        environment = {
            "HOME": str(directory / "home"),
            "PATH": os.environ["PATH"],
            "KUBECONFIG": KUBECONFIG,
            "CODEHUB_RUNTIME": "kubernetes",
            "CODEHUB_KUBERNETES_NAMESPACE": testbed.namespace,
            "CODEHUB_INSTALL_ID": install,
            "CODEHUB_IMAGE": CODEHUB_IMAGE,
            "CODEHUB_WORKSPACE_IMAGE": WORKSPACE_IMAGE,
            "CODEHUB_ARCHIVE_URL": f"s3://{s3.BUCKET}",
            "CODEHUB_S3_ENDPOINT": endpoint,
            "AWS_ACCESS_KEY_ID": s3.KEY_ID,
            "AWS_SECRET_ACCESS_KEY": s3.SECRET,
            "TTL_STANDBY_SECONDS": str(TTL),
            "TTL_ARCHIVE_SECONDS": str(TTL),
            **QUICK,
        }
        try:
            with up(directory / "data", port, environment) as running, ExitStack() as clients:
                data = directory / "data"
                yield KubernetesInstallation(port, data, running, clients, environment, store=store, testbed=testbed)
        finally:
            testbed.sweep(install)
