"""What a container gets: its template's image, variables and share, as they are when it starts."""

from dataclasses import replace

from codehub.adapters.memory import MemoryAccountDatabase
from codehub.domain.errors import ErrorReason
from codehub.domain.template import KubernetesOptions, Template
from codehub.domain.workspace import Desired, Phase, RecoverAction
from codehub.ports.runtime import ContainerSpec, Resources
from codehub.ports.stores import Actor, Templates
from tests.coordinator.harness import PERSON, CoordinatorHarness, in_virtual_time
from tests.rows import NOW, WORKSPACE_ID, with_home, workspace

ROOT = Actor("root")
REPOSITORY = {"CODEHUB_GIT_URL": "https://example.com/x.git", "CODEHUB_GIT_REF": "v1"}


async def started(harness: CoordinatorHarness) -> ContainerSpec:
    harness.place(
        with_home(desired_state=Desired.RUNNING, git_url="https://example.com/x.git", git_ref="v1"), volume=()
    )
    await harness.converge()
    assert harness.row.phase is Phase.RUNNING
    spec = harness.states.runtime.containers[WORKSPACE_ID].spec
    assert spec is not None
    return spec


@in_virtual_time
async def test_its_templates_variables_and_share() -> None:
    harness, templates = CoordinatorHarness(), MemoryAccountDatabase().templates()
    harness.dependencies = replace(harness.dependencies, templates=templates)
    await harness.become_leader()
    await templates.put(
        Template(
            "default",
            env={"A": "1", **dict.fromkeys(REPOSITORY, "theirs")},
            cpu=0.5,
            memory_bytes=7,
            disk_bytes=8,
            pids=9,
            sudo=True,
        ),
        ROOT,
    )
    spec = await started(harness)
    assert spec.sudo
    assert spec.env == {"A": "1", **REPOSITORY}
    assert spec.share == Resources(0.5, 7, 8, 9)


@in_virtual_time
async def test_its_home_has_the_size_that_the_template_says_whenever_it_is_made() -> None:
    harness, templates = CoordinatorHarness(), MemoryAccountDatabase().templates()
    harness.dependencies = replace(harness.dependencies, templates=templates)
    await harness.become_leader()
    await templates.put(Template("default", disk_bytes=8), ROOT)
    harness.place(workspace(desired_state=Desired.STANDBY))
    await harness.converge()
    assert [volume.disk_bytes for volume in harness.states.runtime.volumes.values()] == [8]
    harness.change(desired_state=Desired.ARCHIVED)()
    await harness.converge()
    assert harness.states.runtime.volumes == {}
    await templates.put(Template("default", disk_bytes=9), ROOT)
    harness.change(desired_state=Desired.STANDBY)()
    await harness.converge()
    assert [volume.disk_bytes for volume in harness.states.runtime.volumes.values()] == [9]


@in_virtual_time
async def test_what_a_template_says_to_a_cluster_reaches_the_pod_and_the_claim() -> None:
    harness, templates = await with_templates()
    options = KubernetesOptions(node_selector={"pool": "ides"}, storage_class="fast")
    await templates.put(Template("default", kubernetes=options), ROOT)
    spec = await started(harness)
    assert spec.kubernetes == options
    for wish in (Desired.ARCHIVED, Desired.STANDBY):
        harness.change(desired_state=wish)()
        await harness.converge()
    assert [volume.storage_class for volume in harness.states.runtime.volumes.values()] == ["fast"]


@in_virtual_time
async def test_what_a_template_says_to_a_cluster_reaches_the_job() -> None:
    harness, templates = await with_templates()
    options = KubernetesOptions(node_selector={"pool": "ides"})
    await templates.put(Template("default", kubernetes=options), ROOT)
    given: list[KubernetesOptions] = []

    def look() -> None:
        given.append(harness.states.jobs.jobs[WORKSPACE_ID].spec.kubernetes)

    harness.states.jobs.step_seconds = 1.0
    harness.place(with_home(desired_state=Desired.ARCHIVED), volume=(1, 2))
    harness.network.meanwhile["jobs.clear"] = look
    await harness.converge()
    assert given == [options]


@in_virtual_time
async def test_of_a_template_that_is_gone_nothing() -> None:
    harness, directory = CoordinatorHarness(), MemoryAccountDatabase()
    harness.dependencies = replace(harness.dependencies, templates=directory.templates())
    await harness.become_leader()
    directory.state.templates.clear()
    spec = await started(harness)
    assert (spec.env, spec.share) == (
        {"CODEHUB_GIT_URL": "https://example.com/x.git", "CODEHUB_GIT_REF": "v1"},
        Resources(),
    )
    assert spec.image_ref == harness.row.image_ref == "", "the image that it had"


@in_virtual_time
async def test_without_templates_its_image_alone() -> None:
    spec = await started(await CoordinatorHarness.open())
    assert spec.share == Resources()


async def with_templates() -> tuple[CoordinatorHarness, Templates]:
    harness, templates = CoordinatorHarness(), MemoryAccountDatabase().templates()
    harness.dependencies = replace(harness.dependencies, templates=templates)
    await harness.become_leader()
    return harness, templates


def image(harness: CoordinatorHarness) -> str:
    spec = harness.states.runtime.containers[WORKSPACE_ID].spec
    assert spec is not None
    return spec.image_ref


@in_virtual_time
async def test_a_templates_new_image_is_there_from_the_next_start() -> None:
    harness, templates = await with_templates()
    await templates.put(Template("default", image_ref="ide:1"), ROOT)
    await started(harness)
    assert (image(harness), harness.row.image_ref) == ("ide:1", "ide:1")
    instance = harness.states.runtime.containers[WORKSPACE_ID].instance
    await templates.put(Template("default", image_ref="ide:2"), ROOT)
    await harness.converge()
    assert harness.states.runtime.containers[WORKSPACE_ID].instance == instance, "what runs is not restarted"
    assert harness.row.image_ref == "ide:1", "and says what it runs"
    for rest in (Desired.STANDBY, Desired.ARCHIVED):
        await templates.put(Template("default", image_ref=f"ide:{rest.value.lower()}"), ROOT)
        harness.change(desired_state=rest)()
        await harness.converge()
        harness.change(desired_state=Desired.RUNNING)()
        await harness.converge()
        assert (image(harness), harness.row.image_ref) == (f"ide:{rest.value.lower()}",) * 2


@in_virtual_time
async def test_a_wrong_image_that_was_corrected_is_not_asked_for_again() -> None:
    harness, templates = await with_templates()
    harness.states.runtime.bad_images.add("typo")
    await templates.put(Template("default", image_ref="typo"), ROOT)
    harness.place(with_home(desired_state=Desired.RUNNING), volume=())
    await harness.converge()
    assert (harness.row.phase, harness.row.error_reason) == (Phase.ERROR, ErrorReason.IMAGE_PULL_FAILED)
    await templates.put(Template("default", image_ref="right"), ROOT)
    await harness.commands.recover(WORKSPACE_ID, RecoverAction.RETRY, PERSON)
    await harness.converge()
    assert (harness.row.phase, image(harness)) == (Phase.RUNNING, "right")


@in_virtual_time
async def test_a_template_that_nothing_new_is_made_from_still_says_the_image() -> None:
    harness, templates = await with_templates()
    await templates.put(Template("default", image_ref="ide:1"), ROOT)
    await templates.put(Template("default", image_ref="mended", disabled_at=NOW), ROOT)
    await started(harness)
    assert image(harness) == "mended"
