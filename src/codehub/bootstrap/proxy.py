"""Puts the proxy's worker processes together from the settings."""

import resource
from ipaddress import ip_address
from urllib.parse import urlsplit

from codehub.adapters.system import SystemClock
from codehub.bootstrap.policies import limits, tuning
from codehub.bootstrap.services import Services, identity, open_services
from codehub.ports.runtime import Endpoint
from codehub.proxy.access.addresses import Addresses
from codehub.proxy.access_log import AccessLog
from codehub.proxy.app import SUBSCRIBE_SECONDS, ProxyApp, ProxyParts
from codehub.proxy.http.headers import networks
from codehub.proxy.http.limits import ProxyLimits, limits_within
from codehub.proxy.workers import serve_worker
from codehub.settings import Settings, SettingsError
from codehub.usecases.lifecycle import Lifecycles
from codehub.usecases.workspace_access import WorkspaceAccess
from codehub.usecases.workspace_commands import RunningSlots


def proxy_parts(services: Services) -> ProxyParts:
    settings, database, views = services.settings, services.database, services.database.views()
    slots = RunningSlots(views, limits(settings))
    issuer = urlsplit(settings.oidc_issuer).hostname if settings.oidc_issuer else None
    return ProxyParts(
        workspace_access=WorkspaceAccess(identity(services), views, services.commands, slots),
        lifecycles=Lifecycles(database.specs(), views, tuning(settings).idle, settings.max_keepalive_seconds),
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
        access_log=None if settings.proxy_access_log == "off" else AccessLog(settings.proxy_access_log),
        trusted_proxies=networks(settings.proxy_trusted_proxies),
    )


def serves_by_path(settings: Settings) -> bool:
    """Whether workspaces are served below `/w/` of the platform's own host. Raises SettingsError if they could not be
    reached."""
    hosts = [settings.proxy_address.rpartition(":")[0]]
    if settings.public_url:  # a TLS proxy may stand before an address of this machine alone
        hosts.append(urlsplit(settings.public_url).hostname or "")
    by_path = settings.path_mode == "on" or (settings.path_mode == "auto" and all(map(_is_of_this_machine, hosts)))
    if not by_path and "{slug}" not in urlsplit(settings.workspace_url).netloc:
        raise SettingsError(
            f"CODEHUB_WORKSPACE_URL={settings.workspace_url} gives workspaces no host of their own: name {{slug}} in "
            "its host, or set CODEHUB_PATH_MODE=on if you accept that their pages can act as whoever opens them"
        )
    return by_path


def _is_of_this_machine(host: str) -> bool:
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


def api_endpoint(settings: Settings) -> Endpoint:
    where = settings.api_upstream or settings.api_address
    if where.startswith("unix:"):
        return Endpoint(socket=where.removeprefix("unix:"))
    host, _, port = where.rpartition(":")
    return Endpoint(host=host, port=int(port))


def proxy_limits(settings: Settings) -> ProxyLimits:
    descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return limits_within(
        descriptors,
        settings.proxy_connections_per_address,
        settings.proxy_connections_per_person,
        settings.proxy_response_timeout,
    )


async def serve_proxy(settings: Settings) -> None:
    """Runs one worker of the proxy, on the socket that its supervisor gave it."""
    async with open_services(settings) as services:
        app = ProxyApp(proxy_parts(services), proxy_limits(settings))

        async def serve() -> None:
            await app.wait_until_current(SUBSCRIBE_SECONDS)
            await serve_worker(app.server)

        await app.run_beside(serve())
