"""One workspace's life under a real coordinator: through every phase and back, with the same home at each stop."""

import subprocess
from itertools import pairwise
from pathlib import Path

import pytest

from codehub.domain.errors import ErrorReason
from codehub.domain.ledger import LedgerKind
from codehub.domain.workspace import Desired, Phase, RecoverAction
from tests.job.trees import assert_same
from tests.system.deployment import ANN, CODEHUB, TIMEOUT_SECONDS, Deployment, deployed

pytestmark = pytest.mark.system


def admin(site: Deployment, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [CODEHUB, "admin", *words],
        env=site.environment(site.database_url),
        capture_output=True,
        text=True,
        timeout=TIMEOUT_SECONDS,
        check=False,
    )


async def test_a_whole_life(logged_database: str, fresh_redis: str) -> None:
    async with deployed(logged_database, fresh_redis) as site:
        site.start()
        key = await site.create(Desired.RUNNING)
        await site.settled(key, Phase.RUNNING)
        assert len(site.ides(key)) == 1
        first = await site.filled(key)

        row = await site.brought_to(key, Desired.STANDBY)
        assert site.ides(key) == []
        assert row.home_store_key == f"ws-{key}-home"
        row = await site.brought_to(key, Desired.ARCHIVED)
        assert key not in await site.services.runtime.volumes()
        older = row.archive_key
        assert older is not None

        row = await site.brought_to(key, Desired.RUNNING)
        assert row.home_store_key == f"ws-{key}-home-2"
        assert len(site.ides(key)) == 1
        assert_same(first, await site.kept(key))
        (await site.home(key) / "later.txt").write_text("written in the second life")
        second = await site.filled(key)
        newer = (await site.brought_to(key, Desired.ARCHIVED)).archive_key
        assert newer not in {older, None}

        # an older restore point, chosen while it sleeps; then the newest again, chosen while it runs
        await site.commands.restore(key, older, ANN)
        await site.settled(key, Phase.ARCHIVED)
        await site.brought_to(key, Desired.RUNNING)
        assert_same(first, await site.kept(key))
        assert newer is not None
        await site.commands.restore(key, newer, ANN)
        await site.settled(key, Phase.RUNNING)
        assert_same(second, await site.kept(key))
        assert len(site.ides(key)) == 1

        await site.want(key, Desired.DELETED)
        await site.settled(key, Phase.DELETED)
        assert (site.ides(key), await site.services.runtime.volumes()) == ([], {})
        await site.commands.undelete(key, ANN)
        await site.settled(key, Phase.ARCHIVED)
        await site.brought_to(key, Desired.STANDBY)
        assert_same(second, await site.kept(key))

        entries = await site.services.database.ledger().entries(key, 1000)
        assert {
            LedgerKind.CREATED,
            LedgerKind.WISH,
            LedgerKind.PHASE,
            LedgerKind.ARCHIVE,
            LedgerKind.RESTORE_ASKED,
            LedgerKind.DELETED,
            LedgerKind.UNDELETED,
        } <= {entry.kind for entry in entries}
        phases = [(entry.before, entry.after) for entry in reversed(entries) if entry.kind is LedgerKind.PHASE]
        assert all(before == earlier for (_, earlier), (before, _) in pairwise(phases))
        await site.only_leaders_wrote()


async def test_an_ide_that_is_not_there(logged_database: str, fresh_redis: str) -> None:
    async with deployed(logged_database, fresh_redis) as site:
        coordinator = site.start(CODEHUB_IDE_COMMAND="/nowhere/ide {socket}")
        key = await site.create(Desired.RUNNING)
        row = await site.settled(key, Phase.ERROR)
        assert row.error_reason is ErrorReason.IMAGE_PULL_FAILED
        assert row.error_info is not None
        assert "/nowhere/ide" in row.error_info.message
        home = await site.filled(key)

        coordinator.end()
        site.start()
        done = admin(site, "recover", str(key))
        assert (done.returncode, done.stderr) == (0, "")
        await site.settled(key, Phase.RUNNING)
        assert_same(home, await site.kept(key))
        again = admin(site, "recover", str(key))
        assert again.returncode == 2
        assert "not in ERROR" in again.stderr


@pytest.mark.parametrize("fault", ["short-lived", "broken"])
async def test_an_ide_that_does_not_last(fault: str, logged_database: str, fresh_redis: str) -> None:
    """A few tries with growing pauses, then ERROR with the reason; never a loop."""
    async with deployed(logged_database, fresh_redis) as site:
        site.start()
        key = await site.create(Desired.STANDBY)
        await site.settled(key, Phase.STANDBY)
        home = await site.filled(key)
        with site.gate(fault):
            await site.want(key, Desired.RUNNING)
            row = await site.settled(key, Phase.ERROR)
        assert row.error_reason is ErrorReason.RETRY_EXCEEDED
        assert row.error_info is not None
        assert "this IDE" in row.error_info.message
        await site.commands.recover(key, RecoverAction.RETRY, ANN)
        await site.settled(key, Phase.RUNNING)
        assert len(site.ides(key)) == 1
        assert_same(home, await site.kept(key))


async def test_a_home_removed_by_hand_is_never_silently_replaced(logged_database: str, fresh_redis: str) -> None:
    async with deployed(logged_database, fresh_redis) as site:
        site.start()
        key = await site.create(Desired.STANDBY)
        await site.settled(key, Phase.STANDBY)
        saved = await site.filled(key)
        await site.brought_to(key, Desired.ARCHIVED)
        await site.brought_to(key, Desired.STANDBY)
        volume: Path = (await site.home(key)).parent
        volume.rename(site.directory / "taken")
        row = await site.settled(key, Phase.ERROR)
        assert row.error_reason is ErrorReason.DATA_LOST
        await site.commands.recover(key, RecoverAction.USE_ARCHIVE, ANN)
        await site.settled(key, Phase.STANDBY)
        assert_same(saved, await site.kept(key))
