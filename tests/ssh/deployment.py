"""An SSH gateway on a socket of this machine, over memory databases and any runtime, and the real OpenSSH client."""

import asyncio
import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import asyncssh

from codehub.adapters.memory import MemoryAccountDatabase, MemoryActivity, MemoryBus, MemoryDatabase, MemoryPasswords
from codehub.adapters.memory.fault_injection import Fault, FaultKind, FaultyNetwork
from codehub.adapters.system import RandomIds, SystemClock
from codehub.domain.admission import RunningLimits
from codehub.domain.identity import Caller, Role, User
from codehub.domain.naming import volume_name
from codehub.domain.workspace import Desired, Operation, Phase, Workspace
from codehub.ports.accounts import NewUser
from codehub.ports.runtime import ContainerSpec, Runtime
from codehub.ports.stores import Actor
from codehub.ssh.gateway import Gateway, GatewayLimits, GatewayParts
from codehub.ssh.presence import ActivityReporter
from codehub.usecases.identity import Identity
from codehub.usecases.revocations import Revocations
from codehub.usecases.ssh_access import SshAccess
from codehub.usecases.ssh_keys import SshKeys
from codehub.usecases.users import Users
from codehub.usecases.workspace_access import WorkspaceAccess
from codehub.usecases.workspace_commands import CreateWorkspace, RunningSlots, WorkspaceCommands
from tests.eventually import SECONDS

QUIET = ("-F", "none", "-o", "StrictHostKeyChecking=yes", "-o", "BatchMode=yes", "-o", "IdentitiesOnly=yes")


@dataclass
class Ended:
    code: int
    out: bytes
    err: bytes


@dataclass
class SshPerson:
    """Somebody with a key of their own, in a directory of their own."""

    user: User
    key_file: Path
    caller: Caller
    key_id: UUID


class SshDeployment:
    def __init__(self, runtime: Runtime, place: Path, limits: GatewayLimits, running: RunningLimits) -> None:
        self.runtime, self.place = runtime, place
        self.database, self.bus = MemoryDatabase(), MemoryBus()
        self.failing: list[str] = []
        """The effects on accounts that fail when they are asked for next, once each."""
        self.people = MemoryAccountDatabase(self.database.state.accounts, FaultyNetwork(SystemClock(), self._fault))
        self.activity = MemoryActivity(self.bus.state)
        ids, clock, views = RandomIds(), SystemClock(), self.database.views()
        accounts, revocations = self.people.accounts(), Revocations(self.bus)
        identity = Identity(
            accounts, self.people.sign_in_state(), self.people.audit(), MemoryPasswords(), revocations, ids
        )
        self.commands = WorkspaceCommands(self.database.specs(), running)
        self.keys = SshKeys(self.people.authorized_keys(), revocations, ids)
        self.users = Users(accounts, MemoryPasswords(), revocations, ids)
        entrance = WorkspaceAccess(identity, views, self.commands, RunningSlots(views, running))
        access = SshAccess(self.people.authorized_keys(), views, entrance, self.people.audit(), clock)
        reporter = ActivityReporter(self.activity, views, clock, 0.1)
        self.gateway = Gateway(GatewayParts(access, runtime, self.bus, clock, reporter, limits))
        self.port = 0

    def _fault(self, name: str) -> Fault | None:
        if name not in self.failing:
            return None
        self.failing.remove(name)
        return Fault(FaultKind.FAIL)

    # ── people and workspaces ────────────────────────────────────────────────────────────────────────────────────────

    async def person(self, name: str = "ann", role: Role = Role.USER) -> SshPerson:
        user = await self.people.accounts().create_user(NewUser(uuid4(), name, role, "stored"), Actor("test"))
        caller = Caller(user, f"session:{'0' * 64}", is_fresh=True)
        key_file = self.place / f"{name}_key"
        made = asyncssh.generate_private_key("ssh-ed25519", comment=f"{name}@laptop")
        key_file.touch(mode=0o600)
        key_file.write_bytes(made.export_private_key())
        added = await self.keys.add(caller, made.export_public_key().decode())
        return SshPerson(user, key_file, caller, added.id)

    async def workspace(self, owner: SshPerson, phase: Phase = Phase.RUNNING, name: str = "demo") -> Workspace:
        key = uuid4()
        new = CreateWorkspace(name, owner.user.owner_id, Desired(phase.value))
        await self.commands.create(new, key, Actor(owner.user.username), await self.database.views().now())
        if phase is Phase.RUNNING:
            await self.start(key)
        return self.becomes(key, phase=phase, operation=Operation.NONE)

    async def start(self, workspace_id: UUID) -> None:
        volume = volume_name(workspace_id, 1)
        await self.runtime.create_volume(workspace_id, volume)
        spec = ContainerSpec(workspace_id, volume, "")
        async with asyncio.timeout(SECONDS):
            while await self.runtime.start_container(spec) is not None or not await self.runtime.answers(workspace_id):
                await asyncio.sleep(0.05)

    def becomes(self, workspace_id: UUID, **fields: Any) -> Workspace:
        row = self.database.state.rows[workspace_id]
        return self.database.state.put(row, replace(row, **fields), "controller", "test")

    def audited(self) -> list[dict[str, Any]]:
        return [dict(one.details) for one in self.database.state.accounts.audit if one.action == "open_ssh"]

    # ── the client ───────────────────────────────────────────────────────────────────────────────────────────────────

    def options(self, person: SshPerson) -> tuple[str, ...]:
        known = f"UserKnownHostsFile={self.place / 'known_hosts'}"
        return (*QUIET, "-o", known, "-i", str(person.key_file))

    def words(self, person: SshPerson, *words: str, name: str = "demo") -> list[str]:
        return ["ssh", *self.options(person), "-p", str(self.port), "-l", name, *words]

    async def client(self, person: SshPerson, name: str = "demo") -> asyncssh.SSHClientConnection:
        """A connection of a client that does what OpenSSH's would not."""
        known, keys = str(self.place / "known_hosts"), [str(person.key_file)]
        return await asyncssh.connect(
            "localhost", self.port, username=name, known_hosts=known, client_keys=keys, config=None
        )

    async def run(self, *words: str, given: bytes = b"") -> Ended:
        process = await asyncio.create_subprocess_exec(
            *words,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env={**os.environ, "LC_TEST": "보기", "SECRET_OF_MINE": "x"},
        )
        async with asyncio.timeout(SECONDS):
            out, err = await process.communicate(given)
        return Ended(process.returncode or 0, out, err)

    async def ssh(self, person: SshPerson, *words: str, given: bytes = b"", name: str = "demo") -> Ended:
        """`ssh` to the workspace; the words after `localhost` are the command."""
        return await self.run(*self.words(person, "localhost", *words, name=name), given=given)


@asynccontextmanager
async def deployed(
    runtime: Runtime, place: Path, limits: GatewayLimits | None = None, running: RunningLimits | None = None
) -> AsyncIterator[SshDeployment]:
    deployment = SshDeployment(runtime, place, limits or GatewayLimits(), running or RunningLimits())
    key = asyncssh.generate_private_key("ssh-ed25519")
    sock = socket.create_server(("127.0.0.1", 0))
    deployment.port = sock.getsockname()[1]
    line = key.export_public_key().decode()
    (place / "known_hosts").write_text(f"[localhost]:{deployment.port} {line}")
    async with await deployment.gateway.listen(sock, key):
        running_tasks = asyncio.create_task(deployment.gateway.run())
        try:
            yield deployment
        finally:
            running_tasks.cancel()
            await asyncio.gather(running_tasks, return_exceptions=True)
