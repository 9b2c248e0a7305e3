"""The API's application, made from one process's services."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from uuid import UUID

from fastapi import FastAPI

from codehub.adapters.encryption import new_ssh_key
from codehub.adapters.object_store.contents import ObjectContents
from codehub.adapters.oidc import HttpOpenIdProvider, OpenIdClient
from codehub.adapters.system import RandomIds, SystemClock
from codehub.api.app import create_app
from codehub.api.dependencies import ApiParts, ApiSite
from codehub.bootstrap.policies import limits, retention, tuning
from codehub.bootstrap.runtimes import archive_url
from codehub.bootstrap.services import Services, identity
from codehub.dashboard import dashboard
from codehub.domain.addresses import has_own_host
from codehub.settings import Settings
from codehub.usecases.authorization import AccessAudit
from codehub.usecases.exec import WorkspaceExec
from codehub.usecases.identity import Tokens
from codehub.usecases.lifecycle import Lifecycles
from codehub.usecases.oidc import Oidc
from codehub.usecases.secrets import SecretKeeping
from codehub.usecases.ssh_keys import SshKeys
from codehub.usecases.usage import WorkspaceUsage
from codehub.usecases.users import Users
from codehub.usecases.workspace_commands import RunningSlots, WorkspaceCreation

NO_WORKSPACE = UUID(int=0)


@asynccontextmanager
async def open_api(services: Services) -> AsyncIterator[FastAPI]:
    settings = services.settings
    contents = ObjectContents(archive_url(settings), index_bytes=settings.browse_memory_bytes)
    try:
        yield create_app(api_parts(services, contents))
    finally:
        contents.close()


def api_parts(services: Services, contents: ObjectContents) -> ApiParts:
    settings, database, bus, ids = services.settings, services.database, services.redis.bus(), RandomIds()
    who, provider = identity(services), openid_provider(settings)
    accounts, passwords, revocations = who.accounts, who.passwords, who.revocations
    views, commands, templates = database.views(), services.commands, database.templates()
    keys, idle = database.idempotency_keys(), tuning(settings).idle
    lifecycles = Lifecycles(database.specs(), views, idle, settings.max_keepalive_seconds)
    probe = f"{settings.archive_prefix}readiness"
    return ApiParts(
        identity=who,
        users=Users(accounts, passwords, revocations, ids, services.runtime.isolates),
        tokens=Tokens(accounts, revocations, ids),
        secrets=SecretKeeping(database.secrets(), database.profiles(), services.keyring, templates, new_ssh_key),
        ssh_keys=SshKeys(database.authorized_keys(), revocations, ids),
        oidc=Oidc(
            provider,
            who,
            allowed_identities(settings),
            services.runtime.isolates,
            has_own_host(settings.workspace_url),
        )
        if provider
        else None,
        commands=commands,
        creation=WorkspaceCreation(commands, templates, keys, views, ids, settings.minimum_ttl_seconds),
        lifecycles=lifecycles,
        slots=RunningSlots(views, limits(settings)),
        usage=WorkspaceUsage(services.runtime, database.usage_history(), SystemClock()),
        exec=WorkspaceExec(services.runtime, views, database.audit(), lifecycles, SystemClock()),
        views=views,
        contents=contents,
        templates=templates,
        audit=database.audit(),
        access_audit=AccessAudit(database.audit(), SystemClock()),
        collector=services.collector,
        runtime=services.runtime,
        bus=bus,
        metrics=services.metrics,
        leader=services.leader,
        gc_report=services.gc_report,
        checks={
            "postgresql": views.now,
            "redis": lambda: bus.publish("codehub:readiness", {}),
            "archives": lambda: services.archives.look(probe),
            "runtime": lambda: services.runtime.containers([NO_WORKSPACE]),
        },
        site=ApiSite(
            settings.public_url,
            settings.workspace_url,
            settings.runtime,
            settings.redis_channel_sse_prefix,
            undo=retention(settings).undo,
        ),
        pages=dashboard(),
    )


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


def allowed_identities(settings: Settings) -> frozenset[str]:
    """Who may sign in by the OpenID provider: addresses and `@domains`; empty: whoever it knows."""
    named = (name.strip().lower() for name in (settings.oidc_allowed or "").split(","))
    return frozenset(name for name in named if name)
