"""The engine's statistics in our terms, and the container that measures homes: pure values, compared whole, and what an
engine answers when that container is killed or does not end."""

import asyncio
import json
import struct
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from aiohttp import web

from codehub.adapters import disk_walk
from codehub.adapters.docker import Engine, payloads
from codehub.adapters.docker.payloads import DockerSite
from codehub.adapters.docker.usage import compute_usage, measure_homes
from codehub.domain.usage import ComputeUsage, DiskUsage

SITE = DockerSite("install", "workspace:1", "codehub:1", "net")


def said(**changes: Any) -> dict[str, Any]:
    return {
        "cpu_stats": {"cpu_usage": {"total_usage": 2_500_000_000}, "online_cpus": 8},
        "memory_stats": {"usage": 500, "limit": 1_000, "stats": {"inactive_file": 100}},
    } | changes


def test_memory_is_without_pages_that_could_be_dropped_at_once() -> None:
    assert compute_usage("a", said(), 2.0) == ComputeUsage("a", 2.5, 2.0, 400, 1_000)
    older = {"usage": 500, "limit": 1_000, "stats": {"total_inactive_file": 200}}
    assert compute_usage("a", said(memory_stats=older), 2.0).memory_bytes == 300


def test_without_a_limit_of_its_own_it_can_use_all_processors() -> None:
    assert compute_usage("a", said(), None).cpu_limit == 8


@pytest.mark.parametrize("nothing", [{}, {"cpu_stats": None, "memory_stats": None}, {"cpu_stats": {"cpu_usage": None}}])
def test_what_the_engine_does_not_say_is_not_known(nothing: dict[str, Any]) -> None:
    assert compute_usage("a", nothing, None) == ComputeUsage("a")


def test_one_that_has_just_ended_has_no_figures() -> None:
    ended = {"cpu_stats": {"cpu_usage": {"total_usage": 0}}, "memory_stats": {}}
    assert compute_usage("a", ended, None) == ComputeUsage("a")


def test_homes_are_measured_from_a_container_that_can_read_and_nothing_else() -> None:
    payload = payloads.disk_usage(SITE, "/var/lib/docker/volumes", ["python", "-c", "pass"])
    host = payload["HostConfig"]
    assert (payload["Image"], payload["Entrypoint"], payload["Cmd"]) == ("codehub:1", ["python"], ["-c", "pass"])
    assert payload["Labels"] == {"codehub.install": "install", "codehub.role": "disk-usage"}
    assert host["Mounts"] == [
        {"Type": "bind", "Source": "/var/lib/docker/volumes", "Target": "/volumes", "ReadOnly": True}
    ]
    assert (host["CapDrop"], host["CapAdd"]) == (["ALL"], ["DAC_READ_SEARCH"])
    assert host["NetworkMode"] == "none"
    assert host["ReadonlyRootfs"] is True
    assert host["SecurityOpt"] == ["no-new-privileges:true"]


class MeasuringEngine:
    """An engine whose container measures the first home and is killed at the second, or never ends (`code` None)."""

    def __init__(self, code: int | None) -> None:
        self.code = code
        self.removed = asyncio.Event()

    async def answer(self, request: web.Request) -> web.Response:
        path = request.path.rpartition("/v1.41")[2]
        if request.method == "DELETE":
            self.removed.set()
            return web.Response(status=204)
        if path.endswith("/start"):
            return web.Response(status=204)
        if path.endswith("/logs"):
            line = b'["/volumes/a/_data", 5, 100, 50]\n["/volumes/b'
            return web.Response(body=struct.pack(">BxxxL", 1, len(line)) + line)
        if path.endswith("/wait") and self.code is None:
            await self.removed.wait()
        answers: dict[str, object] = {
            "/version": {"ApiVersion": "1.41", "Version": "20.10"},
            "/volumes": {"Volumes": [{"Name": name, "Mountpoint": f"/docker/{name}/_data"} for name in "ab"]},
            "/containers/create": {"Id": "c"},
            "/containers/c/wait": {"StatusCode": self.code},
            "/containers/c/json": {"Id": "c", "Config": {"Tty": False}},
        }
        return web.Response(body=json.dumps(answers[path]).encode(), content_type="application/json")


@pytest.mark.parametrize("code", [137, None], ids=["killed", "does not end"])
async def test_what_was_measured_before_the_program_ended_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int | None
) -> None:
    monkeypatch.setattr(disk_walk, "SPARE_SECONDS", 0.2 if code is None else 60.0)
    speaks, application = MeasuringEngine(code), web.Application()
    application.router.add_route("*", "/{path:.*}", speaks.answer)
    runner = web.AppRunner(application)
    await runner.setup()
    await web.UnixSite(runner, str(tmp_path / "engine.sock")).start()
    engine = Engine(f"unix://{tmp_path / 'engine.sock'}")
    try:
        found = await measure_homes(engine, SITE, {UUID(int=1): "a", UUID(int=2): "b"}, 0.0)
    finally:
        await engine.close()
        await runner.cleanup()
    assert found == {UUID(int=1): DiskUsage(5, None, 100, 50)}
    assert speaks.removed.is_set()
