"""What every process opens: the databases, the archive store and the runtime; and the coordinator made of them. With
them the embedded PostgreSQL and Redis that `codehub up` runs.
"""

import asyncio
import os
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from codehub.adapters.embedded import EmbeddedError, EmbeddedServer, embedded_postgres, embedded_redis
from codehub.adapters.encryption import AesKeyring
from codehub.adapters.notifiers import BusNotifier, LogNotifier, WebhookNotifier
from codehub.adapters.object_store.archives import ObjectArchives
from codehub.adapters.passwords import Argon2Passwords
from codehub.adapters.postgres import PostgresDatabase, SchemaMismatch, check_schema, migrate
from codehub.adapters.process import ProcessRuntime
from codehub.adapters.redis import RedisConnection
from codehub.adapters.system import RandomIds, SystemClock
from codehub.bootstrap.policies import limits, session_rules, tuning
from codehub.bootstrap.runtimes import (
    WorkspaceRuntime,
    archive_url,
    docker_runtime,
    ide,
    jobs,
    kubernetes_runtime,
    must_reach_archives,
    open_archives,
    private_data_dir,
    processes,
)
from codehub.bootstrap.secrets import open_keyring
from codehub.bootstrap.workspace_environment import ca_bundle, workspace_environment
from codehub.coordinator.context import Dependencies
from codehub.coordinator.gc_runner import GcScanner
from codehub.coordinator.process import Coordinator, gc_scanner
from codehub.coordinator.retention_runner import Records
from codehub.job.store import parse_store
from codehub.ports.collector import CollectorView
from codehub.ports.stores import Leader
from codehub.settings import Settings
from codehub.telemetry import Metrics, configure_logging
from codehub.usecases.identity import Identity
from codehub.usecases.revocations import Revocations
from codehub.usecases.start_secrets import WorkspaceSecrets
from codehub.usecases.workspace_commands import WorkspaceCommands

__all__ = ["EmbeddedError", "SchemaMismatch", "migrate"]


@dataclass(frozen=True, slots=True)
class Services:
    """The connections of one process, opened once."""

    settings: Settings
    database: PostgresDatabase
    redis: RedisConnection
    runtime: WorkspaceRuntime
    archives: ObjectArchives
    metrics: Metrics
    install: str
    keyring: AesKeyring

    @property
    def commands(self) -> WorkspaceCommands:
        return WorkspaceCommands(self.database.specs(), limits(self.settings))

    @property
    def processes(self) -> ProcessRuntime:
        return processes(self.runtime)

    @property
    def collector(self) -> CollectorView:
        return self.database.collector()

    @property
    def gc_scanner(self) -> GcScanner:
        return gc_scanner(self._dependencies(), tuning(self.settings))

    async def gc_report(self) -> dict[str, Any]:
        return (await self.gc_scanner.report()).to_json()

    async def ensure_admin(self, username: str) -> str | None:
        """Creates the first admin and returns the password; None if there is any user."""
        return await identity(self).ensure_admin(username)

    async def leader(self) -> Leader | None:
        return await leader_of(self.database)

    def coordinator(self, holder: str | None = None) -> Coordinator:
        return Coordinator(
            holder or f"{socket.gethostname()}:{os.getpid()}", self._dependencies(), tuning(self.settings)
        )

    def _dependencies(self) -> Dependencies:
        settings, clock = self.settings, SystemClock()
        webhook = settings.webhook_url
        admins = WebhookNotifier(webhook.get_secret_value(), self.metrics) if webhook else LogNotifier()
        bus, prefix = self.redis.bus(), settings.redis_channel_sse_prefix
        notifier = BusNotifier(bus, prefix, admins)
        return Dependencies(
            leadership=self.database.leadership(clock),
            statuses=self.database.statuses,
            specs=self.database.specs(),
            collector=self.database.collector(),
            marks=self.database.marks,
            backend_identities=self.database.backend_identities(),
            install=self.install,
            feed=self.database.changes(),
            bus=bus,
            activity=self.redis.activity(),
            runtime=self.runtime,
            jobs=jobs(self.runtime, archive_url(settings)),
            archives=self.archives,
            notifier=notifier,
            clock=clock,
            ids=RandomIds(),
            metrics=self.metrics,
            templates=self.database.templates(),
            secrets=WorkspaceSecrets(
                self.database.secrets(),
                self.database.profiles(),
                self.database.accounts(),
                self.keyring,
                bus,
                notifier,
                prefix,
                email_host=urlsplit(settings.public_url or "").hostname or "localhost",
            ),
            usage_history=self.database.usage_history(),
            records=Records(
                self.database.accounts(),
                self.database.audit(),
                self.database.idempotency_keys(),
                self.database.ledger(),
            ),
        )


async def install_id(settings: Settings, database: PostgresDatabase) -> str:
    return settings.install_id or (await database.installation_id()).hex


@asynccontextmanager
async def open_services(settings: Settings) -> AsyncIterator[Services]:
    """Connects to everything and checks the schema; raises before anything is changed."""
    must_reach_archives(settings, archive_url(settings))
    keyring = open_keyring(settings)
    async with AsyncExitStack() as stack:
        database = await PostgresDatabase.open(settings.database_url.get_secret_value())
        stack.push_async_callback(database.close)
        await check_schema(database)
        redis = RedisConnection.open(settings.redis_url.get_secret_value())
        stack.push_async_callback(redis.close)
        install = await install_id(settings, database)
        archives = open_archives(settings)
        stack.callback(archives.close)
        runtime: WorkspaceRuntime
        if settings.runtime == "docker":
            runtime = await stack.enter_async_context(docker_runtime(settings, install))
        elif settings.runtime == "kubernetes":
            runtime = await stack.enter_async_context(kubernetes_runtime(settings, install))
        else:
            runtime = process_runtime(settings, install)
            stack.push_async_callback(runtime.close)
        yield Services(settings, database, redis, runtime, archives, Metrics(), install, keyring)


def process_runtime(settings: Settings, install: str) -> ProcessRuntime:
    command, readable = ide(settings)
    place, (kept, _) = private_data_dir(settings), parse_store(archive_url(settings))
    hidden = [place, *([] if kept is None else [kept])]
    return ProcessRuntime(
        place / "runtime",
        install,
        command,
        readable=readable,
        hidden=hidden,
        env=workspace_environment(settings),
        ca_bundle=ca_bundle(settings),
    )


async def leader_of(database: PostgresDatabase) -> Leader | None:
    return await database.leadership(SystemClock()).leader()


def identity(services: Services) -> Identity:
    database, revocations = services.database, Revocations(services.redis.bus())
    return Identity(
        database.accounts(),
        database.sign_in_state(),
        database.audit(),
        Argon2Passwords(),
        revocations,
        RandomIds(),
        session_rules(services.settings),
    )


def start_logging(settings: Settings) -> None:
    secrets = [settings.database_url, settings.redis_url, settings.webhook_url, settings.oidc_client_secret]
    hidden = [secret.get_secret_value() for secret in secrets if secret is not None]
    if settings.secrets_keys is not None:
        hidden += settings.secrets_keys.get_secret_value().replace(",", " ").split()
    configure_logging(settings.log_format, settings.log_level, secrets=hidden)


@dataclass(frozen=True, slots=True)
class EmbeddedDatabases:
    postgres: EmbeddedServer
    redis: EmbeddedServer

    @property
    def addresses(self) -> dict[str, str]:
        """The addresses of both, by the names of the settings that take them."""
        return {"database_url": self.postgres.url, "redis_url": self.redis.url}

    async def until_one_dies(self) -> None:
        """Waits until one of the servers ends, and raises EmbeddedError."""
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
    """A PostgreSQL and a Redis with data in this directory, which run while the context lasts."""
    async with embedded_postgres(directory) as postgres, embedded_redis(directory) as redis:
        yield EmbeddedDatabases(postgres, redis)
