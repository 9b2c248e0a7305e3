"""Many come, talk, and go in every way there is, through the front door as it runs; afterwards it is as before.

Descriptors: no connection of a client is left, the workspaces have exactly the sockets that they had before, and the
worker has no more than its own. Memory: after the first rounds, which fill caches and the allocator's pools, a round
leaves no more behind than the one before it, give or take what an allocator moves about.
"""

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest

from codehub.adapters.postgres.schema import migrate
from tests.conftest import Tell
from tests.eventually import eventually
from tests.system import websocket_ide
from tests.system.proxy_deployment import ProxyProcess, Visit, proxy_deployment
from tests.system.websockets import TIMEOUT_SECONDS, Connection, Cut, NotUpgraded, WebSocket, hang_up

pytestmark = pytest.mark.system

SLACK = 4 << 20
AT_ONCE = 40
OWN = 12
"""Connections to PostgreSQL and Redis, which come and go in their pools."""
CONNECTED = "03"
"""As /proc/net/unix says it."""


@dataclass
class Crowd:
    proxy: ProxyProcess
    visits: list[Visit]
    dice: random.Random
    held: list[WebSocket] = field(default_factory=list)
    came: int = 0
    put_off: int = 0

    async def round(self, sockets: int, seconds: float) -> None:
        await self._together(sockets, self._hold)
        until = asyncio.get_running_loop().time() + seconds
        await asyncio.gather(*(self._churn(until) for _ in range(AT_ONCE)))
        self.dice.shuffle(self.held)
        await self._together(sockets, self._let_go)
        hang_up()

    async def _together(self, count: int, one: Callable[[], Awaitable[None]]) -> None:
        async def some() -> None:
            for _ in range(count // AT_ONCE):
                await one()

        await asyncio.gather(*(some() for _ in range(AT_ONCE)))

    async def _hold(self) -> None:
        self.held.append(await self._connected(self._anyone()))

    async def _let_go(self) -> None:
        socket = self.held.pop()
        if self.dice.random() < 0.5:
            await self._say_goodbye(socket)
        else:
            socket.network.abort()

    def _anyone(self) -> Visit:
        self.came += 1
        return self.visits[self.came % len(self.visits)]

    async def _churn(self, until: float) -> None:
        ways = (
            self._talk_and_close,
            self._talk_and_vanish,
            self._half_close,
            self._vanish_in_a_frame,
            self._vanish_in_the_handshake,
            self._browse,
            self._leave_a_download,
            self._leave_an_upload,
            self._say_nonsense,
        )
        while asyncio.get_running_loop().time() < until:
            await self.dice.choice(ways)(self._anyone())
            held = self.dice.choice(self.held)
            self.held.remove(held)  # one talks to it at a time
            assert await held.echoed(self._message())
            self.held.append(held)

    def _message(self) -> bytes:
        return self.dice.randbytes(self.dice.choice((1, 20, 100, 1000, 20_000)))

    # ── the ways ─────────────────────────────────────────────────────────────────────────────────────────────────────

    async def _connected(self, visit: Visit) -> WebSocket:
        """A machine that cannot keep up says so, and is asked again; how often is told at the end."""
        for _ in range(20):
            try:
                return await visit.socket()
            except NotUpgraded as refused:
                if refused.status not in (503, 504):
                    raise
            self.put_off += 1
            await asyncio.sleep(1.0)
        raise AssertionError("not let in for too long")

    async def _talk(self, visit: Visit) -> WebSocket:
        socket = await self._connected(visit)
        for _ in range(3):
            assert await socket.echoed(self._message())
        return socket

    async def _talk_and_close(self, visit: Visit) -> None:
        await self._say_goodbye(await self._talk(visit))

    async def _say_goodbye(self, socket: WebSocket) -> None:
        socket.send((1000).to_bytes(2, "big"), 8)
        assert await socket.ended() == 1000
        socket.close()

    async def _talk_and_vanish(self, visit: Visit) -> None:
        (await self._talk(visit)).network.abort()

    async def _half_close(self, visit: Visit) -> None:
        socket = await self._talk(visit)
        socket.network.writer.write_eof()
        assert await socket.ended() is None
        socket.close()

    async def _vanish_in_a_frame(self, visit: Visit) -> None:
        socket = await self._talk(visit)
        socket.network.writer.write(b"\x82\xfe\x10\x00only a part")
        socket.network.abort()

    async def _vanish_in_the_handshake(self, visit: Visit) -> None:
        network = await Connection.open(visit.proxy.port)
        asked = {"Connection": "Upgrade", "Upgrade": "websocket", "Origin": f"http://{visit.host}"}
        network.send(visit.host, "/ws", visit.headers | asked)
        network.abort()

    async def _browse(self, visit: Visit) -> None:
        browser = visit.browser()
        for number in range(3):
            assert (await browser.get(f"/file-{number}")).body == b"/file-%d" % number
        browser.leave()

    async def _leave_a_download(self, visit: Visit) -> None:
        network = await Connection.open(visit.proxy.port)
        network.send(visit.host, "/big/3000000", visit.headers)
        await network.head()
        await network.reader.readexactly(10_000)
        network.abort()

    async def _leave_an_upload(self, visit: Visit) -> None:
        network = await Connection.open(visit.proxy.port)
        network.send(visit.host, "/upload", {**visit.headers, "Content-Length": "100000"}, "POST")
        network.writer.write(b"x" * 5000)
        network.close()

    async def _say_nonsense(self, visit: Visit) -> None:
        network = await Connection.open(visit.proxy.port)
        network.writer.write(b"nonsense\r\n\r\n")
        with suppress(Cut):
            assert (await network.answer()).status == 400
        network.close()


@asynccontextmanager
async def crowded(database: str, redis: str, people: int, each: int) -> AsyncIterator[Crowd]:
    """`each`: how many workspaces a person has."""
    await migrate(database)
    async with proxy_deployment(database, redis) as deployment:
        # All of them come from one address here, and from few people.
        caps = {"CODEHUB_PROXY_CONNECTIONS_PER_ADDRESS": "0", "CODEHUB_PROXY_CONNECTIONS_PER_PERSON": "0"}
        proxy = await deployment.open(workers=1, CODEHUB_PROXY_ACCESS_LOG="errors", **caps)
        owners = [await deployment.person() for _ in range(people)]
        spaces = await asyncio.gather(*(deployment.running(owner) for owner in owners for _ in range(each)))
        by_owner = [owner for owner in owners for _ in range(each)]
        visits = [await deployment.visit(owner, space, proxy) for owner, space in zip(by_owner, spaces, strict=True)]
        yield Crowd(proxy, visits, random.Random(7))


def ides(crowd: Crowd) -> list[psutil.Process]:
    homes = {visit.workspace.id.hex for visit in crowd.visits}
    return [
        process
        for process in psutil.process_iter(["cmdline"])
        if websocket_ide.__file__ in (words := process.info["cmdline"] or ())
        and any(key in word for word in words for key in homes)
    ]


def connections_of(crowd: Crowd) -> list[str]:
    """Those that the IDEs have not closed yet, by what the kernel says."""
    homes = {visit.workspace.id.hex for visit in crowd.visits}
    lines = [line.split() for line in Path("/proc/net/unix").read_text().splitlines()[1:]]
    return [words[-1] for words in lines if words[5] == CONNECTED and any(key in words[-1] for key in homes)]


async def descriptors_at_rest(crowd: Crowd, behind: list[psutil.Process]) -> dict[int, int]:
    """Of each IDE while nobody is connected to it: whoever looked whether it is ready has hung up."""
    found: dict[int, int] = {}

    async def nobody_is_connected() -> bool:
        before = connections_of(crowd)
        found.update({process.pid: process.num_fds() for process in behind})
        return before == connections_of(crowd) == []

    await eventually(nobody_is_connected, TIMEOUT_SECONDS)
    return found


async def soak(crowd: Crowd, sockets: int, seconds: float, tell: Tell) -> list[int]:
    """RSS after each of the rounds."""
    [worker] = crowd.proxy.workers
    behind = ides(crowd)
    at_rest = await descriptors_at_rest(crowd, behind)
    assert len(behind) >= len(crowd.visits)
    await crowd.round(AT_ONCE, 1.0)
    after: list[int] = []

    async def clients_are_gone() -> bool:
        return not [c for c in worker.net_connections("tcp") if c.status != psutil.CONN_LISTEN]

    async def workspaces_are_alone() -> bool:
        return {process.pid: process.num_fds() for process in behind} == at_rest

    async def nobody_counts() -> bool:
        return (await crowd.proxy.metrics())["codehub_proxy_connections"] == 0

    first = 0
    for _ in range(3):
        await crowd.round(sockets, seconds)
        await eventually(clients_are_gone, TIMEOUT_SECONDS)
        await eventually(workspaces_are_alone, TIMEOUT_SECONDS)
        first = first or worker.num_fds()
        assert worker.num_fds() <= first + OWN
        after.append(worker.memory_info().rss)
        tell(f"the proxy: {crowd.came} came, {crowd.put_off} were put off; RSS {after[-1] // 1000} kB")
    assert [worker] == crowd.proxy.workers
    await eventually(nobody_counts, TIMEOUT_SECONDS)
    return after


def judged(after: list[int]) -> None:
    assert after[2] <= after[1] * 1.05 + SLACK


@pytest.mark.timeout(400)
async def test_a_few_hundred_come_and_go(fresh_database: str, fresh_redis: str, tell: Tell) -> None:
    async with crowded(fresh_database, fresh_redis, people=2, each=1) as crowd:
        judged(await soak(crowd, 400, 8.0, tell))


@pytest.mark.long
@pytest.mark.timeout(3600)
async def test_five_thousand_sockets_and_ten_minutes_of_churn(
    fresh_database: str, fresh_redis: str, tell: Tell
) -> None:
    async with crowded(fresh_database, fresh_redis, people=6, each=2) as crowd:
        judged(await soak(crowd, 5000, 200.0, tell))
