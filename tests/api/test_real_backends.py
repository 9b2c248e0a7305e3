"""The API as it runs: two processes, a real PostgreSQL and Redis. Limits are exact, events survive restarts."""

import asyncio
import os
import signal
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import UUID

import asyncpg
import httpx
import pytest

from codehub.adapters.embedded import EmbeddedServer, embedded_postgres, embedded_redis
from codehub.adapters.postgres.schema import migrate
from codehub.domain.identity import Role
from tests.api.real_api import Events, RealApi, real_api
from tests.eventually import eventually

pytestmark = [pytest.mark.system, pytest.mark.timeout(300)]

LIMIT = 2

# Held by a row that wants to run, starts or has a container; the API never sees a row in ERROR here.
HELD = """
SELECT count(*) FROM workspaces WHERE deleted_at IS NULL AND (
    desired_state = 'RUNNING' OR operation = 'STARTING'
    OR conditions -> 'infra.container_ready' ->> 'reason' <> 'NoContainer')
"""


@pytest.fixture
async def deployment(fresh_database: str, fresh_redis: str) -> AsyncIterator[RealApi]:
    await migrate(fresh_database)
    async with real_api(fresh_database, fresh_redis, MAX_RUNNING_PER_USER=str(LIMIT)) as opened:
        yield opened


@asynccontextmanager
async def watched(database_url: str) -> AsyncIterator[list[int]]:
    """How many slots were held, looked at all the time from the side."""
    seen: list[int] = []
    connection = await asyncpg.connect(database_url)

    async def look() -> None:
        while True:
            seen.append(await connection.fetchval(HELD))
            await asyncio.sleep(0.005)

    task = asyncio.ensure_future(look())
    try:
        yield seen
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await connection.close()


async def test_a_hundred_at_once_on_two_processes_never_exceed_the_limit(deployment: RealApi) -> None:
    apis = [await deployment.start_api(), await deployment.start_api()]
    await deployment.start_coordinator()
    _, headers = await deployment.token("ann")
    limits = httpx.Limits(max_connections=10)  # more would wait for one of the API's connections to the database
    async with (
        httpx.AsyncClient(base_url=apis[0].url, headers=headers, timeout=None, limits=limits) as one,
        httpx.AsyncClient(base_url=apis[1].url, headers=headers, timeout=None, limits=limits) as two,
        watched(deployment.database_url) as held,
    ):
        clients = [one, two]
        created = await asyncio.gather(
            *(clients[n % 2].post("/api/v1/workspaces", json={"name": f"run {n}"}) for n in range(100))
        )
        codes = [answer.status_code for answer in created]
        assert (codes.count(201), codes.count(429)) == (LIMIT, 100 - LIMIT)
        asleep = [
            (await one.post("/api/v1/workspaces", json={"name": f"sleep {n}", "desired_state": "PENDING"})).json()["id"]
            for n in range(10)
        ]
        running = [answer.json()["id"] for answer in created if answer.status_code == 201]
        # Some stop while many wake: whoever gets the slot, there are never more.
        wakes = [
            clients[n % 2].patch(f"/api/v1/workspaces/{asleep[n % 10]}", json={"desired_state": "RUNNING"})
            for n in range(100)
        ]
        stops = [
            clients[n % 2].patch(f"/api/v1/workspaces/{key}", json={"desired_state": "STANDBY"})
            for n, key in enumerate(running)
        ]
        answers = await asyncio.gather(*wakes, *stops)
        assert {answer.status_code for answer in answers} <= {200, 202, 429}
        await eventually(lambda: _settled(one), 60)
        again = await asyncio.gather(
            *(
                clients[n % 2].patch(f"/api/v1/workspaces/{asleep[n % 10]}", json={"desired_state": "RUNNING"})
                for n in range(100)
            )
        )
        assert sum(answer.status_code in (200, 202) for answer in again) >= 1
        await eventually(lambda: _settled(one), 60)
        assert (await one.get("/api/v1/limits")).json()["running"] == LIMIT
    assert max(held) == LIMIT, "more than the limit wanted or running"
    assert len(held) > 20


async def _settled(client: httpx.AsyncClient) -> bool:
    items = (await client.get("/api/v1/workspaces", params={"limit": 200})).json()["items"]
    return all(item["operation"] == "NONE" and item["phase"] == item["desired_state"] for item in items)


async def test_one_key_on_two_processes_creates_once(deployment: RealApi) -> None:
    apis = [await deployment.start_api(), await deployment.start_api()]
    _, headers = await deployment.token("ann")
    async with httpx.AsyncClient(headers={**headers, "idempotency-key": "k"}, timeout=60) as client:
        answers = await asyncio.gather(
            *(client.post(f"{apis[n % 2].url}/api/v1/workspaces", json={"name": "demo"}) for n in range(20))
        )
    assert {answer.status_code for answer in answers} == {201}
    assert len({answer.text for answer in answers}) == 1


async def test_a_whole_life_over_http(deployment: RealApi) -> None:
    """Created, run, logs read, stopped, archived, looked into, restored, deleted, brought back; the events tell."""
    api = await deployment.start_api()
    await deployment.start_coordinator()
    ann, headers = await deployment.token("ann")
    events = Events(api.url, headers)
    async with httpx.AsyncClient(base_url=api.url, headers=headers, timeout=30) as http:
        made = (await http.post("/api/v1/workspaces", json={"name": "demo"})).json()
        path = f"/api/v1/workspaces/{made['id']}"

        async def reaches(phase: str) -> dict[str, Any]:
            async def there() -> bool:
                known = events.known.get(made["id"], {})
                return known.get("phase") == phase and known.get("operation") == "NONE"

            await eventually(there, 60)
            shown: dict[str, Any] = (await http.get(path)).json()
            assert shown["phase"] == phase
            return shown

        await reaches("RUNNING")
        assert "listening" in (await http.get(f"{path}/logs")).json()["text"]
        why = (await http.get(f"{path}/lifecycle")).json()
        assert (why["why_up"]["actor"], why["becomes"]) == ("ann", "STANDBY")
        row = await deployment.services.database.specs().get(UUID(made["id"]))
        assert row is not None
        home = deployment.services.processes.homes.home(row.home_store_key or "")
        (home / "kept.txt").write_text("still here")
        await http.patch(path, json={"desired_state": "ARCHIVED"})
        await reaches("ARCHIVED")
        [point] = (await http.get(f"{path}/archives")).json()["items"]
        assert point["is_present"]
        inside = f"{path}/archives/{point['op_id']}"
        names = {entry["name"] for entry in (await http.get(f"{inside}/tree")).json()["entries"]}
        assert "kept.txt" in names
        content = await http.get(f"{inside}/content", params={"path": "kept.txt"})
        assert (content.text, content.headers["content-length"]) == ("still here", "10")
        assert content.headers["content-disposition"].startswith("attachment")
        stop = (await http.get(f"{path}/lifecycle")).json()["last_stop"]
        assert (stop["actor"], stop["reason"]) == ("ann", "asked")
        await http.patch(path, json={"desired_state": "STANDBY"})
        await reaches("STANDBY")
        await http.delete(path)

        async def forgotten() -> bool:
            return made["id"] not in events.known

        await eventually(forgotten, 60)
        assert (await http.post(f"{path}/undelete")).status_code == 202
        back = await reaches("ARCHIVED")
        assert back["deleted_at"] is None
        assert ann
    await events.close()
    assert api.end(signal.SIGTERM) == 0


async def test_it_ends_gracefully_with_streams_open(deployment: RealApi) -> None:
    api = await deployment.start_api()
    _, headers = await deployment.token("ann")
    events = [Events(api.url, headers) for _ in range(5)]

    async def all_listen() -> bool:
        return all(one.snapshots for one in events)

    await eventually(all_listen, 30)
    assert await asyncio.to_thread(api.end, signal.SIGTERM) == 0
    for one in events:
        await one.close()


async def test_a_taken_port_is_said(deployment: RealApi) -> None:
    api = await deployment.start_api()
    second = deployment._start("api", CODEHUB_API_ADDRESS=api.url.removeprefix("http://"))
    assert await asyncio.to_thread(second.process.wait, 60) == 2
    assert "CODEHUB_API_ADDRESS" in second.log.read_text()


async def test_endless_headers_are_cut_off_and_nonsense_is_answered_kindly(deployment: RealApi) -> None:
    api = await deployment.start_api()
    host, _, port = api.url.removeprefix("http://").partition(":")

    async def answered(*sent: bytes) -> bytes:
        reader, writer = await asyncio.open_connection(host, int(port))
        try:
            async with asyncio.timeout(30):
                for part in sent:
                    writer.write(part)
                    await writer.drain()
                return await reader.read()
        except ConnectionError:
            return b"cut off"
        finally:
            writer.close()

    head = b"GET /healthz HTTP/1.1\r\nHost: x\r\nX-Endless: "
    endless = await answered(head, *[b"a" * 65536] * 100)
    assert endless == b"cut off" or endless.startswith(b"HTTP/1.1 400")
    answer = await answered(b"\x00\x01nonsense\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 400")
    assert b"application/problem+json" in answer
    assert b'"code": "malformed"' in answer
    large = b'{"name": "' + b"x" * 200_000
    request = b"POST /api/v1/workspaces HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 200012\r\n\r\n"
    assert (await answered(request + large + b'"}')).startswith(b"HTTP/1.1 401")


# ── restarts ─────────────────────────────────────────────────────────────────────────────────────────────────────────

STARTS: dict[str, Callable[..., Any]] = {"postgres": embedded_postgres, "redis": embedded_redis}


class Servers:
    """Of our own, to be killed and started again where they were."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._running: dict[str, Any] = {}
        self._server: dict[str, EmbeddedServer] = {}

    async def start(self, name: str) -> None:
        self._running[name] = STARTS[name](self._directory)
        self._server[name] = await self._running[name].__aenter__()

    def url(self, name: str) -> str:
        return self._server[name].url

    async def kill(self, name: str) -> None:
        os.kill(self._server[name].pid, signal.SIGKILL)
        await self._server[name].exited()
        await self._running.pop(name).__aexit__(None, None, None)

    async def close(self) -> None:
        for context in self._running.values():
            await context.__aexit__(None, None, None)


@pytest.mark.parametrize("server", ["redis", "postgres"])
async def test_events_survive_a_restart_and_miss_nothing(server: str) -> None:
    with tempfile.TemporaryDirectory(prefix="codehub-test-") as directory:
        servers = Servers(Path(directory))
        try:
            for name in STARTS:
                await servers.start(name)
            await migrate(servers.url("postgres"))
            async with real_api(servers.url("postgres"), servers.url("redis")) as deployment:
                await _lives_through(deployment, servers, server)
        finally:
            await servers.close()


async def _lives_through(deployment: RealApi, servers: Servers, server: str) -> None:
    api = await deployment.start_api()
    await deployment.start_coordinator()
    _, headers = await deployment.token("ann")
    _, root = await deployment.token("root", Role.ADMIN)
    hers, everything = Events(api.url, headers), Events(api.url, root, "?all=true")
    async with httpx.AsyncClient(base_url=api.url, headers=headers, timeout=30) as http:
        made = (await http.post("/api/v1/workspaces", json={"name": "demo", "desired_state": "PENDING"})).json()
        path = f"/api/v1/workspaces/{made['id']}"

        async def shows(memo: str) -> None:
            async def both() -> bool:
                return all(one.known.get(made["id"], {}).get("memo") == memo for one in (hers, everything))

            await eventually(both, 60)

        await http.patch(path, json={"memo": "before"})
        await shows("before")
        await servers.kill(server)
        during = await http.patch(path, json={"memo": "during"})
        assert during.status_code == (200 if server == "redis" else 503)
        if server == "postgres":
            assert during.headers["retry-after"]
            assert (await http.get("/readyz")).status_code == 503
        await servers.start(server)

        async def written() -> bool:
            return (await http.patch(path, json={"memo": "after the gap"})).status_code == 200

        if server == "postgres":
            await eventually(written, 60)
            await shows("after the gap")
        else:
            await shows("during")
        await http.patch(path, json={"memo": "and on"})
        await shows("and on")
        assert api.process.poll() is None
        connections = hers.connections
    await hers.close()
    await everything.close()
    assert connections == 1, "the stream itself was not cut: the gap was made good inside it"
