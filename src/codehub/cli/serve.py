"""The commands that run until they are stopped: api, proxy, ssh-gateway and coordinator; migrate, which goes before
them; and the storage job, for images that have only `codehub` on their path.

A process without an API has an HTTP server of its own that says whether it is alive and ready, and gives its metrics.
There every request has a thread and a few seconds, so that whoever connects and sends nothing holds up neither other
requests nor the end of the process.
"""

import asyncio
import contextlib
import json
import os
import signal
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager
from socketserver import ThreadingMixIn
from typing import TYPE_CHECKING, Annotated, NamedTuple
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

import typer
from prometheus_client import CollectorRegistry, make_wsgi_app

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIEnvironment

    from codehub.coordinator.process import CoordinatorReadiness
    from codehub.proxy.workers import WorkerSupervisor
    from codehub.settings import Settings
    from codehub.telemetry import Metrics

WORKER = (sys.executable, "-c", "from codehub.cli.main import main; main()", "proxy-worker")
"""The command line of one process of the front door."""
SSH_GATEWAY = (sys.executable, "-c", "from codehub.cli.main import main; main()", "ssh-gateway", "--end-with-stdin")
"""The command line of the SSH gateway that `codehub up` runs."""
SSH_RESTART_SECONDS = 1.0
REQUEST_SECONDS = 5.0


class ProcessStatus(NamedTuple):
    ready: bool
    details: Mapping[str, object]


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True
    block_on_close = False

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that went away in the middle, or sent nothing for too long, is not logged."""


class _Handler(WSGIRequestHandler):
    timeout = REQUEST_SECONDS

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the library's name
        """A probe that comes every second is not logged."""


def status_app(
    status: Callable[[], ProcessStatus], registry: CollectorRegistry
) -> "Callable[[WSGIEnvironment, StartResponse], Iterable[bytes]]":
    metrics = make_wsgi_app(registry)

    def app(environ: "WSGIEnvironment", start_response: "StartResponse") -> Iterable[bytes]:
        path = environ.get("PATH_INFO", "/")
        if path == "/metrics":
            page: Iterable[bytes] = metrics(environ, start_response)
            return page
        if path not in ("/healthz", "/readyz"):
            start_response("404 Not Found", [("Content-Type", "text/plain")])
            return [b"/healthz, /readyz or /metrics\n"]
        now = status()
        fine = path == "/healthz" or now.ready
        start_response("200 OK" if fine else "503 Service Unavailable", [("Content-Type", "application/json")])
        return [json.dumps(now.details).encode() + b"\n"]

    return app


@asynccontextmanager
async def serving_status(
    address: str | None, status: Callable[[], ProcessStatus], registry: CollectorRegistry
) -> AsyncIterator[int | None]:
    """Serves from threads while the context lasts, and yields the port; without an address, serves nothing."""
    if address is None:
        yield None
        return
    host, _, port = address.rpartition(":")
    with make_server(host, int(port), status_app(status, registry), _Server, _Handler) as server:
        thread = threading.Thread(target=server.serve_forever, name="codehub-status", daemon=True)
        thread.start()
        try:
            yield server.server_port
        finally:
            await asyncio.to_thread(server.shutdown)
            thread.join()


def check_port_is_free(host: str, port: int) -> None:
    """Raises OSError if something listens there, in IPv4 or IPv6."""
    from codehub.proxy.http.connection import listeners

    for sock in listeners(host, port):
        sock.close()


def worker_supervisor(
    host: str,
    port: int,
    workers: int,
    metrics: "Metrics",
    environment: Mapping[str, str] | None = None,
    ready: Callable[[], None] | None = None,
) -> "WorkerSupervisor":
    """Starts the front door's processes and renews those that end. `ready` is called once the first of them serves."""
    from codehub.proxy.workers import WorkerMetrics, WorkerSupervisor

    worker_metrics = WorkerMetrics(metrics, ready or (lambda: None))
    return WorkerSupervisor(WORKER, workers, host, port, environment=environment, metrics=worker_metrics)


def register(app: typer.Typer) -> None:
    app.command()(api)
    app.command()(proxy)
    app.command("proxy-worker", hidden=True)(proxy_worker)
    app.command("ssh-gateway")(ssh_gateway)
    app.command("ssh-host-key")(ssh_host_key)
    app.command()(coordinator)
    app.command()(migrate)


def api() -> None:
    """Run the HTTP API. Start as many as you like behind one address.

    Configured by the environment alone (docs/reference/settings.md).

    Example: `CODEHUB_DATABASE_URL=postgresql://… CODEHUB_REDIS_URL=redis://… codehub api`
    """
    from codehub.settings import load_settings

    settings = load_settings()
    asyncio.run(until_signalled(lambda: _run_api(settings)))


def proxy() -> None:
    """Run the front door: what browsers reach, for workspaces and for the API behind it. Start as many as you like.

    Configured by the environment alone (docs/reference/settings.md). SIGHUP renews its processes one by one.

    Example: `CODEHUB_DATABASE_URL=postgresql://… CODEHUB_REDIS_URL=redis://… codehub proxy`
    """
    from codehub.settings import load_settings

    settings = load_settings()
    asyncio.run(until_signalled(lambda: _run_proxy(settings)))


def proxy_worker() -> None:
    """One process of the front door, started by `codehub proxy`."""
    import resource

    import uvloop

    from codehub.bootstrap.proxy import serve_proxy
    from codehub.bootstrap.services import start_logging
    from codehub.settings import load_settings

    settings = load_settings()
    start_logging(settings)
    # Each socket takes two descriptors, and most systems allow 1024 unless one asks for more.
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    uvloop.run(serve_proxy(settings))


def ssh_gateway(
    end_with_stdin: Annotated[bool, typer.Option("--end-with-stdin", hidden=True, help="End when stdin does.")] = False,
) -> None:
    """Run the SSH gateway: people reach their workspaces with their own SSH clients. Start as many as you like.

    Configured by the environment alone (docs/reference/settings.md). People register their keys on the account page, or
    with `codehub account ssh-keys add`.

    Example: `CODEHUB_DATABASE_URL=postgresql://… CODEHUB_REDIS_URL=redis://… codehub ssh-gateway`
    """
    from codehub.settings import load_settings

    settings = load_settings()
    asyncio.run(until_signalled(lambda: _run_ssh_gateway(settings, end_with_stdin=end_with_stdin)))


def ssh_host_key() -> None:
    """Show the SSH gateway's public host key and its fingerprint, to compare with what a client shows.

    Example: `codehub ssh-host-key`
    """
    from codehub.bootstrap.ssh import shown_host_key
    from codehub.settings import load_settings

    unused = {"database_url": "postgresql://unused", "redis_url": "redis://unused"}
    print(shown_host_key(load_settings(**unused)))


def coordinator() -> None:
    """Run a coordinator. Start as many as you like: one leads, the others stand by.

    Configured by the environment alone (docs/reference/settings.md).

    Example: `CODEHUB_DATABASE_URL=postgresql://… CODEHUB_REDIS_URL=redis://… codehub coordinator`
    """
    from codehub.settings import load_settings

    settings = load_settings()
    asyncio.run(until_signalled(lambda: _run_coordinator(settings)))


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
    from codehub.bootstrap.services import migrate as migrate_schema
    from codehub.settings import load_settings

    # a schema needs no Redis, and a migration job in a cluster is often given none
    settings = load_settings(redis_url=os.environ.get("CODEHUB_REDIS_URL") or "redis://unused")
    done = asyncio.run(migrate_schema(settings.database_url.get_secret_value()))
    if done.before == done.after:
        print(f"The schema is up to date ({done.after}).")
    else:
        print(f"Migrated from {done.before or 'an empty database'} to {done.after}.")


async def _run_coordinator(settings: "Settings") -> None:
    import structlog

    from codehub.bootstrap.runtimes import install_ide
    from codehub.bootstrap.services import open_services
    from codehub.usecases.users import refuse_several_users

    _start_logging(settings)
    async with open_services(settings) as services:
        await refuse_several_users(services.database.accounts(), services.runtime.isolates)
        process = services.coordinator()
        async with contextlib.AsyncExitStack() as stack:
            address = settings.coordinator_status_address
            status = serving_status(
                address, lambda: _coordinator_status(process.readiness()), services.metrics.registry
            )
            with _listening_on("COORDINATOR_STATUS_ADDRESS", address):
                await stack.enter_async_context(status)
            # Here, so that nobody waits for it who cannot start anyway; with an IDE in the cache it takes no time.
            installed = await install_ide(settings, _log_progress())
            for note in installed.notes if installed else ():
                structlog.get_logger().warning("ide_note", note=note)
            await process.run()


def _coordinator_status(now: "CoordinatorReadiness") -> ProcessStatus:
    details = {"leads": now.leads, "epoch": now.epoch, "last_pass_age_seconds": now.pass_age, "queued": now.queued}
    return ProcessStatus(now.is_ready, details)


async def _run_proxy(settings: "Settings") -> None:
    from codehub.bootstrap.proxy import proxy_parts
    from codehub.bootstrap.services import open_services
    from codehub.telemetry import Metrics

    _start_logging(settings)
    host, _, port = settings.proxy_address.rpartition(":")
    with _listening_on("CODEHUB_PROXY_ADDRESS", settings.proxy_address):
        check_port_is_free(host, int(port))
    async with open_services(settings) as services:
        proxy_parts(services)  # what a worker would stumble over is said once, and by us
    metrics = Metrics()
    supervisor = worker_supervisor(host, int(port), settings.proxy_workers, metrics)

    def status() -> ProcessStatus:
        return ProcessStatus(ready=bool(supervisor.pids), details={"workers": len(supervisor.pids)})

    async with contextlib.AsyncExitStack() as stack:
        with _listening_on("CODEHUB_PROXY_STATUS_ADDRESS", settings.proxy_status_address):
            await stack.enter_async_context(serving_status(settings.proxy_status_address, status, metrics.registry))
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, supervisor.renew_soon)
        await supervisor.run()


class _ParentPipe(asyncio.Protocol):
    """Standard input, whose end is the end of whoever started this process."""

    def __init__(self, ended: Callable[[], object]) -> None:
        self._ended = ended

    def connection_lost(self, _exc: Exception | None) -> None:
        self._ended()


async def _run_ssh_gateway(settings: "Settings", *, end_with_stdin: bool) -> None:
    import structlog

    from codehub.bootstrap.ssh import listening_socket, serve_ssh

    _start_logging(settings)
    with _listening_on("CODEHUB_SSH_ADDRESS", settings.ssh_address):
        sock = listening_socket(settings.ssh_address)
    serving = asyncio.current_task()
    if end_with_stdin and serving is not None:
        await asyncio.get_running_loop().connect_read_pipe(lambda: _ParentPipe(serving.cancel), sys.stdin)
    await serve_ssh(settings, sock, lambda: structlog.get_logger().info("ssh_gateway_listens"))


async def supervise_ssh_gateway(environment: Mapping[str, str]) -> None:
    """Runs the SSH gateway as a process of its own, and starts it again when it ends, until cancelled."""
    import structlog

    while True:
        process = await asyncio.create_subprocess_exec(
            *SSH_GATEWAY, stdin=asyncio.subprocess.PIPE, env={**os.environ, **environment}
        )
        try:
            code = await process.wait()
        finally:
            if process.returncode is None:
                process.terminate()
                await process.wait()
        structlog.get_logger().warning("ssh_gateway_ended", exit_code=code)
        await asyncio.sleep(SSH_RESTART_SECONDS)


async def _run_api(settings: "Settings") -> None:
    from codehub.api.server import listen_on, serve
    from codehub.bootstrap.api import open_api
    from codehub.bootstrap.services import open_services

    _start_logging(settings)
    host, _, port = settings.api_address.rpartition(":")
    async with open_services(settings) as services, open_api(services) as app:
        with _listening_on("CODEHUB_API_ADDRESS", settings.api_address):
            listening = listen_on(host, int(port))
        await serve(app, listening, lambda: None, trusted_proxies=settings.trusted_proxies)


def _start_logging(settings: "Settings") -> None:
    """Starts logging, and warns of variables in the environment that no setting reads."""
    import structlog

    from codehub.bootstrap.services import start_logging
    from codehub.settings import without_effect

    start_logging(settings)
    for warning in without_effect(os.environ):
        structlog.get_logger().warning(warning)


@contextlib.contextmanager
def _listening_on(setting: str, address: str | None) -> Iterator[None]:
    """An address that cannot be listened on is told as a wrong setting."""
    from codehub.settings import SettingsError

    try:
        yield
    except (OSError, OverflowError) as error:
        why = f"{setting}={address}: cannot listen there ({error}); choose a free port"
        raise SettingsError(why) from error


async def until_signalled(run: Callable[[], Awaitable[None]]) -> None:
    """Runs until SIGINT or SIGTERM, which cancel: connections close, leadership is given back, workspaces go on."""
    task = asyncio.ensure_future(run())
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, task.cancel)
    with contextlib.suppress(asyncio.CancelledError):
        await task


def register_job(app: typer.Typer) -> None:
    app.command(
        context_settings={"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": []},
        help="The storage job: `archive` or `restore` one home. Run by the controller, not by people.",
    )(job)


def job(context: typer.Context) -> None:
    from codehub.job.command import main

    raise typer.Exit(main(context.args))
