"""A running CodeHub and a browser for every test that asks."""

from collections.abc import AsyncIterator

import pytest

from codehub.adapters.postgres.schema import migrate
from tests.browser.axe import axe_source
from tests.browser.dashboard_harness import DashboardHarness, dashboard_harness
from tests.browser.deployment import DashboardUser, Deployment, running_deployment
from tests.chromium import chromium


@pytest.fixture
async def deployment(fresh_database: str, fresh_redis: str) -> AsyncIterator[Deployment]:
    await migrate(fresh_database)
    async with running_deployment(fresh_database, fresh_redis, MAX_RUNNING_PER_USER="3") as running:
        yield running


@pytest.fixture
async def ann(deployment: Deployment) -> DashboardUser:
    return await deployment.user("ann")


@pytest.fixture
async def harness() -> AsyncIterator[DashboardHarness]:
    async with chromium() as browser, dashboard_harness(browser) as opened:
        yield opened


@pytest.fixture(scope="session")
def axe(pytestconfig: pytest.Config) -> str:
    assert pytestconfig.cache is not None
    return axe_source(pytestconfig.cache.mkdir("axe"))
