"""Leadership: one leader, fenced by its epoch, replaced in under 5 s whatever happens to it, on every database."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import parse_qs, urlsplit

import asyncpg
import pytest

from codehub.adapters.memory import Fault, FaultyNetwork, MemoryDatabase
from codehub.adapters.memory.database_state import DatabaseState
from codehub.adapters.memory.fault_injection import FaultKind
from codehub.adapters.postgres import PostgresDatabase
from codehub.adapters.postgres import statements as sql
from codehub.adapters.postgres.leadership import HELD_SECONDS
from codehub.domain.errors import Stale, Unreachable
from codehub.ports.signals import Clock
from codehub.ports.stores import Leadership, Term
from tests.contracts.databases import RealClock, stored
from tests.contracts.network import Network, network_to

TAKEOVER_SECONDS = 5.0
DAY_ONE = datetime(2026, 1, 1, tzinfo=UTC)


@dataclass
class Contender:
    """One who may lead, with a wire of its own: `cut` loses every byte, `sever` ends its sessions."""

    leadership: Leadership
    cut: Callable[[], None]
    sever: Callable[[], None]


class MemoryArena:
    speed = 20.0

    def __init__(self) -> None:
        self.clock: Clock = RealClock(self.speed)
        self._state = DatabaseState(now=lambda: DAY_ONE + timedelta(seconds=self.clock.monotonic()))

    async def contender(self) -> Contender:
        fault: list[Fault | None] = [None]
        network = FaultyNetwork(self.clock, lambda _name: fault[0])
        database = MemoryDatabase(self._state, network)

        def suffer(kind: FaultKind, seconds: float = 0.0) -> Callable[[], None]:
            return lambda: fault.__setitem__(0, Fault(kind, seconds))

        return Contender(database.leadership(self.clock), suffer(FaultKind.SLOW, 3600), suffer(FaultKind.FAIL))


class PostgresArena:
    speed = 1.0

    def __init__(self, url: str, stack: AsyncExitStack) -> None:
        self.clock: Clock = RealClock()
        self._url = url
        self._stack = stack

    async def contender(self) -> Contender:
        network, url = await self._stack.enter_async_context(network_to_postgres(self._url))
        database = await self._stack.enter_async_context(await PostgresDatabase.open(url))
        return Contender(database.leadership(self.clock), network.cut, network.sever)


Arena = MemoryArena | PostgresArena


@asynccontextmanager
async def network_to_postgres(url: str) -> AsyncIterator[tuple[Network, str]]:
    place = urlsplit(url)
    query = parse_qs(place.query)
    socket = f"{query['host'][0]}/.s.PGSQL.{query['port'][0]}"
    async with network_to(lambda: asyncio.open_unix_connection(socket)) as network:
        yield (
            network,
            place._replace(netloc=f"{place.netloc}127.0.0.1:{network.port}", query="sslmode=disable").geturl(),
        )


@pytest.fixture(params=["memory", pytest.param("postgres", marks=pytest.mark.system)])
async def arena(request: pytest.FixtureRequest) -> AsyncIterator[Arena]:
    if request.param == "memory":
        yield MemoryArena()
        return
    url: str = request.getfixturevalue("database_url")
    async with AsyncExitStack() as stack:
        yield PostgresArena(url, stack)


async def leads_within(arena: Arena, campaign: "asyncio.Task[Term]", seconds: float) -> Term:
    async with asyncio.timeout(seconds / arena.speed):
        return await campaign


# ── on every database ────────────────────────────────────────────────────────────────────────────────────────────────


async def test_each_term_has_a_greater_epoch(arena: Arena) -> None:
    contender = await arena.contender()
    epochs = []
    for _ in range(3):
        term = await contender.leadership.campaign("a")
        assert term.held()
        epochs.append(term.epoch)
        await term.resign()
    assert epochs == sorted(set(epochs))


async def test_who_leads_is_known(arena: Arena) -> None:
    contender = await arena.contender()
    assert await contender.leadership.leader() is None
    term = await contender.leadership.campaign("a")
    leader = await contender.leadership.leader()
    assert leader is not None
    assert (leader.holder, leader.epoch) == ("a", term.epoch)
    assert 0 <= leader.age_seconds < 1
    await term.resign()
    assert await contender.leadership.leader() is None


async def test_a_renewing_leader_is_left_alone(arena: Arena) -> None:
    first, second = await arena.contender(), await arena.contender()
    term = await first.leadership.campaign("a")
    rival = asyncio.ensure_future(second.leadership.campaign("b"))
    await arena.clock.sleep(6)
    assert not rival.done()
    assert term.held()
    leader = await first.leadership.leader()
    assert leader is not None
    assert leader.age_seconds < 2.5
    await term.resign()
    successor = await leads_within(arena, rival, 2)
    assert successor.epoch > term.epoch
    await successor.resign()


async def test_resigning_ends_the_term_and_may_be_repeated(arena: Arena) -> None:
    contender = await arena.contender()
    term = await contender.leadership.campaign("a")
    waiting = asyncio.ensure_future(term.lost())
    await term.resign()
    await term.resign()
    await asyncio.wait_for(waiting, 1)
    assert not term.held()


async def test_a_broken_session_ends_the_term_at_once(arena: Arena) -> None:
    first, second = await arena.contender(), await arena.contender()
    term = await first.leadership.campaign("a")
    rival = asyncio.ensure_future(second.leadership.campaign("b"))
    await arena.clock.sleep(1.5)
    first.sever()
    async with asyncio.timeout(2 / arena.speed):
        await term.lost()
    assert not term.held()
    successor = await leads_within(arena, rival, TAKEOVER_SECONDS)
    assert successor.epoch > term.epoch
    await term.resign()
    await successor.resign()


async def test_a_silent_leader_is_deposed_after_it_stopped_to_believe_in_itself(arena: Arena) -> None:
    first, second = await arena.contender(), await arena.contender()
    term = await first.leadership.campaign("a")
    rival = asyncio.ensure_future(second.leadership.campaign("b"))
    await arena.clock.sleep(1.5)
    first.cut()
    began = arena.clock.monotonic()
    held = True
    async with asyncio.timeout(TAKEOVER_SECONDS / arena.speed):
        while not rival.done():
            held = term.held()
            await asyncio.sleep(0.02 / arena.speed)
    assert not held, "the rival led while the old leader still trusted its term"
    assert arena.clock.monotonic() - began < TAKEOVER_SECONDS
    successor = rival.result()
    assert successor.epoch > term.epoch
    assert successor.held()
    await successor.resign()


async def test_only_one_of_many_leads(arena: Arena) -> None:
    contenders = [await arena.contender() for _ in range(4)]
    campaigns = [asyncio.ensure_future(c.leadership.campaign(str(n))) for n, c in enumerate(contenders)]
    epochs = []
    while campaigns:
        done, _waiting = await asyncio.wait(campaigns, return_when=asyncio.FIRST_COMPLETED)
        assert len(done) == 1
        [won] = done
        campaigns.remove(won)
        term = won.result()
        epochs.append(term.epoch)
        await arena.clock.sleep(0.6)
        assert not any(campaign.done() for campaign in campaigns)
        await term.resign()
    assert epochs == sorted(set(epochs))


async def test_a_cancelled_campaign_leaves_no_leader(arena: Arena) -> None:
    first, second = await arena.contender(), await arena.contender()
    term = await first.leadership.campaign("a")
    rival = asyncio.ensure_future(second.leadership.campaign("b"))
    await arena.clock.sleep(0.6)
    rival.cancel()
    await asyncio.gather(rival, return_exceptions=True)
    await term.resign()
    third = await leads_within(arena, asyncio.ensure_future(first.leadership.campaign("c")), 2)
    await third.resign()


# ── PostgreSQL alone ─────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.system
async def test_a_campaign_without_database_is_unreachable() -> None:
    async with await PostgresDatabase.open("postgresql://nobody@127.0.0.1:1/none") as database:
        with pytest.raises(Unreachable):
            await database.leadership(RealClock()).campaign("a")
        with pytest.raises(Unreachable):
            await database.leadership(RealClock()).leader()


@pytest.mark.system
async def test_an_old_leader_s_open_write_commits_before_the_bump_or_never(postgres: PostgresDatabase) -> None:
    row = await stored(postgres)
    leadership = postgres.leadership(RealClock())
    term = await leadership.campaign("old")
    async with postgres.sessions.writing(term.epoch) as open_write:
        await term.resign()
        rival = asyncio.ensure_future(leadership.campaign("new"))
        await asyncio.sleep(1)
        assert not rival.done(), "the epoch was bumped over an open write"
        await open_write.execute(sql.change(["memo"]), row.id, "in time")
    successor = await asyncio.wait_for(rival, 2)
    with pytest.raises(Stale):
        await postgres.statuses(term.epoch).record(row, replace(row, error_count=1))
    found = await postgres.specs().get(row.id)
    assert found is not None
    assert (found.memo, found.error_count) == ("in time", 0)
    await successor.resign()


@pytest.mark.system
async def test_a_write_left_open_ends_before_a_rival_gives_up_on_it(postgres: PostgresDatabase) -> None:
    row = await stored(postgres)
    leadership = postgres.leadership(RealClock())
    term = await leadership.campaign("old")

    async def stall() -> None:
        async with postgres.sessions.writing(term.epoch) as left_open:
            await left_open.execute(sql.change(["memo"]), row.id, "too late")
            await term.resign()
            successor = await asyncio.wait_for(leadership.campaign("new"), TAKEOVER_SECONDS)
            await successor.resign()

    with pytest.raises(Unreachable):
        await stall()
    assert await postgres.specs().get(row.id) == row


@pytest.mark.system
async def test_renewing_waits_for_no_write(postgres: PostgresDatabase) -> None:
    term = await postgres.leadership(RealClock()).campaign("a")
    async with postgres.sessions.writing(term.epoch):
        await asyncio.sleep(2.5)
        leader = await postgres.leadership(RealClock()).leader()
        assert leader is not None
        assert leader.age_seconds < 2
        assert term.held()
    await term.resign()


@pytest.mark.system
async def test_only_the_holder_of_the_lock_is_ended(postgres: PostgresDatabase, database_url: str) -> None:
    """Process ids are used again: a silent leader's may by now belong to somebody else."""
    stranger: asyncpg.Connection[Any] = await asyncpg.connect(database_url)
    try:
        pid = await stranger.fetchval("SELECT pg_backend_pid()")
        await stranger.execute("UPDATE leadership SET epoch = 7, holder = 'gone', backend_pid = $1", pid)
        term = await asyncio.wait_for(postgres.leadership(RealClock()).campaign("a"), 2)
        assert term.epoch == 8
        assert await stranger.fetchval("SELECT 1") == 1
        await term.resign()
    finally:
        await stranger.close()


@pytest.mark.system
async def test_a_rival_who_has_the_lock_but_no_term_yet_is_not_ended(
    postgres: PostgresDatabase, database_url: str
) -> None:
    rival: asyncpg.Connection[Any] = await asyncpg.connect(database_url)
    try:
        await rival.execute(f"SELECT pg_advisory_lock({sql.LOCKS}, {sql.LEADERSHIP_LOCK})")
        await rival.execute("UPDATE leadership SET holder = 'silent', backend_pid = 1")
        campaign = asyncio.ensure_future(postgres.leadership(RealClock()).campaign("a"))
        await asyncio.sleep(1)
        assert not campaign.done()
        assert await rival.fetchval("SELECT 1") == 1
    finally:
        await rival.close()
    term = await asyncio.wait_for(campaign, 2)
    await term.resign()


@asynccontextmanager
async def leading_process(url: str, workspace_id: object) -> AsyncIterator[tuple[asyncio.subprocess.Process, int]]:
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.contracts.leader_process", url, str(workspace_id), stdin=pipe, stdout=pipe
    )
    try:
        assert process.stdout is not None
        yield process, int(await asyncio.wait_for(process.stdout.readline(), 20))
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def tries_to_write(process: asyncio.subprocess.Process) -> str:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(b"\n")
    return (await asyncio.wait_for(process.stdout.readline(), 20)).decode().strip()


@pytest.mark.system
async def test_a_killed_leader_is_replaced(postgres: PostgresDatabase, database_url: str) -> None:
    row = await stored(postgres)
    async with leading_process(database_url, row.id) as (process, epoch):
        assert await tries_to_write(process) == "True written"
        process.kill()
        await process.wait()
        leadership = postgres.leadership(RealClock())
        dead = await leadership.leader()
        successor = await asyncio.wait_for(leadership.campaign("b"), TAKEOVER_SECONDS)
        assert successor.epoch > epoch
        # The lock was free at once, but a session can end while its process lives and still trusts its term.
        alive = await leadership.leader()
        assert dead is not None
        assert alive is not None
        assert alive.renewed_at - dead.renewed_at >= timedelta(seconds=HELD_SECONDS)
        await successor.resign()


@pytest.mark.system
async def test_a_stopped_leader_is_replaced_and_wakes_powerless(postgres: PostgresDatabase, database_url: str) -> None:
    row = await stored(postgres)
    async with leading_process(database_url, row.id) as (process, epoch):
        assert await tries_to_write(process) == "True written"
        os.kill(process.pid, signal.SIGSTOP)
        successor = await asyncio.wait_for(postgres.leadership(RealClock()).campaign("b"), TAKEOVER_SECONDS)
        assert successor.epoch > epoch
        before = await postgres.specs().get(row.id)
        os.kill(process.pid, signal.SIGCONT)
        assert await tries_to_write(process) == "False Stale"
        assert await postgres.specs().get(row.id) == before
        await successor.resign()
