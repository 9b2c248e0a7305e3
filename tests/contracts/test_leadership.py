"""Leadership: one leader, fenced by its epoch, replaced in under 5 s whatever happens to it, on every database."""

import asyncio
import heapq
import os
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Any
from urllib.parse import parse_qs, urlsplit

import asyncpg
import pytest

from codehub.adapters.memory import Fault, FaultyNetwork, MemoryDatabase
from codehub.adapters.memory import leadership as memory_leadership
from codehub.adapters.memory.database_state import DatabaseState
from codehub.adapters.memory.fault_injection import FaultKind
from codehub.adapters.postgres import PostgresDatabase
from codehub.adapters.postgres import leadership as postgres_leadership
from codehub.adapters.postgres import statements as sql
from codehub.domain.errors import Stale, Unreachable
from codehub.ports.signals import Clock
from codehub.ports.stores import DEPOSE_AFTER, Leader, Leadership, Term
from tests.conftest import Tell
from tests.contracts.databases import RealClock, stored
from tests.contracts.network import Network, network_to
from tests.eventually import eventually

TAKEOVER = timedelta(seconds=5)
HELD = timedelta(seconds=postgres_leadership.HELD_SECONDS)
HANGS_SECONDS = 60.0
"""A guard alone: how long each takes is told, and that it is below TAKEOVER follows from the rules' own figures."""
DAY_ONE = datetime(2026, 1, 1, tzinfo=UTC)


@dataclass
class Contender:
    """One who may lead, with a wire of its own: `cut` loses every byte, `sever` ends its sessions."""

    leadership: Leadership
    cut: Callable[[], None]
    sever: Callable[[], None]


class IdleClock:
    """A clock that jumps to the next sleeper's time when nobody has anything else to do: a machine that stands still
    changes nothing."""

    def __init__(self) -> None:
        self._now = 0.0
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []
        self._numbers = count()

    def monotonic(self) -> float:
        return self._now

    async def sleep(self, seconds: float) -> None:
        woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._sleepers, (self._now + seconds, next(self._numbers), woken))
        await woken

    async def run(self) -> None:
        while True:
            for _ in range(20):  # turns of the loop in which everybody who was woken does all there is to do
                await asyncio.sleep(0)
            if self._sleepers:
                self._wake_next()

    def _wake_next(self) -> None:
        at, _, woken = heapq.heappop(self._sleepers)
        if not woken.done():
            self._now = at
            woken.set_result(None)


class MemoryArena:
    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self._state = DatabaseState(now=lambda: DAY_ONE + timedelta(seconds=self.clock.monotonic()))

    async def contender(self) -> Contender:
        fault: list[Fault | None] = [None]
        network = FaultyNetwork(self.clock, lambda _name: fault[0])
        database = MemoryDatabase(self._state, network)

        def suffer(kind: FaultKind, seconds: float = 0.0) -> Callable[[], None]:
            return lambda: fault.__setitem__(0, Fault(kind, seconds))

        return Contender(database.leadership(self.clock), suffer(FaultKind.SLOW, 3600), suffer(FaultKind.FAIL))


class PostgresArena:
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
        clock = IdleClock()
        running = asyncio.create_task(clock.run())
        yield MemoryArena(clock)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        return
    url: str = request.getfixturevalue("database_url")
    async with AsyncExitStack() as stack:
        yield PostgresArena(url, stack)


async def leads(campaign: Awaitable[Term]) -> Term:
    async with asyncio.timeout(HANGS_SECONDS):
        return await campaign


async def leader_of(leadership: Leadership) -> Leader:
    leader = await leadership.leader()
    assert leader is not None
    return leader


async def renewed_for(leadership: Leadership, span: timedelta, pause: Callable[[], Awaitable[object]]) -> None:
    """Wait until the leader of this moment has renewed its term for so long."""
    before = await leader_of(leadership)
    async with asyncio.timeout(HANGS_SECONDS):
        while (now := await leader_of(leadership)).renewed_at - before.renewed_at < span:
            await pause()
    assert now.epoch == before.epoch


# ── the rules' own figures ───────────────────────────────────────────────────────────────────────────────────────────


def test_a_successor_leads_in_time_and_never_before_the_old_term_is_over() -> None:
    """The figures promise it, whatever the machine does; each way to lose a term is gone through below."""
    assert DEPOSE_AFTER > HELD
    assert postgres_leadership.FREE_LOCK_AFTER > HELD
    assert timedelta(seconds=memory_leadership.HELD_SECONDS) == HELD
    assert "pg_terminate_backend(held.pid, 500)" in sql.DEPOSE
    ends, polls = timedelta(milliseconds=500), timedelta(seconds=postgres_leadership.POLL_SECONDS)
    assert postgres_leadership.FREE_LOCK_AFTER + polls < TAKEOVER
    assert DEPOSE_AFTER + polls + ends < TAKEOVER
    assert DEPOSE_AFTER + timedelta(seconds=memory_leadership.POLL_SECONDS) < TAKEOVER


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
    began = arena.clock.monotonic()
    term = await contender.leadership.campaign("a")
    leader = await leader_of(contender.leadership)
    assert (leader.holder, leader.epoch) == ("a", term.epoch)
    assert 0 <= leader.age_seconds <= arena.clock.monotonic() - began
    await term.resign()
    assert await contender.leadership.leader() is None


async def test_a_renewing_leader_is_left_alone(arena: Arena) -> None:
    first, second = await arena.contender(), await arena.contender()
    term = await first.leadership.campaign("a")
    rival = asyncio.ensure_future(second.leadership.campaign("b"))
    await renewed_for(first.leadership, 1.5 * DEPOSE_AFTER, lambda: arena.clock.sleep(0.25))
    assert not rival.done()
    await eventually(term.held)
    await term.resign()
    successor = await leads(rival)
    assert successor.epoch > term.epoch
    await successor.resign()


async def test_resigning_ends_the_term_and_may_be_repeated(arena: Arena) -> None:
    contender = await arena.contender()
    term = await contender.leadership.campaign("a")
    waiting = asyncio.ensure_future(term.lost())
    await term.resign()
    await term.resign()
    await asyncio.wait_for(waiting, HANGS_SECONDS)
    assert not term.held()


async def test_a_broken_session_ends_the_term_at_once(arena: Arena, tell: Tell) -> None:
    first, second = await arena.contender(), await arena.contender()
    term = await first.leadership.campaign("a")
    rival = asyncio.ensure_future(second.leadership.campaign("b"))
    await arena.clock.sleep(1.5)
    first.sever()
    began = arena.clock.monotonic()
    async with asyncio.timeout(HANGS_SECONDS):
        await term.lost()
    assert not term.held()
    assert not rival.done(), "the rival led before the old leader saw that its term was over"
    successor = await leads(rival)
    tell(f"a leader whose session broke was replaced after {arena.clock.monotonic() - began:.1f} s")
    assert successor.epoch > term.epoch
    await term.resign()
    await successor.resign()


async def test_a_silent_leader_is_deposed_after_it_stopped_to_believe_in_itself(arena: Arena, tell: Tell) -> None:
    first, second = await arena.contender(), await arena.contender()
    term = await first.leadership.campaign("a")
    rival = asyncio.ensure_future(second.leadership.campaign("b"))
    held: list[bool] = []
    rival.add_done_callback(lambda _: held.append(term.held()))
    await arena.clock.sleep(1.5)
    first.cut()
    began = arena.clock.monotonic()
    silent = await leader_of(second.leadership)
    successor = await leads(rival)
    tell(f"a leader cut off was replaced after {arena.clock.monotonic() - began:.1f} s")
    assert held == [False], "the rival led while the old leader still trusted its term"
    assert (await leader_of(second.leadership)).renewed_at - silent.renewed_at >= HELD
    assert successor.epoch > term.epoch
    await eventually(successor.held)
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
    third = await leads(first.leadership.campaign("c"))
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
        await open_write.execute("SELECT pg_sleep(1)")  # a transaction that is idle would be ended
        assert not rival.done(), "the epoch was bumped over an open write"
        await open_write.execute(sql.change(["memo"]), row.id, "in time")
    successor = await leads(rival)
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
    successors: list[Term] = []

    async def stall() -> None:
        async with postgres.sessions.writing(term.epoch) as left_open:
            await left_open.execute(sql.change(["memo"]), row.id, "too late")
            await term.resign()
            successors.append(await leads(leadership.campaign("new")))

    with pytest.raises(Unreachable):
        await stall()
    [successor] = successors
    await successor.resign()
    assert await postgres.specs().get(row.id) == row


@pytest.mark.system
async def test_renewing_waits_for_no_write(postgres: PostgresDatabase) -> None:
    leadership = postgres.leadership(RealClock())
    term = await leadership.campaign("a")
    async with postgres.sessions.writing(term.epoch) as open_write:
        await renewed_for(leadership, timedelta(seconds=2), lambda: open_write.execute("SELECT pg_sleep(0.25)"))
        await eventually(term.held)
    await term.resign()


@pytest.mark.system
async def test_only_the_holder_of_the_lock_is_ended(postgres: PostgresDatabase, database_url: str) -> None:
    """Process ids are used again: a silent leader's may by now belong to somebody else."""
    stranger: asyncpg.Connection[Any] = await asyncpg.connect(database_url)
    try:
        pid = await stranger.fetchval("SELECT pg_backend_pid()")
        await stranger.execute("UPDATE leadership SET epoch = 7, holder = 'gone', backend_pid = $1", pid)
        term = await leads(postgres.leadership(RealClock()).campaign("a"))
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
    term = await leads(campaign)
    await term.resign()


@asynccontextmanager
async def leading_process(url: str, workspace_id: object) -> AsyncIterator[tuple[asyncio.subprocess.Process, int]]:
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.contracts.leader_process", url, str(workspace_id), stdin=pipe, stdout=pipe
    )
    try:
        assert process.stdout is not None
        yield process, int(await asyncio.wait_for(process.stdout.readline(), HANGS_SECONDS))
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def tries_to_write(process: asyncio.subprocess.Process) -> str:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(b"\n")
    return (await asyncio.wait_for(process.stdout.readline(), HANGS_SECONDS)).decode().strip()


async def replaces(leadership: Leadership) -> tuple[Term, timedelta]:
    """Lead in the place of one that renews no more; tell, by the database's clock, how long it had been silent."""
    silent = await leader_of(leadership)
    term = await leads(leadership.campaign("b"))
    return term, (await leader_of(leadership)).renewed_at - silent.renewed_at


@pytest.mark.system
async def test_a_killed_leader_is_replaced(postgres: PostgresDatabase, database_url: str, tell: Tell) -> None:
    row = await stored(postgres)
    async with leading_process(database_url, row.id) as (process, epoch):
        assert await tries_to_write(process) == "True written"
        process.kill()
        await process.wait()
        leadership = postgres.leadership(RealClock())
        successor, waited = await replaces(leadership)
        tell(f"a killed leader was replaced after {waited.total_seconds():.1f} s without a renewal")
        assert successor.epoch > epoch
        # The lock was free at once, but a session can end while its process lives and still trusts its term.
        assert waited >= HELD
        await successor.resign()


@pytest.mark.system
async def test_a_stopped_leader_is_replaced_and_wakes_powerless(
    postgres: PostgresDatabase, database_url: str, tell: Tell
) -> None:
    row = await stored(postgres)
    async with leading_process(database_url, row.id) as (process, epoch):
        assert await tries_to_write(process) == "True written"
        os.kill(process.pid, signal.SIGSTOP)
        successor, waited = await replaces(postgres.leadership(RealClock()))
        tell(f"a stopped leader was replaced after {waited.total_seconds():.1f} s without a renewal")
        assert successor.epoch > epoch
        assert waited >= HELD
        before = await postgres.specs().get(row.id)
        os.kill(process.pid, signal.SIGCONT)
        assert await tries_to_write(process) == "False Stale"
        assert await postgres.specs().get(row.id) == before
        await successor.resign()
