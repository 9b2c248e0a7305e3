"""A running CodeHub and a browser for every test that asks."""

from collections.abc import AsyncIterator

import pytest

from codehub.adapters.postgres.schema import migrate
from tests.browser.axe import axe_source
from tests.browser.hub import Hub, Visitor, chromium, running_hub
from tests.browser.stage import Stage, staged


@pytest.fixture
async def hub(fresh_database: str, fresh_redis: str) -> AsyncIterator[Hub]:
    await migrate(fresh_database)
    async with running_hub(fresh_database, fresh_redis, MAX_RUNNING_PER_USER="3") as running:
        yield running


@pytest.fixture
async def ann(hub: Hub) -> Visitor:
    return await hub.visitor("ann")


@pytest.fixture
async def stage() -> AsyncIterator[Stage]:
    async with chromium() as browser, staged(browser) as opened:
        yield opened


@pytest.fixture(scope="session")
def axe(pytestconfig: pytest.Config) -> str:
    assert pytestconfig.cache is not None
    return axe_source(pytestconfig.cache.mkdir("axe"))
