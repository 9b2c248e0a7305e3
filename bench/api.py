"""The API under load, on a real PostgreSQL and Redis: what a page and a workspace cost, how soon listeners know.

Beside each rate stand, in the same run, what the framework alone can do (FastAPI and uvicorn, constant JSON of the same
size) and what PostgreSQL alone can do (the same query). A listener's wait is counted from the sending of a COMMIT until
the bytes are here: through trigger, coordinator, Redis, the API and its stream. Timings on a shared machine are noisy:
of some rounds, in which all take turns, the best counts.
"""

import argparse
import json
import os
import random
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import asdict, dataclass, field
from itertools import cycle, islice
from pathlib import Path

import psutil
import uvloop

from bench._listening import Crowd, ListenRow, measure_listening
from bench._load import Rate, ask, ask_once, http_get, timed
from bench._proxy_processes import free_port
from bench._site import Person, Site, settled_site, started
from bench.controller import Servers, connected, say
from codehub.adapters.embedded import embedded_postgres, embedded_redis
from codehub.adapters.postgres.statements import OWNED_BY_ID, OWNED_PAGE
from codehub.cli.serve import until_signalled
from codehub.telemetry import configure_logging

EACH_HAS = 50
"""How many workspaces one of many users has: a full page."""
CONNECTIONS = (1, 16)
DIFFERENT_REQUESTS = 400
FLOOR, SQL = "bare FastAPI", "bare SQL"
LIST, SHOW = "GET /workspaces", "GET /workspaces/{id}"


@dataclass(frozen=True)
class Call:
    """One kind of request: as HTTP to us, and as arguments of its statement."""

    what: str
    requests: list[bytes]
    statement: str
    arguments: list[tuple[object, ...]]


@dataclass(frozen=True)
class CallRow:
    workspaces: int
    owners: int
    what: str
    connections: int
    bytes: int
    ours: Rate
    framework: Rate
    sql: Rate

    @property
    def against_framework(self) -> float:
        return self.ours.per_second / self.framework.per_second

    @property
    def against_sql(self) -> float:
        return self.ours.per_second / self.sql.per_second


@dataclass(frozen=True)
class Results:
    calls: list[CallRow] = field(default_factory=list)
    listening: list[ListenRow] = field(default_factory=list)


# ── questions ────────────────────────────────────────────────────────────────────────────────────────────────────────


async def measure_calls(
    servers: Servers, place: Path, workspaces: int, owners: int, chosen: argparse.Namespace
) -> list[CallRow]:
    seconds: float = chosen.seconds
    say(f"questions about {workspaces:,} workspaces of {owners}")
    site, people = await settled_site(servers, place, workspaces, owners)
    found = []
    async with site.api() as (port, api):
        asked = await calls(site, people)
        bodies = [await ask_once(port, call.requests[0]) for call in asked]
        assert len(json.loads(bodies[0])["items"]) == EACH_HAS
        async with bare_api(place, bodies) as (bare_port, bare):
            for call, body in zip(asked, bodies, strict=True):
                for connections in CONNECTIONS:
                    rates = [
                        (
                            await ask(port, call.requests, connections, seconds, api),
                            await ask(bare_port, call.requests, connections, seconds, bare),
                            await query(site.url, call, connections, seconds),
                        )
                        for _ in range(chosen.rounds)
                    ]
                    best = [max(of_one, key=lambda rate: rate.per_second) for of_one in zip(*rates, strict=True)]
                    found.append(CallRow(workspaces, owners, call.what, connections, len(body), *best))
    return found


async def calls(site: Site, people: Sequence[Person]) -> list[Call]:
    """The same requests for all: each user's first page; workspaces at random, each asked for by its owner."""
    async with connected(site.url) as connection:
        rows = await connection.fetch("SELECT id, owner_id FROM workspaces")
    tokens = {person.owner_id: person.token for person in people}
    some = random.Random(7).sample(rows, min(len(rows), DIFFERENT_REQUESTS))
    nothing = (None,) * 3
    return [
        Call(
            LIST,
            [http_get(f"/api/v1/workspaces?limit={EACH_HAS}", person.token) for person in people],
            OWNED_PAGE,
            [(person.owner_id, *nothing, False, None, None, EACH_HAS + 1) for person in people],
        ),
        Call(
            SHOW,
            [http_get(f"/api/v1/workspaces/{row['id']}", tokens[row["owner_id"]]) for row in some],
            OWNED_BY_ID,
            [(row["id"],) for row in some],
        ),
    ]


@asynccontextmanager
async def bare_api(place: Path, bodies: Sequence[bytes]) -> AsyncIterator[tuple[int, psutil.Process]]:
    port, files = free_port(), [place / f"body-{number}.json" for number in range(len(bodies))]
    for file, body in zip(files, bodies, strict=True):
        file.write_bytes(body)
    command = [sys.executable, "-m", "bench._bare_api", str(port), *map(str, files)]
    async with started(command, port, place / "bare.log") as process:
        yield port, process


async def query(url: str, call: Call, connections: int, seconds: float) -> Rate:
    async def one(number: int, took: list[float], until: float) -> None:
        begin = number * len(call.arguments) // connections
        for arguments in islice(cycle(call.arguments), begin, None):
            began = time.perf_counter()
            await opened[number].fetch(call.statement, *arguments)
            took.append(time.perf_counter() - began)
            if time.perf_counter() > until:
                return

    async with AsyncExitStack() as stack:
        opened = [await stack.enter_async_context(connected(url)) for _ in range(connections)]
        return await timed(one, connections, seconds)


# ── what came of it ──────────────────────────────────────────────────────────────────────────────────────────────────


def show(results: Results) -> None:
    print("requests/s and p50/p99 ms; ours / theirs; processors that the API and the asking client took")
    peers = "".join(f"{name:>24}" for name in ("the API", FLOOR, SQL))
    print(
        f"{'workspaces':>10}{'owners':>7}  {'':22}{'bytes':>7}{'conn':>5}{peers}{'/FastAPI':>9}{'/SQL':>6}{'cpu':>12}"
    )
    for row in results.calls:
        rates = "".join(
            f"{rate.per_second:10.0f}{f'{rate.p50_ms:.2f}/{rate.p99_ms:.2f}':>14}"
            for rate in (row.ours, row.framework, row.sql)
        )
        ratios = f"{row.against_framework:9.2f}{row.against_sql:6.2f}"
        shares = f"{row.ours.server_cpu:6.2f}{row.ours.client_cpu:6.2f}"
        print(
            f"{row.workspaces:10,}{row.owners:7}  {row.what:22}{row.bytes:7}{row.connections:5}{rates}{ratios}{shares}"
        )
    print()
    print("listeners: from COMMIT to the bytes at the listener")
    head = ("changes/s", "arrive/s", "missed", "cut", "p50 ms", "p99 ms", "join s", "refused", "API cpu", "client")
    print(f"{'':36}" + "".join(f"{name:>10}" for name in head) + "  API memory MB: before, joined, after")
    for heard in results.listening:
        counts = f"{heard.changes_per_second:10.1f}{heard.deliveries_per_second:10.0f}{heard.missed:10}{heard.cut:10}"
        waits = f"{heard.p50_ms:10.1f}{heard.p99_ms:10.1f}{heard.join_seconds:10.2f}{heard.refused:10}"
        memory = f"{heard.memory_mb:.0f}, {heard.memory_joined_mb:.0f}, {heard.memory_after_mb:.0f}"
        shares = f"{heard.api_cpu:10.2f}{heard.client_cpu:10.2f}"
        print(f"{f'{heard.listeners} {heard.what}':36}{counts}{waits}{shares}  {memory}")


async def measure(chosen: argparse.Namespace, results: Results) -> None:
    with tempfile.TemporaryDirectory(prefix="codehub-bench-") as directory:
        place = Path(directory)
        async with embedded_postgres(place) as postgres, embedded_redis(place) as redis:
            servers = Servers(postgres.url, redis.url)
            for one_topic in (False, True):
                crowd = Crowd(chosen.listeners, chosen.workspaces[0], chosen.rate, chosen.listen_seconds, one_topic)
                results.listening.append(await measure_listening(servers, place, crowd))
            for workspaces in chosen.workspaces:
                for owners in sorted({1, workspaces // EACH_HAS}):
                    results.calls.extend(await measure_calls(servers, place, workspaces, owners, chosen))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="small numbers: does it work at all?")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the numbers there too")
    parser.add_argument("--workspaces", type=int, nargs="+", default=[1_000, 10_000])
    parser.add_argument("--seconds", type=float, default=0.6, help="of each round of questions")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--listeners", type=int, default=500)
    parser.add_argument("--rate", type=float, default=50.0, help="changes a second that listeners hear of")
    parser.add_argument("--listen-seconds", type=float, default=6.0)
    chosen = parser.parse_args()
    if chosen.quick:
        chosen.workspaces, chosen.seconds, chosen.rounds = [EACH_HAS], 0.2, 1
        chosen.listeners, chosen.listen_seconds = 20, 1.0
    configure_logging(level="warning")
    results = Results()
    uvloop.run(until_signalled(lambda: measure(chosen, results)))
    print(f"best of {chosen.rounds} rounds, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}\n")
    show(results)
    if chosen.json:
        chosen.json.write_text(json.dumps({"bench": "api", **asdict(results)}, indent=1) + "\n")
    return 1 if any(row.missed for row in results.listening) else 0


if __name__ == "__main__":
    sys.exit(main())
