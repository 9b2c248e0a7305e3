"""`codehub doctor --probe` on Docker: the whole way, and nothing in reach from inside."""

from collections.abc import AsyncIterator

import pytest

from codehub.bootstrap.operator import platform_addresses, probe
from codehub.cli import doctor
from codehub.settings import load_settings
from codehub.usecases.self_check import Finding, Verdict
from tests.docker_engine import DockerTestbed
from tests.system.docker_site import DockerDeployment, docker_deployed

pytestmark = [pytest.mark.system, pytest.mark.timeout(300)]


@pytest.fixture
async def site(
    docker_testbed: DockerTestbed, logged_database: str, fresh_redis: str
) -> AsyncIterator[DockerDeployment]:
    async with docker_deployed(logged_database, fresh_redis) as site:
        yield site


async def test_the_probe_goes_the_whole_way_and_reaches_nothing(site: DockerDeployment) -> None:
    site.start()
    await site.leader()
    findings: list[Finding] = []
    await (await probe(site.services)).run(findings.append)
    assert [(found.name, found.verdict) for found in findings] == [
        (f"probe: {step}", Verdict.OK) for step in ("start", "isolation", "archive", "restore", "clean up")
    ], findings
    for what in (
        "the Docker engine",
        "another workspace's IDE",
        "another workspace's home",
        "more memory than its share",
        "more processes than its share",
        "the archives",
    ):
        assert what in findings[1].seen
    assert (await site.runtime.containers(), await site.runtime.volumes()) == ({}, {})

    settings = site.services.settings
    assert (await doctor.engine(settings)).verdict is Verdict.OK
    assert (await doctor.network_isolation(settings)).verdict is Verdict.OK
    assert (await doctor.sandbox(settings)).verdict is Verdict.OK
    assert (await doctor.ide(settings)).verdict is Verdict.OK


async def test_before_the_first_start_the_walls_are_said_to_be_missing(site: DockerDeployment) -> None:
    found = await doctor.network_isolation(site.services.settings)
    assert found.verdict is Verdict.WARN
    assert "missing: " in found.seen


def test_what_listens_on_the_machine_is_tried_at_the_gateway() -> None:
    settings = load_settings(
        database_url="postgresql://u:p@127.0.0.1:5433/x", redis_url="redis://10.0.0.9", api_address="127.0.0.1:8123"
    )
    found = platform_addresses(settings, "172.20.0.1")
    assert found["172.20.0.1", 8123] == "CodeHub's API"
    assert found["172.20.0.1", 5433] == "the database"
    assert found["10.0.0.9", 6379] == "Redis"
    assert found["172.20.0.1", 2376] == "the Docker engine"
