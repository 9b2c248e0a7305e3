"""A CodeHub to be measured: users with tokens and workspaces in a database, and its processes as an operator starts
them.
"""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

import httpx
import psutil

from bench._fleet import Fleet, insert, pending
from bench._proxy_processes import free_port
from bench.controller import TIMEOUT_SECONDS, Servers, connected
from codehub.adapters.postgres import PostgresDatabase
from codehub.domain.identity import Role, Scope
from codehub.ports.accounts import NewToken, NewUser
from codehub.ports.stores import Actor
from codehub.usecases.identity import digest, new_api_token

CODEHUB = Path(sys.executable).with_name("codehub")


@dataclass(frozen=True)
class Person:
    owner_id: str
    token: str


@dataclass(frozen=True)
class Site:
    servers: Servers
    place: Path
    url: str

    @asynccontextmanager
    async def api(self) -> AsyncIterator[tuple[int, psutil.Process]]:
        """Run the API; gives its port and its process."""
        port = free_port()
        async with started([str(CODEHUB), "api"], port, self._log("api"), self._environment(port)) as process:
            yield port, process

    @asynccontextmanager
    async def coordinator(self) -> AsyncIterator[None]:
        """Run a coordinator that leads and has seen every workspace."""
        port = free_port()
        command, environment = [str(CODEHUB), "coordinator"], self._environment(free_port())
        environment |= {"COORDINATOR_STATUS_ADDRESS": f"127.0.0.1:{port}"}
        http = httpx.AsyncClient(timeout=TIMEOUT_SECONDS)
        async with started(command, port, self._log("coordinator"), environment), http:
            async with asyncio.timeout(TIMEOUT_SECONDS):
                while (await http.get(f"http://127.0.0.1:{port}/readyz")).json()["last_pass_age_seconds"] is None:
                    await asyncio.sleep(0.1)
            yield

    def _log(self, name: str) -> Path:
        return self.place / f"{name}.log"

    def _environment(self, port: int) -> dict[str, str]:
        return {
            "PATH": os.environ["PATH"],
            "CODEHUB_DATABASE_URL": self.url,
            "CODEHUB_REDIS_URL": self.servers.redis_url,
            "CODEHUB_DATA_DIR": str(self.place / "data"),
            "CODEHUB_API_ADDRESS": f"127.0.0.1:{port}",
            "CODEHUB_IDE_COMMAND": "true {socket}",
            "CODEHUB_LOG_FORMAT": "json",
        }


async def settled_site(servers: Servers, place: Path, workspaces: int, people: int) -> tuple[Site, list[Person]]:
    site = Site(servers, place, await servers.database())
    known = await register(site.url, people, Role.USER)
    async with connected(site.url) as connection:
        await Fleet(owners=[person.owner_id for person in known]).grow(connection, workspaces)
    return site, known


async def changing_site(servers: Servers, place: Path, workspaces: int, people: int) -> tuple[Site, list[Person]]:
    """A site with workspaces that a real coordinator has nothing to do for, whatever its runtime holds."""
    site = Site(servers, place, await servers.database())
    known = await register(site.url, people, Role.USER)
    async with connected(site.url) as connection:
        await insert(connection, list(pending(workspaces, [person.owner_id for person in known])))
    return site, known


async def admins(site: Site, count: int) -> list[Person]:
    return await register(site.url, count, Role.ADMIN)


async def register(url: str, count: int, role: Role) -> list[Person]:
    actor, found = Actor("bench"), []
    async with await PostgresDatabase.open(url) as database:
        accounts = database.accounts()
        for number in range(count):
            user = await accounts.create_user(NewUser(uuid4(), f"{role.value}-{number}", role), actor)
            secret, scopes = new_api_token(), frozenset(Scope) if role is Role.ADMIN else frozenset({Scope.READ})
            await accounts.create_token(NewToken(uuid4(), user.id, "bench", digest(secret), scopes), 1, actor)
            found.append(Person(user.owner_id, secret))
    return found


@asynccontextmanager
async def started(
    command: Sequence[str], port: int, log: Path, environment: Mapping[str, str] | None = None
) -> AsyncIterator[psutil.Process]:
    """Run a process until the context ends; it is ready when it takes connections."""
    with log.open("ab") as output:
        child = await asyncio.create_subprocess_exec(*command, stdout=output, stderr=output, env=environment)
    try:
        async with asyncio.timeout(TIMEOUT_SECONDS):
            while not await _listens(port):
                assert child.returncode is None, f"{command} has ended; see {log}"
                await asyncio.sleep(0.05)
        yield psutil.Process(child.pid)
    finally:
        if child.returncode is None:
            child.send_signal(signal.SIGTERM)
        await child.wait()


async def _listens(port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        return False
    writer.close()
    return True
