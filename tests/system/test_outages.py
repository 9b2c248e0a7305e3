"""Everything around the coordinator is killed in the middle of something: the storage job, the IDE, Redis, PostgreSQL.

Afterwards the workspaces arrive where they were wished, and nothing is lost.
"""

import asyncio
import os
import signal
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import urlsplit
from uuid import UUID

import pytest

from codehub.adapters.embedded import EmbeddedServer, embedded_postgres, embedded_redis
from codehub.adapters.postgres.schema import migrate
from codehub.domain.ledger import LedgerKind
from codehub.domain.workspace import Desired, Operation, Phase
from tests.eventually import eventually
from tests.job.trees import Snapshot, assert_same
from tests.system import write_log
from tests.system.deployment import TIMEOUT_SECONDS, Deployment, deployed

pytestmark = pytest.mark.system


async def with_a_home(site: Deployment) -> tuple[UUID, Snapshot]:
    key = await site.create(Desired.STANDBY)
    await site.settled(key, Phase.STANDBY)
    return key, await site.filled(key)


async def test_the_storage_job_is_killed(logged_database: str, fresh_redis: str) -> None:
    """It is crash-only: run again, it gives the same archive and the same home."""
    async with deployed(logged_database, fresh_redis) as site:
        site.start()
        key, home = await with_a_home(site)
        for wish in (Desired.ARCHIVED, Desired.STANDBY):
            await site.want(key, wish)
            (await site.suspended_job(key)).kill()
            await site.settled(key, Phase(wish.value))
        assert_same(home, await site.kept(key))
        failed = [e for e in await site.services.database.ledger().entries(key) if e.kind is LedgerKind.ATTEMPT_FAILED]
        assert [entry.after for entry in failed] == ["ActionFailed", "ActionFailed"]
        assert all("SIGKILL" in entry.message for entry in failed)


@pytest.mark.parametrize("whole", [False, True], ids=["the IDE", "the IDE and its shim"])
async def test_the_ide_is_killed(whole: bool, logged_database: str, fresh_redis: str) -> None:
    async with deployed(logged_database, fresh_redis) as site:
        site.start()
        key, home = await with_a_home(site)
        await site.brought_to(key, Desired.RUNNING)
        [before] = site.ides(key)
        if whole:
            os.kill(int(Path("/proc", str(before), "stat").read_text().rpartition(")")[2].split()[1]), signal.SIGKILL)
        else:
            os.kill(before, signal.SIGKILL)

        async def another_serves() -> bool:
            return site.ides(key) not in ([], [before])

        await eventually(another_serves, TIMEOUT_SECONDS)
        await site.settled(key, Phase.RUNNING)
        assert len(site.ides(key)) == 1
        assert_same(home, await site.kept(key))


class Servers:
    """A PostgreSQL and a Redis of our own, to be killed and started again where they were. Durable: what was committed
    must be there afterwards."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._starts = {"postgres": embedded_postgres, "redis": embedded_redis}
        self._running = {name: start(directory) for name, start in self._starts.items()}
        self._server: dict[str, EmbeddedServer] = {}

    async def open(self) -> None:
        for name, context in self._running.items():
            self._server[name] = await context.__aenter__()

    def url(self, name: str) -> str:
        return self._server[name].url

    async def kill(self, name: str) -> None:
        os.kill(self._server[name].pid, signal.SIGKILL)
        await self._server[name].exited()
        await self._running.pop(name).__aexit__(None, None, None)

    async def start(self, name: str) -> None:
        self._running[name] = self._starts[name](self._directory)
        again = await self._running[name].__aenter__()
        assert again.url == self._server[name].url
        self._server[name] = again

    async def close(self) -> None:
        for context in self._running.values():
            await context.__aexit__(None, None, None)


@asynccontextmanager
async def own_servers() -> AsyncIterator[Servers]:
    with tempfile.TemporaryDirectory(prefix="codehub-test-") as directory:
        servers = Servers(Path(directory))
        try:
            await servers.open()
            url = servers.url("postgres")
            await migrate(url)
            await write_log.install(url, urlsplit(url).password or "")
            yield servers
        finally:
            await servers.close()


async def test_postgres_and_redis_are_killed() -> None:
    async with own_servers() as servers, deployed(servers.url("postgres"), servers.url("redis")) as site:
        leader, standby = await site.start_two()
        archiving, first = await with_a_home(site)
        starting, second = await with_a_home(site)
        running, third = await with_a_home(site)
        await site.brought_to(running, Desired.RUNNING)
        ides = site.ides(running)

        with site.gate("no-start"):
            await site.want(starting, Desired.RUNNING)
            await site.during(starting, Operation.STARTING)
            await site.want(archiving, Desired.ARCHIVED)
            job = await site.suspended_job(archiving)
            await servers.kill("postgres")
            await servers.kill("redis")
            job.resume()
            await asyncio.sleep(1)
            assert (leader.process.poll(), standby.process.poll()) == (None, None), "an outage is no reason to end"
            await servers.start("postgres")
        # Redis is still away: nobody needs it to arrive.
        await site.settled(archiving, Phase.ARCHIVED)
        await site.settled(starting, Phase.RUNNING)
        await servers.start("redis")

        await site.settled(running, Phase.RUNNING)
        assert site.ides(running) == ides
        assert len(site.ides(starting)) == 1
        await site.brought_to(archiving, Desired.STANDBY)
        for key, home in ((archiving, first), (starting, second), (running, third)):
            assert_same(home, await site.kept(key))
        await site.only_leaders_wrote()


async def test_redis_is_killed_while_events_flow() -> None:
    """Losing it loses no data, and after it came back events flow again."""
    async with own_servers() as servers, deployed(servers.url("postgres"), servers.url("redis")) as site:
        site.start()
        key, home = await with_a_home(site)
        await site.want(key, Desired.RUNNING)
        await servers.kill("redis")
        await site.settled(key, Phase.RUNNING)
        await servers.start("redis")

        heard = asyncio.ensure_future(anext(site.services.redis.bus().subscribe("codehub:sse:ann")))
        try:
            for wish in (Desired.STANDBY, Desired.RUNNING) * 5:
                await site.brought_to(key, wish)
                if heard.done():
                    break
            assert await heard == {"type": "updated", "id": str(key)}
        finally:
            heard.cancel()
            await asyncio.gather(heard, return_exceptions=True)
        assert_same(home, await site.kept(key))
