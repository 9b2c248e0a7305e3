"""A running CodeHub and a browser for every test that asks."""

from collections.abc import AsyncIterator

import pytest

from codehub.adapters.postgres import migrate
from codehub.domain.identity import Role
from tests.browser.hub import Hub, Visitor, running_hub


@pytest.fixture
async def hub(fresh_database: str, fresh_redis: str) -> AsyncIterator[Hub]:
    await migrate(fresh_database)
    async with running_hub(fresh_database, fresh_redis, MAX_RUNNING_PER_USER="3") as running:
        yield running


@pytest.fixture
async def ann(hub: Hub) -> Visitor:
    return await hub.visitor("ann")


@pytest.fixture
async def admin(hub: Hub) -> Visitor:
    return await hub.visitor("root", Role.ADMIN)
