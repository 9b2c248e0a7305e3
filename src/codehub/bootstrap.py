"""The composition root: the only file that reads settings and names concrete adapters."""

import os
import shlex
import socket
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from codehub.adapters.embedded import EmbeddedError, embedded_postgres, embedded_redis
from codehub.adapters.notices import LogNotifier, WebhookNotifier
from codehub.adapters.objects import ObjectArchives
from codehub.adapters.postgres import PostgresDatabase, SchemaMismatch, check_schema, migrate
from codehub.adapters.process import ProcessJobs, ProcessRuntime
from codehub.adapters.redis import RedisConnection
from codehub.adapters.system import RandomIds, SystemClock
from codehub.coordinator.gc_report import Survey
from codehub.coordinator.process import Coordinator, Outside, Tuning, survey
from codehub.domain.admission import Limits
from codehub.domain.envelope import Envelope
from codehub.domain.idle import IdlePolicy
from codehub.domain.plan import Policy
from codehub.domain.protection import Retention
from codehub.domain.workspace import Operation
from codehub.ports.collector import CollectorView
from codehub.ports.stores import Leader
from codehub.settings import Settings
from codehub.telemetry import Metrics, configure_logging
from codehub.usecases.wishes import Wishes

__all__ = ["EmbeddedError", "SchemaMismatch", "Services", "migrate"]

NO_IDE = ("codehub-ide-is-not-set", "{socket}")
"""Fails at its start with ImagePullFailed, whose message then names the missing program."""


@dataclass(frozen=True, slots=True)
class Services:
    """One process's connections, opened once."""

    settings: Settings
    database: PostgresDatabase
    redis: RedisConnection
    runtime: ProcessRuntime
    archives: ObjectArchives
    metrics: Metrics
    install: str

    @property
    def wishes(self) -> Wishes:
        return Wishes(self.database.specs(), limits(self.settings))

    @property
    def collector(self) -> CollectorView:
        return self.database.collector()

    @property
    def survey(self) -> Survey:
        return survey(self._outside(), tuning(self.settings))

    async def leader(self) -> Leader | None:
        return await self.database.leadership(SystemClock()).leader()

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
            jobs=ProcessJobs(self.runtime, archive_url(settings)),
            archives=self.archives,
            notifier=WebhookNotifier(webhook.get_secret_value(), self.metrics) if webhook else LogNotifier(),
            clock=clock,
            ids=RandomIds(),
            metrics=self.metrics,
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
        local = settings.archive_url is None
        archives = ObjectArchives(archive_url(settings), settings.archive_prefix, make_directory=local)
        stack.callback(archives.close)
        command = shlex.split(settings.ide_command) if settings.ide_command else list(NO_IDE)
        runtime = ProcessRuntime(data_dir(settings) / "runtime", install, command, readable=programs(command))
        yield Services(settings, database, redis, runtime, archives, Metrics(), install)


@asynccontextmanager
async def embedded_databases(directory: Path) -> AsyncIterator[dict[str, str]]:
    """The settings that name a PostgreSQL and a Redis of our own, which run while the context lasts."""
    async with embedded_postgres(directory) as postgres, embedded_redis(directory) as redis:
        yield {"database_url": postgres.url, "redis_url": redis.url}


def start_logging(settings: Settings) -> None:
    secrets = [settings.database_url, settings.redis_url, settings.webhook_url]
    configure_logging(
        settings.log_format, settings.log_level, secrets=[s.get_secret_value() for s in secrets if s is not None]
    )


def data_dir(settings: Settings) -> Path:
    return settings.data_dir.expanduser().absolute()


def archive_url(settings: Settings) -> str:
    return settings.archive_url or (data_dir(settings) / "archives").as_uri()


def programs(command: Sequence[str]) -> list[Path]:
    """What the IDE's command line names outside the system's directories, for a sandbox to show."""
    named = [Path(word) for word in command if word.startswith("/")]
    places = {path.parent for path in named} | {path.resolve().parent for path in named}
    interpreter = {Path(sys.prefix), Path(sys.base_prefix)}
    return sorted(path for path in places | interpreter if path.is_dir() and path != Path("/"))


def limits(settings: Settings) -> Limits:
    return Limits(settings.max_running_per_user, settings.max_running_global)


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
        envelope=Envelope(per_run=settings.gc_most_per_run),
    )
