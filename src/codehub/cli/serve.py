"""The verbs that run something until they are stopped: api, proxy, coordinator; and migrate, which goes before them."""

import asyncio
import contextlib
import os
import signal
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from codehub.cli.status_server import Status
    from codehub.coordinator.process import CoordinatorReadiness
    from codehub.settings import Settings


def register(app: typer.Typer) -> None:
    app.command()(api)
    app.command()(proxy)
    app.command("proxy-worker", hidden=True)(proxy_worker)
    app.command()(coordinator)
    app.command()(migrate)


def api() -> None:
    """Run the HTTP API. Start as many as you like behind one address.

    Configured by the environment alone (docs/reference/settings.md).

    Example: `CODEHUB_DATABASE_URL=postgresql://… CODEHUB_REDIS_URL=redis://… codehub api`
    """
    from codehub.settings import load_settings

    settings = load_settings()
    asyncio.run(until_signalled(lambda: _serve_api(settings, lambda: None)))


def proxy() -> None:
    """Run the front door: what browsers reach, for workspaces and for the API behind it. Start as many as you like.

    Configured by the environment alone (docs/reference/settings.md). SIGHUP renews its processes one by one.

    Example: `CODEHUB_DATABASE_URL=postgresql://… CODEHUB_REDIS_URL=redis://… codehub proxy`
    """
    from codehub.settings import load_settings

    settings = load_settings()
    asyncio.run(until_signalled(lambda: _guard_door(settings)))


def proxy_worker() -> None:
    """One process of the front door, started by `codehub proxy`."""
    import resource

    import uvloop

    from codehub.bootstrap.door import serve_door
    from codehub.bootstrap.services import start_logging
    from codehub.settings import load_settings

    settings = load_settings()
    start_logging(settings)
    # Each socket takes two descriptors, and most systems allow 1024 unless one asks for more.
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    uvloop.run(serve_door(settings))


def coordinator() -> None:
    """Run a coordinator. Start as many as you like: one leads, the others stand by.

    Configured by the environment alone (docs/reference/settings.md).

    Example: `CODEHUB_DATABASE_URL=postgresql://… CODEHUB_REDIS_URL=redis://… codehub coordinator`
    """
    from codehub.settings import load_settings

    settings = load_settings()
    asyncio.run(until_signalled(lambda: _coordinate(settings, lambda: None)))


def _log_progress() -> Callable[[str, float], None]:
    import structlog

    log, said = structlog.get_logger(), ""

    def report(text: str, fraction: float) -> None:
        nonlocal said
        if text != said:
            log.info("ide_installation", step=text, percent=round(fraction * 100))
        said = text

    return report


def migrate() -> None:
    """Bring the database to this program's schema. Safe to run twice, and by two at once.

    Example: `CODEHUB_DATABASE_URL=postgresql://… codehub migrate`
    """
    from codehub.bootstrap.schema import migrate as bring_up
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

    from codehub.bootstrap.ide import install_ide
    from codehub.bootstrap.services import open_services, start_logging
    from codehub.cli.status_server import serving_status
    from codehub.settings import SettingsError, without_effect
    from codehub.usecases.users import refuse_shared_start

    start_logging(settings)
    for warning in without_effect(os.environ):
        structlog.get_logger().warning(warning)
    async with open_services(settings) as services:
        await refuse_shared_start(services.database.accounts(), services.runtime.isolates)
        process = services.coordinator()
        async with contextlib.AsyncExitStack() as stack:
            address = settings.coordinator_status_address
            status = serving_status(address, lambda: _status(process.readiness()), services.metrics.registry)
            try:
                await stack.enter_async_context(status)
            except (OSError, OverflowError) as error:
                why = f"COORDINATOR_STATUS_ADDRESS={address}: cannot listen there ({error}); choose a free port"
                raise SettingsError(why) from error
            # Here, so that nobody waits for it who cannot start anyway; with an IDE in the cache it takes no time.
            installed = await install_ide(settings, _log_progress())
            for note in installed.notes if installed else ():
                structlog.get_logger().warning("ide_note", note=note)
            ready()
            await process.run()


def _status(now: "CoordinatorReadiness") -> "Status":
    from codehub.cli.status_server import Status

    said = {"leads": now.leads, "epoch": now.epoch, "last_pass_age_seconds": now.pass_age, "queued": now.queued}
    return Status(now.is_ready, said)


async def _guard_door(settings: "Settings") -> None:
    import structlog

    from codehub.bootstrap.door import door_parts
    from codehub.bootstrap.services import open_services, start_logging
    from codehub.cli.door import free, supervised
    from codehub.cli.status_server import Status, serving_status
    from codehub.settings import SettingsError, without_effect
    from codehub.telemetry import Metrics

    start_logging(settings)
    for warning in without_effect(os.environ):
        structlog.get_logger().warning(warning)
    host, _, port = settings.proxy_address.rpartition(":")
    try:
        free(host, int(port))
    except (OSError, OverflowError) as error:
        why = f"CODEHUB_PROXY_ADDRESS={settings.proxy_address}: cannot listen there ({error}); choose a free port"
        raise SettingsError(why) from error
    async with open_services(settings) as services:
        door_parts(services)  # what a worker would stumble over is said once, and by us
    metrics = Metrics()
    supervisor = supervised(host, int(port), settings.proxy_workers, metrics)

    def status() -> Status:
        return Status(ready=bool(supervisor.pids), said={"workers": len(supervisor.pids)})

    async with contextlib.AsyncExitStack() as stack:
        try:
            await stack.enter_async_context(serving_status(settings.proxy_status_address, status, metrics.registry))
        except (OSError, OverflowError) as error:
            why = f"CODEHUB_PROXY_STATUS_ADDRESS={settings.proxy_status_address}: cannot listen there ({error}); "
            raise SettingsError(why + "choose a free port") from error
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, supervisor.renew_soon)
        await supervisor.run()


async def _serve_api(settings: "Settings", ready: Callable[[], None]) -> None:
    import structlog

    from codehub.api.server import bound, serve
    from codehub.bootstrap.api import open_api
    from codehub.bootstrap.services import open_services, start_logging
    from codehub.settings import SettingsError, without_effect

    start_logging(settings)
    for warning in without_effect(os.environ):
        structlog.get_logger().warning(warning)
    host, _, port = settings.api_address.rpartition(":")
    async with open_services(settings) as services, open_api(services) as app:
        try:
            listening = bound(host, int(port))
        except (OSError, OverflowError) as error:
            why = f"CODEHUB_API_ADDRESS={settings.api_address}: cannot listen there ({error}); choose a free port"
            raise SettingsError(why) from error
        await serve(app, listening, ready, trusted_proxies=settings.trusted_proxies)


async def until_signalled(run: Callable[[], Awaitable[None]]) -> None:
    """SIGINT and SIGTERM cancel: connections close, the lock is given back, the workspaces go on."""
    task = asyncio.ensure_future(run())
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, task.cancel)
    with contextlib.suppress(asyncio.CancelledError):
        await task
