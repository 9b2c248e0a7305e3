"""Which runtime a data directory gets, and that it keeps it: homes of another runtime would be taken for lost."""

from pathlib import Path

import pytest

from codehub.adapters.docker import DockerRuntime
from codehub.adapters.process.sandbox import SandboxTools
from codehub.bootstrap.runtimes import (
    choose_runtime,
    docker_runtime,
    docker_site,
    engine_of,
    isolation,
    processes,
    record_runtime,
)
from codehub.ports.runtime import Resources
from codehub.settings import Settings, SettingsError, load_settings

NOWHERE = "unix:///nowhere/docker.sock"


def settings(**given: object) -> Settings:
    return load_settings(database_url="postgresql://unused", redis_url="redis://unused", docker_host=NOWHERE, **given)


async def test_without_an_engine_they_are_processes_and_it_says_why(tmp_path: Path) -> None:
    chosen, why = await choose_runtime(settings(), None, tmp_path)
    assert chosen == "process"
    missing = "the Docker engine did not answer: /nowhere/docker.sock: No such file or directory"
    assert why == f"workspaces are processes: {missing}"


async def test_docker_that_was_asked_for_and_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="--runtime docker: the Docker engine did not answer"):
        await choose_runtime(settings(), "docker", tmp_path)


async def test_processes_that_were_asked_for_ask_no_engine(tmp_path: Path) -> None:
    assert await choose_runtime(settings(), "process", tmp_path) == ("process", "workspaces are processes")


@pytest.mark.parametrize("begun", ["docker", "process"])
async def test_a_data_directory_keeps_to_what_it_was_begun_with(tmp_path: Path, begun: str) -> None:
    """Also while the engine is away: its homes are unknown then, and must not be looked for elsewhere."""
    record_runtime(tmp_path, begun)
    assert (await choose_runtime(settings(), None, tmp_path))[0] == begun
    assert (await choose_runtime(settings(), begun, tmp_path))[0] == begun
    other = "process" if begun == "docker" else "docker"
    with pytest.raises(SettingsError, match=f"homes of .* are {begun}'s, and {other} would not see them: archive"):
        await choose_runtime(settings(), other, tmp_path)


async def test_homes_that_are_older_than_the_choice_are_processes(tmp_path: Path) -> None:
    (tmp_path / "runtime" / "volumes" / "ws-1-home").mkdir(parents=True)
    assert (await choose_runtime(settings(), None, tmp_path))[0] == "process"
    with pytest.raises(SettingsError, match="are process's"):
        await choose_runtime(settings(), "docker", tmp_path)


def test_the_site_is_what_the_settings_say() -> None:
    given = settings(docker_reachable="10.1.0.0/16, 10.2.0.0/16", workspace_cpu=1, workspace_pids=99)
    site = docker_site(given, "0123456789abcdef")
    assert site.network == "codehub-0123456789ab"
    assert site.reachable == ("10.1.0.0/16", "10.2.0.0/16")
    assert site.share == Resources(cpu=1.0, memory_bytes=2 << 30, pids=99)
    assert (site.workspace_image, site.codehub_image) == ("codehub-workspace:latest", "codehub:latest")


def test_the_engine_is_where_the_docker_command_would_say(tmp_path: Path) -> None:
    far = {"docker_host": "tcp://far:2376", "docker_tls_verify": True, "docker_cert_path": tmp_path}
    unused = {"database_url": "postgresql://unused", "redis_url": "redis://unused"}
    assert engine_of(load_settings(**unused, docker_host=None)).host == "unix:///var/run/docker.sock"
    assert engine_of(load_settings(**unused, **far)).host == "tcp://far:2376"
    assert engine_of(load_settings(**unused, **far))._certificates == tmp_path
    assert engine_of(load_settings(**unused, **(far | {"docker_host": NOWHERE})))._certificates is None


async def test_what_only_processes_have_is_not_asked_of_containers() -> None:
    async with docker_runtime(settings(), "here") as runtime:
        assert isinstance(runtime, DockerRuntime)
        with pytest.raises(Exception, match="not processes of this machine, but docker's"):
            processes(runtime)


@pytest.mark.parametrize(
    ("found", "seen", "advised"),
    [
        (None, "only one person", "`bubblewrap` and `slirp4netns`"),
        (SandboxTools("bwrap"), "only one person", "`slirp4netns`"),
        (SandboxTools("bwrap", "setpriv"), "a user of its own", "while CodeHub is down"),
        (SandboxTools("bwrap", None, "slirp4netns"), "a network of its own", ""),
        (SandboxTools("bwrap", "setpriv", "slirp4netns"), "a user and a network of its own", ""),
    ],
)
def test_what_keeps_processes_apart_is_said_with_what_is_missing(
    found: SandboxTools | None, seen: str, advised: str
) -> None:
    said, advice = isolation(found)
    assert seen in said
    assert advised in advice
    assert bool(advice) is bool(advised)
    assert ("only one person" in said) is not (found is not None and found.guards_ports)
