"""CodeHub itself into one file and back: the database and the settings. Homes are elsewhere: they sleep in archives.

Everything that can be refused is refused before anything is changed, and the change is one transaction, so whoever is
killed on the way leaves either the old database or the restored one.
"""

import shlex
from collections.abc import Mapping
from contextlib import ExitStack, closing
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

from codehub.adapters.backup_file import (
    SETTINGS,
    Manifest,
    Spool,
    checked_manifest,
    contents,
    settings_of,
    write_backup,
)
from codehub.adapters.postgres import PostgresDatabase, SchemaMismatch
from codehub.adapters.postgres.backup import LEFT_OUT, InUse, in_use, moment, replacing
from codehub.adapters.postgres.migration import migrate
from codehub.adapters.postgres.schema import check_schema, schema_head
from codehub.domain.errors import Refused

__all__ = ["InUse", "Manifest", "back_up", "checked_manifest", "inspect", "restore", "settings_of"]


async def back_up(
    database: PostgresDatabase, path: Path, install_id: str | None, environment: Mapping[str, str]
) -> Manifest:
    """A snapshot of one moment. The file appears when it is whole; one that is there already stays as it is."""
    _must_be_free(path)
    await check_schema(database)
    database_id = (await database.installation_id()).hex
    parts = []
    with ExitStack() as spools:
        kept: list[Spool] = []

        def spool(name: str) -> Spool:
            kept.append(spools.enter_context(closing(Spool(path.parent, name))))
            return kept[-1]

        settings = spool(SETTINGS)
        await settings.write(_as_lines(environment).encode())
        parts.append(settings.part())
        async with moment(database) as copying:
            created_at, found = datetime.now(UTC), copying.moment
            for table in copying.tables:
                part = spool(f"tables/{table.name}.copy")
                rows = await copying.copy(table, part.write)
                parts.append(part.part(table.name, table.columns, rows))
        manifest = Manifest(
            program=version("codehub"),
            schema=found.schema,
            created_at=created_at,
            install_id=install_id or database_id,
            database_id=database_id,
            epoch=found.epoch,
            server=found.server,
            parts=tuple(parts),
            left_out=dict(LEFT_OUT),
        )
        write_backup(path, manifest, kept)
    return manifest


async def inspect(database: PostgresDatabase, path: Path) -> tuple[Manifest, InUse]:
    """What would come, and what would go. Refused or SchemaMismatch if it cannot be done."""
    manifest = checked_manifest(path)
    if manifest.schema != schema_head():
        raise SchemaMismatch(
            f"{path} is of schema {manifest.schema}, this program has {schema_head()}. Restore it with CodeHub "
            f"{manifest.program}, which made it; then install this one and run `codehub migrate`. Nothing was changed."
        )
    found = await in_use(database)
    if found:
        await check_schema(database)
    return manifest, found


async def restore(database: PostgresDatabase, url: str, path: Path, *, replace_all: bool) -> Manifest:
    """All or nothing. An empty database gets its schema first, as `codehub migrate` would give it."""
    manifest, _found = await inspect(database, path)
    await migrate(url)
    details = {"backup_at": manifest.created_at.isoformat(), "made_by": manifest.program}
    with contents(path) as parts:
        async with replacing(database, manifest.epoch, manifest.created_at, details, replace=replace_all) as loading:
            loading.must_hold({part.table: part.columns for part in manifest.parts if part.table})
            for part, chunks in parts:
                if part.table:
                    await loading.load(part.table, part.columns, part.rows, chunks)
                else:
                    async for _chunk in chunks:
                        pass
    return manifest


def _must_be_free(path: Path) -> None:
    if path.exists():
        raise Refused(f"{path} exists already. Name another file, or remove that one.")
    if not path.parent.is_dir():
        raise Refused(f"There is no directory {path.parent}. Make it first.")


def _as_lines(environment: Mapping[str, str]) -> str:
    """For a shell to read: `set -a; . FILE`."""
    return "".join(f"{name}={shlex.quote(value)}\n" for name, value in sorted(environment.items()))
