"""`codehub up --stop-all`: what a `codehub up` that was stopped left running, stopped as its owners would.

Each workspace is wished to STANDBY, and a coordinator does the rest: the one of the `codehub up` that runs, or one of
our own on the databases of the data directory. So nothing starts again at the next `codehub up`.
"""

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import UUID

if TYPE_CHECKING:
    from codehub.bootstrap.services import Services
    from codehub.settings import Settings

PATIENCE_SECONDS = 600.0
_LOOK_SECONDS = 0.25
_ACTOR = "codehub up --stop-all"


async def running(services: "Services") -> list[str]:
    """The names of workspaces whose container runs, each with its owner."""
    seen = await services.runtime.containers()
    known = await services.database.views().some([key for key, found in seen.items() if found.running])
    return sorted(f"{owned.workspace.name} ({owned.owner})" for owned in known.values())


async def stop_everything(directory: Path) -> None:
    from codehub.bootstrap.services import start_logging
    from codehub.cli.local_instance import of_running
    from codehub.settings import load_settings

    settings = of_running(directory)
    if settings is not None:
        start_logging(settings)
        await _stop(settings)
        return
    from codehub.bootstrap.databases import embedded_databases
    from codehub.bootstrap.runtimes import begun_with
    from codehub.bootstrap.schema import migrate as bring_up

    async with embedded_databases(directory) as databases:
        await bring_up(databases.addresses["database_url"])
        kind = begun_with(directory) or "process"
        settings = load_settings(**databases.addresses, data_dir=directory, runtime=kind, log_level="warning")
        start_logging(settings)
        await _stop(settings, leading=True)


async def _stop(settings: "Settings", *, leading: bool = False) -> None:
    from codehub.bootstrap.services import open_services
    from codehub.cli.failures import ClientFailed

    async with open_services(settings) as services:
        coordinating = asyncio.ensure_future(services.coordinator().run()) if leading else None
        try:
            left = await _stopped(services, set(await _wished_down(services)))
        finally:
            if coordinating is not None:
                coordinating.cancel()
                await asyncio.gather(coordinating, return_exceptions=True)
    if left:
        raise ClientFailed(f"still running: {', '.join(left)}. See `codehub admin errors`, or run it again.")


async def _wished_down(services: "Services") -> list[UUID]:
    from codehub.domain.workspace import Desired
    from codehub.ports.stores import Actor

    rows = [owned.workspace for owned in await services.database.views().everything()]
    wished = [row.id for row in rows if row.desired_state is Desired.RUNNING]
    for key in wished:
        await services.wishes.want(key, Desired.STANDBY, Actor(_ACTOR), reason="stop-all")
    return wished


async def _stopped(services: "Services", wished: set[UUID]) -> list[str]:
    """Waits until none runs, and names what does so in the end: what is in ERROR is a person's to look at."""
    print(f"Stopping {len(wished)} workspace{'s' if len(wished) != 1 else ''} …", flush=True)
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while True:
                if not await _under_way(services, wished):
                    break
                await asyncio.sleep(_LOOK_SECONDS)
    except TimeoutError:
        return await running(services)
    left = await running(services)
    if not left:
        print("No workspace runs any more.", flush=True)
    return left


async def _under_way(services: "Services", wished: set[UUID]) -> bool:
    seen = {key for key, found in (await services.runtime.containers()).items() if found.running}
    rows = [owned.workspace for owned in (await services.database.views().some(seen | wished)).values()]
    return any(not row.is_at_rest for row in rows)
