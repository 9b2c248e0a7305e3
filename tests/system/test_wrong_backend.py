"""A real coordinator whose data directory or archive disk is another one: nothing is lost, all goes on in the right."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from codehub.domain.errors import ErrorReason
from codehub.domain.workspace import Desired, Phase
from tests.eventually import eventually
from tests.job.trees import assert_same
from tests.system.deployment import TIMEOUT_SECONDS, Coordinator, Deployment, deployed

pytestmark = pytest.mark.system


@pytest.fixture
async def site(logged_database: str, fresh_redis: str) -> AsyncIterator[Deployment]:
    async with deployed(logged_database, fresh_redis) as site:
        yield site


async def has_said(coordinator: Coordinator, event: str) -> None:
    async def said() -> bool:
        return bool(coordinator.said(event))

    await eventually(said, TIMEOUT_SECONDS)


async def test_a_coordinator_with_another_data_directory_does_not_lead(site: Deployment, tmp_path: Path) -> None:
    right = site.start("alpha")
    key = await site.create(Desired.STANDBY)
    await site.settled(key, Phase.STANDBY)
    home = await site.filled(key)
    right.end()
    wrong = site.start("beta", CODEHUB_DATA_DIR=str(tmp_path))
    await has_said(wrong, "does not campaign")
    assert not wrong.said("leading")
    back = site.start("alpha")
    await site.leads(back)
    row = await site.brought_to(key, Desired.RUNNING)
    assert row.error_info is None
    assert_same(home, await site.kept(key))


async def test_archives_that_are_unmounted_are_neither_lost_nor_written_below(site: Deployment) -> None:
    leader = site.start("alpha")
    sleeping, living = await site.create(Desired.ARCHIVED), await site.create(Desired.STANDBY)
    await site.settled(sleeping, Phase.ARCHIVED)
    await site.settled(living, Phase.STANDBY)
    home = await site.filled(living)
    mount, disk = site.directory / "archives", site.directory / "archives-disk"
    mount.rename(disk)
    mount.mkdir()
    await site.want(living, Desired.ARCHIVED)
    await site.want(sleeping, Desired.STANDBY)
    await has_said(leader, "wrong backend")
    await asyncio.sleep(3)
    assert list(mount.iterdir()) == []
    errors = [(await site.row(key)).error_info for key in (sleeping, living)]
    assert {error.reason for error in errors if error is not None} <= {ErrorReason.UNREACHABLE}, (
        "waited for, not failed"
    )
    assert not any(error.is_terminal for error in errors if error is not None)
    mount.rmdir()
    disk.rename(mount)
    await site.settled(living, Phase.ARCHIVED)
    await site.settled(sleeping, Phase.STANDBY)
    await site.brought_to(living, Desired.STANDBY)
    assert_same(home, await site.kept(living))
