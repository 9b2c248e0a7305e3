"""The composition root: the only file that reads settings and names concrete adapters."""

import asyncio
import os
import shlex
import socket
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from uuid import UUID

from fastapi import FastAPI

from codehub.adapters.contents import ObjectContents
from codehub.adapters.embedded import EmbeddedError, EmbeddedServer, embedded_postgres, embedded_redis
from codehub.adapters.ide import (
    IdeError,
    InstalledIde,
    Progress,
    code_server,
    ensure_code_server,
    ide_command,
)
from codehub.adapters.notices import LogNotifier, WebhookNotifier
from codehub.adapters.objects import ObjectArchives
from codehub.adapters.oidc import HttpOpenIdProvider, OpenIdClient
from codehub.adapters.passwords import Argon2Passwords
from codehub.adapters.postgres import PostgresDatabase, SchemaMismatch, check_schema, migrate
from codehub.adapters.process import ProcessRuntime
from codehub.adapters.redis import RedisConnection
from codehub.adapters.system import RandomIds, SystemClock
from codehub.api.app import create_app
from codehub.api.parts import ApiParts, Check, Site
from codehub.coordinator.gc_report import Survey
from codehub.coordinator.process import Coordinator, Outside, Tuning, survey
from codehub.coordinator.retention_runner import RecordAges, Records
from codehub.dashboard.files import dashboard
from codehub.domain.admission import Limits
from codehub.domain.envelope import Envelope
from codehub.domain.errors import BackendError
from codehub.domain.idle import IdlePolicy
from codehub.domain.plan import Policy
from codehub.domain.protection import Retention
from codehub.domain.workspace import Operation
from codehub.housing import Housing, docker_runtime, jobs, processes
from codehub.job.store_address import parse_store
from codehub.ports.accounts import SessionRules
from codehub.ports.collector import CollectorView
from codehub.ports.runtime import Endpoint
from codehub.ports.stores import Leader
from codehub.proxy.access_log import AccessLog
from codehub.proxy.addresses import Addresses
from codehub.proxy.front_door import AT_FIRST_SECONDS, DoorParts, FrontDoor
from codehub.proxy.worker import serve_worker
from codehub.settings import Settings, SettingsError
from codehub.telemetry import Metrics, configure_logging
from codehub.usecases.announcements import Announcements
from codehub.usecases.creation import Creation
from codehub.usecases.entrance import Entrance
from codehub.usecases.identity import Identity
from codehub.usecases.lifecycle import Lifecycles
from codehub.usecases.limits import RunningSlots
from codehub.usecases.oidc import Oidc
from codehub.usecases.people import People
from codehub.usecases.tokens import Tokens
from codehub.usecases.wishes import Wishes

__all__ = [
    "EmbeddedError",
    "IdeError",
    "InstalledIde",
    "Progress",
    "SchemaMismatch",
    "Services",
    "migrate",
]


NOBODY = UUID(int=0)


@dataclass(frozen=True, slots=True)
class Services:
    """One process's connections, opened once."""

    settings: Settings
    database: PostgresDatabase
    redis: RedisConnection
    runtime: Housing
    archives: ObjectArchives
    metrics: Metrics
    install: str

    @property
    def wishes(self) -> Wishes:
        return Wishes(self.database.specs(), limits(self.settings))

    @property
    def processes(self) -> ProcessRuntime:
        return processes(self.runtime)

    @property
    def collector(self) -> CollectorView:
        return self.database.collector()

    @property
    def survey(self) -> Survey:
        return survey(self._outside(), tuning(self.settings))

    async def garbage(self) -> dict[str, Any]:
        return (await self.survey.report()).to_json()

    async def ensure_admin(self, username: str) -> str | None:
        """The password of the first admin, if there was nobody yet."""
        return await identity(self).ensure_admin(username)

    async def leader(self) -> Leader | None:
        return await leader_of(self.database)

    def coordinator(self, holder: str | None = None) -> Coordinator:
        return Coordinator(holder or f"{socket.gethostname()}:{os.getpid()}", self._outside(), tuning(self.settings))

    def _outside(self) -> Outside:
        settings, clock = self.settings, SystemClock()
        webhook = settings.webhook_url
        return Outside(
            leadership=self.database.leadership(clock),
            statuses=self.database.statuses,
            specs=self.database.specs(),
            collector=self.database.collector(),
            marks=self.database.marks,
            install=self.install,
            feed=self.database.changes(),
            bus=self.redis.bus(),
            activity=self.redis.activity(),
            runtime=self.runtime,
            jobs=jobs(self.runtime, archive_url(settings)),
            archives=self.archives,
            notifier=WebhookNotifier(webhook.get_secret_value(), self.metrics) if webhook else LogNotifier(),
            clock=clock,
            ids=RandomIds(),
            metrics=self.metrics,
            templates=self.database.templates(),
            records=Records(
                self.database.accounts(),
                self.database.audit(),
                self.database.idempotency_keys(),
                self.database.ledger(),
            ),
        )


@asynccontextmanager
async def open_services(settings: Settings) -> AsyncIterator[Services]:
    """Everything connected and the schema checked; raises before anything is changed."""
    async with AsyncExitStack() as stack:
        database = await PostgresDatabase.open(settings.database_url.get_secret_value())
        stack.push_async_callback(database.close)
        await check_schema(database)
        redis = RedisConnection.open(settings.redis_url.get_secret_value())
        stack.push_async_callback(redis.close)
        install = settings.install_id or (await database.installation_id()).hex
        archives = open_archives(settings)
        stack.callback(archives.close)
        runtime: Housing
        if settings.runtime == "docker":
            runtime = await stack.enter_async_context(docker_runtime(settings, install))
        else:
            runtime = process_runtime(settings, install)
        yield Services(settings, database, redis, runtime, archives, Metrics(), install)


def process_runtime(settings: Settings, install: str) -> ProcessRuntime:
    command, readable = ide(settings)
    place, (kept, _) = private_data_dir(settings), parse_store(archive_url(settings))
    hidden = [place, *([] if kept is None else [kept])]
    return ProcessRuntime(place / "runtime", install, command, readable=readable, hidden=hidden)


async def leader_of(database: PostgresDatabase) -> Leader | None:
    return await database.leadership(SystemClock()).leader()


def identity(services: Services) -> Identity:
    database, announcements = services.database, Announcements(services.redis.bus())
    tries, audit = database.sign_in_tries(), database.audit()
    rules = session_rules(services.settings)
    return Identity(database.accounts(), tries, audit, Argon2Passwords(), announcements, RandomIds(), rules)


def session_rules(settings: Settings) -> SessionRules:
    return SessionRules(settings.session_idle_seconds, settings.session_lifetime_seconds)


def guests(settings: Settings) -> frozenset[str]:
    """Empty: the provider decides alone."""
    named = (guest.strip().lower() for guest in (settings.oidc_allowed or "").split(","))
    return frozenset(guest for guest in named if guest)


@asynccontextmanager
async def open_api(services: Services) -> AsyncIterator[FastAPI]:
    contents = ObjectContents(archive_url(services.settings))
    try:
        yield create_app(api_parts(services, contents))
    finally:
        contents.close()


def api_parts(services: Services, contents: ObjectContents) -> ApiParts:
    settings, database, bus, ids = services.settings, services.database, services.redis.bus(), RandomIds()
    who, provider = identity(services), openid_provider(settings)
    accounts, passwords, announcements = who.accounts, who.passwords, who.announcements
    views, wishes, templates = database.views(), services.wishes, database.templates()
    keys, idle = database.idempotency_keys(), tuning(settings).idle
    probe = f"{settings.archive_prefix}readiness"
    return ApiParts(
        identity=who,
        people=People(accounts, passwords, announcements, ids, services.runtime.isolates),
        tokens=Tokens(accounts, announcements, ids),
        oidc=Oidc(provider, database.provider_sign_ins(), who, guests(settings), services.runtime.isolates)
        if provider
        else None,
        wishes=wishes,
        creation=Creation(wishes, templates, keys, views, ids, settings.minimum_ttl_seconds),
        lifecycles=Lifecycles(database.specs(), views, idle, settings.max_keepalive_seconds),
        slots=RunningSlots(views, limits(settings)),
        views=views,
        contents=contents,
        templates=templates,
        tickets=database.tickets(),
        audit=database.audit(),
        runtime=services.runtime,
        bus=bus,
        ids=ids,
        metrics=services.metrics,
        leader=services.leader,
        gc_report=services.garbage,
        checks={
            "postgresql": Check(views.now, required=True),
            "redis": Check(lambda: bus.publish("codehub:readiness", {})),
            "archives": Check(lambda: services.archives.look(probe)),
            "runtime": Check(lambda: services.runtime.containers([NOBODY])),
        },
        site=Site(settings.public_url, settings.workspace_url, settings.runtime, settings.redis_channel_sse_prefix),
        pages=dashboard(),
    )


def door_parts(services: Services) -> DoorParts:
    settings, database, views = services.settings, services.database, services.database.views()
    entrance = Entrance(
        identity(services),
        database.tickets(),
        database.visits(),
        views,
        services.wishes,
        RunningSlots(views, limits(settings)),
        database.audit(),
    )
    issuer = urlsplit(settings.oidc_issuer).hostname if settings.oidc_issuer else None
    return DoorParts(
        entrance=entrance,
        views=views,
        runtime=services.runtime,
        bus=services.redis.bus(),
        activity=services.redis.activity(),
        traffic=database.traffic(),
        clock=SystemClock(),
        addresses=Addresses(settings.workspace_url, settings.public_url),
        api=api_endpoint(settings),
        by_path=serves_by_path(settings),
        provider=issuer,
        sse_prefix=settings.redis_channel_sse_prefix,
        flush_seconds=settings.activity_flush_interval,
        access=None if settings.proxy_access_log == "off" else AccessLog(settings.proxy_access_log),
    )


def serves_by_path(settings: Settings) -> bool:
    """Below `/w/` of the platform's own host."""
    host = settings.proxy_address.rpartition(":")[0]
    is_local = host == "localhost" or host.startswith("127.")
    by_path = settings.path_mode == "on" or (settings.path_mode == "auto" and is_local)
    if not by_path and "{slug}" not in urlsplit(settings.workspace_url).netloc:
        raise SettingsError(
            f"CODEHUB_WORKSPACE_URL={settings.workspace_url} gives workspaces no host of their own: name {{slug}} in "
            "its host, or set CODEHUB_PATH_MODE=on if you accept that their pages can act as whoever opens them"
        )
    return by_path


def api_endpoint(settings: Settings) -> Endpoint:
    where = settings.api_upstream or settings.api_address
    if where.startswith("unix:"):
        return Endpoint(socket=where.removeprefix("unix:"))
    host, _, port = where.rpartition(":")
    return Endpoint(host=host, port=int(port))


async def serve_door(settings: Settings) -> None:
    """One worker of the front door, on the socket that its supervisor gave it."""
    async with open_services(settings) as services:
        door = FrontDoor(door_parts(services))

        async def serve() -> None:
            await door.hears(AT_FIRST_SECONDS)
            await serve_worker(door.server)

        await door.beside(serve())


def open_archives(settings: Settings) -> ObjectArchives:
    local = settings.archive_url is None
    if local:
        private_data_dir(settings)
    return ObjectArchives(archive_url(settings), settings.archive_prefix, make_directory=local)


@dataclass(frozen=True, slots=True)
class EmbeddedDatabases:
    postgres: EmbeddedServer
    redis: EmbeddedServer

    @property
    def addresses(self) -> dict[str, str]:
        """As settings."""
        return {"database_url": self.postgres.url, "redis_url": self.redis.url}

    async def until_one_dies(self) -> None:
        """Raises then: nothing dies silently, and who runs us starts us again."""
        waits = {asyncio.ensure_future(server.exited()): server for server in (self.postgres, self.redis)}
        try:
            done, _ = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            server = waits[done.pop()]
        finally:
            for wait in waits:
                wait.cancel()
        name = "PostgreSQL" if server is self.postgres else "Redis"
        raise EmbeddedError(f"{name} has ended by itself; its log is {server.log}. Start CodeHub again.")


@asynccontextmanager
async def embedded_databases(directory: Path) -> AsyncIterator[EmbeddedDatabases]:
    """A PostgreSQL and a Redis of our own, which run while the context lasts."""
    async with embedded_postgres(directory) as postgres, embedded_redis(directory) as redis:
        yield EmbeddedDatabases(postgres, redis)


def start_logging(settings: Settings) -> None:
    secrets = [settings.database_url, settings.redis_url, settings.webhook_url, settings.oidc_client_secret]
    configure_logging(
        settings.log_format, settings.log_level, secrets=[s.get_secret_value() for s in secrets if s is not None]
    )


def data_dir(settings: Settings) -> Path:
    return settings.data_dir.expanduser().absolute()


def private_data_dir(settings: Settings) -> Path:
    """Made, if it is not there, for its owner alone."""
    directory = data_dir(settings)
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise BackendError(f"the data directory {directory} cannot be made: {error.strerror}") from error
    return directory


def archive_url(settings: Settings) -> str:
    return settings.archive_url or (data_dir(settings) / "archives").as_uri()


def ide_cache_dir(settings: Settings) -> Path:
    if settings.ide_cache_dir is not None:
        return settings.ide_cache_dir.absolute()
    common = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return (common if common.is_absolute() else Path("~/.cache").expanduser()) / "codehub"


async def install_ide(settings: Settings, progress: Progress) -> InstalledIde | None:
    """None if the settings name another IDE, or images have it. Returns at once, and says nothing, if it is there."""
    if settings.ide_command or settings.runtime != "process":
        return None
    return await ensure_code_server(ide_cache_dir(settings), progress)


def ide(settings: Settings) -> tuple[list[str], list[Path]]:
    """The IDE's command line, and what of this machine it needs to see. Whoever starts workspaces installs it first."""
    if settings.ide_command:
        command = shlex.split(settings.ide_command)
        return command, programs(command)
    installed = code_server(ide_cache_dir(settings))
    command = ide_command(installed)
    return command, [*programs(command), installed.directory]


def programs(command: Sequence[str]) -> list[Path]:
    """What the IDE's command line names outside the system's directories, for a sandbox to show."""
    named = [Path(word) for word in command if word.startswith("/")]
    places = {path.parent for path in named} | {path.resolve().parent for path in named}
    interpreter = {Path(sys.prefix), Path(sys.base_prefix)}
    return sorted(path for path in places | interpreter if path.is_dir() and path != Path("/"))


def openid_provider(settings: Settings) -> HttpOpenIdProvider | None:
    if settings.oidc_issuer is None or settings.oidc_client_id is None or settings.public_url is None:
        return None
    secret = settings.oidc_client_secret
    client = OpenIdClient(
        settings.oidc_issuer,
        settings.oidc_client_id,
        f"{settings.public_url.rstrip('/')}/api/v1/session/oidc/callback",
        secret.get_secret_value() if secret else None,
    )
    return HttpOpenIdProvider(client, SystemClock())


def limits(settings: Settings) -> Limits:
    return Limits(settings.max_running_per_user, settings.max_running_global, settings.max_workspaces_per_user)


def retention(settings: Settings) -> Retention:
    return Retention(
        restore_points=settings.restore_points_kept,
        undo_seconds=settings.gc_deleted_retention_seconds,
        grace_seconds=settings.gc_grace_seconds,
        prefix=settings.archive_prefix,
    )


def tuning(settings: Settings) -> Tuning:
    deadlines = {
        Operation.STARTING: settings.reconciler_starting_timeout,
        Operation.STOPPING: settings.reconciler_stopping_timeout,
        Operation.ARCHIVING: settings.reconciler_archiving_timeout,
        Operation.RESTORING: settings.reconciler_restoring_timeout,
    }
    return Tuning(
        idle_interval=settings.coordinator_idle_interval,
        active_interval=settings.coordinator_active_interval,
        active_duration=settings.coordinator_active_duration,
        ttl_interval=settings.coordinator_ttl_interval,
        gc_interval=settings.coordinator_gc_interval,
        workers=settings.coordinator_workers,
        sse_prefix=settings.redis_channel_sse_prefix,
        wake_prefix=settings.redis_channel_wake_prefix,
        policy=Policy(settings.reconciler_max_retries, archive_prefix=settings.archive_prefix, deadlines=deadlines),
        idle=IdlePolicy(
            standby_ttl=settings.ttl_standby_seconds,
            archive_ttl=settings.ttl_archive_seconds,
            max_lifetime=settings.max_lifetime_seconds,
            flush_seconds=round(settings.activity_flush_interval),
        ),
        limits=limits(settings),
        retention=retention(settings),
        retention_interval=settings.coordinator_retention_interval,
        ages=RecordAges(
            settings.retention_ledger_seconds,
            settings.retention_audit_seconds,
            settings.retention_idempotency_seconds,
            session_rules(settings),
        ),
        envelope=Envelope(per_run=settings.gc_most_per_run),
    )
