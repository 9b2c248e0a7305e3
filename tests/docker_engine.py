"""A real Docker engine with our images, for any test that asks; without one the test is skipped and says why.

One isolated network per pytest process. An installation's id is each test's own, so tests do not see each
other's containers.
"""

import os
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from uuid import uuid4

import pytest
from aiodocker import DockerError

from codehub.adapters.docker import DockerRuntime, DockerSite, Engine
from codehub.adapters.docker.engine import CONFLICT
from codehub.adapters.docker.network_isolation import NetworkIsolation
from codehub.bootstrap.runtimes import engine_of
from codehub.domain.naming import INSTALL_LABEL
from codehub.settings import load_settings
from tests.eventually import SECONDS, eventually
from tests.real_services import ServiceLoop

ROOT = Path(__file__).resolve().parents[1]
CODEHUB_IMAGE = os.environ.get("CODEHUB_IMAGE", "codehub:latest")
WORKSPACE_IMAGE = os.environ.get("CODEHUB_WORKSPACE_IMAGE", "codehub-workspace:latest")
FAKE_IDE_IMAGE = f"codehub-test-fake-ide:{CODEHUB_IMAGE.rpartition(':')[2]}"
_DOCKERFILE = f"""\
FROM {CODEHUB_IMAGE}
COPY fake_ide.py slow_job.py /fakes/
USER 1000:1000
ENTRYPOINT ["/usr/local/lib/codehub/bin/python", "/fakes/fake_ide.py", "8080"]
CMD []
"""


@cache
def why_not() -> str | None:
    """Why there are no Docker tests here."""
    if not Path("/var/run/docker.sock").exists() and not os.environ.get("DOCKER_HOST"):
        return "no Docker engine answers"
    if os.geteuid() != 0:
        return "looking into the engine's volumes takes root"
    answered = subprocess.run(["docker", "version"], capture_output=True, check=False, timeout=SECONDS)
    if answered.returncode != 0:
        return "no Docker engine answers"
    images = [sys.executable, str(ROOT / "deploy/images/build.py"), "--check"]
    images += ["--codehub", CODEHUB_IMAGE, "--workspace", WORKSPACE_IMAGE]
    checked = subprocess.run(images, capture_output=True, text=True, check=False, timeout=SECONDS)
    return checked.stderr.strip() or None


@dataclass(frozen=True)
class DockerTestbed:
    """An isolated network. `site()`: another installation on it."""

    here: DockerSite

    def site(self, image: str = FAKE_IDE_IMAGE) -> DockerSite:
        return replace(self.here, install_id=f"test-{uuid4().hex[:12]}", workspace_image=image)

    def runtime(self, engine: Engine, site: DockerSite, grace_seconds: int = 1) -> DockerRuntime:
        standing = NetworkIsolation(engine, self.here, ours=False)
        return DockerRuntime(engine, site, isolation=standing, grace_seconds=grace_seconds)


@pytest.fixture(scope="session")
def docker_testbed(service_loop: ServiceLoop) -> Iterator[DockerTestbed]:
    reason = why_not()
    if reason is not None:
        pytest.skip(reason)
    build_fake_ide()
    name = f"codehub-test-{os.getpid()}"
    here = DockerSite(name, FAKE_IDE_IMAGE, CODEHUB_IMAGE, name)
    service_loop.run(_isolation(here, up=True))
    yield DockerTestbed(here)
    service_loop.run(_isolation(here, up=False))


@pytest.fixture
async def engine() -> AsyncIterator[Engine]:
    engine = engine_here()
    yield engine
    await engine.close()


def engine_here() -> Engine:
    """What the `docker` command would use."""
    return engine_of(load_settings(database_url="postgresql://unused", redis_url="redis://unused"))


async def sweep(engine: Engine, install_id: str) -> None:
    """Everything of that installation."""
    await eventually(lambda: _is_swept(engine, f"{INSTALL_LABEL}={install_id}"))


async def _is_swept(engine: Engine, label: str) -> bool:
    """False: look again. What was being made for a coordinator when it was killed appears after its end."""
    containers = await engine.containers([label])
    for container in containers:
        await engine.end(container["Id"])
    if containers:
        return False
    try:
        for volume in await engine.volumes([label]):
            await engine.delete_volume(volume["Name"])
    except DockerError as error:
        if error.status != CONFLICT:
            raise
        return False  # a container that has appeared just now uses it
    return True


async def _isolation(site: DockerSite, *, up: bool) -> None:
    engine = engine_here()
    try:
        isolation = NetworkIsolation(engine, site)
        await (isolation.stand() if up else isolation.take_down())
    finally:
        await engine.close()


def build_fake_ide() -> None:
    with tempfile.TemporaryDirectory() as name:
        for program in ("fake_ide.py", "slow_job.py"):
            Path(name, program).write_bytes((ROOT / "tests" / "contracts" / program).read_bytes())
        Path(name, "Dockerfile").write_text(_DOCKERFILE)
        subprocess.run(["docker", "build", "--quiet", "--tag", FAKE_IDE_IMAGE, name], check=True, capture_output=True)
