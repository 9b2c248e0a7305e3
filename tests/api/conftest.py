"""The API in memory for every test that asks, with users in it."""

from collections.abc import AsyncIterator

import pytest

from codehub.domain.identity import Role
from tests.api.memory_api import ApiUser, MemoryApi, memory_api


@pytest.fixture
async def api() -> AsyncIterator[MemoryApi]:
    async with memory_api() as opened:
        yield opened


@pytest.fixture
async def ann(api: MemoryApi) -> ApiUser:
    return await api.person("ann")


@pytest.fixture
async def bob(api: MemoryApi) -> ApiUser:
    return await api.person("bob")


@pytest.fixture
async def admin(api: MemoryApi) -> ApiUser:
    return await api.person("root", Role.ADMIN)
