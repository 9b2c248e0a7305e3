"""Workspaces in containers on real PostgreSQL, Redis, S3 and Docker: what an operator does by hand, and what is wished.

One installation for all of them; each has workspaces of its own.
"""

import subprocess
from collections.abc import AsyncIterator
from uuid import UUID

import pytest
import pytest_asyncio

from codehub.cli import doctor
from codehub.domain.errors import ErrorReason
from codehub.domain.naming import container_name
from codehub.domain.template import Template
from codehub.domain.workspace import Desired, Phase, RecoverAction
from codehub.usecases.self_check import Verdict
from tests.conftest import Tell
from tests.contracts import s3
from tests.docker_engine import DockerTestbed
from tests.eventually import eventually
from tests.real_services import ServiceLoop, temporary_database
from tests.system.deployment import ANN, TIMEOUT_SECONDS
from tests.system.docker_site import DockerDeployment, docker_deployed, seconds_until

pytestmark = [pytest.mark.system, pytest.mark.timeout(300), pytest.mark.asyncio(loop_scope="module")]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def site(
    docker_testbed: DockerTestbed,
    postgres_url: str,
    redis_url: str,
    logged_template: str,
    service_loop: ServiceLoop,
    tmp_path_factory: pytest.TempPathFactory,
) -> AsyncIterator[DockerDeployment]:
    with (
        temporary_database(postgres_url, service_loop, template=logged_template) as database_url,
        s3.rclone(tmp_path_factory.mktemp("store") / "s3") as endpoint,
        s3.credentials(endpoint),
    ):
        async with docker_deployed(database_url, redis_url, archive_url=f"s3://{s3.BUCKET}") as site:
            site.start()
            yield site


async def running(site: DockerDeployment) -> UUID:
    key = await site.create(Desired.RUNNING)
    await site.settled(key, Phase.RUNNING)
    return key


async def test_never_started_it_sleeps_and_wakes_as_its_users_own(site: DockerDeployment) -> None:
    key = await site.create(Desired.STANDBY)
    await site.settled(key, Phase.STANDBY)
    await site.brought_to(key, Desired.ARCHIVED)
    await site.brought_to(key, Desired.RUNNING)
    assert site.inside(key, "touch mine && stat -c %u:%g . mine").split() == ["1000:1000", "1000:1000"]
    empty = await site.create(Desired.ARCHIVED)
    await site.settled(empty, Phase.ARCHIVED)
    await site.brought_to(empty, Desired.RUNNING)
    assert site.inside(empty, "touch mine && stat -c %u:%g . mine").split() == ["1000:1000", "1000:1000"]


async def test_removed_by_hand_it_is_seen_at_once_and_comes_back(site: DockerDeployment, tell: Tell) -> None:
    key = await running(site)
    before = await site.instance(key)
    site.inside(key, "echo mine > note")
    site.docker("rm", "-f", container_name(key))

    async def is_seen() -> bool:
        return (await site.row(key)).phase is not Phase.RUNNING

    seen = await seconds_until(is_seen)
    await site.settled(key, Phase.RUNNING)
    assert await site.instance(key) != before
    assert site.inside(key, "cat note") == "mine"
    tell(f"docker rm -f: seen {seen:.2f} s after the command had returned")


async def test_killed_from_inside_it_comes_back(site: DockerDeployment) -> None:
    key = await running(site)
    before = await site.instance(key)
    site.docker("kill", container_name(key))

    async def is_another() -> bool:
        seen = (await site.runtime.containers()).get(key)
        return seen is not None and seen.running and seen.instance != before

    await eventually(is_another, TIMEOUT_SECONDS)
    await site.settled(key, Phase.RUNNING)


async def test_a_volume_removed_by_hand_is_told_and_recovered(site: DockerDeployment) -> None:
    key = await running(site)
    kept = await site.filled(key)
    await site.brought_to(key, Desired.ARCHIVED)
    row = await site.brought_to(key, Desired.STANDBY)
    archive = row.archive_key
    site.docker("volume", "rm", str(row.home_store_key))

    async def is_lost() -> bool:
        return (await site.row(key)).phase is Phase.ERROR

    await eventually(is_lost, TIMEOUT_SECONDS)
    row = await site.row(key)
    assert row.error_reason is ErrorReason.DATA_LOST
    assert row.error_info is not None
    assert "volume" in row.error_info.message
    points = await site.services.database.views().restore_points(key)
    assert [point.key for point in points] == [archive], "the archive is kept"

    await site.commands.recover(key, RecoverAction.USE_ARCHIVE, ANN)
    await site.settled(key, Phase.STANDBY)
    back = await site.kept(key)
    assert {path: seen for path, seen in back.items() if path.startswith(b"project")} == {
        path: seen for path, seen in kept.items() if path.startswith(b"project")
    }


async def test_a_volume_made_again_by_hand_is_not_taken_for_the_home(site: DockerDeployment) -> None:
    key = await site.create(Desired.STANDBY)
    row = await site.settled(key, Phase.STANDBY)
    site.docker("volume", "rm", str(row.home_store_key))
    site.docker("volume", "create", str(row.home_store_key))

    async def is_lost() -> bool:
        row = await site.row(key)
        return row.phase is Phase.ERROR and row.error_reason is ErrorReason.DATA_LOST

    await eventually(is_lost, TIMEOUT_SECONDS)
    subprocess.run(["docker", "volume", "rm", str(row.home_store_key)], check=True, capture_output=True)


async def test_what_the_template_says_reaches_the_container(site: DockerDeployment) -> None:
    small = Template("small", env={"GREETING": "hello"}, cpu=0.5, memory_bytes=512 << 20, pids=222)
    await site.services.database.templates().put(small, ANN)
    key = await site.create(Desired.STANDBY, template="small")
    await site.brought_to(key, Desired.RUNNING)
    limits = "{{.HostConfig.NanoCpus}} {{.HostConfig.Memory}} {{.HostConfig.PidsLimit}}"
    assert site.docker("inspect", "--format", limits, container_name(key)).split() == [
        "500000000",
        str(512 << 20),
        "222",
    ]
    assert site.inside(key, "echo $GREETING") == "hello"


async def test_a_limit_on_the_disk_holds_or_is_said_not_to(site: DockerDeployment, tell: Tell) -> None:
    """Whichever engine this is, the doctor's word and what happens inside are one."""
    settings = site.services.settings
    assert (await doctor.disk_limits(settings)).verdict is Verdict.OK
    await site.services.database.templates().put(Template("tight", disk_bytes=64 << 20), ANN)
    key = await site.create(Desired.RUNNING, template="tight")
    await site.settled(key, Phase.RUNNING)
    written = int(site.inside(key, f"head -c {128 << 20} /dev/zero > big 2>/dev/null; stat -c %s big"))
    found = await doctor.disk_limits(settings)
    assert found.verdict is (Verdict.OK if written < 64 << 20 else Verdict.WARN), found
    if found.verdict is Verdict.WARN:
        assert written == 128 << 20
        assert "templates that have one: tight" in found.seen
    tell(f"disk limits: {found.seen}")


async def test_an_image_that_is_not_to_be_had_is_told(site: DockerDeployment) -> None:
    wrong = Template("wrong", image_ref="UPPER/case:is:no:name")
    await site.services.database.templates().put(wrong, ANN)
    key = await site.create(Desired.RUNNING, template="wrong", image_ref=wrong.image_ref)

    async def is_told() -> bool:
        return (await site.row(key)).error_reason is ErrorReason.IMAGE_PULL_FAILED

    await eventually(is_told, TIMEOUT_SECONDS)
    info = (await site.row(key)).error_info
    assert info is not None
    assert wrong.image_ref in info.message
