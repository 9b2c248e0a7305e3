"""What the triggers tell (NOTIFY), as it is committed. Payloads are ids only: whoever hears one reads the row.

A connection that only listens does not notice a dead network, so it asks for a sign of life every few seconds.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from uuid import UUID

from codehub.adapters.postgres import statements as sql
from codehub.adapters.postgres.connections import OwnConnection, Sessions, explained
from codehub.domain.errors import Unreachable
from codehub.ports.signals import Change, Channel

SIGN_OF_LIFE_SECONDS = 5.0


class PostgresChangeFeed:
    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions

    async def changes(self, listening: Callable[[], None] | None = None) -> AsyncIterator[Change]:
        heard: asyncio.Queue[Change | None] = asyncio.Queue()
        connection = await self._sessions.own("changes", SIGN_OF_LIFE_SECONDS)
        try:
            await _listen(connection, heard)
            if listening is not None:
                listening()
            while (change := await _next(connection, heard)) is not None:
                yield change
            raise Unreachable("PostgreSQL closed the connection that listens for changes.")
        finally:
            connection.terminate()


async def _listen(connection: OwnConnection, heard: "asyncio.Queue[Change | None]") -> None:
    def hear(_connection: object, _pid: int, channel: str, payload: object) -> None:
        ids = json.loads(str(payload))
        heard.put_nowait(Change(Channel(channel), UUID(ids["id"]), ids["owner_id"]))

    connection.add_termination_listener(lambda _connection: heard.put_nowait(None))
    with explained():
        for channel in Channel:
            await connection.add_listener(channel.value, hear)


async def _next(connection: OwnConnection, heard: "asyncio.Queue[Change | None]") -> Change | None:
    while True:
        try:
            async with asyncio.timeout(SIGN_OF_LIFE_SECONDS):
                return await heard.get()
        except TimeoutError:
            with explained():
                await connection.fetchval(sql.NOW)
