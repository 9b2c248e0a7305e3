"""The schema's version, which everything checks before it touches a row; `migration` brings it up.

A binary works on exactly the schema it was made for. An older one is migrated on request, so that nobody's database
changes by the mere start of a process; a newer one is left alone.
"""

from pathlib import Path

from codehub.adapters.postgres import statements as sql
from codehub.adapters.postgres.connections import AnyConnection
from codehub.adapters.postgres.database import PostgresDatabase
from codehub.domain.errors import CodeHubError

MIGRATIONS = Path(__file__).parent / "migrations"


class SchemaMismatch(CodeHubError):
    """The database is not of this binary's time. Nothing was changed."""


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
    """All that ever were, in their order: each is a file named after it."""
    return sorted(path.stem.split("_")[1] for path in (MIGRATIONS / "versions").glob("rev_*.py"))


def refuse_newer(found: str | None) -> None:
    if found is not None and found not in schema_revisions():
        raise SchemaMismatch(
            f"The database has schema {found}, which is newer than this binary knows ({schema_head()}): "
            "upgrade CodeHub, or point it to another database. Nothing was changed."
        )
