"""The API as it runs: `codehub api` processes with a real PostgreSQL and Redis, and people with tokens.

Whatever was started ends with the test.
"""

import asyncio
import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import httpx

from codehub.adapters.object_store.contents import ObjectContents
from codehub.api.dependencies import ApiParts
from codehub.bootstrap.api import api_parts
from codehub.bootstrap.runtimes import archive_url
from codehub.bootstrap.services import Services, open_services
from codehub.domain.identity import ALL_SCOPES, Caller, Role
from codehub.ports.accounts import NewUser
from codehub.ports.stores import Actor
from codehub.settings import load_settings
from tests.contracts import fake_ide
from tests.real_services import free_port

CODEHUB = Path(sys.executable).with_name("codehub")
TIMEOUT_SECONDS = 150.0


@dataclass
class Process:
    process: subprocess.Popen[bytes]
    log: Path
    url: str = ""

    def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.process.wait(TIMEOUT_SECONDS)


@dataclass
class RealApi:
    directory: Path
    services: Services
    parts: ApiParts
    database_url: str
    redis_url: str
    settings: dict[str, str]
    processes: list[Process] = field(default_factory=list)

    async def start_api(self) -> Process:
        port = free_port()
        started = self._start("api", CODEHUB_API_ADDRESS=f"127.0.0.1:{port}")
        started.url = f"http://127.0.0.1:{port}"
        async with httpx.AsyncClient() as client, asyncio.timeout(TIMEOUT_SECONDS):
            while True:
                try:
                    if (await client.get(f"{started.url}/healthz")).status_code == 200:
                        return started
                except httpx.TransportError:
                    assert started.process.poll() is None, started.log.read_text()
                    await asyncio.sleep(0.05)

    async def start_coordinator(self) -> Process:
        """Until it leads: it looks at the accounts when it starts, and nothing keeps these workspaces apart, so only
        one person may be there by then."""
        started = self._start("coordinator")
        async with asyncio.timeout(TIMEOUT_SECONDS):
            while await self.services.leader() is None:
                assert started.process.poll() is None, started.log.read_text()
                await asyncio.sleep(0.05)
        return started

    def _start(self, verb: str, **more: str) -> Process:
        log = self.directory / f"{verb}-{len(self.processes)}.log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                [CODEHUB, verb],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=self.directory,
                env=self.environment() | more,
            )
        self.processes.append(Process(process, log))
        return self.processes[-1]

    def environment(self) -> dict[str, str]:
        return {
            "PATH": f"{self.directory / 'bin'}:{os.environ['PATH']}",
            "CODEHUB_DATABASE_URL": self.database_url,
            "CODEHUB_REDIS_URL": self.redis_url,
            "CODEHUB_DATA_DIR": str(self.directory),
            "CODEHUB_IDE_COMMAND": shlex.join([sys.executable, fake_ide.__file__, "{socket}"]),
            "CODEHUB_LOG_FORMAT": "json",
            "COORDINATOR_ACTIVE_INTERVAL": "0.25",
            "COORDINATOR_IDLE_INTERVAL": "2",
            **self.settings,
        }

    async def token(self, name: str, role: Role = Role.USER, **more: Any) -> tuple[UUID, dict[str, str]]:
        """A new person's id, and the header that proves who it is."""
        user = await self.services.database.accounts().create_user(NewUser(uuid4(), name, role, **more), Actor("test"))
        caller = Caller(user, f"session:{'0' * 64}", is_fresh=True)
        scopes = [scope for scope in ALL_SCOPES if caller.may(scope)]
        _, secret = await self.parts.tokens.create(caller, "test", scopes)
        return user.id, {"authorization": f"Bearer {secret}"}

    def log_tail(self) -> str:
        return "\n".join(
            f"── {process.log.name} ──\n" + "\n".join(process.log.read_text().splitlines()[-30:])
            for process in self.processes
        )

    async def close(self) -> None:
        for started in self.processes:
            if started.process.poll() is None:
                started.process.kill()
                started.process.wait()
        for workspace_id in await self.services.runtime.containers():
            await self.services.runtime.remove_container(workspace_id)


@asynccontextmanager
async def real_api(database_url: str, redis_url: str, **settings: str) -> AsyncIterator[RealApi]:
    """On a database that is migrated. Nothing runs yet."""
    with tempfile.TemporaryDirectory(prefix="codehub-test-") as name:
        directory = Path(name)
        (directory / "bin").mkdir()
        (directory / "bin" / "bwrap").symlink_to("/bin/false")
        command = shlex.join([sys.executable, fake_ide.__file__, "{socket}"])
        given = load_settings(database_url=database_url, redis_url=redis_url, data_dir=directory, ide_command=command)
        contents = ObjectContents(archive_url(given))
        async with open_services(given) as services:
            site = RealApi(directory, services, api_parts(services, contents), database_url, redis_url, settings)
            try:
                yield site
            except BaseException:
                print(site.log_tail())
                raise
            finally:
                await site.close()
                contents.close()


class Events:
    """A stream over the network that connects again whenever it ends, as a browser does."""

    def __init__(self, url: str, headers: dict[str, str], query: str = "") -> None:
        self._url = f"{url}/api/v1/events{query}"
        self._headers = headers
        self.connections = 0
        self.snapshots = 0
        self.known: dict[str, dict[str, Any]] = {}
        self.seen: asyncio.Queue[tuple[str, Any]] = asyncio.Queue()
        self._task = asyncio.ensure_future(self._run())

    async def _run(self) -> None:
        async with httpx.AsyncClient(timeout=httpx.Timeout(60, connect=5)) as client:
            while True:
                try:
                    async with client.stream("GET", self._url, headers=self._headers) as answer:
                        self.connections += 1
                        await self._read(answer)
                except httpx.TransportError:
                    pass
                await asyncio.sleep(0.1)

    async def _read(self, answer: httpx.Response) -> None:
        fields: dict[str, str] = {}
        async for line in answer.aiter_lines():
            name, _, value = line.partition(": ")
            if line:
                fields[name] = value
            elif "event" in fields:
                self._take(fields["event"], json.loads(fields["data"]))
                fields = {}

    def _take(self, name: str, data: Any) -> None:
        if name == "snapshot":
            self.snapshots += 1
            self.known = {one["id"]: one for one in data["workspaces"]}
        elif name == "workspace_updated":
            self.known[data["id"]] = data
        elif name == "workspace_deleted":
            self.known.pop(data["id"], None)
        elif name == "progress" and data["id"] in self.known:
            self.known[data["id"]] |= data
        self.seen.put_nowait((name, data))

    async def close(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
