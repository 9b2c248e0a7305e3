"""What a container gets besides its image: its template's variables and share, as they are when it starts."""

from dataclasses import replace

from codehub.adapters.memory import MemoryDirectory
from codehub.domain.template import Template
from codehub.domain.workspace import Desired, Phase
from codehub.ports.runtime import ContainerSpec, Share
from codehub.ports.stores import Actor
from tests.coordinator.workshop import Workshop, in_virtual_time
from tests.rows import WORKSPACE_ID, with_home, workspace

ROOT = Actor("root")


async def started(shop: Workshop) -> ContainerSpec:
    shop.place(with_home(desired_state=Desired.RUNNING, git_url="https://example.com/x.git"), volume=())
    await shop.converge()
    assert shop.row.phase is Phase.RUNNING
    spec = shop.worlds.runtime.containers[WORKSPACE_ID].spec
    assert spec is not None
    return spec


@in_virtual_time
async def test_its_templates_variables_and_share() -> None:
    shop, templates = Workshop(), MemoryDirectory().templates()
    shop.outside = replace(shop.outside, templates=templates)
    await shop.take_office()
    await templates.put(
        Template("default", env={"A": "1", "CODEHUB_GIT_URL": "theirs"}, cpu=0.5, memory_bytes=7, disk_bytes=8, pids=9),
        ROOT,
    )
    spec = await started(shop)
    assert spec.env == {"A": "1", "CODEHUB_GIT_URL": "https://example.com/x.git"}
    assert spec.share == Share(0.5, 7, 8, 9)


@in_virtual_time
async def test_its_home_has_the_size_that_the_template_says_whenever_it_is_made() -> None:
    shop, templates = Workshop(), MemoryDirectory().templates()
    shop.outside = replace(shop.outside, templates=templates)
    await shop.take_office()
    await templates.put(Template("default", disk_bytes=8), ROOT)
    shop.place(workspace(desired_state=Desired.STANDBY))
    await shop.converge()
    assert [volume.disk_bytes for volume in shop.worlds.runtime.volumes.values()] == [8]
    shop.change(desired_state=Desired.ARCHIVED)()
    await shop.converge()
    assert shop.worlds.runtime.volumes == {}
    await templates.put(Template("default", disk_bytes=9), ROOT)
    shop.change(desired_state=Desired.STANDBY)()
    await shop.converge()
    assert [volume.disk_bytes for volume in shop.worlds.runtime.volumes.values()] == [9]


@in_virtual_time
async def test_of_a_template_that_is_gone_nothing() -> None:
    shop, directory = Workshop(), MemoryDirectory()
    shop.outside = replace(shop.outside, templates=directory.templates())
    await shop.take_office()
    directory.world.templates.clear()
    spec = await started(shop)
    assert (spec.env, spec.share) == ({"CODEHUB_GIT_URL": "https://example.com/x.git"}, Share())


@in_virtual_time
async def test_without_templates_its_image_alone() -> None:
    spec = await started(await Workshop.open())
    assert spec.share == Share()
