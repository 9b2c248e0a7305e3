"""A whole installation for one test: real coordinator processes, a real PostgreSQL and Redis, processes as containers.

Whatever was started ends with the test. Wishes are made as the API makes them, by the use cases.
"""

import asyncio
import json
import os
import secrets
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from uuid import UUID, uuid4

import psutil

from codehub.adapters.process import ProcessJobs
from codehub.adapters.process.table import holder
from codehub.bootstrap.runtimes import archive_url
from codehub.bootstrap.services import Services, open_services
from codehub.domain.workspace import Desired, Operation, Phase, Workspace
from codehub.ports.stores import Actor
from codehub.settings import load_settings
from codehub.usecases.workspace_commands import CreateWorkspace, WorkspaceCommands
from tests.eventually import eventually
from tests.job.trees import Snapshot, snapshot
from tests.system import controlled_ide, write_log

CODEHUB = Path(sys.executable).with_name("codehub")
ANN = Actor("ann")
TIMEOUT_SECONDS = 150.0


@dataclass
class Coordinator:
    name: str
    process: subprocess.Popen[bytes]
    log: Path

    @property
    def holder(self) -> str:
        return f"{socket.gethostname()}:{self.process.pid}"

    def send(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def end(self, number: signal.Signals = signal.SIGKILL) -> int:
        self.process.send_signal(number)
        return self.process.wait(TIMEOUT_SECONDS)

    def said(self, event: str, **fields: object) -> list[dict[str, Any]]:
        return [
            line
            for line in self._lines()
            if line.get("event") == event and all(line.get(key) == value for key, value in fields.items())
        ]

    def _lines(self) -> Iterator[dict[str, Any]]:
        for text in self.log.read_text().splitlines():
            if text.startswith("{") and text.endswith("}"):
                yield json.loads(text)

    def log_tail(self) -> str:
        return f"── {self.name} ──\n" + "\n".join(self.log.read_text().splitlines()[-60:])


@dataclass
class Deployment:
    directory: Path
    services: Services
    database_url: str
    redis_url: str
    coordinators: list[Coordinator] = field(default_factory=list)

    # ── coordinators ─────────────────────────────────────────────────────────────────────────────────────────────────

    def start(self, name: str = "alpha", *, database_url: str | None = None, **more: str) -> Coordinator:
        url = urlsplit(database_url or self.database_url)
        own = url._replace(netloc=f"{name}:{url.password}@{url.netloc.rpartition('@')[2]}").geturl()
        number = sum(known.name == name for known in self.coordinators)
        log = self.directory / f"{name}-{number}.log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                self.command(),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=self.directory,
                env=self.environment(own) | more,
            )
        started = Coordinator(name, process, log)
        self.coordinators.append(started)
        return started

    def command(self) -> list[str]:
        return [str(CODEHUB), "coordinator"]

    async def start_two(self) -> tuple[Coordinator, Coordinator]:
        """(the leader, the one that stands by)"""
        two = self.start("alpha"), self.start("beta")
        leader = await self.leader()
        standby = next(one for one in two if one is not leader)
        await eventually(lambda: self.campaigns(standby), TIMEOUT_SECONDS)
        return leader, standby

    async def leader(self) -> Coordinator:
        found: list[Coordinator] = []

        async def somebody_leads() -> bool:
            leader = await self.services.leader()
            found[:] = [one for one in self.coordinators if leader and one.holder == leader.holder]
            return bool(found) and found[0].process.poll() is None

        await eventually(somebody_leads, TIMEOUT_SECONDS)
        return found[0]

    async def leads(self, coordinator: Coordinator) -> None:
        async def it_does() -> bool:
            leader = await self.services.leader()
            return leader is not None and leader.holder == coordinator.holder

        await eventually(it_does, TIMEOUT_SECONDS)

    async def campaigns(self, coordinator: Coordinator) -> bool:
        async with write_log.connected(self.database_url) as connection:
            name = f"codehub leadership {coordinator.holder}"[:63]
            sessions = "SELECT count(*) FROM pg_stat_activity WHERE application_name = $1 AND usename = $2"
            return bool(await connection.fetchval(sessions, name, coordinator.name))

    async def stands_by(self, coordinator: Coordinator) -> None:
        await eventually(lambda: self.campaigns(coordinator), TIMEOUT_SECONDS)

    def environment(self, database_url: str) -> dict[str, str]:
        return {
            # A sandbox would hide our interpreter; one that does not work is not used.
            "PATH": f"{self.directory / 'bin'}:{os.environ['PATH']}",
            "CODEHUB_DATABASE_URL": database_url,
            "CODEHUB_REDIS_URL": self.redis_url,
            "CODEHUB_DATA_DIR": str(self.directory),
            "CODEHUB_IDE_COMMAND": shlex.join([sys.executable, controlled_ide.__file__, "{socket}", str(self.gates)]),
            "CODEHUB_LOG_FORMAT": "json",
            "COORDINATOR_ACTIVE_INTERVAL": "0.25",
            "COORDINATOR_IDLE_INTERVAL": "2",
            "MAX_RUNNING_PER_USER": "100",
            **self._archives(),
        }

    def _archives(self) -> dict[str, str]:
        url = self.services.settings.archive_url
        if url is None:
            return {}
        named = ("CODEHUB_S3_ENDPOINT", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_REGION")
        return {"CODEHUB_ARCHIVE_URL": url} | {name: os.environ[name] for name in named if name in os.environ}

    # ── the write log ────────────────────────────────────────────────────────────────────────────────────────────────

    async def terms(self) -> list[tuple[int, str, datetime, float]]:
        """(epoch, who, since when, how long the one before had been silent)"""
        async with write_log.connected(self.database_url) as connection:
            return [tuple(row) for row in await connection.fetch(write_log.LEADS)]

    async def only_leaders_wrote(self) -> None:
        async with write_log.connected(self.database_url) as connection:
            usurped = [tuple(row) for row in await connection.fetch(write_log.USURPED, write_log.OWNER)]
        assert usurped == [], usurped

    async def now(self) -> datetime:
        async with write_log.connected(self.database_url) as connection:
            now: datetime = await connection.fetchval("SELECT clock_timestamp()")
            return now

    # ── wishes ───────────────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def commands(self) -> WorkspaceCommands:
        return self.services.commands

    async def create(self, desired: Desired, template: str = "default", image_ref: str = "") -> UUID:
        key = uuid4()
        new = CreateWorkspace(f"demo {key}", "ann", desired, template=template, image_ref=image_ref)
        await self.commands.create(new, key, ANN, datetime.now(UTC))
        return key

    async def want(self, key: UUID, desired: Desired) -> None:
        await self.commands.want(key, desired, ANN, discard_home=desired is Desired.PENDING)

    async def settled(self, key: UUID, phase: Phase) -> Workspace:
        async def at_rest() -> bool:
            row = await self.row(key)
            return row.phase is phase and row.operation is Operation.NONE and not row.request_pending

        try:
            await eventually(at_rest, TIMEOUT_SECONDS)
        except TimeoutError:
            row = await self.row(key)
            raise AssertionError(
                f"{phase} is not reached: {row.phase} {row.operation} {row.desired_state} {row.error_info}"
            ) from None
        return await self.row(key)

    async def brought_to(self, key: UUID, desired: Desired) -> Workspace:
        await self.want(key, desired)
        return await self.settled(key, Phase(desired.value))

    async def during(self, key: UUID, operation: Operation) -> None:
        async def is_under_way() -> bool:
            return (await self.row(key)).operation is operation

        await eventually(is_under_way, TIMEOUT_SECONDS)

    async def row(self, key: UUID) -> Workspace:
        row = await self.services.database.specs().get(key)
        assert row is not None
        return row

    # ── the world ────────────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def gates(self) -> Path:
        return self.directory / "gates"

    @contextmanager
    def gate(self, name: str) -> Iterator[None]:
        """What the IDEs are told, for as long as the context lasts."""
        path = self.gates / name
        path.touch()
        try:
            yield
        finally:
            path.unlink()

    async def home(self, key: UUID) -> Path:
        name = (await self.row(key)).home_store_key
        assert name is not None
        return self.services.processes.homes.home(name)

    async def filled(self, key: UUID) -> Snapshot:
        """Something to lose."""
        home = await self.home(key)
        deep = home / "project" / "src"
        deep.mkdir(parents=True, exist_ok=True)
        for number in range(50):
            (deep / f"module_{number}.py").write_text(f"answer = {secrets.token_hex(200)!r}\n")
        (home / "data.bin").write_bytes(secrets.token_bytes(8 << 20))
        (home / "run.sh").write_text("#!/bin/sh\n")
        (home / "run.sh").chmod(0o750)
        if not (home / "current").is_symlink():
            (home / "current").symlink_to("project/src")
        return snapshot(home)

    async def kept(self, key: UUID) -> Snapshot:
        return snapshot(await self.home(key))

    def ides(self, key: UUID) -> list[int]:
        """Every process that serves this workspace's socket, by what the kernel says."""
        return [
            process.pid
            for process in psutil.process_iter(["cmdline", "status"])
            if controlled_ide.__file__ in (words := process.info["cmdline"] or ())
            and any(key.hex in word for word in words)
        ]

    async def containers(self) -> dict[UUID, tuple[str, bool]]:
        seen = await self.services.runtime.containers()
        return {key: (container.instance, container.running) for key, container in seen.items()}

    async def state(self) -> tuple[object, ...]:
        """All that an actuator could have touched, by the identity of each thing."""
        volumes = await self.services.runtime.volumes()
        inodes = {
            name: self.services.processes.homes.home(name).stat().st_ino for some in volumes.values() for name in some
        }
        jobs = {key: self.services.processes.jobs.look(key) for key in volumes}
        objects = sorted((found.key, found.modified_at) for found in await self.services.archives.objects())
        return await self.containers(), inodes, jobs, objects

    # ── jobs ─────────────────────────────────────────────────────────────────────────────────────────────────────────

    async def job(self, key: UUID) -> psutil.Process:
        """The running storage job, as soon as there is one."""
        lock = self.services.processes.jobs.lock(key)
        async with asyncio.timeout(TIMEOUT_SECONDS):
            while True:
                pid = holder(lock) or 0
                try:
                    children = psutil.Process(pid).children() if pid > 0 else []
                    if children and "codehub.job" in children[0].cmdline():
                        return children[0]
                except psutil.Error:
                    pass
                await asyncio.sleep(0.002)

    async def suspended_job(self, key: UUID) -> psutil.Process:
        """The running storage job, which stands still until it is resumed."""
        job = await self.job(key)
        job.suspend()

        async def it_stands_still() -> bool:
            status = job.status()
            assert status != psutil.STATUS_ZOMBIE, "the job ended before it was suspended"
            return status == psutil.STATUS_STOPPED

        await eventually(it_stands_still, TIMEOUT_SECONDS)
        return job

    async def close(self) -> None:
        for coordinator in self.coordinators:
            if coordinator.process.poll() is None:
                coordinator.process.kill()
                coordinator.process.wait()
        for gate in self.gates.iterdir():
            gate.unlink()
        runtime = self.services.processes
        jobs = ProcessJobs(runtime, archive_url(self.services.settings))
        for key in await jobs.find():
            await jobs.clear(key)
        for key in await runtime.containers():
            await runtime.remove_container(key)


@asynccontextmanager
async def deployed(database_url: str, redis_url: str, *, archive_url: str | None = None) -> AsyncIterator[Deployment]:
    """On a database that is migrated. Nobody coordinates yet. Another archive store's credentials are in our own
    environment."""
    # Not tmp_path: sockets have short names, and homes are large.
    with tempfile.TemporaryDirectory(prefix="codehub-test-") as name:
        directory = Path(name)
        for part in ("bin", "gates"):
            (directory / part).mkdir()
        (directory / "bin" / "bwrap").symlink_to("/bin/false")
        settings = load_settings(
            database_url=database_url,
            redis_url=redis_url,
            data_dir=directory,
            max_running_per_user=100,
            archive_url=archive_url,
        )
        async with open_services(settings) as services:
            deployment = Deployment(directory, services, database_url, redis_url)
            try:
                yield deployment
            except BaseException:
                for coordinator in deployment.coordinators:
                    print(coordinator.log_tail())
                raise
            finally:
                await deployment.close()
