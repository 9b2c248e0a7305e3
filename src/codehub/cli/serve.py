"""The verbs that run something until they are stopped: coordinator, up; and migrate, which goes before them."""

import asyncio
import contextlib
import os
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from codehub.settings import Settings


def register(app: typer.Typer) -> None:
    app.command()(up)
    app.command()(coordinator)
    app.command()(migrate)


def up(
    data_dir: Annotated[
        Path | None, typer.Option(help="Where everything is kept.", show_default="~/.local/share/codehub")
    ] = None,
) -> None:
    """Run everything on this machine: its own PostgreSQL and Redis, migrations, the coordinator.

    Ctrl-C stops it; workspaces that run go on, and running it again finds everything as it was.

    Example: `codehub up --data-dir /srv/codehub`
    """
    from codehub.bootstrap import embedded_databases
    from codehub.bootstrap import migrate as bring_up
    from codehub.settings import load_settings

    given = {} if data_dir is None else {"data_dir": data_dir}
    # Everything else is checked before anything is started or made.
    directory = load_settings(database_url="postgresql://ours", redis_url="unix://ours", **given).data_dir.absolute()

    async def run() -> None:
        print(f"Starting PostgreSQL and Redis in {directory} …", flush=True)
        async with embedded_databases(directory) as addresses:
            settings = load_settings(**addresses, **given)
            await bring_up(addresses["database_url"])
            await _coordinate(
                settings,
                lambda: print(
                    "CodeHub's core is running (no API yet: this release holds the controller). Ctrl-C stops it.",
                    flush=True,
                ),
            )

    asyncio.run(_until_signalled(run))


def coordinator() -> None:
    """Run a coordinator. Start as many as you like: one leads, the others stand by.

    Configured by the environment alone (docs/reference/settings.md).

    Example: `CODEHUB_DATABASE_URL=postgresql://… CODEHUB_REDIS_URL=redis://… codehub coordinator`
    """
    from codehub.settings import load_settings

    settings = load_settings()
    asyncio.run(_until_signalled(lambda: _coordinate(settings, lambda: None)))


def migrate() -> None:
    """Bring the database to this program's schema. Safe to run twice, and by two at once.

    Example: `CODEHUB_DATABASE_URL=postgresql://… codehub migrate`
    """
    from codehub.bootstrap import migrate as bring_up
    from codehub.settings import load_settings

    # a schema needs no Redis, and a migration job in a cluster is often given none
    settings = load_settings(redis_url=os.environ.get("CODEHUB_REDIS_URL") or "redis://unused")
    done = asyncio.run(bring_up(settings.database_url.get_secret_value()))
    if done.before == done.after:
        print(f"The schema is up to date ({done.after}).")
    else:
        print(f"Migrated from {done.before or 'an empty database'} to {done.after}.")


async def _coordinate(settings: "Settings", ready: Callable[[], None]) -> None:
    import structlog

    from codehub.bootstrap import open_services, start_logging
    from codehub.coordinator.status_server import serving_status
    from codehub.settings import SettingsError, misspelt

    start_logging(settings)
    for warning in misspelt(os.environ):
        structlog.get_logger().warning(warning)
    async with open_services(settings) as services:
        process = services.coordinator()
        with contextlib.ExitStack() as stack:
            address = settings.coordinator_status_address
            try:
                stack.enter_context(serving_status(address, process.readiness, services.metrics.registry))
            except (OSError, OverflowError) as error:
                why = f"COORDINATOR_STATUS_ADDRESS={address}: cannot listen there ({error}); choose a free port"
                raise SettingsError(why) from error
            ready()
            await process.run()


async def _until_signalled(run: Callable[[], Awaitable[None]]) -> None:
    """SIGINT and SIGTERM cancel: connections close, the lock is given back, the workspaces go on."""
    task = asyncio.ensure_future(run())
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, task.cancel)
    with contextlib.suppress(asyncio.CancelledError):
        await task
