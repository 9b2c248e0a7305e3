"""The runtime of workspaces, processes of this machine, a Docker engine or a Kubernetes cluster, and what goes with it:
storage jobs, the directories and the archive store that the settings name, and the IDE of processes.

A data directory keeps to the runtime that it was begun with: another could not see its volumes, and a home that is not
seen would be taken for lost.
"""

import os
import shlex
import shutil
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from codehub.adapters.docker import DockerJobs, DockerRuntime, DockerSite, Engine, volumes
from codehub.adapters.docker.jobs import job_store
from codehub.adapters.docker.network_isolation import NetworkIsolation
from codehub.adapters.ide import (
    IdeError,
    InstalledIde,
    Progress,
    code_server,
    ensure_code_server,
    ide_command,
    jupyterlab_command,
)
from codehub.adapters.kubernetes import KubernetesRuntime
from codehub.adapters.object_store.archives import ObjectArchives
from codehub.adapters.process import ProcessJobs, ProcessRuntime
from codehub.adapters.process.sandbox import SandboxTools
from codehub.bootstrap.kubernetes import kubernetes_jobs, kubernetes_runtime, must_reach_archives, why_not_kubernetes
from codehub.bootstrap.workspace_environment import ca_bundle, workspace_environment
from codehub.domain.errors import BackendError, CodeHubError
from codehub.ports.jobs import Jobs
from codehub.ports.runtime import Resources
from codehub.settings import Settings, SettingsError

__all__ = ["IdeError", "kubernetes_runtime", "must_reach_archives"]

WorkspaceRuntime = ProcessRuntime | DockerRuntime | KubernetesRuntime

_KIND = "runtime.kind"
_WORKSPACES = {"docker": "Docker containers", "kubernetes": "pods", "process": "processes"}
_FOR_USERS = ", and let ordinary users make user namespaces and open /dev/net/tun."


def engine_of(settings: Settings) -> Engine:
    host, place = settings.docker_host, settings.docker_cert_path or Path("~/.docker").expanduser()
    secured = settings.docker_tls_verify and (host or "").startswith("tcp://")
    return Engine(host, place if secured else None)


def docker_site(settings: Settings, install: str) -> DockerSite:
    return DockerSite(
        install_id=install,
        workspace_image=settings.workspace_image,
        codehub_image=settings.codehub_image,
        network=settings.docker_network or f"codehub-{install[:12]}",
        share=Resources(
            cpu=settings.workspace_cpu, memory_bytes=settings.workspace_memory_bytes, pids=settings.workspace_pids
        ),
        job_network=settings.docker_job_network,
        reachable=tuple(network.strip() for network in (settings.docker_reachable or "").split(",") if network.strip()),
        env=workspace_environment(settings),
        ca_bundle=ca_bundle(settings),
    )


@asynccontextmanager
async def docker_runtime(settings: Settings, install: str) -> AsyncIterator[DockerRuntime]:
    engine, site = engine_of(settings), docker_site(settings, install)
    runtime = DockerRuntime(
        engine, site, isolation=NetworkIsolation(engine, site, ours=settings.docker_isolation == "ours")
    )
    try:
        yield runtime
    finally:
        await runtime.close()
        await engine.close()


def jobs(runtime: WorkspaceRuntime, archive_url: str) -> Jobs:
    """Storage jobs for this runtime; what they need for the object store besides its address is in the environment."""
    if isinstance(runtime, DockerRuntime):
        return DockerJobs(runtime, job_store(archive_url, os.environ))
    if isinstance(runtime, KubernetesRuntime):
        return kubernetes_jobs(runtime, archive_url, os.environ)
    return ProcessJobs(runtime, archive_url)


def processes(runtime: WorkspaceRuntime) -> ProcessRuntime:
    """The runtime, if workspaces are processes, for what only that has, such as homes that are directories here."""
    if not isinstance(runtime, ProcessRuntime):
        raise BackendError(f"workspaces are not processes of this machine, but {runtime.name}'s")
    return runtime


def isolation(found: SandboxTools | None) -> tuple[str, str]:
    """What isolates workspaces that are processes here, and what would do so better (empty if nothing would), both as
    sentences for people."""
    several, one = "bubblewrap works: workspaces do not see each other, and each has", "only one person may use it: "
    package = "Install the package `slirp4netns`"
    if found is None:
        seen = (
            f"workspaces see each other and the files of this account, so {one}bubblewrap is not there or cannot work"
        )
        return seen, f"Install the packages `bubblewrap` and `slirp4netns`{_FOR_USERS}"
    if found.setpriv is not None and found.slirp4netns is not None:
        return f"{several} a user and a network of its own", ""
    if found.slirp4netns is not None:
        return f"{several} a network of its own", ""
    if found.setpriv is not None:
        seen = f"{several} a user of its own; they share this machine's network"
        return seen, f"{package}: while CodeHub is down, one that goes on could take its port and wait for visitors."
    seen = f"workspaces share our user and this machine's network and could take CodeHub's port, so {one}slirp4netns"
    return f"{seen} is not there or cannot work", f"{package}{_FOR_USERS}"


async def why_not_docker(settings: Settings) -> str | None:
    """Why workspaces cannot be Docker containers, in one line; None if an engine answers and has the images."""
    engine = engine_of(settings)
    try:
        await engine.version()
        for image in (settings.workspace_image, settings.codehub_image):
            if not await engine.has_image(image):
                return f"the Docker engine at {engine.host} has no image {image} (`make images` builds it)"
    except BackendError as error:
        return str(error)
    finally:
        await engine.close()
    return None


async def choose_runtime(settings: Settings, asked: str | None, directory: Path) -> tuple[str, str]:
    """The runtime for a data directory, and why. SettingsError if it was begun with another than was asked for."""
    begun = recorded_runtime(directory)
    if begun is not None:
        if asked is not None and asked != begun:
            raise SettingsError(
                f"the homes of {directory} are {begun}'s, and {asked} would not see them: archive every workspace "
                f"first (`codehub ws archive`), then remove {directory / _KIND}; or choose another --data-dir"
            )
        return begun, f"workspaces are {_WORKSPACES[begun]}, as this data directory was begun"
    if asked == "kubernetes":
        return "kubernetes", await _choose_kubernetes(settings)
    reason = None if asked == "process" else await why_not_docker(settings)
    if asked == "docker" and reason is not None:
        raise SettingsError(f"--runtime docker: {reason}")
    if asked != "process" and reason is None:
        return "docker", "workspaces are Docker containers"
    return "process", "workspaces are processes" + (f": {reason}" if reason else "")


async def _choose_kubernetes(settings: Settings) -> str:
    """Why it may be a cluster. SettingsError if it may not."""
    must_reach_archives(settings, archive_url(settings))
    reason = await why_not_kubernetes(settings)
    if reason is not None:
        raise SettingsError(f"--runtime kubernetes: {reason}")
    return "workspaces are pods, whose addresses this machine must be able to reach"


def record_runtime(directory: Path, runtime: str) -> None:
    (directory / _KIND).write_text(runtime + "\n")


def recorded_runtime(directory: Path) -> str | None:
    """The runtime that the data directory was begun with; process if it is older than this record."""
    try:
        return (directory / _KIND).read_text().strip()
    except FileNotFoundError:
        return "process" if any((directory / "runtime" / "volumes").glob("ws-*")) else None


async def why_no_disk_limits(settings: Settings, install: str) -> str:
    """Why a template's limit on the disk is not held to, in the engine's own words; empty if it is."""
    engine = engine_of(settings)
    try:
        return await volumes.why_no_quota(engine, install)
    finally:
        await engine.close()


async def engine_remaps_users(settings: Settings) -> bool:
    """Whether root of a container is another user on the engine's machine (the engine's `userns-remap`)."""
    engine = engine_of(settings)
    try:
        return any("name=userns" in one for one in (await engine.info()).get("SecurityOptions") or ())
    finally:
        await engine.close()


async def missing_network_isolation(settings: Settings, install: str) -> str:
    """Which of the network isolation's rules are missing; empty if none, or if isolation is left to the operator."""
    if settings.docker_isolation != "ours":
        return ""
    async with docker_runtime(settings, install) as runtime:
        try:
            return await runtime.isolation.missing()
        except CodeHubError as error:
            return str(error)


async def isolation_disturbances(settings: Settings, install: str) -> list[str]:
    """What the isolation monitor found missing, newest last; or why no monitor runs."""
    async with docker_runtime(settings, install) as runtime:
        try:
            return await runtime.isolation.disturbances()
        except CodeHubError as error:
            return [str(error)]


def open_archives(settings: Settings) -> ObjectArchives:
    local = settings.archive_url is None
    if local:
        private_data_dir(settings)
    return ObjectArchives(archive_url(settings), settings.archive_prefix, make_directory=local)


def data_dir(settings: Settings) -> Path:
    return settings.data_dir.expanduser().absolute()


def private_data_dir(settings: Settings) -> Path:
    """The data directory, created for its owner alone if it is not there."""
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
    """Installs code-server unless it is there. None if the settings name another IDE, or if images contain it."""
    if settings.ide_command or settings.runtime != "process":
        return None
    if settings.ide == "jupyterlab":
        jupyterlab_command()
        return None
    return await ensure_code_server(ide_cache_dir(settings), progress)


def ide(settings: Settings) -> tuple[list[str], list[Path]]:
    """The IDE's command line, and what of this machine it needs to see. Whoever starts workspaces installs it first."""
    if settings.ide_command or settings.ide == "jupyterlab":
        command = shlex.split(settings.ide_command) if settings.ide_command else jupyterlab_command()
        return command, programs(command)
    installed = code_server(ide_cache_dir(settings))
    command = ide_command(installed)
    return command, [*programs(command), installed.directory]


def programs(command: Sequence[str]) -> list[Path]:
    """What the IDE's command line names outside the system's directories, for a sandbox to show."""
    named = [Path(word) for word in (shutil.which(command[0]) or "", *command) if word.startswith("/")]
    named += [path.resolve() for path in named]
    places = {path.parent for path in named}
    interpreters = {Path(sys.prefix), Path(sys.base_prefix)}.union(*map(python_environment, named))
    return sorted(path for path in places | interpreters if path.is_dir() and path != Path("/"))


def python_environment(program: Path) -> set[Path]:
    """Of a program in a Python virtual environment: that environment and the interpreter that it was made from. Of one
    in a conda environment: that environment. Of any other nothing."""
    prefix = program.parent.parent
    if (prefix / "conda-meta").is_dir():
        return {prefix}
    lines: list[str] = []
    with suppress(OSError):
        lines = (prefix / "pyvenv.cfg").read_text().splitlines()
    found = {name.strip(): value.strip() for name, _, value in (line.partition("=") for line in lines)}
    if "home" not in found:
        return set()
    interpreter = (prefix / "bin" / "python").resolve()
    return {prefix, Path(found["home"]).parent, interpreter.parent.parent}
