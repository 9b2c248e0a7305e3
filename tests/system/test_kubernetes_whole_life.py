"""A whole life in a real browser, on real PostgreSQL, Redis, S3 and Kubernetes, as it is on Docker."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.conftest import Tell
from tests.kubernetes_cluster import KubernetesTestbed
from tests.system.kubernetes_installation import KubernetesInstallation, kubernetes_installation
from tests.system.test_docker_whole_life import lives

pytestmark = [pytest.mark.system, pytest.mark.kubernetes, pytest.mark.timeout(600)]


@pytest.fixture
async def hub(kubernetes_testbed: KubernetesTestbed, tmp_path: Path) -> AsyncIterator[KubernetesInstallation]:
    async with kubernetes_installation(kubernetes_testbed, tmp_path / "s3") as hub:
        yield hub


@pytest.mark.parametrize(
    "waits", [False, pytest.param(True, marks=pytest.mark.long)], ids=["time is moved", "by itself"]
)
async def test_a_whole_life_in_a_browser(waits: bool, hub: KubernetesInstallation, tmp_path: Path, tell: Tell) -> None:
    await lives(hub, tmp_path, tell, waits=waits)
