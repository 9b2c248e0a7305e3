"""What an operator's commands need: the probe and the checks of `codehub doctor`, backup and restore.

These commands must also work when some of the services are missing, so each opens only what it needs.
"""

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from codehub.adapters.backup import InUse, Manifest, back_up, checked_manifest, inspect, restore, settings_of
from codehub.adapters.docker import DockerRuntime
from codehub.adapters.embedded import embedded_postgres
from codehub.adapters.encryption import KEY_FILE
from codehub.adapters.ide import InstalledIde, code_server, is_installed
from codehub.adapters.kubernetes import KubernetesRuntime
from codehub.adapters.postgres import PostgresDatabase, check_schema
from codehub.adapters.process import ProcessRuntime, port_hijack_probe
from codehub.adapters.process.sandbox import find_sandbox_tools
from codehub.adapters.redis import RedisConnection
from codehub.adapters.system import RandomIds
from codehub.bootstrap.kubernetes import addresses_beyond_reach
from codehub.bootstrap.runtimes import archive_url, data_dir, ide_cache_dir
from codehub.bootstrap.services import Services
from codehub.domain.workspace import Workspace
from codehub.job.store import parse_store
from codehub.ports.runtime import ContainerSpec
from codehub.settings import Settings, SettingsError, environment_name
from codehub.usecases.self_check import MORE_PROCESSES, Probe, ProbeEnvironment, StepFailed

PORT_TRY_SECONDS = 3.0
_NO_POLICIES = (
    "If these are addresses, the cluster does not enforce NetworkPolicy: install a network plugin that does (Calico, "
    "Cilium, your cloud's own), and let only people in who trust each other until then."
)

__all__ = ["InUse", "Manifest", "check_schema", "checked_manifest", "find_sandbox_tools", "settings_of"]


async def probe(services: Services) -> Probe:
    """The probe that `codehub doctor --probe` runs."""
    runtime = services.runtime

    async def inside(ws: Workspace, argv: Sequence[str]) -> tuple[int, str]:
        return await runtime.run_inside(ContainerSpec(ws.id, ws.home_store_key or "", ws.image_ref), argv)

    def home_of(ws: Workspace) -> str:
        if isinstance(runtime, DockerRuntime):
            return f"/var/lib/docker/volumes/{ws.home_store_key}/_data"
        if isinstance(runtime, KubernetesRuntime):
            return "/var/lib/kubelet/pods"
        return str(runtime.homes.home(ws.home_store_key or ""))

    async def try_port(ws: Workspace) -> bool | None:
        return await port_can_be_taken(int(services.settings.proxy_address.rpartition(":")[2]), partial(inside, ws))

    return Probe(
        commands=services.commands,
        views=services.database.views(),
        runtime=runtime,
        archives=services.archives,
        ids=RandomIds(),
        inside=inside,
        home_of=home_of,
        environment=await probe_environment(services),
        try_port=try_port if isinstance(runtime, ProcessRuntime) else None,
    )


async def port_can_be_taken(port: int, inside: Callable[[Sequence[str]], Awaitable[tuple[int, str]]]) -> bool | None:
    """Whether a program inside can take requests of the front door's port. None: nobody listens there."""
    if not await _http_answer("127.0.0.1", port):
        return None
    mark = RandomIds().new().hex
    program = await asyncio.to_thread(Path(port_hijack_probe.__file__).read_text)
    words = [sys.executable, "-I", "-S", "-c", program, str(port), mark, str(PORT_TRY_SECONDS)]
    attack, taken = asyncio.ensure_future(inside(words)), False
    while not attack.done():
        answers = [await _http_answer(host, port) for host in ("127.0.0.1", "::1")]
        taken = taken or any(mark.encode() in answer for answer in answers)
        await asyncio.sleep(0.05)
    code, output = await attack
    if code != 0:
        raise StepFailed(f"the front door's port could not be tried from inside: {output.strip()[-200:]}", "See above.")
    return taken


async def _http_answer(host: str, port: int) -> bytes:
    """What a server answers to a health check; empty if nobody answers."""
    try:
        async with asyncio.timeout(2):
            reader, writer = await asyncio.open_connection(host, port)
            writer.write(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            try:
                return await reader.read(1 << 16)
            finally:
                writer.close()
    except (OSError, TimeoutError):
        return b""


async def probe_environment(services: Services) -> ProbeEnvironment:
    runtime, settings = services.runtime, services.settings
    hidden = secret_paths(data_dir(settings))
    kept, _ = parse_store(archive_url(settings))
    if kept is not None and kept.is_dir():
        hidden[str(kept)] = "the archives"
    for key in await runtime.containers():
        endpoint = await runtime.endpoint(key)
        if endpoint and endpoint.socket:
            hidden[endpoint.socket] = "another workspace's socket"
    if socket_path := database_socket(settings):
        hidden[socket_path] = "the database's socket"
    if isinstance(runtime, KubernetesRuntime):
        hidden["/var/run/secrets/kubernetes.io/serviceaccount/token"] = "a token of the cluster's"
        named = platform_addresses(settings, None) | addresses_beyond_reach(os.environ)
        return ProbeEnvironment(
            hidden,
            isolates=True,
            network_isolated=True,
            addresses=named,
            advice=_NO_POLICIES,
            not_promised={MORE_PROCESSES: "Set podPidsLimit in the configuration of the nodes' kubelets."},
        )
    if not isinstance(runtime, DockerRuntime):
        return ProbeEnvironment(hidden, await runtime.isolates())
    hidden |= {"/var/run/docker.sock": "the Docker engine", "/run/docker.sock": "the Docker engine"}
    gateway = await runtime.isolation.gateway()
    return ProbeEnvironment(
        hidden, await runtime.isolates(), network_isolated=True, addresses=platform_addresses(settings, gateway)
    )


def platform_addresses(settings: Settings, gateway: str | None) -> dict[tuple[str, int], str]:
    """The addresses of CodeHub's parts as a workspace sees them: local ones are at its network's gateway, and without
    one nowhere."""
    store = os.environ.get("CODEHUB_S3_ENDPOINT", "")
    named = {
        f"//{settings.api_address}": "CodeHub's API",
        f"//{settings.proxy_address}": "CodeHub's front door",
        settings.database_url.get_secret_value(): "the database",
        settings.redis_url.get_secret_value(): "Redis",
        store: "the object store",
    }
    found: dict[tuple[str, int], str] = {}
    if gateway is not None:
        found = {(gateway, port): "the Docker engine" for port in (2375, 2376)} | {
            (gateway, 22): "the engine's machine"
        }
    for address, what in named.items():
        parts = urlsplit(address)
        port = parts.port or {"postgresql": 5432, "redis": 6379, "http": 80, "https": 443}.get(parts.scheme)
        if parts.hostname and port:
            local = parts.hostname in {"localhost", "127.0.0.1", "::1", "0.0.0.0"}  # noqa: S104 - read, not bound
            host = gateway if local else parts.hostname
            if host is not None:
                found[host, port] = what
    return found


def secret_paths(directory: Path) -> dict[str, str]:
    """The existing paths in a data directory that no workspace may see, and what each is; that one cannot be found
    proves nothing of a path that is not there."""
    places = {
        "running.json": "the databases' passwords",
        KEY_FILE: "the key of people's secrets",
        "postgres/password": "the databases' passwords",
        "logs": "the logs",
        "archives": "the archives",
        "runtime/volumes": "the volumes",
    }
    return {str(directory / name): what for name, what in places.items() if (directory / name).exists()}


def database_socket(settings: Settings) -> str | None:
    """The unix socket of PostgreSQL; None if it listens elsewhere."""
    query = parse_qs(urlsplit(settings.database_url.get_secret_value()).query)
    host, port = query.get("host", [""])[0], query.get("port", ["5432"])[0]
    return f"{host}/.s.PGSQL.{port}" if host.startswith("/") else None


def installed_ide(settings: Settings) -> InstalledIde | None:
    """The installed code-server; None if it is not installed."""
    found = code_server(ide_cache_dir(settings))
    return found if is_installed(found) else None


@asynccontextmanager
async def open_redis(settings: Settings) -> AsyncIterator[RedisConnection]:
    connection = RedisConnection.open(settings.redis_url.get_secret_value())
    try:
        yield connection
    finally:
        await connection.close()


@asynccontextmanager
async def open_database(settings: Settings) -> AsyncIterator[PostgresDatabase]:
    """A connection to the database, whose schema is not checked."""
    async with await PostgresDatabase.open(settings.database_url.get_secret_value()) as database:
        yield database


async def back_up_installation(settings: Settings, path: Path) -> Manifest:
    async with open_database(settings) as database:
        return await back_up(database, path, settings.install_id, environment())


async def restore_installation(settings: Settings, path: Path, *, replace_all: bool) -> Manifest:
    async with open_database(settings) as database:
        return await restore(database, settings.database_url.get_secret_value(), path, replace_all=replace_all)


async def inspect_backup(settings: Settings, path: Path) -> tuple[Manifest, InUse]:
    """The backup's manifest, and what the database holds now. SettingsError if the backup is another installation's."""
    async with open_database(settings) as database:
        manifest, found = await inspect(database, path)
    if (settings.install_id or manifest.database_id) != manifest.install_id:
        raise SettingsError(
            f"the backup's resources are labelled {manifest.install_id} and would not be known as ours: "
            f"set CODEHUB_INSTALL_ID={manifest.install_id}. Nothing was changed"
        )
    return manifest, found


def environment() -> dict[str, str]:
    """The environment variables that a backup keeps: CodeHub's settings, and those of the object store. Not the keys of
    people's secrets: whoever finds a backup must not be able to open what is encrypted in it."""
    ours = {environment_name(field) for field in Settings.model_fields if field != "secrets_keys"}
    return {
        name: value
        for name, value in os.environ.items()
        if name in ours or name.startswith("AWS_") or name == "CODEHUB_S3_ENDPOINT"
    }


@asynccontextmanager
async def embedded_database(directory: Path) -> AsyncIterator[str]:
    """Runs the embedded PostgreSQL of `codehub up` alone, and yields its address."""
    async with embedded_postgres(directory) as postgres:
        yield postgres.url
