"""What the collector must know before it judges anything: one snapshot, so that no archive falls between two reads.

Here a row that cannot be read is an error, unlike in the controller's passes: left out, it would protect nothing.
"""

import asyncio
from collections import defaultdict
from datetime import datetime
from uuid import UUID

from codehub.adapters.postgres import rows
from codehub.adapters.postgres import statements as sql
from codehub.adapters.postgres.readable import BREATH
from codehub.adapters.postgres.sessions import Sessions
from codehub.domain.errors import BackendError
from codehub.domain.protection import RestorePoint
from codehub.domain.workspace import Workspace
from codehub.ports.stores import CollectorData


class PostgresCollectorView:
    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions

    async def read(self) -> CollectorData:
        async with self._sessions.snapshot() as connection:
            unpurged = await connection.fetch(sql.UNPURGED)
            archives = await connection.fetch(sql.ALL_RESTORE_POINTS)
            newest: datetime | None = await connection.fetchval(sql.NEWEST_ENTRY)
            now: datetime = await connection.fetchval(sql.NOW)
        workspaces: list[Workspace] = []
        for number, record in enumerate(unpurged, 1):
            if number % BREATH == 0:
                await asyncio.sleep(0)
            try:
                workspaces.append(rows.workspace(record))
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                raise BackendError(f"The row of workspace {record['id']} cannot be read: {error!r}") from error
        points: defaultdict[UUID, list[RestorePoint]] = defaultdict(list)
        for record in archives:
            points[record["workspace_id"]].append(rows.restore_point(record))
        return CollectorData(workspaces=workspaces, points=dict(points), newest_entry_at=newest, now=now)
