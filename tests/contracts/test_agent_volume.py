"""The agent's volume on a real engine: filled once, mended when it was left half filled, cleared when nobody has it."""

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from codehub.adapters.docker import DockerSite, Engine, payloads
from codehub.adapters.docker.volumes import AgentVolume
from codehub.domain.errors import BackendError
from tests.docker_engine import CODEHUB_IMAGE, FAKE_IDE_IMAGE, DockerTestbed, sweep

pytestmark = pytest.mark.system


@pytest.fixture
async def site(docker_testbed: DockerTestbed, engine: Engine) -> AsyncIterator[DockerSite]:
    site = docker_testbed.site()
    yield site
    await sweep(engine, site.install_id)


async def place(engine: Engine, name: str) -> Path:
    volume = await engine.volume(name)
    assert volume is not None
    return Path(volume["Mountpoint"])


async def test_it_is_filled_once_and_mended_by_whoever_comes_after_one_that_was_killed(
    engine: Engine, site: DockerSite
) -> None:
    name = await AgentVolume(engine, site).name()
    inside = await place(engine, name)
    main = next(inside.glob("lib/python3.*/codehub/agent/__main__.py"))
    (inside / ".complete").unlink()
    main.unlink()
    assert await AgentVolume(engine, site).name() == name
    assert main.exists()
    main.write_text("kept")
    assert await AgentVolume(engine, site).name() == name
    assert main.read_text() == "kept", "it was whole"


async def test_another_image_has_another_one_and_the_older_goes_when_nobody_has_it(
    engine: Engine, site: DockerSite
) -> None:
    older = await AgentVolume(engine, replace(site, codehub_image=CODEHUB_IMAGE)).name()
    newer = await AgentVolume(engine, replace(site, codehub_image=FAKE_IDE_IMAGE)).name()
    assert older != newer
    assert await engine.volume(older) is None
    docker = await engine.docker()
    mounted = {"Mounts": [{"Type": "volume", "Source": newer, "Target": "/mnt"}]}
    holder = await docker.containers.create({"Image": FAKE_IDE_IMAGE, "HostConfig": mounted})
    try:
        await AgentVolume(engine, replace(site, codehub_image=CODEHUB_IMAGE)).name()
        assert await engine.volume(newer) is not None
    finally:
        await holder.delete(force=True)


async def test_an_image_without_an_agent_is_named(engine: Engine, site: DockerSite) -> None:
    with pytest.raises(BackendError, match=r"(?s)cannot be copied from the image codehub-base.* build it anew"):
        await AgentVolume(engine, replace(site, codehub_image="codehub-base:bookworm")).name()
    with pytest.raises(BackendError, match=r"nowhere:1 is not there, and the workspace agent is in it"):
        await AgentVolume(engine, replace(site, codehub_image="nowhere:1")).name()
    assert payloads.agent_volume_name(site, "sha256:1") == f"codehub-agent-{site.install_id[:12]}-1"
