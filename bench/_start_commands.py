"""Asks for every PENDING workspace to run, in a process of its own as the API is.

At a steady rate each start is asked for at its moment, whether or not those before it are through. At rate 0 all are
asked for at once, and go through as fast as ten connections take them.
"""

import asyncio
import os
import sys
import time
from uuid import UUID

from codehub.adapters.postgres import PostgresDatabase
from codehub.domain.admission import RunningLimits
from codehub.domain.workspace import Desired
from codehub.ports.stores import Actor
from codehub.usecases.workspace_commands import WorkspaceCommands

CONNECTIONS = 10


async def start_all(url: str, rate: float) -> None:
    async with await PostgresDatabase.open(url, pool_size=CONNECTIONS) as database:
        commands = WorkspaceCommands(
            database.specs(), RunningLimits(max_running_per_user=10**6, max_running_global=10**6)
        )
        async with database.sessions.reading() as connection:
            waiting: list[UUID] = [r["id"] for r in await connection.fetch("SELECT id FROM workspaces ORDER BY name")]
        at_once = asyncio.Semaphore(CONNECTIONS)
        began = time.monotonic()

        async def one(number: int, workspace_id: UUID) -> None:
            await asyncio.sleep(max(began + number / rate - time.monotonic(), 0) if rate else 0)
            async with at_once:
                await commands.want(workspace_id, Desired.RUNNING, Actor("bench"))

        await asyncio.gather(*(one(number, key) for number, key in enumerate(waiting)))


if __name__ == "__main__":
    asyncio.run(start_all(os.environ["BENCH_DATABASE_URL"], rate=float(sys.argv[1])))
