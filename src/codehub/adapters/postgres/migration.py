"""`codehub migrate`: a database brought up to this binary's schema, by Alembic, which nothing else needs."""

from dataclasses import dataclass

import asyncpg
from alembic.command import upgrade
from alembic.config import Config
from sqlalchemy import Connection as MigratingConnection
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.pool import NullPool

from codehub.adapters.postgres import statements as sql
from codehub.adapters.postgres.connections import NO_ANSWER, OwnConnection, explained, plain_address, unreachable
from codehub.adapters.postgres.schema import MIGRATIONS, refuse_newer, schema_head
from codehub.domain.errors import BackendError

CONNECT_SECONDS = 10.0


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


def _upgrade(connection: MigratingConnection) -> Migrated:
    connection.execute(text(sql.MIGRATING))
    exists = connection.scalar(text(sql.HAS_SCHEMA_REVISION))
    before: str | None = connection.scalar(text(sql.SCHEMA_REVISION)) if exists else None
    refuse_newer(before)
    config = alembic_config()
    config.attributes["connection"] = connection
    upgrade(config, "head")
    return Migrated(before, schema_head())


def alembic_config() -> Config:
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
    return config
