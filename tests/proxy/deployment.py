"""A whole proxy on memory twins, before IDEs and an API that are real servers: who may go where is asked over real
sockets. Nothing coordinates; what the controller would write, the test writes, and says so on the bus as the event
listener does.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any
from uuid import UUID, uuid4

import httpx

from codehub.adapters.memory import (
    MemoryAccountDatabase,
    MemoryActivity,
    MemoryBus,
    MemoryDatabase,
    MemoryPasswords,
    MemoryRuntime,
)
from codehub.adapters.memory.fault_injection import Fault, FaultKind, FaultyNetwork
from codehub.adapters.memory.runtime import Container
from codehub.adapters.system import RandomIds, SystemClock
from codehub.domain.admission import RunningLimits
from codehub.domain.credentials import SESSION_COOKIE
from codehub.domain.identity import ALL_SCOPES, Caller, Role, Scope, User
from codehub.domain.idle import IdlePolicy
from codehub.domain.workspace import Desired, Phase, Workspace
from codehub.ports.accounts import NewUser, Ticket
from codehub.ports.stores import Actor
from codehub.proxy.access.addresses import Addresses
from codehub.proxy.access.session_cache import VISIT_COOKIE
from codehub.proxy.app import ProxyApp, ProxyParts
from codehub.proxy.http.headers import Network
from codehub.proxy.http.limits import ProxyLimits
from codehub.usecases.identity import Identity, Tokens, digest, new_session_token
from codehub.usecases.lifecycle import Lifecycles
from codehub.usecases.revocations import Revocations
from codehub.usecases.workspace_access import WorkspaceAccess
from codehub.usecases.workspace_commands import CreateWorkspace, RunningSlots, WorkspaceCommands
from tests.proxy.fake_workspace import FakeWorkspace
from tests.proxy.harness import LIMITS, RawConnection

HTML = {"accept": "text/html", "sec-fetch-mode": "navigate", "sec-fetch-dest": "document"}
DIRECT = {**HTML, "sec-fetch-site": "none"}
FROM_ELSEWHERE = {**HTML, "sec-fetch-site": "cross-site"}
PLATFORM = "hub.test"
BASE = "ws.test"


@dataclass
class SignedInUser:
    user: User
    session: str
    token: str
    visits: dict[tuple[str, int | None], str] = field(default_factory=dict)


@dataclass
class Outages:
    """A network that notes what was asked of databases and bus, and in which some of it fails."""

    asked: list[str] = field(default_factory=list)
    away: tuple[str, ...] = ()
    faults: dict[str, Fault] = field(default_factory=dict)

    def choose(self, name: str) -> Fault | None:
        self.asked.append(name)
        if name in self.faults:
            return self.faults[name]
        return Fault(FaultKind.FAIL) if name.startswith(self.away) else None


@dataclass
class Deployment:
    outages: Outages
    database: MemoryDatabase
    directory: MemoryAccountDatabase
    bus: MemoryBus
    runtime: MemoryRuntime
    activity: MemoryActivity
    workspace_access: WorkspaceAccess
    tokens: Tokens
    ide: FakeWorkspace
    api: FakeWorkspace
    proxy: ProxyApp
    http: httpx.AsyncClient
    port: int
    opened: list[RawConnection] = field(default_factory=list)

    # ── people ───────────────────────────────────────────────────────────────────────────────────────────────────────

    async def person(
        self, name: str = "ann", role: Role = Role.USER, scopes: frozenset[Scope] = ALL_SCOPES
    ) -> SignedInUser:
        identity = self.workspace_access.identity
        user = await identity.accounts.create_user(NewUser(uuid4(), name, role), Actor("test"))
        _, session = await identity.open_session(user, "192.0.2.1", "test")
        maker = Caller(user, f"session:{'0' * 64}", is_fresh=True)
        _, token = await self.tokens.create(maker, "test", [scope for scope in scopes if maker.may(scope)])
        return SignedInUser(user, session, token)

    # ── workspaces ───────────────────────────────────────────────────────────────────────────────────────────────────

    async def workspace(
        self, owner: SignedInUser, phase: Phase = Phase.RUNNING, name: str = "demo", **more: Any
    ) -> Workspace:
        key = uuid4()
        wish = Desired(phase.value) if phase is not Phase.ERROR else Desired.RUNNING
        new = CreateWorkspace(name, owner.user.owner_id, wish)
        await self.workspace_access.commands.create(
            new, key, Actor(owner.user.username), await self.database.views().now()
        )
        if phase is Phase.RUNNING:
            self.runtime.state.containers[key] = Container("c-1", f"ws-{key}-home", ide=self.ide.endpoint)
        return await self.becomes(key, phase=phase, **more)

    async def becomes(self, key: UUID, **fields: Any) -> Workspace:
        row = self.database.state.rows[key]
        written = self.database.state.put(row, replace(row, **fields), "controller", "test")
        await self.bus.publish(f"codehub:sse:{written.owner_id}", {"type": "updated", "id": str(key)})
        return written

    def row(self, key: UUID) -> Workspace:
        return self.database.state.rows[key]

    def knows(self, slug: str, phase: Phase) -> bool:
        """Wait until the proxy has heard of the change."""
        entry = self.proxy.authorizer._workspaces.known(slug)
        return entry is not None and entry.workspace.phase is phase

    async def connect(self) -> RawConnection:
        return RawConnection(*await asyncio.open_connection("127.0.0.1", self.port))

    # ── asking ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def host(self, workspace: Workspace, port: int | None = None) -> str:
        return f"{workspace.slug}.{BASE}" if port is None else f"{port}--{workspace.slug}.{BASE}"

    async def visit(self, somebody: SignedInUser, workspace: Workspace, port: int | None = None) -> str:
        """Enter a workspace; returns the secret of a visit, as a ticket from the dashboard gives it."""
        known = somebody.visits.get((workspace.slug, port))
        if known is None:
            ticket = Ticket(somebody.user.id, workspace.id, session_of(somebody), port)
            secret = new_session_token()
            await self.directory.sign_in_state().issue_ticket(digest(secret), ticket, 60)
            entered = await self.workspace_access.enter(secret)
            assert entered is not None
            known = somebody.visits[workspace.slug, port] = entered[1]
        return known

    async def get(
        self,
        workspace: Workspace,
        path: str = "/",
        who: SignedInUser | None = None,
        headers: Mapping[str, str] | None = None,
        port: int | None = None,
        method: str = "GET",
    ) -> httpx.Response:
        sent = {"host": self.host(workspace, port), **(headers or {})}
        if who is not None:
            sent["cookie"] = f"{VISIT_COOKIE}={await self.visit(who, workspace, port)}"
        return await self.http.request(method, path, headers=sent)

    async def wake(self, workspace: Workspace, who: SignedInUser, query: str = "", **headers: str) -> httpx.Response:
        ours = {"origin": f"http://{self.host(workspace)}", "content-type": "application/json"}
        return await self.get(workspace, f"/_codehub/wake{query}", who, {**ours, **headers}, method="POST")

    async def platform(
        self, path: str, who: SignedInUser | None = None, headers: Mapping[str, str] | None = None
    ) -> httpx.Response:
        sent = {"host": PLATFORM, **(headers or {})}
        if who is not None:
            sent["cookie"] = f"{SESSION_COOKIE}={who.session}"
        return await self.http.get(path, headers=sent)

    async def raw(self, *lines: str) -> bytes:
        """The head of the answer to exactly these lines: an ordinary client would tidy the path."""
        raw = RawConnection(*await asyncio.open_connection("127.0.0.1", self.port))
        self.opened.append(raw)
        raw.write("\r\n".join((*lines, "", "")).encode())
        return await raw.head()

    async def socket(self, *lines: str, host: str, path: str = "/") -> "Socket":
        """The lines that ask for an upgrade, as a browser does; `lines` are more headers."""
        raw = RawConnection(*await asyncio.open_connection("127.0.0.1", self.port))
        self.opened.append(raw)
        asked = (
            f"GET {path} HTTP/1.1",
            f"Host: {host}",
            "Connection: Upgrade",
            "Upgrade: websocket",
            "Sec-WebSocket-Version: 13",
            "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
            *lines,
        )
        raw.write("\r\n".join((*asked, "", "")).encode())
        return Socket(raw, await raw.head())

    async def open_socket(self, workspace: Workspace, who: SignedInUser, port: int | None = None) -> "Socket":
        host, secret = self.host(workspace, port), await self.visit(who, workspace, port)
        opened = await self.socket(f"Origin: http://{host}", f"Cookie: {VISIT_COOKIE}={secret}", host=host)
        assert opened.status == 101, opened.head
        return opened


@dataclass
class Socket:
    raw: RawConnection
    head: bytes

    @property
    def status(self) -> int:
        return int(self.head[9:12])

    async def close_code(self) -> int:
        """The code of the frame that closes a socket; 0 if it just ends."""
        rest = await self.raw.rest()
        at = rest.rfind(b"\x88")
        return int.from_bytes(rest[at + 2 : at + 4], "big") if at >= 0 else 0


def session_of(somebody: SignedInUser) -> str:
    return digest(somebody.session).hex()


def problem(answer: httpx.Response) -> str:
    return str(json.loads(answer.text)["code"])


async def handshake_and_echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """An IDE's socket: the handshake, then whatever comes goes back, unmasked."""
    await reader.readuntil(b"\r\n\r\n")
    writer.write(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n")
    while data := await reader.read(65536):
        payload = bytes(byte ^ data[2 + number % 4] for number, byte in enumerate(data[6:]))
        writer.write(bytes((data[0], len(payload))) + payload)
        await writer.drain()


FLUSH_SECONDS = 3600.0
"""Longer than any test: what is in the store before was written for a reason, or because a test asked for it."""


@asynccontextmanager
async def deployed(
    limits: RunningLimits | None = None,
    *,
    workspace_url: str = f"http://{{slug}}.{BASE}/",
    public_url: str | None = f"http://{PLATFORM}",
    by_path: bool = True,
    proxy_limits: ProxyLimits = LIMITS,
    port: int = 0,
    trusted_proxies: tuple[Network, ...] = (),
) -> AsyncIterator[Deployment]:
    outages = Outages()
    network = FaultyNetwork(SystemClock(), outages.choose)
    database, bus, runtime = MemoryDatabase(network=network), MemoryBus(network=network), MemoryRuntime(network=network)
    people, activity = MemoryAccountDatabase(database.state.accounts, network), MemoryActivity(network=network)
    announcements, ids, limits = Revocations(bus), RandomIds(), limits or RunningLimits()
    identity = Identity(
        people.accounts(), people.sign_in_state(), people.audit(), MemoryPasswords(), announcements, ids
    )
    workspace_access = WorkspaceAccess(
        identity,
        database.views(),
        WorkspaceCommands(database.specs(), limits),
        RunningSlots(database.views(), limits),
    )
    async with FakeWorkspace() as ide, FakeWorkspace() as api:
        parts = ProxyParts(
            workspace_access=workspace_access,
            lifecycles=Lifecycles(database.specs(), database.views(), IdlePolicy()),
            views=database.views(),
            runtime=runtime,
            bus=bus,
            activity=activity,
            traffic=database.traffic(),
            clock=SystemClock(),
            addresses=Addresses(workspace_url, public_url),
            api=api.endpoint,
            by_path=by_path,
            trusted_proxies=trusted_proxies,
            flush_seconds=FLUSH_SECONDS,
        )
        proxy = ProxyApp(parts, proxy_limits)
        running = asyncio.ensure_future(proxy.run())
        await proxy.wait_until_current(10)
        port = await proxy.server.listen("127.0.0.1", port)
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=60) as http:
            tokens = Tokens(identity.accounts, announcements, ids)
            deployment = Deployment(
                outages, database, people, bus, runtime, activity, workspace_access, tokens, ide, api, proxy, http, port
            )
            try:
                yield deployment
            finally:
                for raw in deployment.opened:
                    raw.close()
        await proxy.server.drain(0.0, 0.0)
        assert proxy.server.connections == 0
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
