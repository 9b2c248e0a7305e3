"""Which world each backend was when a leader first used it: one row each."""

from collections.abc import Mapping

from codehub.adapters.postgres import statements as sql
from codehub.adapters.postgres.sessions import Sessions
from codehub.domain.backend_identity import Backend
from codehub.ports.stores import Remembered


class PostgresWorlds:
    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions

    async def remembered(self) -> Mapping[Backend, Remembered]:
        async with self._sessions.reading() as connection:
            found = await connection.fetch(sql.WORLDS)
        return {Backend(row["backend"]): Remembered(row["identity"], row["since"]) for row in found}

    async def adopt(self, backend: Backend, identity: str, epoch: int) -> str:
        async with self._sessions.writing(epoch) as connection:
            await connection.execute(sql.ADOPT_WORLD, backend.value, identity)
            known: str = await connection.fetchval(sql.WORLD, backend.value)
            return known

    async def forget(self, backend: Backend) -> bool:
        async with self._sessions.writing() as connection:
            return await connection.fetchval(sql.FORGET_WORLD, backend.value) is not None
