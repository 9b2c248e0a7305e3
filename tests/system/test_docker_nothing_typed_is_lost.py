"""Nothing typed is lost, on real Docker, PostgreSQL, Redis and S3: the rows of
tests/browser/end_to_end/test_nothing_typed_is_lost.py with a container behind the editor.
"""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.browser.end_to_end import interruptions as rows
from tests.browser.end_to_end.browser_user import BrowserUser
from tests.browser.end_to_end.interruptions import Interruption, Notes, nothing_is_lost
from tests.chromium import chromium
from tests.conftest import Tell
from tests.docker_engine import DockerTestbed
from tests.proxy.recording.workbench import FILES
from tests.system.docker_installation import DockerInstallation, docker_installation

pytestmark = [pytest.mark.system, pytest.mark.timeout(900)]

IN_THE_LONG_TIER = (
    *(rows.stopped, rows.saved_by_a_stop, rows.killed, rows.archived, rows.idle, rows.lid_closed, rows.machine_silent),
    *(rows.front_door_killed, rows.api_silent, rows.everything_restarted, rows.cut_off),
)


@pytest.fixture
async def hub(docker_testbed: DockerTestbed, tmp_path: Path) -> AsyncIterator[DockerInstallation]:
    async with docker_installation(tmp_path / "s3") as hub:
        yield hub


@pytest.fixture
async def notes(hub: DockerInstallation, tmp_path: Path) -> AsyncIterator[Notes]:
    ann = hub.person()
    desk = await hub.desk(ann, "desk")
    rows.change(desk, standby_ttl_seconds=0)
    desk.inside(f"printf %s '{FILES['notes.txt']}' > notes.txt")
    async with chromium() as browser, BrowserUser.at(browser, hub) as user:
        await user.signs_in(ann)
        yield Notes(desk, await user.opens(desk.url))


async def test_nothing_typed_is_lost(notes: Notes, hub: DockerInstallation) -> None:
    await nothing_is_lost(rows.stopped, notes, hub, rounds=1)


@pytest.mark.long
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("happens", IN_THE_LONG_TIER)
async def test_nothing_typed_is_lost_in_ten_rounds(
    happens: Interruption, notes: Notes, hub: DockerInstallation, tell: Tell
) -> None:
    await nothing_is_lost(happens, notes, hub, rounds=10)
    tell(f"Docker, {happens.__name__} 10 times: all that was typed is on disk")
