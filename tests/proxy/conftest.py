"""A proxy on the event loop that it runs on in production, before workspaces that are real servers."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping

import pytest
import uvloop

from tests.proxy.fake_workspace import FakeWorkspace
from tests.proxy.harness import ProxyHarness


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    return {"uvloop": uvloop.new_event_loop}


@pytest.fixture
async def workspace() -> AsyncIterator[FakeWorkspace]:
    async with FakeWorkspace() as workspace:
        yield workspace


@pytest.fixture
async def proxy(workspace: FakeWorkspace) -> AsyncIterator[ProxyHarness]:
    async with ProxyHarness(workspace.endpoint) as proxy:
        yield proxy
