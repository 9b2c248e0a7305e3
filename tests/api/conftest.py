"""A site in memory for every test that asks, with Ann in it."""

from collections.abc import AsyncIterator

import pytest

from codehub.domain.identity import Role
from tests.api.site import MemorySite, Person, memory_site


@pytest.fixture
async def site() -> AsyncIterator[MemorySite]:
    async with memory_site() as opened:
        yield opened


@pytest.fixture
async def ann(site: MemorySite) -> Person:
    return await site.person("ann")


@pytest.fixture
async def bob(site: MemorySite) -> Person:
    return await site.person("bob")


@pytest.fixture
async def admin(site: MemorySite) -> Person:
    return await site.person("root", Role.ADMIN)
