"""The database out of one moment into files, and back in one transaction: all of it, or nothing.

What proves somebody's identity for minutes or days stays out: a backup must not bring back who has signed out since.
What the collector marked stays out too: after a restore, every grace period begins anew.
"""

from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from graphlib import TopologicalSorter
from typing import Any

from codehub.adapters.postgres import backup_statements as sql
from codehub.adapters.postgres.append_only import append_audit
from codehub.adapters.postgres.connections import OwnConnection, explained
from codehub.adapters.postgres.database import PostgresDatabase
from codehub.adapters.postgres.schema import schema_head, schema_revision
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
    "gc_requests": "a collection that somebody asked for then is not asked for now",
}
_PATIENCE = 24 * 3600.0

Sink = Callable[[bytes], Coroutine[Any, Any, None]]


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
    """One snapshot, for as long as the context lasts."""
    async with (
        _patient(database, "backup") as connection,
        connection.transaction(isolation="repeatable_read", readonly=True),
    ):
        found = await schema_revision(connection)
        if found != schema_head():
            raise Refused(f"The database has schema {found}, this program {schema_head()}: run `codehub migrate`.")
        epoch: int = await connection.fetchval(sql.EPOCH)
        server: str = await connection.fetchval(sql.SERVER)
        yield Copying(connection, BackupSnapshot(found, epoch, server), await _tables(connection))


@dataclass(frozen=True, slots=True)
class Copying:
    connection: OwnConnection
    snapshot: BackupSnapshot
    tables: Sequence[Table]

    async def copy(self, table: Table, sink: Sink) -> int:
        """Copies a table into `sink` and returns how many rows it has."""
        with explained():
            query = sql.copied(table.name, table.columns)
            return _count(await self.connection.copy_from_query(query, output=sink, timeout=_PATIENCE))


async def in_use(database: PostgresDatabase) -> InUse:
    """How many users and workspaces there are; none in a database without our schema."""
    async with _patient(database, "restore") as connection:
        if await schema_revision(connection) is None:
            return InUse(0, 0)
        return await _in_use(connection)


@asynccontextmanager
async def replacing(
    database: PostgresDatabase, epoch: int, taken_at: datetime, details: Mapping[str, Any], *, replace: bool
) -> "AsyncIterator[Loading]":
    """Refused, having changed nothing, if somebody leads, or if the database is in use and `replace` is not meant.
    What is loaded within is committed at the end, or not at all. `epoch`, `taken_at`: the backup's."""
    async with _patient(database, "restore") as connection, connection.transaction():
        if not await connection.fetchval(sql.NOBODY_LEADS):
            raise Refused("A coordinator leads this database. Stop `codehub up` or every `codehub coordinator` first.")
        tables = await _tables(connection)
        ours = [record["name"] for record in await connection.fetch(sql.TABLES)]
        every = [name for name in ours if name != "alembic_version"]
        await connection.execute(sql.locked(every))
        found = await _in_use(connection)
        if found and not replace:
            raise Refused(
                f"The database holds {found.users} users and {found.workspaces} workspaces already. "
                "Restore into an empty one, or say --replace to give them up."
            )
        await connection.execute(sql.emptied([name for name in every if name != "leadership"]))
        yield Loading(connection, {table.name: table for table in tables})
        for table in tables:
            if table.counted:
                number: int = await connection.fetchval(sql.next_number(table.name, table.counted))
                await connection.execute(sql.count_on(table.name, table.counted, number))
        await connection.execute(sql.NEW_EPOCH, epoch)
        await connection.execute(sql.RESTORED, taken_at)
        await append_audit(connection, Actor("operator"), "restore", "installation", details)


@dataclass(frozen=True, slots=True)
class Loading:
    connection: OwnConnection
    tables: Mapping[str, Table]

    async def load(self, name: str, columns: Sequence[str], rows: int, chunks: AsyncIterator[bytes]) -> None:
        with explained():
            told = await self.connection.copy_to_table(name, source=chunks, columns=list(columns), timeout=_PATIENCE)
        if _count(told) != rows:
            raise BackendError(f"{name}: {rows} rows were promised, {_count(told)} came. Nothing was changed.")

    def must_hold(self, wanted: Mapping[str, Sequence[str]]) -> None:
        """Refuses other tables or columns: a schema of the same number that somebody changed by hand is another one."""
        if {name: tuple(columns) for name, columns in wanted.items()} != {
            table.name: table.columns for table in self.tables.values()
        }:
            raise Refused("The backup's tables are not this database's, although the schema's number is the same.")


@asynccontextmanager
async def _patient(database: PostgresDatabase, name: str) -> AsyncIterator[OwnConnection]:
    connection = await database.sessions.own(name, _PATIENCE)
    try:
        with explained():
            await connection.execute(sql.PATIENT)
            yield connection
    finally:
        connection.terminate()


async def _tables(connection: OwnConnection) -> list[Table]:
    """The tables that are backed up, in an order that every reference allows."""
    found = {
        record["name"]: Table(record["name"], tuple(record["columns"]), record["counted"])
        for record in await connection.fetch(sql.TABLES)
    }
    needs: dict[str, set[str]] = {name: set() for name in sorted(found)}
    for record in await connection.fetch(sql.REFERENCES):
        needs[record["child"]].add(record["parent"])
    return [found[name] for name in TopologicalSorter(needs).static_order() if name not in LEFT_OUT]


async def _in_use(connection: OwnConnection) -> InUse:
    found = await connection.fetchrow(sql.IN_USE)
    return InUse(found["users"], found["workspaces"]) if found else InUse(0, 0)


def _count(told: str) -> int:
    """The number of rows in an answer such as `COPY 12`."""
    return int(told.rpartition(" ")[2])
