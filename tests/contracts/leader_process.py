"""A leader in a process of its own, to be killed or stopped: `python -m tests.contracts.leader_process URL WORKSPACE`.

Prints its epoch once it leads, then tries a write whenever it is told to on standard input, and says what came of it.
"""

import asyncio
import sys
from dataclasses import replace
from uuid import UUID

from codehub.adapters.postgres import PostgresDatabase
from codehub.domain.errors import CodeHubError
from tests.contracts.databases import RealClock


async def lead(url: str, workspace_id: UUID) -> None:
    async with await PostgresDatabase.open(url) as database:
        term = await database.leadership(RealClock()).campaign("process")
        statuses = database.statuses(term.epoch)
        [row], _now = await statuses.load([workspace_id])
        print(term.epoch, flush=True)
        while await asyncio.to_thread(sys.stdin.readline):
            held = term.held()
            try:
                row = await statuses.record(row, replace(row, error_count=row.error_count + 1))
                outcome = "written"
            except CodeHubError as error:
                outcome = type(error).__name__
            print(f"{held} {outcome}", flush=True)


if __name__ == "__main__":
    asyncio.run(lead(sys.argv[1], UUID(sys.argv[2])))
