"""Two coordinators compete on a real PostgreSQL: the leader is killed, stalled or cut off in the middle of everything.

The other one takes over, the workspace arrives where it was wished, the home is the same to the byte, there is never a
second IDE, and the one that comes back touches nothing. Times are measured and told, never asserted.
"""

import asyncio
import random
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

import pytest

from codehub.domain.workspace import Desired, Operation, Phase
from tests.conftest import Tell
from tests.contracts.test_leadership import network_to_postgres
from tests.eventually import eventually
from tests.job.trees import Snapshot, assert_same
from tests.system import write_log
from tests.system.deployment import ANN, TIMEOUT_SECONDS, Coordinator, Deployment, deployed

pytestmark = pytest.mark.system


@dataclass(frozen=True)
class Scene:
    """From rest in `before` (None: it does not exist yet), wishing `wish` goes through the operation."""

    operation: Operation
    before: Desired | None
    wish: Desired


SCENES = (
    Scene(Operation.PROVISIONING, None, Desired.STANDBY),
    Scene(Operation.CREATE_EMPTY_ARCHIVE, None, Desired.ARCHIVED),
    Scene(Operation.STARTING, Desired.STANDBY, Desired.RUNNING),
    Scene(Operation.STOPPING, Desired.RUNNING, Desired.STANDBY),
    Scene(Operation.ARCHIVING, Desired.STANDBY, Desired.ARCHIVED),
    Scene(Operation.RESTORING, Desired.ARCHIVED, Desired.STANDBY),
    Scene(Operation.DISCARDING, Desired.ARCHIVED, Desired.PENDING),
    Scene(Operation.DELETING, Desired.ARCHIVED, Desired.DELETED),
)
SCENE_OF = {scene.operation: scene for scene in SCENES}
GATES = {Operation.STARTING: "no-start", Operation.STOPPING: "no-stop"}
JOBS = (Operation.ARCHIVING, Operation.RESTORING)
EACH = pytest.mark.parametrize("scene", SCENES, ids=lambda scene: scene.operation.value)


@dataclass
class Stage:
    """A workspace in the middle of an operation, under a leader that is about to have an accident."""

    site: Deployment
    scene: Scene
    leader: Coordinator
    standby: Coordinator
    key: UUID
    home: Snapshot | None
    archive: str | None

    async def taken_over(self, since: datetime, how: str, tell: Tell) -> None:
        await self.site.leads(self.standby)
        terms = await self.site.terms()
        (epoch, old, _, _), (next_epoch, new, at, silent) = terms[-2:]
        assert (old, new) == (self.leader.name, self.standby.name)
        assert next_epoch == epoch + 1
        took = (at - since).total_seconds()
        tell(f"takeover: {how:16} in {self.scene.operation:20} {took:5.2f} s, last renewal {silent:5.2f} s before")

    async def converges(self) -> None:
        row = await self.site.settled(self.key, Phase(self.scene.wish.value))
        assert row.error_info is None
        running = self.scene.wish is Desired.RUNNING
        await self._ides_become(1 if running else 0)
        await self.site.only_leaders_wrote()

    async def nothing_is_lost(self) -> None:
        """Bring the home back from wherever it is now, and compare."""
        if self.scene.wish is Desired.DELETED:
            await self.site.commands.undelete(self.key, ANN)
            await self.site.settled(self.key, Phase.ARCHIVED)
        if self.scene.wish is Desired.PENDING:
            assert self.archive is not None
            assert (await self.site.row(self.key)).archive_key is None
            await self.site.commands.restore(self.key, self.archive, ANN)
        if self.scene.wish is not Desired.RUNNING:
            await self.site.brought_to(self.key, Desired.STANDBY)
        volumes = await self.site.services.runtime.volumes([self.key])
        assert set(volumes[self.key]) == {(await self.site.row(self.key)).home_store_key}
        if self.home is not None:
            assert_same(self.home, await self.site.kept(self.key))
        await self.site.only_leaders_wrote()

    async def _ides_become(self, number: int) -> None:
        async def so_many() -> bool:
            return len(self.site.ides(self.key)) == number

        await eventually(so_many, TIMEOUT_SECONDS)


async def prepared(site: Deployment, scene: Scene, leader: Coordinator, standby: Coordinator) -> Stage:
    """At rest, with something in the home."""
    if scene.before is None:
        return Stage(site, scene, leader, standby, UUID(int=0), None, None)
    key = await site.create(Desired.STANDBY)
    await site.settled(key, Phase.STANDBY)
    home = await site.filled(key)
    row = await site.brought_to(key, scene.before)
    return Stage(site, scene, leader, standby, key, home, row.archive_key)


async def wish(stage: Stage) -> None:
    if stage.scene.before is None:
        stage.key = await stage.site.create(stage.scene.wish)
    else:
        await stage.site.want(stage.key, stage.scene.wish)


@asynccontextmanager
async def in_the_middle(stage: Stage) -> AsyncIterator[None]:
    """Inside the block the operation is under way and cannot end."""
    operation = stage.scene.operation
    if operation in GATES:
        with stage.site.gate(GATES[operation]):
            await wish(stage)
            await stage.site.during(stage.key, operation)
            yield
    elif operation in JOBS:
        await wish(stage)
        job = await stage.site.suspended_job(stage.key)
        try:
            assert (await stage.site.row(stage.key)).operation is operation
            yield
            assert (await stage.site.job(stage.key)) == job, "the job was not found again"
        finally:
            job.resume()
    else:
        async with held_by_database(stage):
            yield


@asynccontextmanager
async def held_by_database(stage: Stage) -> AsyncIterator[None]:
    """The effect is there, and the write that says so waits."""
    async with write_log.gate_at(stage.site.database_url, stage.scene.operation) as gate:
        await wish(stage)
        await gate.reached()
        assert (await stage.site.row(stage.key)).operation is stage.scene.operation
        yield


async def steps_down(stage: Stage) -> None:
    """It has noticed, has said so, and waits for its turn again."""

    async def it_said_so() -> bool:
        return bool(stage.leader.said("no longer leading"))

    await eventually(it_said_so, TIMEOUT_SECONDS)
    await stage.site.stands_by(stage.leader)


async def comes_back_and_touches_nothing(stage: Stage, come_back: Callable[[], None]) -> None:
    row, state = await stage.site.row(stage.key), await stage.site.state()
    come_back()
    await steps_down(stage)
    await asyncio.sleep(1)  # for what may still be on its way from an old thread
    assert await stage.site.state() == state
    assert await stage.site.row(stage.key) == row
    await stage.site.only_leaders_wrote()


async def leads_again(stage: Stage) -> None:
    """Whoever came back is as good as any: asked to end, the other hands over to it."""
    assert stage.standby.end(signal.SIGTERM) == 0
    await stage.site.leads(stage.leader)


@EACH
async def test_the_leader_is_killed(scene: Scene, logged_database: str, fresh_redis: str, tell: Tell) -> None:
    async with deployed(logged_database, fresh_redis) as site:
        stage = await prepared(site, scene, *await site.start_two())
        # What the world holds up may stay so until the other leads; a write that waits would keep it from leading.
        world_waits = scene.operation in GATES or scene.operation in JOBS
        async with in_the_middle(stage):
            since = await site.now()
            stage.leader.end(signal.SIGKILL)
            if world_waits:
                await stage.taken_over(since, "kill -9", tell)
        if not world_waits:
            await stage.taken_over(since, "kill -9", tell)
        await stage.converges()
        await stage.nothing_is_lost()


@pytest.mark.long
@pytest.mark.parametrize("scene", [SCENE_OF[o] for o in (*GATES, *JOBS)], ids=lambda scene: scene.operation.value)
async def test_the_leader_is_killed_while_it_writes(
    scene: Scene, logged_database: str, fresh_redis: str, tell: Tell
) -> None:
    async with deployed(logged_database, fresh_redis) as site:
        stage = await prepared(site, scene, *await site.start_two())
        async with held_by_database(stage):
            since = await site.now()
            stage.leader.end(signal.SIGKILL)
        await stage.taken_over(since, "kill -9 in write", tell)
        await stage.converges()
        await stage.nothing_is_lost()


@pytest.mark.parametrize("operation", [Operation.STARTING, Operation.ARCHIVING])
async def test_the_leader_is_stalled(operation: Operation, logged_database: str, fresh_redis: str, tell: Tell) -> None:
    async with deployed(logged_database, fresh_redis) as site:
        stage = await prepared(site, SCENE_OF[operation], *await site.start_two())
        async with in_the_middle(stage):
            since = await site.now()
            stage.leader.send(signal.SIGSTOP)
            await stage.taken_over(since, "SIGSTOP", tell)
        await stage.converges()
        await comes_back_and_touches_nothing(stage, lambda: stage.leader.send(signal.SIGCONT))
        await leads_again(stage)
        await stage.nothing_is_lost()


async def test_the_leader_is_stalled_in_a_write(logged_database: str, fresh_redis: str, tell: Tell) -> None:
    """Its transaction has passed the fence and stays open: it is rolled back before the other one leads."""
    async with deployed(logged_database, fresh_redis) as site:
        stage = await prepared(site, SCENE_OF[Operation.STARTING], *await site.start_two())
        async with held_by_database(stage):
            since = await site.now()
            stage.leader.send(signal.SIGSTOP)
        await stage.taken_over(since, "SIGSTOP in write", tell)
        await stage.converges()
        await comes_back_and_touches_nothing(stage, lambda: stage.leader.send(signal.SIGCONT))
        await stage.nothing_is_lost()


async def test_the_leader_is_cut_off(logged_database: str, fresh_redis: str, tell: Tell) -> None:
    async with (
        network_to_postgres(logged_database) as (network, through),
        deployed(logged_database, fresh_redis) as site,
    ):
        leader = site.start("alpha", database_url=through)
        await site.leads(leader)
        standby = site.start("beta")
        await site.stands_by(standby)
        stage = await prepared(site, SCENE_OF[Operation.ARCHIVING], leader, standby)
        async with in_the_middle(stage):
            since = await site.now()
            network.cut()
            await stage.taken_over(since, "silent network", tell)
        await stage.converges()
        await comes_back_and_touches_nothing(stage, network.mend)
        await leads_again(stage)
        await stage.nothing_is_lost()


@pytest.mark.parametrize("rounds", [2, pytest.param(20, marks=[pytest.mark.long, pytest.mark.timeout(900)])])
async def test_the_leader_is_killed_at_any_moment(
    rounds: int, logged_database: str, fresh_redis: str, tell: Tell
) -> None:
    chance = random.Random(7)
    async with deployed(logged_database, fresh_redis) as site:
        leader, standby = await site.start_two()
        keys = [await site.create(Desired.STANDBY) for _ in range(4)]
        for key in keys:
            await site.settled(key, Phase.STANDBY)
        homes = {key: await site.filled(key) for key in keys}
        for number in range(rounds):
            wishes = {key: chance.choice((Desired.RUNNING, Desired.STANDBY, Desired.ARCHIVED)) for key in keys}
            for key, desired in wishes.items():
                await site.want(key, desired)
            await asyncio.sleep(chance.uniform(0, 0.4))
            caught = [(await site.row(key)).operation.value for key in keys]
            leader.end(signal.SIGKILL)
            await site.leads(standby)
            tell(f"kill -9 at any moment, round {number}: caught {', '.join(caught)}")
            leader, standby = standby, site.start(leader.name)
            for key, desired in wishes.items():
                row = await site.settled(key, Phase(desired.value))
                assert row.error_info is None
                assert len(site.ides(key)) == (desired is Desired.RUNNING)
        for key in keys:
            await site.brought_to(key, Desired.STANDBY)
            assert_same(homes[key], await site.kept(key))
        await site.only_leaders_wrote()


async def test_a_restarted_coordinator_finds_the_container(logged_database: str, fresh_redis: str) -> None:
    async with deployed(logged_database, fresh_redis) as site:
        first = site.start("alpha")
        key = await site.create(Desired.RUNNING)
        await site.settled(key, Phase.RUNNING)
        ides, containers = site.ides(key), await site.containers()
        for end in (signal.SIGTERM, signal.SIGKILL):
            first.end(end)
            first = site.start("alpha")
            await site.leads(first)
            other = await site.create(Desired.STANDBY)  # it has looked at the world when this one is there
            await site.settled(other, Phase.STANDBY)
            row = await site.settled(key, Phase.RUNNING)
            assert (site.ides(key), await site.containers()) == (ides, containers)
            assert row.home.ready_instance == containers[key][0]
        await site.brought_to(key, Desired.STANDBY)
        assert site.ides(key) == []


async def test_the_write_log_can_tell(logged_database: str, fresh_redis: str) -> None:
    """What the others rely on: a write under another's term is noticed."""
    async with deployed(logged_database, fresh_redis) as site:
        leader, standby = await site.start_two()
        key = await site.create(Desired.STANDBY)
        await site.settled(key, Phase.STANDBY)
        await site.only_leaders_wrote()
        async with write_log.connected(site.database_url) as connection:
            await connection.execute(f"SET SESSION AUTHORIZATION {standby.name}")
            await connection.execute("UPDATE workspaces SET error_count = 0")
        with pytest.raises(AssertionError, match=standby.name):
            await site.only_leaders_wrote()
        assert leader.process.poll() is None
