"""A front door on the event loop it runs on in earnest, before workspaces that are real servers."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping

import pytest
import uvloop

from tests.proxy.doors import Door
from tests.proxy.workspaces import Workspace


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    return {"uvloop": uvloop.new_event_loop}


@pytest.fixture
async def workspace() -> AsyncIterator[Workspace]:
    async with Workspace() as workspace:
        yield workspace


@pytest.fixture
async def door(workspace: Workspace) -> AsyncIterator[Door]:
    async with Door(workspace.endpoint) as door:
        yield door
