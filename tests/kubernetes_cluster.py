"""A real Kubernetes cluster, for any test that asks; without one the test is skipped and says why.

CODEHUB_TEST_KUBECONFIG names it. It runs on this machine's Docker engine, so that it has our images and the test can
reach into its volumes and end its containers. Tests have one namespace per pytest process, and each an installation's
id of its own.
"""

import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from codehub.adapters.kubernetes import Access, Cluster, KubernetesSite
from codehub.domain.naming import INSTALL_LABEL
from codehub.ports.runtime import Resources
from tests.docker_engine import CODEHUB_IMAGE, FAKE_IDE_IMAGE, build_fake_ide
from tests.eventually import SECONDS

KUBECONFIG = os.environ.get("CODEHUB_TEST_KUBECONFIG", "")
FAKE_IDE = ("/usr/local/lib/codehub/bin/python", "/fakes/fake_ide.py", "8080")
_SHARE = Resources(cpu=1.0, memory_bytes=256 << 20, disk_bytes=64 << 20)


@cache
def why_not() -> str | None:
    """Why there are no tests on a cluster here."""
    if not KUBECONFIG:
        return "no Kubernetes cluster: CODEHUB_TEST_KUBECONFIG names none"
    if os.geteuid() != 0:
        return "looking into the cluster's volumes takes root"
    for program in ("kubectl", "docker"):
        if shutil.which(program) is None:
            return f"{program} is not there"
    answered = subprocess.run(
        ["kubectl", "--kubeconfig", KUBECONFIG, "get", "nodes"],
        capture_output=True,
        text=True,
        check=False,
        timeout=SECONDS,
    )
    return None if answered.returncode == 0 else f"the cluster of {KUBECONFIG} does not answer: {answered.stderr}"


@dataclass(frozen=True)
class KubernetesTestbed:
    """A namespace. `address`: of this machine, by which pods reach it. `site()`: another installation in it."""

    namespace: str
    address: str

    def site(self, **given: Any) -> KubernetesSite:
        common: dict[str, Any] = {
            "install_id": f"test-{uuid4().hex[:12]}",
            "workspace_image": FAKE_IDE_IMAGE,
            "share": _SHARE,
            "codehub_image": CODEHUB_IMAGE,
            "command": FAKE_IDE,
        }
        return KubernetesSite(**common | given)

    def access(self) -> Access:
        return Access(kubeconfig=KUBECONFIG, namespace=self.namespace)

    def cluster(self) -> Cluster:
        return Cluster(self.access())

    def kubectl(self, *words: str, given: str = "", check: bool = True) -> str:
        command = ["kubectl", "--kubeconfig", KUBECONFIG, "--namespace", self.namespace, *words]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=SECONDS, input=given)
        assert not check or done.returncode == 0, done.stderr
        return done.stdout

    def get(self, *words: str) -> Mapping[str, Any]:
        found: Mapping[str, Any] = json.loads(self.kubectl("get", *words, "-o", "json"))
        return found

    def mountpoint(self, volume: str) -> Path:
        """Where the claim's volume is on this machine, once it is bound."""
        deadline = time.monotonic() + SECONDS
        while not (bound := self.get("pvc", volume)["spec"].get("volumeName")):
            assert time.monotonic() < deadline, f"{volume} is not bound"
            time.sleep(0.1)
        place = Path(self.get("pv", bound)["spec"]["hostPath"]["path"])
        place.chmod(0o777)
        return place

    def kill_container(self, pod_uid: str, name: str = "workspace") -> None:
        """Ends the pod's container as a fault of its own would."""
        wanted = [f"label=io.kubernetes.pod.uid={pod_uid}", f"label=io.kubernetes.container.name={name}"]
        asked = ["docker", "ps", "--quiet", "--filter", wanted[0], "--filter", wanted[1]]
        found = subprocess.run(asked, capture_output=True, text=True, check=True).stdout.split()
        assert found
        subprocess.run(["docker", "kill", *found], capture_output=True, check=True)

    def sweep(self, install_id: str) -> None:
        """Removes everything of that installation, without waiting for it."""
        kinds = "jobs,pods,persistentvolumeclaims,secrets,networkpolicies"
        selector = f"{INSTALL_LABEL}={install_id}"
        self.kubectl("delete", kinds, "-l", selector, "--wait=false", "--grace-period=1", check=False)


@pytest.fixture(scope="session")
def kubernetes_testbed() -> Iterator[KubernetesTestbed]:
    reason = why_not()
    if reason is not None:
        pytest.skip(reason)
    build_fake_ide()
    testbed = KubernetesTestbed(f"codehub-test-{os.getpid()}", _address())
    testbed.kubectl("create", "namespace", testbed.namespace)
    yield testbed
    testbed.kubectl("delete", "namespace", testbed.namespace, "--wait=false", check=False)


def _address() -> str:
    """The address of this machine, which is the cluster's node, by which pods reach it."""
    path = "{.items[0].status.addresses[?(@.type=='InternalIP')].address}"
    asked = ["kubectl", "--kubeconfig", KUBECONFIG, "get", "nodes", "-o", f"jsonpath={path}"]
    return subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()
