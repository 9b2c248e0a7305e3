"""What a container gets: its template's image, variables and share, as they are when it starts."""

from dataclasses import replace

from codehub.adapters.memory import MemoryAccountDatabase
from codehub.domain.errors import ErrorReason
from codehub.domain.template import Template
from codehub.domain.workspace import Desired, Phase, RecoverAction
from codehub.ports.accounts import Templates
from codehub.ports.runtime import ContainerSpec, Resources
from codehub.ports.stores import Actor
from tests.coordinator.workshop import PERSON, Workshop, in_virtual_time
from tests.rows import NOW, WORKSPACE_ID, with_home, workspace

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
    shop, templates = Workshop(), MemoryAccountDatabase().templates()
    shop.outside = replace(shop.outside, templates=templates)
    await shop.take_office()
    await templates.put(
        Template("default", env={"A": "1", "CODEHUB_GIT_URL": "theirs"}, cpu=0.5, memory_bytes=7, disk_bytes=8, pids=9),
        ROOT,
    )
    spec = await started(shop)
    assert spec.env == {"A": "1", "CODEHUB_GIT_URL": "https://example.com/x.git"}
    assert spec.share == Resources(0.5, 7, 8, 9)


@in_virtual_time
async def test_its_home_has_the_size_that_the_template_says_whenever_it_is_made() -> None:
    shop, templates = Workshop(), MemoryAccountDatabase().templates()
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
    shop, directory = Workshop(), MemoryAccountDatabase()
    shop.outside = replace(shop.outside, templates=directory.templates())
    await shop.take_office()
    directory.state.templates.clear()
    spec = await started(shop)
    assert (spec.env, spec.share) == ({"CODEHUB_GIT_URL": "https://example.com/x.git"}, Resources())
    assert spec.image_ref == shop.row.image_ref == "", "the image that it had"


@in_virtual_time
async def test_without_templates_its_image_alone() -> None:
    spec = await started(await Workshop.open())
    assert spec.share == Resources()


async def with_templates() -> tuple[Workshop, Templates]:
    shop, templates = Workshop(), MemoryAccountDatabase().templates()
    shop.outside = replace(shop.outside, templates=templates)
    await shop.take_office()
    return shop, templates


def image(shop: Workshop) -> str:
    spec = shop.worlds.runtime.containers[WORKSPACE_ID].spec
    assert spec is not None
    return spec.image_ref


@in_virtual_time
async def test_a_templates_new_image_is_there_from_the_next_start() -> None:
    shop, templates = await with_templates()
    await templates.put(Template("default", image_ref="ide:1"), ROOT)
    await started(shop)
    assert (image(shop), shop.row.image_ref) == ("ide:1", "ide:1")
    instance = shop.worlds.runtime.containers[WORKSPACE_ID].instance
    await templates.put(Template("default", image_ref="ide:2"), ROOT)
    await shop.converge()
    assert shop.worlds.runtime.containers[WORKSPACE_ID].instance == instance, "what runs is not restarted"
    assert shop.row.image_ref == "ide:1", "and says what it runs"
    for rest in (Desired.STANDBY, Desired.ARCHIVED):
        await templates.put(Template("default", image_ref=f"ide:{rest.value.lower()}"), ROOT)
        shop.change(desired_state=rest)()
        await shop.converge()
        shop.change(desired_state=Desired.RUNNING)()
        await shop.converge()
        assert (image(shop), shop.row.image_ref) == (f"ide:{rest.value.lower()}",) * 2


@in_virtual_time
async def test_a_wrong_image_that_was_corrected_is_not_asked_for_again() -> None:
    shop, templates = await with_templates()
    shop.worlds.runtime.bad_images.add("typo")
    await templates.put(Template("default", image_ref="typo"), ROOT)
    shop.place(with_home(desired_state=Desired.RUNNING), volume=())
    await shop.converge()
    assert (shop.row.phase, shop.row.error_reason) == (Phase.ERROR, ErrorReason.IMAGE_PULL_FAILED)
    await templates.put(Template("default", image_ref="right"), ROOT)
    await shop.wishes.recover(WORKSPACE_ID, RecoverAction.RETRY, PERSON)
    await shop.converge()
    assert (shop.row.phase, image(shop)) == (Phase.RUNNING, "right")


@in_virtual_time
async def test_a_template_that_nothing_new_is_made_from_still_says_the_image() -> None:
    shop, templates = await with_templates()
    await templates.put(Template("default", image_ref="ide:1"), ROOT)
    await templates.put(Template("default", image_ref="mended", disabled_at=NOW), ROOT)
    await started(shop)
    assert image(shop) == "mended"
