"""The leader, the pods of jobs and parts of the cluster are killed or stand still at random moments of archiving and
restoring: nothing is lost, nothing is started twice, and nobody ends in ERROR."""

import asyncio
import os
import random
import signal
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from threading import Event, Thread
from uuid import UUID

import pytest

from codehub.domain.workspace import Desired, Operation, Phase
from tests.conftest import Tell
from tests.job.trees import Snapshot
from tests.kubernetes_cluster import KubernetesTestbed
from tests.system.kubernetes_site import KubernetesDeployment, killed, kubernetes_deployed, part, standing_still
from tests.system.test_killed_in_archives import Duel, every_home_is_whole, nothing_unproven_is_believed

HOMES = 3
LONG = [pytest.mark.long, pytest.mark.timeout(3600)]
MOMENTS = [3, pytest.param(20, marks=LONG)]

pytestmark = [pytest.mark.system, pytest.mark.kubernetes, pytest.mark.timeout(600)]


@pytest.fixture
async def site(
    kubernetes_testbed: KubernetesTestbed, logged_database: str, fresh_redis: str
) -> AsyncIterator[KubernetesDeployment]:
    async with kubernetes_deployed(kubernetes_testbed, logged_database, fresh_redis) as found:
        yield found


async def homes_of(site: KubernetesDeployment, count: int = HOMES) -> Mapping[UUID, Snapshot]:
    """Homes at rest with something to lose."""
    keys = [await site.create(Desired.STANDBY) for _ in range(count)]
    for key in keys:
        await site.settled(key, Phase.STANDBY)
    return {key: await site.filled(key) for key in keys}


def one_pod_each(site: KubernetesDeployment, keys: Sequence[UUID]) -> None:
    """No two pods of one workspace's may write to its home at once."""
    for key in keys:
        alive = [pod for pod in site.pods(key) if pod["status"]["phase"] in ("Pending", "Running")]
        assert len(alive) <= 1, [pod["metadata"]["name"] for pod in alive]


@pytest.mark.parametrize("moments", MOMENTS)
async def test_the_leader_is_killed_at_random_moments(moments: int, site: KubernetesDeployment, tell: Tell) -> None:
    duel = Duel(site, random.Random(17), *await site.start_two())
    homes = await homes_of(site)
    keys = list(homes)
    while min(duel.caught.values()) < moments:
        await duel.go(keys, Operation.ARCHIVING)
        one_pod_each(site, keys)
        await nothing_unproven_is_believed(site, keys)
        await duel.go(keys, Operation.RESTORING)
        one_pod_each(site, keys)
        await every_home_is_whole(site, homes)
    await site.only_leaders_wrote()
    archived, restored = duel.caught.values()
    tell(f"kill -9 of the leader: {duel.kills} times, at {archived} moments of archiving, {restored} of restoring")


@pytest.mark.parametrize("moments", MOMENTS)
async def test_the_pod_of_a_job_is_killed_at_random_moments(
    moments: int, site: KubernetesDeployment, tell: Tell
) -> None:
    chance = random.Random(23)
    await site.leads(site.start())
    homes = await homes_of(site, 1)
    (key,) = homes
    kills = 0
    while kills < moments:
        for desired, phase in ((Desired.ARCHIVED, Phase.ARCHIVED), (Desired.STANDBY, Phase.STANDBY)):
            await site.want(key, desired)
            await asyncio.sleep(chance.uniform(0.2, 2.5))
            kills += kill_job(site, key)
            row = await site.settled(key, phase)
            assert row.error_info is None
            one_pod_each(site, [key])
        await every_home_is_whole(site, homes)
    tell(f"a job's pod was killed {kills} times")


def kill_job(site: KubernetesDeployment, key: UUID) -> bool:
    """Ends the container of the job's pod, if there is one that runs and does not end by itself at that moment."""
    for pod in site.pods(key):
        with suppress(AssertionError, subprocess.CalledProcessError):
            site.testbed.kill_container(pod["metadata"]["uid"], "job")
            return True
    return False


@contextmanager
def stuttering(name: str, chance: random.Random) -> Iterator[None]:
    """A part of the cluster stands still in bursts of up to two seconds."""
    number, over = part(name), Event()

    def run() -> None:
        while not over.wait(chance.uniform(0.1, 1.0)):
            os.kill(number, signal.SIGSTOP)
            over.wait(chance.uniform(0.2, 2.0))
            os.kill(number, signal.SIGCONT)

    thread = Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        os.kill(number, signal.SIGCONT)


async def goes_there_and_back(
    site: KubernetesDeployment, homes: Mapping[UUID, Snapshot], meanwhile: Callable[[], Awaitable[None]]
) -> None:
    """Archives the homes while that happens, and restores them."""
    for key in homes:
        await site.want(key, Desired.ARCHIVED)
    await meanwhile()
    for key in homes:
        assert (await site.settled(key, Phase.ARCHIVED)).error_info is None
    one_pod_each(site, list(homes))
    await nothing_unproven_is_believed(site, list(homes))
    for key in homes:
        await site.brought_to(key, Desired.STANDBY)
    await every_home_is_whole(site, homes)


async def test_an_etcd_that_is_slow_delays_and_loses_nothing(site: KubernetesDeployment) -> None:
    await site.leads(site.start())
    homes = await homes_of(site)

    async def is_slow() -> None:
        with stuttering("etcd", random.Random(29)):
            await asyncio.sleep(20)

    await goes_there_and_back(site, homes, is_slow)


async def test_an_api_server_that_stands_still_for_a_minute_delays_and_loses_nothing(
    site: KubernetesDeployment,
) -> None:
    await site.leads(site.start())
    homes = await homes_of(site)

    async def stands_still() -> None:
        await asyncio.sleep(1)
        with standing_still("apiserver"):
            await asyncio.sleep(60)

    await goes_there_and_back(site, homes, stands_still)


async def test_an_api_server_that_is_killed_and_comes_back_delays_and_loses_nothing(site: KubernetesDeployment) -> None:
    await site.leads(site.start())
    homes = await homes_of(site)

    async def is_killed() -> None:
        await asyncio.sleep(1)
        with killed("apiserver"):
            await asyncio.sleep(5)

    await goes_there_and_back(site, homes, is_killed)
