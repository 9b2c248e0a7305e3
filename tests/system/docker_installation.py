"""A whole CodeHub on Docker, as `codehub up` serves it to browsers, with its archives in a real S3 server."""

import json
import os
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from uuid import uuid4

import asyncpg

from codehub.adapters.docker import DockerSite
from codehub.adapters.docker.network_isolation import NetworkIsolation
from codehub.domain.naming import WORKSPACE_LABEL
from codehub.job.compress import decompressed
from tests.browser.end_to_end.installation import QUICK, Installation, Person, Workspace
from tests.contracts import s3
from tests.docker_engine import CODEHUB_IMAGE, WORKSPACE_IMAGE, engine_here, sweep
from tests.job.trees import Snapshot, snapshot
from tests.proxy.recording.workbench import SETTINGS, SETTINGS_FILE
from tests.real_services import free_port
from tests.system.local_instance import temporary_data_dir, up

TTL = 62
"""Seconds: the least that these intervals allow."""
_IDES_OWN = (b".local", b".config", b".cache")
_KEEP = ("--same-permissions", "--numeric-owner", "--xattrs", "--xattrs-include=*", "--delay-directory-restore")


@dataclass(frozen=True)
class DockerWorkspace(Workspace):
    """Its home is a volume of the engine's."""

    store: Path

    @property
    def volume(self) -> str:
        return docker("volume", "ls", "--quiet", "--filter", f"label={WORKSPACE_LABEL}={self.id}")

    @property
    def home(self) -> Path:
        return Path(docker("volume", "inspect", "--format", "{{.Mountpoint}}", self.volume))

    def containers(self) -> str:
        return docker("ps", "--all", "--quiet", "--filter", f"label={WORKSPACE_LABEL}={self.id}")

    def inside(self, script: str) -> str:
        return docker("exec", self.containers(), "sh", "-c", script)

    def kill(self) -> None:
        docker("kill", self.containers())

    @contextmanager
    def paused(self) -> Iterator[None]:
        container = self.containers()
        docker("pause", container)
        try:
            yield
        finally:
            docker("unpause", container)

    def in_archive(self, place: Path) -> Snapshot:
        """What ordinary tools find in the object, unpacked there."""
        packed = self.store / s3.BUCKET / str(self.shown()["archive_key"])
        plain, tree = place / "home.tar", place / "home"
        tree.mkdir(parents=True)
        plain.write_bytes(b"".join(decompressed([packed.read_bytes()])))
        subprocess.run(["tar", "-C", tree, *_KEEP, "-xf", plain], check=True, capture_output=True)
        return snapshot(tree)

    async def time_passes(self, seconds: int, *moments: str) -> None:
        """Only the database keeps it."""
        running = json.loads((self.data / "running.json").read_text())
        connection = await asyncpg.connect(running["database_url"])
        try:
            moved = ", ".join(f"{name} = {name} - make_interval(secs => $2)" for name in moments)
            await connection.execute(f"UPDATE workspaces SET {moved} WHERE id = $1", self.id, float(seconds))
        finally:
            await connection.close()


@dataclass
class DockerInstallation(Installation):
    store: Path = Path()

    async def desk(self, person: Person, name: str) -> DockerWorkspace:
        return await new_desk(person, name, self.data, self.store)


async def new_desk(person: Person, name: str, data: Path, store: Path = Path()) -> DockerWorkspace:
    answer = person.http.post("/api/v1/workspaces", json={"name": name, "desired_state": "RUNNING"})
    assert answer.status_code == 201, answer.text
    made = DockerWorkspace(person.http, data, answer.json()["id"], name, answer.json()["url"], store)
    await prepared(made)
    return made


async def prepared(made: DockerWorkspace) -> None:
    """Waits until it runs, and gives it a prompt that can be waited for and no history that ends with its shell."""
    await made.becomes("RUNNING")
    folder = SETTINGS_FILE.rpartition("/")[0]
    made.inside(f"mkdir -p {folder} && printf %s '{json.dumps(SETTINGS)}' > {SETTINGS_FILE}")
    made.inside("printf 'PS1=\"$ \"\\nunset HISTFILE\\n' > .bashrc")


@asynccontextmanager
async def docker_installation(store: Path) -> AsyncIterator[DockerInstallation]:
    install, port = f"test-{uuid4().hex[:12]}", free_port()
    with temporary_data_dir() as directory, s3.rclone(store) as endpoint:
        (directory / "home").mkdir()
        environment = {
            "HOME": str(directory / "home"),
            "PATH": os.environ["PATH"],
            "CODEHUB_RUNTIME": "docker",
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
                yield DockerInstallation(port, directory / "data", running, clients, environment, store=store)
        finally:
            await _cleared(install)


async def _cleared(install: str) -> None:
    engine = engine_here()
    try:
        await sweep(engine, install)
        await NetworkIsolation(
            engine, DockerSite(install, WORKSPACE_IMAGE, CODEHUB_IMAGE, f"codehub-{install[:12]}")
        ).take_down()
    finally:
        await engine.close()


def docker(*words: str) -> str:
    done = subprocess.run(["docker", *words], capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def of_people(tree: Snapshot) -> Snapshot:
    """Without what the IDE writes for itself while it runs, and the home's own time, which that changes."""
    return {path: seen for path, seen in tree.items() if path and path.split(b"/")[0] not in _IDES_OWN}


def digest(tree: Snapshot) -> str:
    """Of all but how much disk it takes."""
    lines = [repr((path, replace(tree[path], blocks=0))) for path in sorted(tree)]
    return sha256("\n".join(lines).encode()).hexdigest()
