"""What happens to the engine itself: restarted, standing still, its disk full. Workspaces are unknown for a while,
never lost, and nothing is started twice. All on an engine of these tests' own.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator
from uuid import UUID

import pytest

from codehub.domain.ledger import LedgerKind
from codehub.domain.workspace import Desired, Phase
from tests.conftest import Tell
from tests.docker_engine import DockerTestbed
from tests.eventually import eventually
from tests.system.deployment import TIMEOUT_SECONDS
from tests.system.docker_site import DockerDeployment, OwnEngine, docker_deployed, has_tools, own_engine

NOTICED = 45
"""Seconds after which two looks have had no answer."""

pytestmark = [pytest.mark.system, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def fragile_engine(docker_testbed: DockerTestbed) -> Iterator[OwnEngine]:
    if not has_tools():
        pytest.skip("dockerd, unshare, nsenter, ip or mkfs.ext4 is not there")
    with own_engine() as engine:
        yield engine


@pytest.fixture
async def fragile(
    fragile_engine: OwnEngine, logged_database: str, fresh_redis: str
) -> AsyncIterator[tuple[DockerDeployment, OwnEngine]]:
    async with docker_deployed(logged_database, fresh_redis, engine=fragile_engine) as site:
        site.start()
        yield site, fragile_engine


async def running(site: DockerDeployment, count: int) -> list[UUID]:
    keys = [await site.create(Desired.RUNNING) for _ in range(count)]
    for key in keys:
        await site.settled(key, Phase.RUNNING)
    return keys


async def errors(site: DockerDeployment, key: UUID) -> list[str]:
    entries = await site.services.database.ledger().entries(key, 1000)
    return [entry.message for entry in entries if entry.kind is LedgerKind.PHASE and entry.after == Phase.ERROR.value]


async def test_the_engine_is_restarted(fragile: tuple[DockerDeployment, OwnEngine]) -> None:
    site, engine = fragile
    keys = await running(site, 3)
    asleep = await site.create(Desired.STANDBY)
    await site.settled(asleep, Phase.STANDBY)
    before = await site.runtime.containers()
    await asyncio.to_thread(engine.restart)

    async def all_are_back() -> bool:
        seen = await site.runtime.containers()
        return set(seen) == set(keys) and all(
            one.running and one.instance != before[key].instance for key, one in seen.items()
        )

    await eventually(all_are_back, 2 * TIMEOUT_SECONDS)
    for key in keys:
        await site.settled(key, Phase.RUNNING)
    await site.settled(asleep, Phase.STANDBY)
    assert [await errors(site, key) for key in (*keys, asleep)] == [[]] * 4, "nobody was sent to ERROR"


@pytest.mark.parametrize("seconds", [10, pytest.param(60, marks=pytest.mark.long)])
async def test_the_engine_stands_still(seconds: int, fragile: tuple[DockerDeployment, OwnEngine], tell: Tell) -> None:
    site, engine = fragile
    keys = await running(site, 2)
    waiting = await site.create(Desired.STANDBY)
    await site.settled(waiting, Phase.STANDBY)
    before = {key: seen.instance for key, seen in (await site.runtime.containers()).items()}
    with engine.paused():
        await site.want(waiting, Desired.RUNNING)
        await asyncio.sleep(seconds)
        rows = [await site.row(key) for key in keys]
        assert [row.phase for row in rows] == [Phase.RUNNING] * 2, "unknown, not absent"
        seen = {row.conditions.container_ready.status for row in rows}
        assert seen == ({None} if seconds > NOTICED else {True}), "and said to be unknown"
    await site.settled(waiting, Phase.RUNNING)
    for key in keys:
        await site.settled(key, Phase.RUNNING)
    after = {key: seen.instance for key, seen in (await site.runtime.containers()).items()}
    assert {key: after[key] for key in keys} == before, "what ran was not started again"
    assert set(after) == {*keys, waiting}
    assert [await errors(site, key) for key in (*keys, waiting)] == [[]] * 3
    tell(f"engine paused for {seconds} s: 2 of 2 untouched, the third started once it answered")


async def test_the_disk_is_full(fragile: tuple[DockerDeployment, OwnEngine]) -> None:
    site, _engine = fragile
    key, other = await running(site, 2)
    site.inside(key, "echo precious > note")
    # Its user fills the disk up; the other one's home and their own first file are none the worse.
    site.inside(other, "head -c 20000000 /dev/zero > ballast")
    site.inside(key, "cat /dev/zero > big 2>/dev/null || true")
    assert site.inside(key, "echo more > another 2>/dev/null; cat note") == "precious"
    await site.settled(other, Phase.RUNNING)

    # It can still be put to sleep, which frees the disk, and its archive holds what is there.
    await site.brought_to(key, Desired.ARCHIVED)
    site.inside(other, "echo fits > again && cat again")
    await site.brought_to(key, Desired.RUNNING)
    assert site.inside(key, "cat note") == "precious"
    assert [await errors(site, one) for one in (key, other)] == [[], []]
