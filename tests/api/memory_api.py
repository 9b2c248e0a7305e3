"""The API on memory twins, with people in it: each caller is a client with a credential of its own.

Nothing coordinates: what the controller would write is written by the test, as the controller's store does.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any
from uuid import UUID, uuid4

import httpx
from fastapi import FastAPI

from codehub.adapters.memory import (
    MemoryAccountDatabase,
    MemoryArchives,
    MemoryBus,
    MemoryContents,
    MemoryDatabase,
    MemoryKeyring,
    MemoryPasswords,
    MemoryRuntime,
    Network,
    numbered_ssh_key,
)
from codehub.adapters.system import RandomIds, SystemClock
from codehub.api.app import create_app
from codehub.api.dependencies import ApiParts, ApiSite
from codehub.coordinator.gc_runner import GcScanner
from codehub.domain.admission import RunningLimits
from codehub.domain.credentials import SESSION_COOKIE
from codehub.domain.gc_rules import Retention
from codehub.domain.gc_safety import GcLimits
from codehub.domain.identity import ALL_SCOPES, Caller, Role, Scope
from codehub.domain.idle import IdlePolicy
from codehub.domain.workspace import Workspace
from codehub.ports.accounts import NewUser
from codehub.ports.stores import Actor
from codehub.telemetry import Metrics
from codehub.usecases.authorization import AccessAudit
from codehub.usecases.exec import WorkspaceExec
from codehub.usecases.identity import Identity, Tokens
from codehub.usecases.lifecycle import Lifecycles
from codehub.usecases.revocations import Revocations
from codehub.usecases.secrets import SecretKeeping
from codehub.usecases.ssh_keys import SshKeys
from codehub.usecases.usage import WorkspaceUsage
from codehub.usecases.users import Users
from codehub.usecases.workspace_commands import RunningSlots, WorkspaceCommands, WorkspaceCreation

ORIGIN = "http://hub.test"
PASSWORD = "correct horse battery"


@dataclass
class Backends:
    """What outlives one process: two sites on one of these are two API processes."""

    database: MemoryDatabase
    bus: MemoryBus
    archives: MemoryArchives
    runtime: MemoryRuntime
    network: Network
    keyring: MemoryKeyring = field(default_factory=lambda: MemoryKeyring("first"))

    @classmethod
    def fresh(cls, network: Network | None = None) -> "Backends":
        network = network or Network()
        return cls(
            MemoryDatabase(network=network),
            MemoryBus(network=network),
            MemoryArchives(network=network),
            MemoryRuntime(network=network),
            network,
        )


async def reported(survey: GcScanner) -> dict[str, Any]:
    return (await survey.report()).to_json()


def memory_parts(backends: Backends, limits: RunningLimits | None = None, site: ApiSite | None = None) -> ApiParts:
    database, bus, ids = backends.database, backends.bus, RandomIds()
    people = MemoryAccountDatabase(database.state.accounts, backends.network)
    accounts, passwords, revocations = people.accounts(), MemoryPasswords(), Revocations(bus)
    limits = limits or RunningLimits()
    commands, views = WorkspaceCommands(database.specs(), limits), database.views()
    survey = GcScanner(database.collector(), backends.archives, backends.runtime, Retention(), GcLimits(), "test")
    lifecycles = Lifecycles(database.specs(), views, IdlePolicy())
    return ApiParts(
        identity=Identity(accounts, people.sign_in_state(), people.audit(), passwords, revocations, ids),
        users=Users(accounts, passwords, revocations, ids),
        tokens=Tokens(accounts, revocations, ids),
        secrets=SecretKeeping(
            people.secrets(), people.profiles(), backends.keyring, people.templates(), numbered_ssh_key
        ),
        ssh_keys=SshKeys(people.authorized_keys(), revocations, ids),
        oidc=None,
        commands=commands,
        creation=WorkspaceCreation(commands, people.templates(), people.idempotency_keys(), views, ids, 120),
        lifecycles=lifecycles,
        slots=RunningSlots(views, limits),
        usage=WorkspaceUsage(backends.runtime, database.usage_history(), SystemClock()),
        exec=WorkspaceExec(backends.runtime, views, people.audit(), lifecycles, SystemClock()),
        views=views,
        contents=MemoryContents(backends.archives.state, backends.network),
        templates=people.templates(),
        audit=people.audit(),
        access_audit=AccessAudit(people.audit(), SystemClock()),
        collector=database.collector(),
        runtime=backends.runtime,
        bus=bus,
        metrics=Metrics(),
        leader=database.leadership(SystemClock()).leader,
        gc_report=lambda: reported(survey),
        checks={
            "postgresql": views.now,
            "archives": backends.archives.inventory,
        },
        site=site or ApiSite(),
    )


@dataclass
class ApiUser:
    """Somebody with a token; `http` sends it along."""

    id: UUID
    name: str
    http: httpx.AsyncClient
    caller: Caller

    async def create(self, name: str = "demo", **fields: Any) -> dict[str, Any]:
        made = await self.http.post("/api/v1/workspaces", json={"name": name, **fields})
        assert made.status_code == 201, made.text
        body: dict[str, Any] = made.json()
        return body


class MemoryApi:
    def __init__(
        self, backends: Backends | None = None, limits: RunningLimits | None = None, site: ApiSite | None = None
    ) -> None:
        self.backends = backends or Backends.fresh()
        self.parts = memory_parts(self.backends, limits, site)
        self.app: FastAPI = create_app(self.parts)
        self._clients: list[httpx.AsyncClient] = []

    @property
    def rows(self) -> dict[UUID, Workspace]:
        return self.backends.database.state.rows

    def client(self, **headers: str) -> httpx.AsyncClient:
        client = httpx.AsyncClient(transport=httpx.ASGITransport(self.app), base_url=ORIGIN, headers=headers)
        self._clients.append(client)
        return client

    async def person(
        self, name: str, role: Role = Role.USER, scopes: frozenset[Scope] | None = None, **more: Any
    ) -> ApiUser:
        """Joined, or, if already here, once more with another token."""
        known = next(
            (user for user in self.backends.database.state.accounts.users.values() if user.username == name), None
        )
        stored = await self.parts.identity.passwords.hash(PASSWORD)
        user = known or await self.parts.identity.accounts.create_user(
            NewUser(uuid4(), name, role, stored, **more), Actor("test")
        )
        caller = Caller(user, f"session:{'0' * 64}", is_fresh=True)
        allowed = scopes or frozenset(scope for scope in ALL_SCOPES if caller.may(scope))
        _, secret = await self.parts.tokens.create(caller, "test", allowed)
        return ApiUser(user.id, name, self.client(authorization=f"Bearer {secret}"), caller)

    async def browser(self, name: str) -> httpx.AsyncClient:
        """Signed in by cookie, as our own pages are."""
        client = self.client(origin=ORIGIN, **{"content-type": "application/json"})
        signed_in = await client.post("/api/v1/session", json={"username": name, "password": PASSWORD})
        assert signed_in.status_code == 201, signed_in.text
        # A jar sends Secure cookies over https alone.
        client.headers["cookie"] = f"{SESSION_COOKIE}={signed_in.cookies[SESSION_COOKIE]}"
        return client

    def controller_writes(self, workspace_id: UUID | str, **fields: Any) -> Workspace:
        row = self.rows[UUID(str(workspace_id))]
        return self.backends.database.state.put(row, replace(row, **fields), "controller", "test")

    async def close(self) -> None:
        await self.app.state.hub.close()
        await self.app.state.access.close()
        for client in self._clients:
            await client.aclose()


@asynccontextmanager
async def memory_api(
    backends: Backends | None = None, limits: RunningLimits | None = None, site: ApiSite | None = None
) -> AsyncIterator[MemoryApi]:
    opened = MemoryApi(backends, limits, site)
    try:
        yield opened
    finally:
        await opened.close()
