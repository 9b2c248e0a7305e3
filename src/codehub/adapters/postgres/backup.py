"""The database out of one moment into files, and back in one transaction: all of it, or nothing.

What proves somebody's identity for minutes or days stays out: a backup must not bring back who has signed out since.
What the collector marked stays out too: after a restore, every grace period begins anew.
The catalogue is asked what tables there are, so that a new one cannot be forgotten.
"""

from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from graphlib import TopologicalSorter
from typing import Any, Final

from codehub.adapters.postgres.connections import OwnConnection, explained
from codehub.adapters.postgres.database import PostgresDatabase
from codehub.adapters.postgres.schema import schema_head, schema_revision
from codehub.adapters.postgres.statements import LEADERSHIP_LOCK, LOCKS
from codehub.adapters.postgres.stores import append_audit
from codehub.domain.errors import BackendError, Refused
from codehub.ports.stores import Actor

LEFT_OUT: Mapping[str, str] = {
    "alembic_version": "the schema's own",
    "leadership": "the restored database gets an epoch above every older one",
    "sessions": "everybody signs in again",
    "tickets": "live for seconds",
    "visits": "end with the sessions that made them",
    "provider_sign_ins": "live for minutes",
    "login_failures": "live for minutes",
    "gc_marks": "every grace period begins anew",
    "backend_identities": "the restored database adopts the backends that it finds",
    "traffic": "a chart of the last day",
    "workspace_usage": "charts of the last hour",
    "gc_requests": "a collection that somebody asked for then is not asked for now",
}
_LONGEST_SECONDS = 24 * 3600.0

Sink = Callable[[bytes], Coroutine[Any, Any, None]]

# ruff: noqa: S608 - put together from names in the catalogue, quoted by the server itself

# Generated columns are computed anew; identity columns are copied, and their counters set by hand.
TABLES: Final = """
SELECT c.relname AS name,
    array_agg(a.attname::text ORDER BY a.attnum) FILTER (WHERE a.attgenerated = '') AS columns,
    (array_agg(a.attname::text) FILTER (WHERE a.attidentity <> ''))[1] AS counted
FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
WHERE c.relkind = 'r' AND c.relnamespace = current_schema()::regnamespace
GROUP BY c.relname ORDER BY c.relname
"""

# A child must come after its parent.
REFERENCES: Final = """
SELECT child.relname AS child, parent.relname AS parent FROM pg_constraint k
JOIN pg_class child ON child.oid = k.conrelid JOIN pg_class parent ON parent.oid = k.confrelid
WHERE k.contype = 'f' AND k.connamespace = current_schema()::regnamespace AND k.conrelid <> k.confrelid
"""

SERVER: Final = "SELECT current_setting('server_version')"

EPOCH: Final = "SELECT epoch FROM leadership"

# No leader has it, and until commit nobody becomes one.
NOBODY_LEADS: Final = f"SELECT pg_try_advisory_xact_lock({LOCKS}, {LEADERSHIP_LOCK})"

# What somebody would miss; the rows that every new database has are not among them.
IN_USE: Final = "SELECT (SELECT count(*) FROM users) AS users, (SELECT count(*) FROM workspaces) AS workspaces"

# Above both: whoever led before the backup or since is fenced out.
NEW_EPOCH: Final = """
UPDATE leadership SET epoch = greatest(epoch, $1) + 1, holder = 'restore', backend_pid = NULL,
    acquired_at = clock_timestamp(), renewed_at = to_timestamp(0)
"""

RESTORED: Final = "UPDATE installation SET backup_at = $1, restored_at = clock_timestamp()"

NO_TIMEOUTS: Final = "SET statement_timeout = 0; SET idle_in_transaction_session_timeout = 0; SET lock_timeout = '20s'"


@dataclass(frozen=True, slots=True)
class Table:
    """A table that is backed up. `counted`: the column that the database numbers by itself."""

    name: str
    columns: tuple[str, ...]
    counted: str | None = None


@dataclass(frozen=True, slots=True)
class BackupSnapshot:
    """What a backup says of its database besides rows."""

    schema: str
    epoch: int
    server: str


@dataclass(frozen=True, slots=True)
class InUse:
    users: int
    workspaces: int

    def __bool__(self) -> bool:
        return bool(self.users or self.workspaces)


@asynccontextmanager
async def snapshot(database: PostgresDatabase) -> "AsyncIterator[Copying]":
    """A snapshot of the database to copy tables from, for as long as the context lasts."""
    async with (
        _connected(database, "backup") as connection,
        connection.transaction(isolation="repeatable_read", readonly=True),
    ):
        found = await schema_revision(connection)
        if found != schema_head():
            raise Refused(f"The database has schema {found}, this program {schema_head()}: run `codehub migrate`.")
        epoch: int = await connection.fetchval(EPOCH)
        server: str = await connection.fetchval(SERVER)
        yield Copying(connection, BackupSnapshot(found, epoch, server), await _tables(connection))


@dataclass(frozen=True, slots=True)
class Copying:
    connection: OwnConnection
    snapshot: BackupSnapshot
    tables: Sequence[Table]

    async def copy(self, table: Table, sink: Sink) -> int:
        """Copies a table into `sink` and returns how many rows it has."""
        with explained():
            query = copied(table.name, table.columns)
            return _count(await self.connection.copy_from_query(query, output=sink, timeout=_LONGEST_SECONDS))


async def in_use(database: PostgresDatabase) -> InUse:
    """How many users and workspaces there are; none in a database without our schema."""
    async with _connected(database, "restore") as connection:
        if await schema_revision(connection) is None:
            return InUse(0, 0)
        return await _in_use(connection)


@asynccontextmanager
async def replacing(
    database: PostgresDatabase, epoch: int, taken_at: datetime, details: Mapping[str, Any], *, replace: bool
) -> "AsyncIterator[Loading]":
    """Refused, having changed nothing, if somebody leads, or if the database is in use and `replace` is not meant.
    What is loaded within is committed at the end, or not at all. `epoch`, `taken_at`: the backup's."""
    async with _connected(database, "restore") as connection, connection.transaction():
        if not await connection.fetchval(NOBODY_LEADS):
            raise Refused("A coordinator leads this database. Stop `codehub up` or every `codehub coordinator` first.")
        tables = await _tables(connection)
        ours = [record["name"] for record in await connection.fetch(TABLES)]
        every = [name for name in ours if name != "alembic_version"]
        await connection.execute(locked(every))
        found = await _in_use(connection)
        if found and not replace:
            raise Refused(
                f"The database holds {found.users} users and {found.workspaces} workspaces already. "
                "Restore into an empty one, or say --replace to give them up."
            )
        await connection.execute(emptied([name for name in every if name != "leadership"]))
        yield Loading(connection, {table.name: table for table in tables})
        for table in tables:
            if table.counted:
                number: int = await connection.fetchval(next_number(table.name, table.counted))
                await connection.execute(count_on(table.name, table.counted, number))
        await connection.execute(NEW_EPOCH, epoch)
        await connection.execute(RESTORED, taken_at)
        await append_audit(connection, Actor("operator"), "restore", "installation", details)


@dataclass(frozen=True, slots=True)
class Loading:
    connection: OwnConnection
    tables: Mapping[str, Table]

    async def load(self, name: str, columns: Sequence[str], rows: int, chunks: AsyncIterator[bytes]) -> None:
        with explained():
            told = await self.connection.copy_to_table(
                name, source=chunks, columns=list(columns), timeout=_LONGEST_SECONDS
            )
        if _count(told) != rows:
            raise BackendError(f"{name}: {rows} rows were promised, {_count(told)} came. Nothing was changed.")

    def must_hold(self, wanted: Mapping[str, Sequence[str]]) -> None:
        """Refuses other tables or columns: a schema of the same number that somebody changed by hand is another one."""
        if {name: tuple(columns) for name, columns in wanted.items()} != {
            table.name: table.columns for table in self.tables.values()
        }:
            raise Refused("The backup's tables are not this database's, although the schema's number is the same.")


@asynccontextmanager
async def _connected(database: PostgresDatabase, name: str) -> AsyncIterator[OwnConnection]:
    connection = await database.sessions.own(name, _LONGEST_SECONDS)
    try:
        with explained():
            await connection.execute(NO_TIMEOUTS)
            yield connection
    finally:
        connection.terminate()


async def _tables(connection: OwnConnection) -> list[Table]:
    """The tables that are backed up, in an order that every reference allows."""
    found = {
        record["name"]: Table(record["name"], tuple(record["columns"]), record["counted"])
        for record in await connection.fetch(TABLES)
    }
    needs: dict[str, set[str]] = {name: set() for name in sorted(found)}
    for record in await connection.fetch(REFERENCES):
        needs[record["child"]].add(record["parent"])
    return [found[name] for name in TopologicalSorter(needs).static_order() if name not in LEFT_OUT]


async def _in_use(connection: OwnConnection) -> InUse:
    found = await connection.fetchrow(IN_USE)
    return InUse(found["users"], found["workspaces"]) if found else InUse(0, 0)


def _count(told: str) -> int:
    """The number of rows in an answer such as `COPY 12`."""
    return int(told.rpartition(" ")[2])


def names(tables: Sequence[str]) -> str:
    return ", ".join(quoted(table) for table in tables)


def quoted(name: str) -> str:
    escaped = name.replace('"', '""')
    return f'"{escaped}"'


def copied(table: str, columns: Sequence[str]) -> str:
    return f"SELECT {names(columns)} FROM {quoted(table)}"


def locked(tables: Sequence[str]) -> str:
    return f"LOCK TABLE {names(tables)} IN ACCESS EXCLUSIVE MODE"


def emptied(tables: Sequence[str]) -> str:
    return f"TRUNCATE {names(tables)}"


def next_number(table: str, column: str) -> str:
    return f"SELECT coalesce(max({quoted(column)}), 0) + 1 FROM {quoted(table)}"


def count_on(table: str, column: str, number: int) -> str:
    """Lets the column count on from `number`. Not setval, which a rollback would not take back."""
    return f"ALTER TABLE {quoted(table)} ALTER COLUMN {quoted(column)} RESTART WITH {number}"
