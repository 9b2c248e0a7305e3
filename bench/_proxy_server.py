"""CodeHub's proxy for the benchmark, in a process of its own: put together as in production, with the authorizer,
presence and activity on, for users who have a visit's cookie. Only what stands behind it (rows, bus) is in memory: a
hot request asks neither.

Its first line of output says where it listens, and which cookie is let in where: {"port": …, "sites": [[host,
cookie]]}.
"""

import asyncio
import json
import sys
from datetime import UTC, datetime
from uuid import UUID, uuid4

import uvloop

from codehub.adapters.memory import (
    MemoryAccountDatabase,
    MemoryActivity,
    MemoryBus,
    MemoryDatabase,
    MemoryPasswords,
    MemoryRuntime,
)
from codehub.adapters.system import RandomIds, SystemClock
from codehub.domain.admission import RunningLimits
from codehub.domain.idle import IdlePolicy
from codehub.domain.workspace import Desired, Phase, Workspace
from codehub.ports.accounts import NewUser
from codehub.ports.runtime import AgentPort, Endpoint
from codehub.ports.stores import Actor
from codehub.proxy.access.addresses import Addresses
from codehub.proxy.access.session_cache import VISIT_COOKIE
from codehub.proxy.app import ProxyApp, ProxyParts
from codehub.proxy.http.limits import ProxyLimits
from codehub.usecases.identity import Identity
from codehub.usecases.lifecycle import Lifecycles
from codehub.usecases.revocations import Revocations
from codehub.usecases.workspace_access import WorkspaceAccess, WorkspaceCaller
from codehub.usecases.workspace_commands import RunningSlots, WorkspaceCommands

USERS = 8
ACTOR = Actor("bench")


class OneUpstream(MemoryRuntime):
    """A runtime in which every workspace answers at one endpoint."""

    def __init__(self, endpoint: Endpoint) -> None:
        super().__init__()
        self._endpoint = endpoint

    async def endpoint(self, workspace_id: UUID) -> Endpoint | None:
        del workspace_id
        return self._endpoint


class BenchDeployment:
    """Users, each with a workspace that runs and a visit to it."""

    def __init__(self) -> None:
        self.database, self.bus = MemoryDatabase(), MemoryBus()
        self.people = MemoryAccountDatabase(self.database.state.accounts)
        accounts, audit, state = self.people.accounts(), self.people.audit(), self.people.sign_in_state()
        identity = Identity(accounts, state, audit, MemoryPasswords(), Revocations(self.bus), RandomIds())
        views, limits = self.database.views(), RunningLimits()
        commands, slots = WorkspaceCommands(self.database.specs(), limits), RunningSlots(views, limits)
        self.workspace_access = WorkspaceAccess(identity, views, commands, slots)

    async def add_user(self, name: str) -> tuple[str, str]:
        """Add a user; returns the host of a workspace, and the cookie of its owner's visit."""
        user = await self.people.accounts().create_user(NewUser(uuid4(), name), ACTOR)
        caller, _ = await self.workspace_access.identity.open_session(user, "127.0.0.1", "bench")
        now = datetime.now(UTC)
        row = Workspace(
            id=uuid4(),
            owner_id=user.owner_id,
            name=name,
            slug=name,
            phase=Phase.RUNNING,
            desired_state=Desired.RUNNING,
            created_at=now,
            updated_at=now,
            phase_changed_at=now,
        )
        self.database.state.put(None, row, "bench", "")
        ticket = await self.workspace_access.ticket(WorkspaceCaller(user, caller.credential), name, None)
        entered = await self.workspace_access.enter(ticket)
        assert entered is not None
        return f"{name}.localhost:8000", f"{VISIT_COOKIE}={entered[1]}"

    def proxy(self, upstream: int, ide: Endpoint | None = None) -> ProxyApp:
        parts = ProxyParts(
            workspace_access=self.workspace_access,
            lifecycles=Lifecycles(self.database.specs(), self.database.views(), IdlePolicy()),
            views=self.database.views(),
            runtime=OneUpstream(ide or Endpoint(host="127.0.0.1", port=upstream)),
            bus=self.bus,
            activity=MemoryActivity(self.bus.state),
            traffic=self.database.traffic(),
            clock=SystemClock(),
            addresses=Addresses("http://{slug}.localhost:8000/"),
            api=Endpoint(host="127.0.0.1", port=upstream),
            by_path=True,
        )
        return ProxyApp(parts, ProxyLimits(per_target=8192))


async def serve(upstream: int, ide: Endpoint | None) -> None:
    deployment = BenchDeployment()
    sites = [await deployment.add_user(f"bench-{number}") for number in range(USERS)]
    proxy = deployment.proxy(upstream, ide)

    async def tell() -> None:
        await proxy.wait_until_current(1.0)
        port = await proxy.server.listen("127.0.0.1", 0)
        print(json.dumps({"port": port, "sites": sites}), flush=True)
        await asyncio.Event().wait()

    await proxy.run_beside(tell())


if __name__ == "__main__":
    behind = int(sys.argv[1])
    agent = sys.argv[2:]
    inside = AgentPort(behind, bytes.fromhex(agent[1])) if agent else None
    uvloop.run(serve(behind, Endpoint(host="127.0.0.1", port=int(agent[0]), inside=inside) if agent else None))
