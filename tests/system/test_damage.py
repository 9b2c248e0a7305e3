"""Archives are damaged, lost or out of reach on real parts. Each gives its reason, loses nothing that is left, and is
mended in the way its message names: the object comes back, another restore point is chosen, the store answers again.
"""

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from uuid import UUID

import pytest

from codehub.domain.errors import ErrorReason
from codehub.domain.naming import meta_key
from codehub.domain.workspace import Desired, Operation, Phase, RecoverAction
from tests.eventually import eventually
from tests.job.s3_server import S3Server
from tests.job.trees import Snapshot, assert_same
from tests.system.deployment import ANN, TIMEOUT_SECONDS, Deployment, deployed

pytestmark = pytest.mark.system


def truncated(archive: Path, _meta: Path) -> None:
    os.truncate(archive, archive.stat().st_size - 1)


def flipped(archive: Path, _meta: Path) -> None:
    data = bytearray(archive.read_bytes())
    data[len(data) // 2] ^= 1
    replaced(archive, bytes(data))


def replaced(path: Path, data: bytes) -> None:
    """At once: half a file would be another damage."""
    draft = path.with_name("draft")
    draft.write_bytes(data)
    draft.replace(path)


def without_object(archive: Path, _meta: Path) -> None:
    archive.unlink()


def without_meta(_archive: Path, meta: Path) -> None:
    meta.unlink()


Damage = Callable[[Path, Path], None]
REASONS: dict[Damage, ErrorReason] = {
    truncated: ErrorReason.ARCHIVE_ACCESS_ERROR,
    without_object: ErrorReason.ARCHIVE_ACCESS_ERROR,
    without_meta: ErrorReason.ARCHIVE_ACCESS_ERROR,
    flipped: ErrorReason.ARCHIVE_CORRUPTED,
}
"""What a look at the store can tell shows while the home sleeps; a flipped bit only when every byte is read."""


async def archived_twice(site: Deployment) -> tuple[UUID, Snapshot, Snapshot]:
    """The home as it was in the older and in the newer archive."""
    key = await site.create(Desired.STANDBY)
    await site.settled(key, Phase.STANDBY)
    older = await site.filled(key)
    await site.brought_to(key, Desired.ARCHIVED)
    await site.brought_to(key, Desired.STANDBY)
    newer = await site.filled(key)
    await site.brought_to(key, Desired.ARCHIVED)
    return key, older, newer


async def files(site: Deployment, key: UUID) -> tuple[Path, Path]:
    name = (await site.row(key)).archive_key
    assert name is not None
    store = site.directory / "archives"
    return store / name, store / meta_key(name)


@pytest.mark.parametrize("damage", REASONS, ids=lambda damage: damage.__name__)
async def test_a_damaged_archive_is_named_and_mended(damage: Damage, logged_database: str, fresh_redis: str) -> None:
    async with deployed(logged_database, fresh_redis) as site:
        site.start()
        key, older, newer = await archived_twice(site)
        whole = {path: path.read_bytes() for path in await files(site, key)}
        damage(*whole)
        await site.want(key, Desired.STANDBY)
        row = await site.settled(key, Phase.ERROR)
        assert row.error_reason is REASONS[damage]
        assert row.error_info is not None
        assert row.error_info.message

        for path, data in whole.items():
            replaced(path, data)
        if REASONS[damage] is ErrorReason.ARCHIVE_CORRUPTED:
            await site.commands.recover(key, RecoverAction.RETRY, ANN)
        await site.settled(key, Phase.STANDBY)
        assert_same(newer, await site.kept(key))

        await site.brought_to(key, Desired.ARCHIVED)
        damage(*await files(site, key))
        await site.want(key, Desired.STANDBY)
        await site.settled(key, Phase.ERROR)
        points = await site.services.database.statuses(0).restore_points(key)
        await site.commands.recover(key, RecoverAction.USE_ARCHIVE, ANN, archive=points[-1].key)
        await site.settled(key, Phase.STANDBY)
        assert_same(older, await site.kept(key))


async def test_the_object_store_goes_away_in_the_middle_and_comes_back(
    logged_database: str, fresh_redis: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody is sent to ERROR for an outage: the operation waits and goes on."""
    server = S3Server(tmp_path / "s3")
    server.start()
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    try:
        async with deployed(logged_database, fresh_redis, archive_url=server.url) as site:
            site.start()
            key = await site.create(Desired.STANDBY)
            await site.settled(key, Phase.STANDBY)
            home = await site.filled(key)
            await site.want(key, Desired.ARCHIVED)
            job = await site.suspended_job(key)
            server.stop()
            job.resume()
            await asyncio.sleep(3)
            row = await site.row(key)
            assert (row.phase, row.operation) == (Phase.STANDBY, Operation.ARCHIVING)
            assert_same(home, await site.kept(key))
            server.start()
            await site.settled(key, Phase.ARCHIVED)
            server.stop()
            await site.want(key, Desired.STANDBY)
            await asyncio.sleep(3)
            assert (await site.row(key)).phase is Phase.ARCHIVED
            server.start()
            await site.settled(key, Phase.STANDBY)
            assert_same(home, await site.kept(key))
    finally:
        server.stop()


async def test_wrong_credentials_lose_nothing(
    logged_database: str, fresh_redis: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = S3Server(tmp_path / "s3")
    server.start()
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    try:
        async with deployed(logged_database, fresh_redis, archive_url=server.url) as site:
            wrong = site.start(AWS_SECRET_ACCESS_KEY="somebody-else-s-secret")
            key = await site.create(Desired.STANDBY)
            await site.settled(key, Phase.STANDBY)
            home = await site.filled(key)
            await site.want(key, Desired.ARCHIVED)

            async def it_says_so() -> bool:
                return bool(wrong.said("backend does not answer", backend="archives"))

            await eventually(it_says_so, TIMEOUT_SECONDS)
            assert "403 Forbidden" in wrong.said("backend does not answer", backend="archives")[0]["error"]
            assert (await site.row(key)).error_count == 0, "nothing was begun"
            assert_same(home, await site.kept(key))
            assert server.objects() == []
            wrong.end()
            site.start("beta")
            await site.settled(key, Phase.ARCHIVED)
            await site.brought_to(key, Desired.STANDBY)
            assert_same(home, await site.kept(key))
    finally:
        server.stop()
