"""A place on the real cluster for each test that asks for one."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.contracts.places import KubernetesPlace
from tests.kubernetes_cluster import KubernetesTestbed


@pytest.fixture
async def place(kubernetes_testbed: KubernetesTestbed, tmp_path: Path) -> AsyncIterator[KubernetesPlace]:
    found = KubernetesPlace(kubernetes_testbed, tmp_path)
    yield found
    await found.close()
