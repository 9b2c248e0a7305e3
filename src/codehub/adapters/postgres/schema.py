"""The schema's version: brought up by `codehub migrate`, and checked by everything else before it touches a row.

A binary works on exactly the schema it was made for. An older one is migrated on request, so that nobody's database
changes by the mere start of a process; a newer one is left alone.
"""

from dataclasses import dataclass
from pathlib import Path

import asyncpg
from alembic.command import upgrade
from alembic.config import Config
from alembic.script import ScriptDirectory
from sqlalchemy import Connection as MigratingConnection
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.pool import NullPool

from codehub.adapters.postgres import statements as sql
from codehub.adapters.postgres.database import PostgresDatabase
from codehub.adapters.postgres.failures import NO_ANSWER, explained, unreachable
from codehub.adapters.postgres.sessions import AnyConnection, OwnConnection, plain_address
from codehub.domain.errors import BackendError, CodeHubError

CONNECT_SECONDS = 10.0


class SchemaMismatch(CodeHubError):
    """The database is not of this binary's time. Nothing was changed."""


@dataclass(frozen=True, slots=True)
class Migrated:
    """`before` is None for an empty database; equal to `after` when there was nothing to do."""

    before: str | None
    after: str


async def migrate(url: str) -> Migrated:
    """To this binary's schema, in one transaction. Two at once run one after the other. SchemaMismatch, having
    changed nothing, if the database is newer."""

    async def connect() -> OwnConnection:
        return await asyncpg.connect(plain_address(url), timeout=CONNECT_SECONDS)

    engine = create_async_engine("postgresql+asyncpg://", async_creator=connect, poolclass=NullPool)
    try:
        with explained():
            async with engine.begin() as connection:
                return await connection.run_sync(_upgrade)
    except DBAPIError as error:
        cause = error.orig.__cause__ if error.orig else None
        if isinstance(cause, NO_ANSWER):
            raise unreachable(cause) from error
        raise BackendError(f"The migration failed and was rolled back: {cause or error}") from error
    finally:
        await engine.dispose()


async def check_schema(database: PostgresDatabase) -> None:
    """Raises SchemaMismatch with a sentence that says what to do, unless the schema is this binary's own."""
    async with database.sessions.reading() as connection:
        found = await schema_revision(connection)
    _refuse_newer(found)
    expected = schema_head()
    if found is None:
        raise SchemaMismatch("The database has no CodeHub schema yet: run `codehub migrate`.")
    if found != expected:
        raise SchemaMismatch(f"The database has schema {found}, this binary needs {expected}: run `codehub migrate`.")


async def schema_revision(connection: AnyConnection) -> str | None:
    """None for a database without our schema."""
    if not await connection.fetchval(sql.HAS_SCHEMA_REVISION):
        return None
    found: str | None = await connection.fetchval(sql.SCHEMA_REVISION)
    return found


def schema_head() -> str:
    """The schema that this program works on."""
    head = _scripts().get_current_head()
    assert head is not None  # noqa: S101 - there is a first revision
    return head


def _upgrade(connection: MigratingConnection) -> Migrated:
    connection.execute(text(sql.MIGRATING))
    exists = connection.scalar(text(sql.HAS_SCHEMA_REVISION))
    before: str | None = connection.scalar(text(sql.SCHEMA_REVISION)) if exists else None
    _refuse_newer(before)
    config = _config()
    config.attributes["connection"] = connection
    upgrade(config, "head")
    return Migrated(before, schema_head())


def _refuse_newer(found: str | None) -> None:
    known = {script.revision for script in _scripts().walk_revisions()}
    if found is not None and found not in known:
        raise SchemaMismatch(
            f"The database has schema {found}, which is newer than this binary knows ({schema_head()}): "
            "upgrade CodeHub, or point it to another database. Nothing was changed."
        )


def _scripts() -> ScriptDirectory:
    return ScriptDirectory.from_config(_config())


def _config() -> Config:
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations").replace("%", "%%"))
    return config
