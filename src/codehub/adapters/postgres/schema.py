"""The schema: its version, which every process checks before it touches a row, and `migrate`, which brings it up.

A binary works on exactly the schema it was made for. An older one is migrated on request, so that nobody's database
changes by the mere start of a process; a newer one is left alone. Each revision is a file of SQL in migrations/, named
by its number; a released one is never edited. The table that holds the number is called alembic_version because the
first releases used Alembic (docs/adr/0022-migrations-are-sql-files.md).
"""

from dataclasses import dataclass
from pathlib import Path

import asyncpg

from codehub.adapters.postgres import statements as sql
from codehub.adapters.postgres.connections import (
    NO_ANSWER,
    AnyConnection,
    OwnConnection,
    explained,
    plain_address,
    unreachable,
)
from codehub.adapters.postgres.database import PostgresDatabase
from codehub.domain.errors import BackendError, CodeHubError

MIGRATIONS = Path(__file__).parent / "migrations"
CONNECT_SECONDS = 10.0


class SchemaMismatch(CodeHubError):
    """The database's schema is not the one this binary was made for. Nothing was changed."""


@dataclass(frozen=True, slots=True)
class Migrated:
    """`before` is None for an empty database; equal to `after` when there was nothing to do."""

    before: str | None
    after: str


async def check_schema(database: PostgresDatabase) -> None:
    """Raises SchemaMismatch with a sentence that says what to do, unless the schema is this binary's own."""
    async with database.sessions.reading() as connection:
        found = await schema_revision(connection)
    refuse_newer(found)
    expected = schema_head()
    if found is None:
        raise SchemaMismatch("The database has no CodeHub schema yet: run `codehub migrate`.")
    if found != expected:
        raise SchemaMismatch(f"The database has schema {found}, this binary needs {expected}: run `codehub migrate`.")


async def migrate(url: str, target: str | None = None) -> Migrated:
    """Brings the database to this binary's schema (or to the older `target`) in one transaction. Two at once run one
    after the other. SchemaMismatch, having changed nothing, if the database is newer than this binary."""
    with explained():
        connection: OwnConnection = await asyncpg.connect(plain_address(url), timeout=CONNECT_SECONDS)
    try:
        async with connection.transaction():
            return await _upgrade(connection, target or schema_head())
    except NO_ANSWER as error:
        raise unreachable(error) from error
    except asyncpg.PostgresError as error:
        raise BackendError(f"The migration failed and was rolled back: {error}") from error
    finally:
        connection.terminate()


async def _upgrade(connection: OwnConnection, target: str) -> Migrated:
    await connection.execute(sql.MIGRATING)
    before = await schema_revision(connection)
    refuse_newer(before)
    for revision, path in _revisions().items():
        if (before or "") < revision <= target:
            await connection.execute(path.read_text(encoding="utf-8"))
    if before is None:
        await connection.execute(sql.CREATE_SCHEMA_REVISION)
        await connection.execute(sql.FIRST_SCHEMA_REVISION, target)
    elif before < target:
        await connection.execute(sql.SET_SCHEMA_REVISION, target)
    return Migrated(before, target)


async def schema_revision(connection: AnyConnection) -> str | None:
    """None for a database without our schema."""
    if not await connection.fetchval(sql.HAS_SCHEMA_REVISION):
        return None
    found: str | None = await connection.fetchval(sql.SCHEMA_REVISION)
    return found


def schema_head() -> str:
    """The schema that this program works on."""
    return schema_revisions()[-1]


def schema_revisions() -> list[str]:
    """The numbers of all revisions that ever were, in their order."""
    return list(_revisions())


def _revisions() -> dict[str, Path]:
    return {path.stem.partition("_")[0]: path for path in sorted(MIGRATIONS.glob("*.sql"))}


def refuse_newer(found: str | None) -> None:
    if found is not None and found not in _revisions():
        raise SchemaMismatch(
            f"The database has schema {found}, which is newer than this binary knows ({schema_head()}): "
            "upgrade CodeHub, or point it to another database. Nothing was changed."
        )
