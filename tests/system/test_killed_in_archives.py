"""The leader is killed at random moments of archiving and of restoring, of many homes at once.

A moment counts if the home's operation was under way when the leader died. Afterwards every home is where it was
wished, the same to the byte, nothing half made is believed, and nothing is left behind in it.
"""

import asyncio
import random
import signal
from collections.abc import Mapping, Sequence
from uuid import UUID

import pytest

from codehub.domain.naming import meta_key
from codehub.domain.workspace import Desired, Operation, Phase
from codehub.job.volume import STAGING_PREFIX
from tests.conftest import Tell
from tests.job.trees import Snapshot, assert_same
from tests.system.deployment import Coordinator, Deployment, deployed

HOMES = 12
SPREAD_SECONDS = 0.5
WISH_OF = {Operation.ARCHIVING: Desired.ARCHIVED, Operation.RESTORING: Desired.STANDBY}
LONG = [pytest.mark.long, pytest.mark.timeout(3600)]

pytestmark = [pytest.mark.system, pytest.mark.timeout(400)]


class Duel:
    """Two coordinators, of which the leader has an accident now and then, and what it was at."""

    def __init__(self, site: Deployment, chance: random.Random, leader: Coordinator, standby: Coordinator) -> None:
        self.caught = dict.fromkeys(WISH_OF, 0)
        self.kills = 0
        self._site = site
        self._chance = chance
        self._leader = leader
        self._standby = standby

    async def go(self, keys: Sequence[UUID], operation: Operation) -> None:
        """Everybody wishes the same at a time of their own; the leader dies in the middle of it."""
        await asyncio.gather(*(self._want(key, WISH_OF[operation]) for key in keys), self._accident(keys, operation))
        for key in keys:
            row = await self._site.settled(key, Phase(WISH_OF[operation].value))
            assert row.error_info is None

    async def _want(self, key: UUID, desired: Desired) -> None:
        await asyncio.sleep(self._chance.uniform(0, SPREAD_SECONDS))
        await self._site.want(key, desired)

    async def _accident(self, keys: Sequence[UUID], operation: Operation) -> None:
        await asyncio.sleep(self._chance.uniform(0.2, 4 * SPREAD_SECONDS))
        rows = await asyncio.gather(*(self._site.row(key) for key in keys))
        self._leader.end(signal.SIGKILL)
        self.kills += 1
        self.caught[operation] += sum(row.operation is operation for row in rows)
        await self._site.leads(self._standby)
        self._leader, self._standby = self._standby, self._site.start(self._leader.name)


@pytest.mark.parametrize("moments", [15, pytest.param(200, marks=LONG)])
async def test_the_leader_is_killed_at_random_moments(
    moments: int, logged_database: str, fresh_redis: str, tell: Tell
) -> None:
    async with deployed(logged_database, fresh_redis) as site:
        duel = Duel(site, random.Random(11), *await site.start_two())
        keys = [await site.create(Desired.STANDBY) for _ in range(HOMES)]
        for key in keys:
            await site.settled(key, Phase.STANDBY)
        homes = {key: await site.filled(key) for key in keys}
        while min(duel.caught.values()) < moments:
            await duel.go(keys, Operation.ARCHIVING)
            await nothing_unproven_is_believed(site, keys)
            await duel.go(keys, Operation.RESTORING)
            await every_home_is_whole(site, homes)
        await site.only_leaders_wrote()
        archived, restored = duel.caught.values()
        tell(f"kill -9 of the leader: {duel.kills} times, at {archived} moments of archiving, {restored} of restoring")


async def nothing_unproven_is_believed(site: Deployment, keys: Sequence[UUID]) -> None:
    there = {found.key for found in await site.services.archives.objects()}
    for key in keys:
        row = await site.row(key)
        assert row.archive_key in there
        assert meta_key(row.archive_key or "") in there
        points = await site.services.database.views().restore_points(key)
        assert {meta_key(point.key) for point in points if point.released_at is None} <= there
        assert not (await site.services.runtime.volumes([key])).get(key)


async def every_home_is_whole(site: Deployment, homes: Mapping[UUID, Snapshot]) -> None:
    for key, home in homes.items():
        assert_same(home, await site.kept(key))
        left = [path.name for path in (await site.home(key)).iterdir() if path.name.startswith(STAGING_PREFIX.decode())]
        assert left == []
        assert len((await site.services.runtime.volumes([key]))[key]) == 1
