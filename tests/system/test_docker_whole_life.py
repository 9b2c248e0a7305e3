"""A whole life in a real browser, on real PostgreSQL, Redis, S3 and Docker: made, worked in, left alone until it sleeps
and is archived, opened again. What was typed into the IDE's terminal is there, and the home is the same at each stage.
"""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.browser.end_to_end.browser_user import BrowserUser, arrived, runs, until
from tests.browser.end_to_end.interruptions import change
from tests.browser.end_to_end.test_presence import rests
from tests.chromium import chromium
from tests.conftest import Tell
from tests.docker_engine import DockerTestbed
from tests.job.trees import assert_same, snapshot
from tests.proxy.recording.workbench import Tab
from tests.system.docker_installation import (
    TTL,
    DockerInstallation,
    DockerWorkspace,
    digest,
    docker_installation,
    of_people,
)

pytestmark = [pytest.mark.system, pytest.mark.timeout(600)]

FLUSHED = 3.0
WORK = """\
mkdir -p project/src && cd project && head -c 8000000 /dev/urandom > data.bin && chmod 640 data.bin
for number in 1 2 3 4 5 6 7 8 9; do echo "answer = $number" > src/module_$number.py; done
ln -s src/module_1.py current && printf '#!/bin/sh\\n' > run.sh && chmod 750 run.sh
git -c init.defaultBranch=main init -q .
"""


@pytest.fixture
async def hub(docker_testbed: DockerTestbed, tmp_path: Path) -> AsyncIterator[DockerInstallation]:
    async with docker_installation(tmp_path / "s3") as hub:
        yield hub


@pytest.mark.parametrize(
    "waits", [False, pytest.param(True, marks=pytest.mark.long)], ids=["time is moved", "by itself"]
)
async def test_a_whole_life_in_a_browser(waits: bool, hub: DockerInstallation, tmp_path: Path, tell: Tell) -> None:
    await lives(hub, tmp_path, tell, waits=waits)


async def lives(hub: DockerInstallation, tmp_path: Path, tell: Tell, *, waits: bool) -> None:
    """Makes a workspace, works in it, leaves it alone until it is archived, opens it again and deletes it. `waits`: for
    the time that really passes."""
    ann = hub.person()
    desk = await hub.desk(ann, "life")
    change(desk, standby_ttl_seconds=0, archive_ttl_seconds=0)  # not before its time, however long all this takes
    assert desk.inside("id -u; id -g; pwd").split() == ["1000", "1000", "/home/coder"]
    desk.inside(WORK)
    async with chromium() as browser, BrowserUser.at(browser, hub) as ann_at_work:
        await ann_at_work.signs_in(ann)
        tab = await ann_at_work.opens(desk.url)
        await writes_in_the_terminal(tab, desk)
        await tab.page.close()
        stages = {"running": snapshot(desk.home)}

        await falls_asleep(desk, waits=waits)
        assert desk.containers() == ""
        stages["standby"] = snapshot(desk.home)
        await is_archived(desk, waits=waits)
        assert desk.volume == ""
        stages["archive"] = desk.in_archive(tmp_path / "unpacked")
        assert_same(stages["standby"], stages["archive"])

        page, answer = await ann_at_work.goes(f"{desk.url}?folder=/home/coder")
        assert (answer.status, await page.inner_text("#title")) == (502, "life is in the archive")
        await page.locator("[data-action=wake]").click()
        tab = await arrived(page)
        assert desk.volume == f"ws-{desk.id}-home-2"
        await tab.open_terminal()
        await runs(tab, "cat from-the-ide")
        await tab.reads("the answer is 42")
        stages["restored"] = snapshot(desk.home)

    assert len({digest(of_people(tree)) for tree in stages.values()}) == 1, "each stage has the same home"
    hashes = f"{digest(of_people(stages['archive']))[:16]} of {len(of_people(stages['archive']))} entries"
    tell(f"the home's hash at {', '.join(stages)}: {hashes}")
    said = desk.http.delete(desk.path, headers={"Content-Type": "application/json"})
    assert said.status_code == 202, said.text
    await until(lambda: desk.containers() == desk.volume == "", "its end")


async def writes_in_the_terminal(tab: Tab, desk: DockerWorkspace) -> None:
    await tab.open_terminal()
    await runs(tab, "echo the answer is $((6 * 7)) > from-the-ide")
    written = desk.home / "from-the-ide"
    await until(lambda: written.exists() and written.read_text() == "the answer is 42\n", "the file")


async def falls_asleep(desk: DockerWorkspace, *, waits: bool) -> None:
    if not waits:
        await rests(desk, FLUSHED)  # what was typed last has arrived: it would be newer than the time we make
        await desk.time_passes(TTL, "last_access_at", "phase_changed_at")
    change(desk, standby_ttl_seconds=None)
    await desk.becomes("STANDBY")
    change(desk, standby_ttl_seconds=0)


async def is_archived(desk: DockerWorkspace, *, waits: bool) -> None:
    if not waits:
        await desk.time_passes(TTL, "phase_changed_at")
    change(desk, archive_ttl_seconds=None)
    await desk.becomes("ARCHIVED")
