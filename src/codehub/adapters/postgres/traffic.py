"""What passed the front doors, added up by the minute: some 1,440 small rows, however many doors there are."""

from codehub.adapters.postgres import view_statements as sql
from codehub.adapters.postgres.sessions import Sessions
from codehub.domain.history import SPAN


class PostgresTraffic:
    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions

    async def add(self, requests: int, socket_seconds: float) -> None:
        async with self._sessions.writing() as connection:
            await connection.execute(sql.ADD_TRAFFIC, requests, socket_seconds, SPAN)
