"""Connections to PostgreSQL: a pool for short transactions, and connections of their own for whoever waits on one, such
as the change feed, which hears what the triggers tell (NOTIFY) as it is committed.

Every wait has an end. A transaction that its client has left open ends by itself before a rival may lead, so a stalled
leader cannot keep the epoch's row locked (contract 3: a write of an old term changes nothing). What asyncpg raises
becomes one of the domain's errors: no answer is Unreachable, and then the truth is unknown, for a refused commit and a
lost connection look alike from here.
"""

import asyncio
import json
import re
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias, TypedDict
from uuid import UUID

import asyncpg
from asyncpg.pool import PoolConnectionProxy

from codehub.adapters.postgres import statements as sql
from codehub.domain.errors import BackendError, CodeHubError, Conflict, Stale, Unreachable
from codehub.ports.signals import Change, Channel

IDLE_IN_TRANSACTION_SECONDS = 3
SIGN_OF_LIFE_SECONDS = 5.0
"""A connection that only listens does not notice a dead network, so it asks for a sign of life so often."""
BATCH = 5_000
"""The most old rows that one statement deletes."""

Connection: TypeAlias = "PoolConnectionProxy[asyncpg.Record]"
OwnConnection: TypeAlias = "asyncpg.Connection[asyncpg.Record]"
AnyConnection: TypeAlias = "PoolConnectionProxy[asyncpg.Record] | asyncpg.Connection[asyncpg.Record]"

NO_ANSWER = (
    OSError,  # refused, reset, no such socket; TimeoutError is one too
    asyncpg.PostgresConnectionError,
    asyncpg.InterfaceError,  # the connection or the pool is closed
    asyncpg.InternalClientError,  # asyncpg's word for a connection that broke in the middle of an answer
    asyncpg.InsufficientResourcesError,  # too many connections, disk full
    asyncpg.OperatorInterventionError,  # shutdown, statement timeout, terminated by an administrator
    asyncpg.InvalidAuthorizationSpecificationError,
    asyncpg.InvalidCatalogNameError,
    asyncpg.TransactionRollbackError,  # deadlock, serialization
    asyncpg.LockNotAvailableError,
    asyncpg.IdleInTransactionSessionTimeoutError,
    asyncpg.ReadOnlySQLTransactionError,  # a standby after a failover
)
_LONGEST_MESSAGE = 200
_CONFLICTS = {
    "workspaces_name": ("You already have a workspace of that name.", "name_taken"),
    "workspaces_slug": ("That address is taken.", "slug_taken"),
    "workspaces_pkey": ("There is a workspace of that id already.", "id_taken"),
    "users_pkey": ("There is a user of that id already.", "id_taken"),
    "users_username": ("That username is taken.", "username_taken"),
    "authorized_keys_fingerprint": ("That key is registered already, here or by somebody else.", "ssh_key_taken"),
    "users_identity": ("Somebody else signs in with that identity.", "identity_taken"),
}


@contextmanager
def explained() -> Iterator[None]:
    try:
        yield
    except CodeHubError:
        raise
    except asyncpg.UniqueViolationError as error:
        if error.constraint_name not in _CONFLICTS:
            raise BackendError(_sentence("PostgreSQL refused a double row", error)) from error
        raise Conflict(*_CONFLICTS[error.constraint_name]) from error
    except NO_ANSWER as error:
        raise unreachable(error) from error
    except asyncpg.PostgresError as error:
        raise BackendError(_sentence("PostgreSQL refused", error)) from error


def unreachable(error: BaseException) -> Unreachable:
    return Unreachable(_sentence("PostgreSQL does not answer", error))


def _sentence(what: str, error: BaseException) -> str:
    # Not str(error): that shows the values of the row too.
    system = error.strerror if isinstance(error, OSError) else None
    text = system or (str(error.args[0]) if error.args else "")
    detail = " ".join(text.split()) or type(error).__name__
    return f"{what}: {detail[:_LONGEST_MESSAGE]}"


@dataclass(frozen=True, slots=True)
class DatabaseTimeouts:
    """Seconds until a silent database counts as unreachable."""

    connect: float = 5.0
    statement: float = 10.0


def plain_address(url: str) -> str:
    """The address as asyncpg takes it: without the driver (`postgresql+asyncpg:`) that other tools want in it."""
    return re.sub(r"^postgres(ql)?\+\w+://", "postgresql://", url)


class Sessions:
    def __init__(self, url: str, pool: "asyncpg.Pool[asyncpg.Record]", timeouts: DatabaseTimeouts) -> None:
        self._url = url
        self._pool = pool
        self._timeouts = timeouts

    @classmethod
    async def open(cls, url: str, pool_size: int, timeouts: DatabaseTimeouts) -> "Sessions":
        """Makes the pool, which connects nowhere yet: a database that is down is Unreachable when it is asked."""
        address = plain_address(url)
        with explained():
            pool = await asyncpg.create_pool(
                address, min_size=0, max_size=pool_size, reset=_nothing_to_reset, **_options(timeouts, "codehub")
            )
        return cls(address, pool, timeouts)

    async def close(self) -> None:
        self._pool.terminate()

    @asynccontextmanager
    async def reading(self) -> AsyncIterator[Connection]:
        with explained():
            async with self._borrowed() as connection:
                yield connection

    @asynccontextmanager
    async def snapshot(self) -> AsyncIterator[Connection]:
        """A transaction in which many reads see the same moment."""
        with explained():
            async with (
                self._borrowed() as connection,
                connection.transaction(isolation="repeatable_read", readonly=True),
            ):
                yield connection

    @asynccontextmanager
    async def writing(self, epoch: int | None = None) -> AsyncIterator[Connection]:
        """One transaction; with `epoch`, one that commits only within that term, and else raises Stale."""
        with explained():
            async with self._borrowed() as connection, connection.transaction():
                if epoch is not None:
                    await _fence(connection, epoch)
                yield connection

    async def fetch(self, statement: str, *values: object) -> list[asyncpg.Record]:
        async with self.reading() as connection:
            return await connection.fetch(statement, *values)

    async def fetchrow(self, statement: str, *values: object) -> asyncpg.Record | None:
        async with self.reading() as connection:
            return await connection.fetchrow(statement, *values)

    async def fetchval(self, statement: str, *values: object) -> Any:  # noqa: ANN401 - whatever the statement selects
        async with self.reading() as connection:
            return await connection.fetchval(statement, *values)

    async def execute(self, statement: str, *values: object, epoch: int | None = None) -> None:
        """Runs one statement as a transaction of its own; `epoch` as in `writing`."""
        async with self.writing(epoch) as connection:
            await connection.execute(statement, *values)

    async def delete_in_batches(self, statement: str, seconds: float, epoch: int | None = None) -> int:
        """Deletes what is older, a transaction for each batch: a year's rows at once would outlast every time limit.
        `statement`: $1 the age in seconds, $2 the most it may delete; it returns how many it did."""
        gone = 0
        while True:
            async with self.writing(epoch) as connection:
                taken: int = await connection.fetchval(statement, seconds, BATCH)
            gone += taken
            if taken < BATCH:
                return gone

    async def own(self, name: str, statement_seconds: float) -> OwnConnection:
        """A connection outside the pool, which the caller closes."""
        timeouts = DatabaseTimeouts(self._timeouts.connect, statement_seconds)
        with explained():
            return await asyncpg.connect(self._url, **_options(timeouts, f"codehub {name}"))

    @asynccontextmanager
    async def _borrowed(self) -> AsyncIterator[Connection]:
        connection = await self._pool.acquire(timeout=self._timeouts.connect)
        try:
            yield connection
        finally:
            await self._pool.release(connection, timeout=self._timeouts.connect)


class PostgresStore:
    """A store on PostgreSQL, as all of them begin: with the sessions that it borrows connections from."""

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions


class PostgresTermStore(PostgresStore):
    """A store that one leader writes to: every write is fenced by the epoch of the leader's term."""

    def __init__(self, sessions: Sessions, epoch: int) -> None:
        super().__init__(sessions)
        self.epoch = epoch


async def one_row(connection: Connection, statement: str, *values: object) -> asyncpg.Record:
    """The row of a statement that always gives one: an aggregate, INSERT … RETURNING, a write to a locked row."""
    found = await connection.fetchrow(statement, *values)
    assert found is not None  # noqa: S101 - for the type checker
    return found


async def _fence(connection: Connection, epoch: int) -> None:
    current = await connection.fetchval(sql.EPOCH)
    if current != epoch:
        raise Stale(f"the term of epoch {epoch} is over: {current} leads")


async def _nothing_to_reset(_connection: OwnConnection) -> None:
    """No statement of ours changes a pooled session, and the pool itself rolls an open transaction back."""


class _Options(TypedDict):
    timeout: float
    command_timeout: float
    server_settings: dict[str, str]


def _options(timeouts: DatabaseTimeouts, name: str) -> _Options:
    return {
        "timeout": timeouts.connect,
        # The server's own limit comes first: its answer says what took so long.
        "command_timeout": timeouts.statement + 1,
        "server_settings": {
            "application_name": name[:63],
            "statement_timeout": f"{timeouts.statement:g}s",
            "idle_in_transaction_session_timeout": f"{IDLE_IN_TRANSACTION_SECONDS}s",
            "tcp_keepalives_idle": "2",
            "tcp_keepalives_interval": "1",
            "tcp_keepalives_count": "3",
            "tcp_user_timeout": "5000",
            "jit": "off",  # short statements: compiling costs more than running
            "timezone": "UTC",
        },
    }


class PostgresChangeFeed(PostgresStore):
    """What the triggers tell, as it is committed. A change carries ids only: whoever hears one reads the row."""

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
