"""A real archive directory whose mount is lost, as the controller sees it: still a directory, and empty."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from codehub.adapters.memory import MemoryArchives, MemoryDatabase, MemoryJobs, MemoryRuntime
from codehub.adapters.object_store.archives import ObjectArchives
from codehub.coordinator.backends import Backends, Breaker
from codehub.coordinator.identity_check import IdentityCheck
from codehub.domain.errors import WrongBackend
from codehub.domain.judge import ArchiveState
from codehub.telemetry import Metrics
from tests.contracts.databases import RealClock
from tests.rows import KEY, OTHER_KEY, WORKSPACE_ID

PREFIX = "homes/"


@pytest.fixture
def archives(tmp_path: Path) -> Iterator[ObjectArchives]:
    archives = ObjectArchives((tmp_path / "mnt").as_uri(), PREFIX, make_directory=True)
    yield archives
    archives.close()


async def backends(archives: ObjectArchives) -> Backends:
    clock, metrics, runtime, database = RealClock(), Metrics(), MemoryRuntime(), MemoryDatabase()
    term = await database.leadership(clock).campaign("me")
    breakers = {name: Breaker(name, clock, metrics) for name in ("runtime", "jobs", "archives")}
    identities = IdentityCheck(database.worlds(), term.epoch, clock, "this", PREFIX)
    jobs = MemoryJobs(runtime, MemoryArchives())
    return Backends(runtime, jobs, archives, term, clock, breakers, identities)


async def test_of_an_unmounted_directory_nothing_is_believed_and_nothing_is_put_there(
    archives: ObjectArchives, tmp_path: Path
) -> None:
    mount, disk, key = tmp_path / "mnt", tmp_path / "disk", PREFIX + KEY
    dependencies = await backends(archives)
    await dependencies.create_empty_archive(WORKSPACE_ID, key)
    assert (mount / PREFIX / "codehub-owner").read_text() == "this"
    mount.rename(disk)
    mount.mkdir()
    for ask in (
        dependencies.look(key),
        dependencies.inventory(),
        dependencies.create_empty_archive(WORKSPACE_ID, PREFIX + OTHER_KEY),
        dependencies.check_all_identities(),
    ):
        with pytest.raises(WrongBackend, match="Is its disk mounted"):
            await ask
    assert list(mount.iterdir()) == []
    mount.rmdir()
    disk.rename(mount)
    async with asyncio.timeout(30):
        while True:
            try:
                assert await dependencies.look(key) is ArchiveState.READABLE
                break
            except WrongBackend:
                await asyncio.sleep(0.2)
