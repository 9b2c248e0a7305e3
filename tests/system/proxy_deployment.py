"""`codehub proxy` as it runs, before workspaces that run, with a real PostgreSQL and Redis.

Whatever was started ends with the test.
"""

import shlex
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from urllib.parse import urlsplit
from uuid import UUID, uuid4

import psutil

from codehub.bootstrap.services import identity
from codehub.domain.identity import Caller, Role, Scope
from codehub.domain.workspace import Desired, Operation, Phase, Workspace
from codehub.ports.accounts import NewUser
from codehub.ports.stores import Actor
from codehub.usecases.identity import Tokens
from codehub.usecases.users import Users
from codehub.usecases.workspace_commands import CreateWorkspace
from tests.api.real_api import Process, RealApi, real_api
from tests.eventually import eventually
from tests.real_services import free_port
from tests.system import websocket_ide
from tests.system.websockets import TIMEOUT_SECONDS, Answer, Browser, Connection, Cut, WebSocket, hang_up

MANY = 1000


@dataclass(frozen=True)
class Person:
    caller: Caller
    session: str
    """The secret of their session at the platform."""


@dataclass
class ProxyProcess:
    process: Process
    port: int
    status_port: int

    @property
    def supervisor(self) -> psutil.Process:
        return psutil.Process(self.process.process.pid)

    @property
    def workers(self) -> list[psutil.Process]:
        return self.supervisor.children()

    def send(self, number: signal.Signals) -> None:
        self.process.process.send_signal(number)

    def host(self, workspace: Workspace) -> str:
        return f"{workspace.slug}.localhost:{self.port}"

    async def ask(self, host: str, path: str, **headers: str) -> Answer:
        """On a connection of its own."""
        network = await Connection.open(self.port)
        try:
            network.send(host, path, {name.replace("_", "-"): value for name, value in headers.items()})
            return await network.answer()
        finally:
            network.close()

    async def metrics(self) -> dict[str, float]:
        network = await Connection.open(self.status_port)
        network.send("status", "/metrics", {"Connection": "close"})
        _, headers = await network.head()
        body = await network.reader.read()
        network.close()
        assert headers["content-type"].startswith("text/plain")
        lines = (line.rpartition(" ") for line in body.decode().splitlines() if not line.startswith("#"))
        return {name: float(value) for name, _, value in lines}


@dataclass
class Visit:
    """A person who was let in at a workspace's own host."""

    proxy: ProxyProcess
    workspace: Workspace
    cookie: str

    @property
    def headers(self) -> dict[str, str]:
        return {"Cookie": self.cookie}

    @property
    def host(self) -> str:
        return self.proxy.host(self.workspace)

    async def get(self, path: str, **more: str) -> Answer:
        return await self.proxy.ask(self.host, path, **{**self.headers, **more})

    async def socket(self, path: str = "/ws") -> WebSocket:
        return await WebSocket.open(self.proxy.port, self.host, self.headers, path)

    def browser(self) -> Browser:
        return Browser(self.proxy.port, self.host, self.headers)


@dataclass
class ProxyDeployment:
    site: RealApi

    async def open(self, workers: int = 1, **more: str) -> ProxyProcess:
        port, status_port = free_port(), free_port()
        given = {
            "CODEHUB_PROXY_ADDRESS": f"127.0.0.1:{port}",
            "CODEHUB_PROXY_STATUS_ADDRESS": f"127.0.0.1:{status_port}",
            "CODEHUB_PROXY_WORKERS": str(workers),
            "CODEHUB_PROXY_ACCESS_LOG": "all",
            "CODEHUB_WORKSPACE_URL": f"http://{{slug}}.localhost:{port}/",
            "CODEHUB_API_UPSTREAM": f"127.0.0.1:{free_port()}",
        }
        proxy = ProxyProcess(self.site._start("proxy", **(given | more)), port, status_port)

        async def serves() -> bool:
            assert proxy.process.process.poll() is None, proxy.process.log.read_text()
            try:
                return (await proxy.ask(f"localhost:{port}", "/signin")).status == 200 and len(proxy.workers) == workers
            except (OSError, Cut):
                return False

        await eventually(serves, TIMEOUT_SECONDS)
        return proxy

    # ── people ───────────────────────────────────────────────────────────────────────────────────────────────────────

    async def person(self, role: Role = Role.USER) -> Person:
        key = uuid4()
        new = NewUser(key, f"person-{key.hex[:12]}", role, max_running=MANY)
        user = await self.site.services.database.accounts().create_user(new, Actor("test"))
        return Person(*await identity(self.site.services).open_session(user, "127.0.0.1", "test"))

    async def again(self, person: Person) -> Person:
        """Signed in once more, on another machine."""
        return Person(*await identity(self.site.services).open_session(person.caller.user, "127.0.0.2", "other"))

    async def visit(self, person: Person, workspace: Workspace, proxy: ProxyProcess) -> Visit:
        """As a browser comes in: from the platform's host with a ticket, which becomes a cookie."""
        session = f"__Host-codehub={person.session}"
        ticket = await proxy.ask(f"localhost:{proxy.port}", f"/open/{workspace.slug}", Cookie=session)
        assert ticket.status == 303, ticket
        to = urlsplit(ticket.headers["location"])
        entered = await proxy.ask(to.netloc, f"{to.path}?{to.query}")
        assert entered.status == 303, entered
        return Visit(proxy, workspace, entered.cookies())

    async def token(self, person: Person) -> tuple[UUID, str]:
        token, secret = await self.tokens.create(person.caller, "test", [Scope.READ, Scope.WRITE])
        return token.id, secret

    @property
    def tokens(self) -> Tokens:
        who = identity(self.site.services)
        return Tokens(who.accounts, who.revocations, who.ids)

    @property
    def people(self) -> Users:
        who = identity(self.site.services)
        return Users(who.accounts, who.passwords, who.revocations, who.ids)

    async def sign_out(self, person: Person) -> None:
        await identity(self.site.services).sign_out(person.caller)

    # ── workspaces ───────────────────────────────────────────────────────────────────────────────────────────────────

    async def running(self, person: Person) -> Workspace:
        key, commands = uuid4(), self.site.services.commands
        new = CreateWorkspace(f"demo {key.hex[:12]}", person.caller.user.owner_id, Desired.RUNNING)
        await commands.create(new, key, Actor("test"), datetime.now(UTC))
        return await self.settled(key, Phase.RUNNING)

    async def stop(self, workspace: Workspace) -> None:
        await self.site.services.commands.want(workspace.id, Desired.STANDBY, Actor("test"))

    async def settled(self, key: UUID, phase: Phase) -> Workspace:
        async def at_rest() -> bool:
            row = await self.row(key)
            return row.phase is phase and row.operation is Operation.NONE

        await eventually(at_rest, TIMEOUT_SECONDS)
        return await self.row(key)

    async def row(self, key: UUID) -> Workspace:
        row = await self.site.services.database.specs().get(key)
        assert row is not None
        return row


@asynccontextmanager
async def proxy_deployment(database_url: str, redis_url: str, **settings: str) -> AsyncIterator[ProxyDeployment]:
    """On a database that is migrated, with a coordinator and no front door yet."""
    command = shlex.join([sys.executable, websocket_ide.__file__, "{socket}"])
    given = {"CODEHUB_IDE_COMMAND": command, "MAX_RUNNING_PER_USER": str(MANY)} | settings
    async with real_api(database_url, redis_url, **given) as site:
        await site.start_coordinator()
        try:
            yield ProxyDeployment(site)
        finally:
            hang_up()
