"""`codehub admin backup` and `codehub admin restore`: CodeHub itself in one file."""

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from codehub.cli.client import AsJson
from codehub.cli.output import size

if TYPE_CHECKING:
    from codehub.bootstrap.operator import InUse, Manifest
    from codehub.settings import Settings


def register(app: typer.Typer) -> None:
    app.command()(backup)
    app.command()(restore)


def backup(file: Annotated[Path, typer.Argument(help="The file to make.")], as_json: AsJson = False) -> None:
    """Write this installation into one file: the database of one moment, and the settings.

    It holds password hashes and secrets and is yours alone to read: keep it so. The homes are not in it; they sleep in
    the archive store. Nor are the keys of people's secrets (CODEHUB_SECRETS_KEYS, or `secrets.key` in the data
    directory): keep those elsewhere, for without them what people keep cannot be opened. Works while everything runs.

    Example: `codehub admin backup /srv/backup/codehub-$(date +%F).tar.zst`
    """
    from codehub.bootstrap.operator import back_up_installation

    path = file.expanduser().absolute()

    async def run() -> "Manifest":
        async with _settings(new_cluster=False) as settings:
            return await back_up_installation(settings, path)

    manifest = asyncio.run(run())
    if as_json:
        print(json.dumps({"file": str(path), **_shown(manifest)}))
        return
    rows = sum(part.rows for part in manifest.parts)
    tables = sum(bool(part.table) for part in manifest.parts)
    print(
        f"{path}: {rows} rows of {tables} tables, {size(path.stat().st_size)}. It holds secrets; only you can read it."
    )


def restore(
    file: Annotated[Path, typer.Argument(help="A file made by `codehub admin backup`.")],
    replace: Annotated[bool, typer.Option("--replace", help="Give up what the database holds now.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Ask nothing.")] = False,
    settings_to: Annotated[
        Path | None, typer.Option(help="Also write the backup's settings into this new file, for a shell to read.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Bring an installation back from a backup, all or nothing. Stop every coordinator first.

    The file is read to its end and compared before anything changes. Everybody signs in again; tokens and passwords
    are those of the backup, so revoke again what was revoked since.

    Examples: `codehub admin restore codehub.tar.zst` · `codehub admin restore codehub.tar.zst --replace`
    """
    from codehub.bootstrap.operator import checked_manifest, inspect_backup, restore_installation, settings_of

    path = file.expanduser().absolute()

    async def run() -> "Manifest":
        async with _settings(new_cluster=True) as settings:
            manifest, found = await inspect_backup(settings, path)
            if found and replace and not yes:
                _ask(manifest, found)
            return await restore_installation(settings, path, replace_all=replace)

    if settings_to is not None and settings_to.exists():
        raise typer.BadParameter(f"{settings_to} exists already: name a new file")
    checked_manifest(path)  # before a server is started for it
    manifest = asyncio.run(run())
    if settings_to is not None:
        _write_private(settings_to, settings_of(path))
    if as_json:
        print(json.dumps({"file": str(path), **_shown(manifest)}))
        return
    print(f"Restored: CodeHub as it was at {manifest.created_at:%Y-%m-%d %H:%M:%S} UTC. Everybody signs in again.")
    print("Before you trust the garbage collector: `codehub admin gc --dry-run` shows what the database does not know.")


@asynccontextmanager
async def _settings(*, new_cluster: bool) -> "AsyncIterator[Settings]":
    """Settings with the environment's database, else that of a `codehub up` that runs here, else one started for
    this."""
    from codehub.bootstrap.operator import embedded_database
    from codehub.bootstrap.runtimes import data_dir
    from codehub.cli.local_instance import operators_settings
    from codehub.settings import SettingsError, load_settings

    # Redis plays no part in this, and a job that makes backups is often given none.
    redis = os.environ.get("CODEHUB_REDIS_URL") or "redis://unused"
    if os.environ.get("CODEHUB_DATABASE_URL"):
        yield load_settings(redis_url=redis)
        return
    unbound = load_settings(database_url="postgresql://ours", redis_url=redis)
    directory = data_dir(unbound)
    try:
        running = operators_settings()
    except SettingsError:
        if not new_cluster and not (directory / "postgres" / "data").is_dir():
            raise
    else:
        yield running
        return
    async with embedded_database(directory) as url:
        yield load_settings(database_url=url, redis_url=redis)


def _ask(manifest: "Manifest", found: "InUse") -> None:
    print(
        f"The database holds {found.users} users and {found.workspaces} workspaces. They will be gone.", file=sys.stderr
    )
    typer.confirm(f"Replace them with the state of {manifest.created_at:%Y-%m-%d %H:%M} UTC?", abort=True, err=True)


def _write_private(path: Path, text: str) -> None:
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600), "w") as file:
        file.write(text)


def _shown(manifest: "Manifest") -> dict[str, object]:
    return {
        "format": manifest.format,
        "program": manifest.program,
        "schema": manifest.schema,
        "created_at": manifest.created_at.isoformat(),
        "install_id": manifest.install_id,
        "rows": {part.table: part.rows for part in manifest.parts if part.table},
        "left_out": manifest.left_out,
    }
