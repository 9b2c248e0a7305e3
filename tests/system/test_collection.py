"""The collector of a real coordinator, on a real database, a real directory of archives and the process runtime."""

import asyncio
import json
from pathlib import Path

import pytest

from codehub.bootstrap.runtimes import archive_url
from codehub.domain.errors import Conflict
from codehub.domain.workspace import Desired, Phase
from tests.system.deployment import ANN, Deployment, deployed
from tests.system.test_life import admin

pytestmark = pytest.mark.system

AT_ONCE = {"GC_GRACE_SECONDS": "0", "GC_DELETED_RETENTION_SECONDS": "0"}


def archives(site: Deployment) -> Path:
    return Path(archive_url(site.services.settings).removeprefix("file://"))


async def collected(site: Deployment, *words: str) -> dict[str, list[dict[str, str]]]:
    done = await asyncio.to_thread(admin, site, "gc", "--json", *words)
    assert done.stderr == ""
    report: dict[str, list[dict[str, str]]] = json.loads(done.stdout)
    return report


async def test_an_admin_s_run_takes_the_garbage_and_leaves_the_rest(logged_database: str, fresh_redis: str) -> None:
    async with deployed(logged_database, fresh_redis) as site:
        site.start(**AT_ONCE)
        kept, dropped = await site.create(Desired.ARCHIVED), await site.create(Desired.ARCHIVED)
        archive = (await site.settled(kept, Phase.ARCHIVED)).archive_key
        await site.settled(dropped, Phase.ARCHIVED)
        await site.want(dropped, Desired.DELETED)
        await site.settled(dropped, Phase.DELETED)
        stray = archives(site) / f"{archive}#1"
        stray.write_bytes(b"half of an upload")

        dry = await collected(site, "--dry-run")
        assert stray.name in {Path(found["name"]).name for found in dry["candidates"]}
        assert (await collected(site))["refusals"] == []
        await collected(site)

        assert not stray.exists()
        assert (archives(site) / str(archive)).exists()
        assert list(archives(site).rglob(f"{dropped}/**/*.zst")) == []
        assert (await site.row(dropped)).purged_at is not None
        with pytest.raises(Conflict, match="purged"):
            await site.commands.undelete(dropped, ANN)
        await site.brought_to(kept, Desired.RUNNING)
        await site.only_leaders_wrote()
