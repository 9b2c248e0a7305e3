"""The installation that `codehub up` runs on this machine.

While it runs, a private file in its data directory tells the commands of an operator where it is. `codehub up
--stop-all` stops what a `codehub up` left running as its owners would: each workspace is asked to become STANDBY, and a
coordinator does the rest, the one of the `codehub up` that runs or one of our own on the databases of the data
directory. So nothing starts again at the next `codehub up`.
"""

import asyncio
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import UUID

from codehub.cli.output import ClientFailed
from codehub.domain.workspace import Desired
from codehub.ports.stores import Actor

if TYPE_CHECKING:
    from codehub.bootstrap.services import Services
    from codehub.settings import Settings

FILE = "running.json"
STOP_TIMEOUT_SECONDS = 600.0
POLL_SECONDS = 0.25
_ACTOR = Actor("codehub up --stop-all")


@contextmanager
def announce(directory: Path, addresses: Mapping[str, str]) -> Iterator[None]:
    """Writes where the installation is, for its owner alone: the file holds the databases' passwords."""
    path, draft = directory / FILE, directory / f".{FILE}.new"
    with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        json.dump({"pid": os.getpid(), **addresses}, file)
    draft.replace(path)
    try:
        yield
    finally:
        path.unlink(missing_ok=True)


def operators_settings() -> "Settings":
    """The environment's settings; where it names no database, those of a `codehub up` that runs here."""
    from codehub.settings import Settings, SettingsError, load_settings

    if os.environ.get("CODEHUB_DATABASE_URL"):
        return load_settings()
    configured = os.environ.get("CODEHUB_DATA_DIR") or Settings.model_fields["data_dir"].default
    directory = Path(configured).expanduser().absolute()
    found = running_settings(directory)
    if found is None:
        raise SettingsError(
            f"no database is named (CODEHUB_DATABASE_URL), and no `codehub up` runs on {directory} "
            "(CODEHUB_DATA_DIR names another directory)"
        )
    return found


def running_settings(directory: Path) -> "Settings | None":
    """The settings of the `codehub up` that runs on this data directory."""
    from codehub.settings import load_settings

    found = _read(directory / FILE)
    if found is None:
        return None
    given = {
        name: found[name]
        for name in ("database_url", "redis_url", "api_address", "proxy_address", "runtime")
        if name in found
    }
    return load_settings(**given, data_dir=directory)


def _read(path: Path) -> dict[str, str] | None:
    try:
        found: dict[str, str] = json.loads(path.read_text())
    except (OSError, ValueError):
        return None
    return found if Path("/proc", str(found.get("pid"))).exists() else None


async def running_workspaces(services: "Services") -> list[str]:
    """The names of workspaces whose container runs, each with its owner."""
    seen = await services.runtime.containers()
    known = await services.database.views().some([key for key, found in seen.items() if found.running])
    return sorted(f"{owned.workspace.name} ({owned.owner})" for owned in known.values())


async def stop_all_workspaces(directory: Path) -> None:
    from codehub.bootstrap.runtimes import recorded_runtime
    from codehub.bootstrap.services import embedded_databases, start_logging
    from codehub.bootstrap.services import migrate as migrate_schema
    from codehub.settings import load_settings

    settings = running_settings(directory)
    if settings is not None:
        start_logging(settings)
        await _stop(settings)
        return
    async with embedded_databases(directory) as databases:
        await migrate_schema(databases.addresses["database_url"])
        kind = recorded_runtime(directory) or "process"
        settings = load_settings(**databases.addresses, data_dir=directory, runtime=kind, log_level="warning")
        start_logging(settings)
        await _stop(settings, leading=True)


async def _stop(settings: "Settings", *, leading: bool = False) -> None:
    from codehub.bootstrap.services import open_services

    async with open_services(settings) as services:
        coordinating = asyncio.ensure_future(services.coordinator().run()) if leading else None
        try:
            left = await _wait_until_stopped(services, set(await _request_standby(services)))
        finally:
            if coordinating is not None:
                coordinating.cancel()
                await asyncio.gather(coordinating, return_exceptions=True)
    if left:
        raise ClientFailed(f"still running: {', '.join(left)}. See `codehub admin errors`, or run it again.")


async def _request_standby(services: "Services") -> list[UUID]:
    rows = [owned.workspace for owned in await services.database.views().everything()]
    asked = [row.id for row in rows if row.desired_state is Desired.RUNNING]
    for key in asked:
        await services.commands.want(key, Desired.STANDBY, _ACTOR, reason="stop-all")
    return asked


async def _wait_until_stopped(services: "Services", asked: set[UUID]) -> list[str]:
    """Waits until the workspaces are at rest, and names those that run all the same."""
    print(f"Stopping {len(asked)} workspace{'s' if len(asked) != 1 else ''} …", flush=True)
    try:
        async with asyncio.timeout(STOP_TIMEOUT_SECONDS):
            while await _any_busy(services, asked):  # noqa: ASYNC110 - what changes is in a database
                await asyncio.sleep(POLL_SECONDS)
    except TimeoutError:
        return await running_workspaces(services)
    left = await running_workspaces(services)
    if not left:
        print("No workspace runs any more.", flush=True)
    return left


async def _any_busy(services: "Services", asked: set[UUID]) -> bool:
    seen = {key for key, found in (await services.runtime.containers()).items() if found.running}
    rows = [owned.workspace for owned in (await services.database.views().some(seen | asked)).values()]
    return any(not row.is_at_rest for row in rows)
