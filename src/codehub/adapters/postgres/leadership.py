"""Leadership: a session's advisory lock, an epoch bumped with it, a renewal each second.

`held()` is true only while no rival can lead, by our own clock: a renewal *began* less than 3 s ago, and a rival waits
longer than that even for a lock that is free, unless we resigned. A holder that is silent for 4 s while its session
lives (a stall, a cut network) has its backend ended. Either way a successor leads in under 5 s.
"""

import asyncio
from contextlib import suppress
from datetime import timedelta

import asyncpg

from codehub.adapters.postgres import statements as sql
from codehub.adapters.postgres.connections import NO_ANSWER, OwnConnection, Sessions, explained
from codehub.ports.signals import Clock
from codehub.ports.stores import DEPOSE_AFTER, Leader

RENEW_SECONDS = 1.0
HELD_SECONDS = 3.0
FREE_LOCK_AFTER = timedelta(seconds=3.25)
POLL_SECONDS = 0.25
STATEMENT_SECONDS = 2.0
ANSWER_SECONDS = HELD_SECONDS - RENEW_SECONDS
"""A renewal that takes longer comes too late: by then the term is no longer held."""


class PostgresTerm:
    def __init__(self, connection: OwnConnection, epoch: int, clock: Clock, began: float) -> None:
        self.epoch = epoch
        self._connection = connection
        self._clock = clock
        self._renewed = began
        self._over = asyncio.Event()
        connection.add_termination_listener(lambda _connection: self._over.set())
        self._renewing = asyncio.get_running_loop().create_task(self._renew(), name=f"renew epoch {epoch}")

    def held(self) -> bool:
        return not self._over.is_set() and self._clock.monotonic() - self._renewed < HELD_SECONDS

    async def lost(self) -> None:
        await self._over.wait()

    async def resign(self) -> None:
        """Ends the term and says so, that the successor need not wait; a database that cannot be told sees our session
        end."""
        self._over.set()
        self._renewing.cancel()
        await asyncio.gather(self._renewing, return_exceptions=True)
        if not self._connection.is_closed():
            with suppress(Exception):
                await self._connection.execute(sql.RESIGN, self.epoch)
        self._connection.terminate()

    async def _renew(self) -> None:
        try:
            while not self._over.is_set():
                await self._clock.sleep(RENEW_SECONDS)
                began = self._clock.monotonic()
                if await self._connection.fetchval(sql.RENEW, self.epoch, timeout=ANSWER_SECONDS) is None:
                    return
                self._renewed = began
        except (asyncpg.PostgresError, *NO_ANSWER):
            # Not asked again: a session that fails once has lost its word, and a rival should not have to wait.
            return
        finally:
            if not self._over.is_set():
                self._over.set()
                self._connection.terminate()


class PostgresLeadership:
    def __init__(self, sessions: Sessions, clock: Clock) -> None:
        self._sessions = sessions
        self._clock = clock

    async def campaign(self, holder: str) -> PostgresTerm:
        connection = await self._sessions.own(f"leadership {holder}", STATEMENT_SECONDS)
        try:
            with explained():
                while True:
                    began = self._clock.monotonic()
                    epoch = await _take(connection, holder)
                    if epoch is not None:
                        return PostgresTerm(connection, epoch, self._clock, began)
                    await self._wait_or_depose(connection)
        except BaseException:
            connection.terminate()
            raise

    async def _wait_or_depose(self, connection: OwnConnection) -> None:
        if not await connection.fetchval(sql.DEPOSE, DEPOSE_AFTER):
            await self._clock.sleep(POLL_SECONDS)

    async def leader(self) -> Leader | None:
        found = await self._sessions.fetchrow(sql.LEADER)
        return Leader(**found) if found else None


async def _take(connection: OwnConnection, holder: str) -> int | None:
    try:
        epoch: int | None = await connection.fetchval(sql.TAKE_LEAD, holder, FREE_LOCK_AFTER)
    except asyncpg.QueryCanceledError:
        # The lock is ours, but a transaction of the old term is still open. It ends: see Sessions.
        return None
    return epoch
