"""A real coordinator over a real Docker engine; and an engine of a test's own, to be restarted, paused and filled up.

That engine lives in a network namespace of its own and on a small disk of its own, so that whatever is done to it,
other tests' containers do not notice.
"""

import asyncio
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import psutil

from codehub.adapters.docker import DockerRuntime
from codehub.bootstrap.services import open_services
from codehub.domain.naming import container_name
from codehub.settings import Settings, load_settings
from tests.docker_engine import CODEHUB_IMAGE, FAKE_IDE_IMAGE, WORKSPACE_IMAGE, sweep
from tests.system.deployment import Deployment

ENGINE_BYTES = 900 << 20


@dataclass
class DockerDeployment(Deployment):
    given: dict[str, str] = field(default_factory=dict)
    prefix: Sequence[str] = ()

    @property
    def runtime(self) -> DockerRuntime:
        assert isinstance(self.services.runtime, DockerRuntime)
        return self.services.runtime

    def command(self) -> list[str]:
        return [*self.prefix, *super().command()]

    def environment(self, database_url: str) -> dict[str, str]:
        unused = {"CODEHUB_IDE_COMMAND"}
        inherited = {name: value for name, value in super().environment(database_url).items() if name not in unused}
        return inherited | self.given

    def docker(self, *words: str) -> str:
        """As an operator would."""
        host = self.given.get("DOCKER_HOST")
        environ = {**os.environ, **({"DOCKER_HOST": host} if host else {})}
        done = subprocess.run(["docker", *words], capture_output=True, text=True, check=False, env=environ, timeout=120)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def inside(self, key: UUID, script: str) -> str:
        """In the workspace's terminal, as its user."""
        return self.docker("exec", container_name(key), "sh", "-c", script)

    async def home(self, key: UUID) -> Path:
        name = (await self.row(key)).home_store_key
        assert name is not None
        return Path(self.docker("volume", "inspect", "--format", "{{.Mountpoint}}", name))

    async def instance(self, key: UUID) -> str:
        return (await self.runtime.containers([key]))[key].instance

    async def close(self) -> None:
        for coordinator in self.coordinators:
            if coordinator.process.poll() is None:
                coordinator.process.kill()
                coordinator.process.wait()
        await sweep(self.runtime.engine, self.runtime.site.install_id)
        await self.runtime.isolation.take_down()


@asynccontextmanager
async def docker_deployed(
    database_url: str,
    redis_url: str,
    *,
    archive_url: str | None = None,
    engine: "OwnEngine | None" = None,
    workspace_image: str = WORKSPACE_IMAGE,
    kind: type[DockerDeployment] = DockerDeployment,
) -> AsyncIterator[DockerDeployment]:
    """On a database that is migrated. Nobody coordinates yet. An engine of its own has the fake IDE for an image."""
    install = f"test-{uuid4().hex[:12]}"
    given = {
        "CODEHUB_RUNTIME": "docker",
        "CODEHUB_INSTALL_ID": install,
        "CODEHUB_IMAGE": FAKE_IDE_IMAGE if engine else CODEHUB_IMAGE,
        "CODEHUB_WORKSPACE_IMAGE": FAKE_IDE_IMAGE if engine else workspace_image,
        "CODEHUB_WORKSPACE_MEMORY_BYTES": str(1 << 30),
        **({"DOCKER_HOST": engine.host} if engine else {}),
    }
    with tempfile.TemporaryDirectory(prefix="codehub-test-") as name:
        directory = Path(name)
        for part in ("bin", "gates"):
            (directory / part).mkdir()
        settings = _settings(given, database_url, redis_url, directory, archive_url)
        async with open_services(settings) as services:
            prefix = engine.enter if engine else ()
            site = kind(directory, services, database_url, redis_url, given=given, prefix=prefix)
            try:
                yield site
            except BaseException:
                for coordinator in site.coordinators:
                    print(coordinator.log_tail())
                raise
            finally:
                await site.close()


def _settings(
    given: dict[str, str], database_url: str, redis_url: str, directory: Path, archive_url: str | None
) -> Settings:
    return load_settings(
        database_url=database_url,
        redis_url=redis_url,
        data_dir=directory,
        archive_url=archive_url,
        max_running_per_user=100,
        **given,
    )


class OwnEngine:
    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._dockerd: subprocess.Popen[bytes] | None = None
        # Somebody who stays, to hold the namespace while the engine is away.
        self._holder = subprocess.Popen(["unshare", "--net", "sleep", "3600"])
        self.host = f"unix://{directory / 'docker.sock'}"

    @property
    def enter(self) -> list[str]:
        return ["nsenter", f"--net=/proc/{self._holder.pid}/ns/net", "--"]

    def start(self) -> None:
        place = self._directory
        subprocess.run([*self.enter, "ip", "link", "set", "lo", "up"], check=True)
        with (place / "dockerd.log").open("ab") as log:
            self._dockerd = subprocess.Popen(
                [
                    *self.enter,
                    *("dockerd", "--host", self.host, "--bridge", "none", "--userland-proxy=false"),
                    *("--data-root", str(place / "data"), "--exec-root", str(place / "exec")),
                    *("--pidfile", str(place / "dockerd.pid")),
                ],
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._until_it_answers()

    def load(self, image: str) -> None:
        """Copy an image from the machine's engine, by way of a container's file system: as one layer."""
        described = subprocess.run(["docker", "image", "inspect", image], check=True, capture_output=True)
        changes = [f"--change={line}" for line in _dockerfile_lines(json.loads(described.stdout)[0]["Config"])]
        created = subprocess.run(["docker", "create", image], check=True, capture_output=True, text=True)
        container = created.stdout.strip()
        try:
            with subprocess.Popen(["docker", "export", container], stdout=subprocess.PIPE) as exported:
                subprocess.run(
                    ["docker", "--host", self.host, "import", *changes, "-", image],
                    stdin=exported.stdout,
                    check=True,
                    stdout=subprocess.DEVNULL,
                )
            assert exported.returncode == 0
        finally:
            subprocess.run(["docker", "rm", container], check=True, stdout=subprocess.DEVNULL)

    def stop(self) -> None:
        if self._dockerd is not None:
            self._dockerd.terminate()
            self._dockerd.wait(60)
            self._dockerd = None

    def restart(self) -> None:
        self.stop()
        self.start()

    @contextmanager
    def paused(self) -> Iterator[None]:
        assert self._dockerd is not None
        daemon = psutil.Process(self._dockerd.pid)
        daemon.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            daemon.send_signal(signal.SIGCONT)

    def close(self) -> None:
        self.stop()
        self._holder.kill()
        self._holder.wait()

    def _until_it_answers(self) -> None:
        deadline = time.monotonic() + 60
        while subprocess.run(["docker", "--host", self.host, "version"], capture_output=True, check=False).returncode:
            assert time.monotonic() < deadline, (self._directory / "dockerd.log").read_text()[-3000:]
            time.sleep(0.1)


@contextmanager
def own_engine() -> Iterator[OwnEngine]:
    """With the fake IDE's image; all it keeps is on a file system of ENGINE_BYTES."""
    with tempfile.TemporaryDirectory(prefix="codehub-engine-") as kept, tempfile.TemporaryDirectory() as name:
        disk = Path(kept, "disk")
        with disk.open("wb") as file:
            file.truncate(ENGINE_BYTES)
        subprocess.run(["mkfs.ext4", "-q", str(disk)], check=True)
        subprocess.run(["mount", "-o", "loop", str(disk), name], check=True)
        engine = OwnEngine(Path(name))
        try:
            engine.start()
            engine.load(FAKE_IDE_IMAGE)
            yield engine
        finally:
            engine.close()
            for mount in _mounts_below(name):
                subprocess.run(["umount", "--lazy", mount], check=False)


def _dockerfile_lines(config: dict[str, Any]) -> list[str]:
    """The lines that give an imported file system the settings of the image it comes from."""
    lines = [f"USER {config['User']}", f"WORKDIR {config['WorkingDir']}"]
    lines += [f"ENV {name}={json.dumps(value)}" for name, _, value in (each.partition("=") for each in config["Env"])]
    lines += [f"LABEL {name}={json.dumps(value)}" for name, value in config["Labels"].items()]
    return [*lines, f"ENTRYPOINT {json.dumps(config['Entrypoint'])}"]


def _mounts_below(place: str) -> list[str]:
    lines = Path("/proc/self/mounts").read_text().splitlines()
    return sorted((line.split()[1] for line in lines if line.split()[1].startswith(place)), reverse=True)


async def seconds_until(check: object, timeout: float = 60.0) -> float:
    """How long until it is so, looked at as often as can be."""
    assert callable(check)
    began = time.monotonic()
    async with asyncio.timeout(timeout):
        while not await check():
            await asyncio.sleep(0.02)
    return time.monotonic() - began


def has_tools() -> bool:
    return all(shutil.which(tool) for tool in ("dockerd", "unshare", "nsenter", "ip", "mkfs.ext4"))
