"""Puts the SSH gateway together from the settings."""

import socket
from collections.abc import Callable
from pathlib import Path

import asyncssh

from codehub.adapters.system import SystemClock
from codehub.bootstrap.policies import limits
from codehub.bootstrap.runtimes import private_data_dir
from codehub.bootstrap.services import Services, identity, open_services
from codehub.settings import Settings, SettingsError
from codehub.ssh.gateway import Gateway, GatewayLimits, GatewayParts
from codehub.ssh.host_key import HOST_KEY_FILE, described, host_key
from codehub.ssh.presence import ActivityReporter
from codehub.usecases.ssh_access import SshAccess
from codehub.usecases.workspace_access import WorkspaceAccess
from codehub.usecases.workspace_commands import RunningSlots


def gateway_parts(services: Services) -> GatewayParts:
    settings, database, clock = services.settings, services.database, SystemClock()
    views = database.views()
    entrance = WorkspaceAccess(identity(services), views, services.commands, RunningSlots(views, limits(settings)))
    return GatewayParts(
        access=SshAccess(database.authorized_keys(), views, entrance, database.audit(), clock),
        runtime=services.runtime,
        bus=services.redis.bus(),
        clock=clock,
        reporter=ActivityReporter(services.redis.activity(), views, clock, settings.activity_flush_interval),
        limits=GatewayLimits(connections_per_person=settings.ssh_connections_per_person),
    )


def host_key_file(settings: Settings) -> Path:
    return settings.ssh_host_key_file or private_data_dir(settings) / HOST_KEY_FILE


def read_host_key(settings: Settings) -> asyncssh.SSHKey:
    """The gateway's key, made if there is none. SettingsError if it cannot be read."""
    path = host_key_file(settings)
    try:
        return host_key(path)
    except (OSError, asyncssh.KeyImportError) as error:
        raise SettingsError(f"the SSH host key {path} cannot be read: {error}") from error


def shown_host_key(settings: Settings) -> str:
    return described(read_host_key(settings))


def listening_socket(address: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server((host.strip("[]"), int(port)), family=family, backlog=128)


async def serve_ssh(settings: Settings, sock: socket.socket, ready: Callable[[], None]) -> None:
    """Serves on the socket until cancelled. `ready` is called once it does."""
    key = read_host_key(settings)
    async with open_services(settings) as services:
        gateway = Gateway(gateway_parts(services))
        async with await gateway.listen(sock, key):
            ready()
            await gateway.run()
