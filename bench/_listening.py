"""Event streams: how long after a commit each listener has the bytes, and what its connection costs the API.

Events take the real way: the trigger's NOTIFY, a coordinator process, Redis, the API process, its stream.
"""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

import asyncpg
import psutil

from bench._load import StreamClient, hear, http_get, percentiles, processor_seconds
from bench._site import Site, admins, changing_site
from bench.controller import Servers, connected, say
from codehub.adapters.postgres.connections import plain_address
from codehub.api.events import MOST_PER_USER

USERS = 50
WRITERS = 4
LAST_WAIT_SECONDS = 15.0
EVENTS = "/api/v1/events"
CHANGE = "UPDATE workspaces SET memo = $2 WHERE id = $1"


@dataclass(frozen=True)
class Crowd:
    listeners: int
    workspaces: int
    rate: float
    seconds: float
    is_one_topic: bool
    """Whether all hear everything, or each hears only what is their own."""

    @property
    def users(self) -> int:
        return min(USERS, self.listeners)

    @property
    def what(self) -> str:
        return "all hear everything" if self.is_one_topic else f"of {self.users} users, each their own"


@dataclass(frozen=True)
class ListenRow:
    what: str
    listeners: int
    changes_per_second: float
    deliveries_per_second: float
    missed: int
    cut: int
    p50_ms: float
    p99_ms: float
    join_seconds: float
    """How long it took until all had their snapshot; they began at once."""
    refused: int
    """How often a joining listener was turned away."""
    memory_mb: float
    """The API's memory before anybody listened; next with all of them there, next after the changes."""
    memory_joined_mb: float
    memory_after_mb: float
    api_cpu: float
    client_cpu: float


@dataclass(frozen=True)
class Told:
    """One change: when its COMMIT was sent, and whose workspace it is of."""

    at: float
    owner_id: str


async def measure_listening(servers: Servers, place: Path, crowd: Crowd) -> ListenRow:
    say(f"{crowd.listeners} listeners, {crowd.what}")
    site, people = await changing_site(servers, place, crowd.workspaces, crowd.users)
    path = EVENTS
    if crowd.is_one_topic:  # a user has at most so many streams, so these are several admins'
        people, path = await admins(site, -(-crowd.listeners // MOST_PER_USER)), f"{EVENTS}?all=true"
    here = [people[number % len(people)] for number in range(crowd.listeners)]
    async with site.coordinator(), site.api() as (port, api):
        before, began = megabytes(api), time.perf_counter()
        clients, refused = await hear(port, [http_get(path, person.token) for person in here])
        joined, join_seconds = megabytes(api), time.perf_counter() - began
        wall, cpu, served = time.perf_counter(), time.process_time(), processor_seconds(api)
        told = await change(site, crowd)
        owners = [None if crowd.is_one_topic else person.owner_id for person in here]
        waits, missed = await heard(clients, owners, told)
        wall = time.perf_counter() - wall
        shares = (processor_seconds(api) - served) / wall, (time.process_time() - cpu) / wall
        after, cut = megabytes(api), sum(client.is_cut for client in clients)
        for client in clients:
            client.transport.abort()
    return ListenRow(
        crowd.what,
        crowd.listeners,
        len(told) / crowd.seconds,
        len(waits) / wall,
        missed,
        cut,
        *percentiles(waits),
        join_seconds,
        refused,
        before,
        joined,
        after,
        *shares,
    )


async def change(site: Site, crowd: Crowd) -> list[Told]:
    """Change workspaces at a steady rate, each at its moment, and each another one, so that none covers an earlier
    change."""
    async with connected(site.url) as connection:
        rows = await connection.fetch("SELECT id, owner_id FROM workspaces ORDER BY name")
    rows = rows[: round(crowd.rate * crowd.seconds)]
    told: list[Told | None] = [None] * len(rows)
    began = time.perf_counter()
    async with asyncpg.create_pool(plain_address(site.url), min_size=WRITERS, max_size=WRITERS) as pool:

        async def one(number: int, workspace_id: UUID, owner_id: str) -> None:
            await asyncio.sleep(max(began + number / crowd.rate - time.perf_counter(), 0))
            async with pool.acquire() as connection:
                transaction = connection.transaction()
                await transaction.start()
                await connection.execute(CHANGE, workspace_id, f"change {number}.")
                told[number] = Told(time.perf_counter(), owner_id)
                await transaction.commit()

        await asyncio.gather(*(one(number, row["id"], row["owner_id"]) for number, row in enumerate(rows)))
    return [one for one in told if one is not None]


async def heard(
    clients: Sequence[StreamClient], owners: Sequence[str | None], told: Sequence[Told]
) -> tuple[list[float], int]:
    """How long each delivery took, and how many did not come to streams that lasted. Owner None: hears everything."""
    due = [[number for number, change in enumerate(told) if owner in (None, change.owner_id)] for owner in owners]
    deadline = time.perf_counter() + LAST_WAIT_SECONDS
    while time.perf_counter() < deadline and any(
        len(client.heard) < len(mine) for client, mine in zip(clients, due, strict=True)
    ):
        await asyncio.sleep(0.02)
    waits, missed = [], 0
    for client, mine in zip(clients, due, strict=True):
        waits += [client.heard[number] - told[number].at for number in mine if number in client.heard]
        missed += 0 if client.is_cut else sum(number not in client.heard for number in mine)
    return waits, missed


def megabytes(process: psutil.Process) -> float:
    return float(process.memory_info().rss) / 2**20
