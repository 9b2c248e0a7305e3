"""The engine's statistics in our terms, and the container that measures homes: pure values, compared whole."""

from typing import Any

import pytest

from codehub.adapters.docker import payloads
from codehub.adapters.docker.payloads import DockerSite
from codehub.adapters.docker.usage import compute_usage
from codehub.domain.usage import ComputeUsage

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
