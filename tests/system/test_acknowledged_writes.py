"""What was acknowledged inside a workspace is there, whoever of us is killed.

Programs inside containers write without pause and hear of each write that it is done, while wishes change at random and
the leader is killed in the middle of archiving, restoring and starting. Every new container is asked what it finds: of
each file the version that was acknowledged last, or the one that was being written when its container ended.
"""

import asyncio
import json
import random
import signal
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from uuid import UUID

import pytest

from codehub.domain.errors import Unreachable
from codehub.domain.naming import container_name
from codehub.domain.workspace import Desired, Operation, Phase
from tests.conftest import Tell
from tests.docker_engine import FAKE_IDE_IMAGE, DockerTestbed
from tests.eventually import eventually
from tests.system import acknowledged_writer
from tests.system.deployment import Coordinator
from tests.system.docker_site import DockerDeployment, docker_deployed

WORKSPACES = 8
FILES = ("a-log", "i-one", "i-two", "r-one", "r-two")
INSIDE = "/home/coder/written"
PYTHON = "/usr/local/lib/codehub/bin/python"
PROGRAM = Path(acknowledged_writer.__file__).read_text()
WISHES = (Desired.RUNNING, Desired.RUNNING, Desired.STANDBY, Desired.ARCHIVED, Desired.ARCHIVED)
TAKEOVER_SECONDS = 600
"""Two coordinators, eight containers and their writers on two cores: a new process may take long to be ready."""
COUNTED = (Operation.ARCHIVING, Operation.RESTORING, Operation.STARTING)

pytestmark = [pytest.mark.system, pytest.mark.timeout(900)]


@dataclass
class Home:
    """What one workspace's writer was told, and what is still unknown to it."""

    key: UUID
    acknowledged: dict[str, int] = field(default_factory=dict)
    asked: dict[str, int] = field(default_factory=dict)
    containers: int = 0
    writes: int = 0

    def compare(self, found: dict[str, int | None]) -> None:
        """What is found counts from here on: a write without an answer may have happened or not."""
        for name, acknowledged in self.acknowledged.items():
            possible = {acknowledged, self.asked.get(name, acknowledged)}
            assert found.get(name, 0) in possible, f"{self.key} {name}: {found.get(name)}, not one of {possible}"
        self.acknowledged = {name: version for name, version in found.items() if version is not None}
        self.asked = {}

    async def write_for_ever(self, chance: random.Random) -> None:
        """In whatever container the workspace has, started by whomever."""
        while True:
            with suppress(EOFError, ConnectionError):
                async with self._program() as program:
                    await self._write(program, chance)
            await asyncio.sleep(0.1)

    @asynccontextmanager
    async def _program(self) -> AsyncIterator[asyncio.subprocess.Process]:
        words = ("docker", "exec", "-i", container_name(self.key), PYTHON, "-c", PROGRAM, INSIDE)
        pipe = asyncio.subprocess.PIPE
        program = await asyncio.create_subprocess_exec(*words, stdin=pipe, stdout=pipe, stderr=pipe, limit=1 << 20)
        try:
            yield program
        finally:
            # Without input it ends by itself; with its container, at once.
            assert program.stdin is not None
            program.stdin.close()
            await program.communicate()

    async def _write(self, program: asyncio.subprocess.Process, chance: random.Random) -> None:
        assert program.stdin is not None
        assert program.stdout is not None
        first = await program.stdout.readline()
        if not (first.startswith(b"{") and first.endswith(b"\n")):
            raise EOFError  # the engine's own words: there is no such container, or no longer
        self.compare(json.loads(first))
        self.containers += 1
        while True:
            name = chance.choice(FILES)
            version = self.acknowledged.get(name, 0) + 1
            self.asked[name] = version
            order = f"{name} {version}\n".encode()
            program.stdin.write(order)
            await program.stdin.drain()
            if await program.stdout.readline() != order:
                raise EOFError
            self.acknowledged[name] = version
            del self.asked[name]
            self.writes += 1
            await asyncio.sleep(chance.uniform(0, 0.05))


@dataclass
class Leadership:
    """Two coordinators, of which the leader is killed again and again."""

    site: DockerDeployment
    leader: Coordinator
    standby: Coordinator
    caught: Counter[Operation] = field(default_factory=Counter)
    kills: int = 0

    async def kill(self, homes: list[Home]) -> None:
        rows = await asyncio.gather(*(self.site.row(home.key) for home in homes))
        await asyncio.to_thread(self.leader.end, signal.SIGKILL)
        self.kills += 1
        self.caught.update(row.operation for row in rows)
        await eventually(self._standby_leads, TAKEOVER_SECONDS)
        # Only now: another that campaigns could be the one that leads.
        self.leader, self.standby = self.standby, self.site.start(self.leader.name)
        await eventually(self._stands_by, TAKEOVER_SECONDS)

    async def _standby_leads(self) -> bool:
        leader = await self.site.services.leader()
        return leader is not None and leader.holder == self.standby.holder

    async def _stands_by(self) -> bool:
        return await self.site.campaigns(self.standby)


async def wish_for_ever(site: DockerDeployment, key: UUID, chance: random.Random) -> None:
    while True:
        with suppress(Unreachable):  # a person tries again
            await site.want(key, chance.choice(WISHES))
        await asyncio.sleep(chance.uniform(0.1, 5.0))


async def find_in(site: DockerDeployment, home: Home) -> dict[str, int | None]:
    return acknowledged_writer.found(await site.home(home.key) / Path(INSIDE).name)


@pytest.mark.parametrize("rounds", [5, pytest.param(200, marks=[pytest.mark.long, pytest.mark.timeout(7200)])])
async def test_what_was_acknowledged_inside_is_there(
    rounds: int, docker_testbed: DockerTestbed, logged_database: str, fresh_redis: str, tell: Tell
) -> None:
    chance = random.Random(44)
    async with docker_deployed(logged_database, fresh_redis, workspace_image=FAKE_IDE_IMAGE) as site:
        leadership = Leadership(site, *await site.start_two())
        homes = [Home(await site.create(Desired.RUNNING)) for _ in range(WORKSPACES)]
        for home in homes:
            await site.settled(home.key, Phase.RUNNING)
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(home.write_for_ever(random.Random(number))) for number, home in enumerate(homes)]
            tasks += [
                group.create_task(wish_for_ever(site, home.key, random.Random(-number - 1)))
                for number, home in enumerate(homes)
            ]
            while leadership.kills < rounds:
                await asyncio.sleep(chance.uniform(0.5, 4.0))
                await leadership.kill(homes)
            for task in tasks:
                task.cancel()
        for home in homes:
            await site.brought_to(home.key, Desired.STANDBY)
            home.compare(await find_in(site, home))
        await site.only_leaders_wrote()
    writes, containers = sum(home.writes for home in homes), sum(home.containers for home in homes)
    moments = ", ".join(f"{operation.value} {leadership.caught[operation]}" for operation in COUNTED)
    tell(f"kill -9 of the leader {rounds} times ({moments}): {writes} writes in {containers} containers, none lost")
