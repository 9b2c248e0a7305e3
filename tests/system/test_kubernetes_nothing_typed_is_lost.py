"""Nothing typed is lost, on real Kubernetes, PostgreSQL, Redis and S3: rows of
tests/browser/end_to_end/test_nothing_typed_is_lost.py with a pod behind the editor.
"""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.browser.end_to_end import interruptions as rows
from tests.browser.end_to_end.browser_user import BrowserUser
from tests.browser.end_to_end.interruptions import Interruption, Notes, nothing_is_lost
from tests.chromium import chromium
from tests.kubernetes_cluster import KubernetesTestbed
from tests.proxy.recording.workbench import FILES
from tests.system.kubernetes_installation import KubernetesInstallation, kubernetes_installation

pytestmark = [pytest.mark.system, pytest.mark.kubernetes, pytest.mark.timeout(900)]


@pytest.fixture
async def hub(kubernetes_testbed: KubernetesTestbed, tmp_path: Path) -> AsyncIterator[KubernetesInstallation]:
    async with kubernetes_installation(kubernetes_testbed, tmp_path / "s3") as hub:
        yield hub


@pytest.fixture
async def notes(hub: KubernetesInstallation) -> AsyncIterator[Notes]:
    ann = hub.person()
    desk = await hub.desk(ann, "desk")
    rows.change(desk, standby_ttl_seconds=0)
    desk.inside(f"printf %s '{FILES['notes.txt']}' > notes.txt")
    async with chromium() as browser, BrowserUser.at(browser, hub) as user:
        await user.signs_in(ann)
        yield Notes(desk, await user.opens(desk.url))


@pytest.mark.parametrize("happens", [rows.stopped, rows.killed])
async def test_nothing_typed_is_lost(happens: Interruption, notes: Notes, hub: KubernetesInstallation) -> None:
    await nothing_is_lost(happens, notes, hub, rounds=1)
