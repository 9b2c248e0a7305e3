"""What workspaces that are containers use: CPU and memory by the engine's statistics, and what their homes hold.

Homes are counted by a short-lived container of CodeHub's own image, one for many homes, outside of the workspaces: none
of it is charged to them, and nothing that they do can change what is counted. A volume that the engine holds to a size
is not counted: its quota knows.
"""

import asyncio
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any
from uuid import UUID, uuid4

import structlog

from codehub.adapters import disk_walk
from codehub.adapters.docker import payloads
from codehub.adapters.docker.engine import Engine
from codehub.adapters.docker.payloads import VOLUMES, DockerSite
from codehub.domain.naming import INSTALL_LABEL
from codehub.domain.usage import ComputeUsage, DiskUsage

log = structlog.get_logger(__name__)

PYTHON = ("/usr/local/lib/codehub/bin/python", "-I", "-S", "-c")
_AT_ONCE = 50
"""Older engines answer with the next of their own measurements, up to a second later: waiting costs them nothing."""
_MOST_REMEMBERED = 10_000
_NANO = 1e9


class ContainerUsage:
    """CPU and memory of containers. The limit on processors is asked for once per container: it does not change."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._cpu_limits: dict[str, float | None] = {}
        self._at_once = asyncio.Semaphore(_AT_ONCE)

    async def of(self, running: Mapping[UUID, Mapping[str, Any]]) -> dict[UUID, ComputeUsage]:
        found = await asyncio.gather(*(self._measured(container["Id"]) for container in running.values()))
        return {key: usage for key, usage in zip(running, found, strict=True) if usage is not None}

    async def _measured(self, key: str) -> ComputeUsage | None:
        async with self._at_once:
            said = await self._engine.statistics(key)
            if said is None:
                return None
            return compute_usage(key, said, await self._cpu_limit(key))

    async def _cpu_limit(self, key: str) -> float | None:
        if key not in self._cpu_limits:
            container = await self._engine.container(key) or {}
            nano = container.get("HostConfig", {}).get("NanoCpus")
            if len(self._cpu_limits) >= _MOST_REMEMBERED:
                self._cpu_limits.clear()
            self._cpu_limits[key] = nano / _NANO if nano else None
        return self._cpu_limits[key]


def compute_usage(instance: str, said: Mapping[str, Any], cpu_limit: float | None) -> ComputeUsage:
    """The engine's statistics in our terms. Memory is without what the kernel could drop at once: pages of files that
    nobody has used lately."""
    cpu, memory = said.get("cpu_stats") or {}, said.get("memory_stats") or {}
    details = memory.get("stats") or {}
    nanoseconds, used = (cpu.get("cpu_usage") or {}).get("total_usage"), memory.get("usage")
    idle = details.get("inactive_file", details.get("total_inactive_file", 0))
    return ComputeUsage(
        instance,
        cpu_seconds=nanoseconds / _NANO if nanoseconds else None,
        cpu_limit=cpu_limit or cpu.get("online_cpus"),
        memory_bytes=max(0, used - idle) if used else None,
        memory_limit_bytes=memory.get("limit"),
    )


async def measure_homes(
    engine: Engine, site: DockerSite, homes: Mapping[UUID, str], seconds: float
) -> dict[UUID, DiskUsage]:
    """What each volume holds. All of them are directories below one of the engine's own, as its local driver makes
    them."""
    listed = await engine.volumes([f"{INSTALL_LABEL}={site.install_id}"]) if homes else []
    known = {volume["Name"]: volume for volume in listed if volume.get("Mountpoint")}
    places = {key: PurePosixPath(known[name]["Mountpoint"]) for key, name in homes.items() if name in known}
    if not places:
        return {}
    root = next(iter(places.values())).parent.parent
    limits = {key: _limit(known[homes[key]]) for key in places}
    inside = {
        key: f"{VOLUMES}/{place.relative_to(root)}" for key, place in places.items() if place.is_relative_to(root)
    }
    words = [f"={path}" if limits[key] else path for key, path in inside.items()]
    found = disk_walk.parsed(await _counted(engine, site, str(root), words, seconds))
    sizes = {key: found[path] for key, path in inside.items() if path in found}
    return {key: DiskUsage(used, limits[key], total, free) for key, (used, total, free) in sizes.items()}


async def _counted(engine: Engine, site: DockerSite, root: str, words: list[str], seconds: float) -> str:
    """What the program printed, however it ended: a home at which it ends costs those before it nothing."""
    program = await asyncio.to_thread(Path(disk_walk.__file__).read_text)
    payload = payloads.disk_usage(site, root, [*PYTHON, program, str(seconds), *words])
    code, said = await engine.run_for(payload, f"codehub-disk-{uuid4().hex[:12]}", seconds + disk_walk.SPARE_SECONDS)
    if code != 0:
        log.warning("not all homes can be measured", exit_code=code, error=said.strip()[-200:])
    return said


def _limit(volume: Mapping[str, Any]) -> int | None:
    size = (volume.get("Options") or {}).get("size", "")
    return int(size) if size.isdigit() else None
