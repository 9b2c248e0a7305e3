"""Requests through the whole proxy: those at a steady period soon reach the store of activity no more."""

from collections.abc import AsyncIterator

import pytest

from codehub.adapters.system import SystemClock
from tests.proxy.deployment import Deployment, deployed


class MovedClock(SystemClock):
    """A clock that requests are timed by, and that stands still unless moved."""

    at = 0.0

    def monotonic(self) -> float:
        return self.at


@pytest.fixture
async def deployment() -> AsyncIterator[Deployment]:
    """One that writes no activity by itself."""
    async with deployed() as opened:
        opened.proxy.activities._flush_seconds = float("inf")
        yield opened


@pytest.mark.parametrize("port", [None, 3000])
async def test_requests_at_a_steady_period_count_no_more_and_others_do(
    deployment: Deployment, port: int | None
) -> None:
    ann = await deployment.person()
    demo = await deployment.workspace(ann)
    deployment.runtime.state.listen(demo.id, 3000, deployment.ide.endpoint)
    activities = deployment.proxy.activities
    clock = activities._clock = MovedClock()

    async def counts(path: str) -> bool:
        assert (await deployment.get(demo, path, ann, port=port)).status_code == 200
        activities.tick()
        found = bool(activities._times)
        activities._times.clear()
        return found

    found = []
    for number in range(12):
        clock.at += 10.0
        found.append(await counts(f"/api/kernels?{number}"))
    assert found == [True] * 4 + [False] * 8
    assert await counts("/api/contents")
    assert not await counts("/api/kernels?12")  # at once after the last


async def test_the_same_request_at_a_port_and_at_the_ide_are_two(deployment: Deployment) -> None:
    ann = await deployment.person()
    demo = await deployment.workspace(ann)
    deployment.runtime.state.listen(demo.id, 3000, deployment.ide.endpoint)
    clock = deployment.proxy.activities._clock = MovedClock()
    for _ in range(12):
        clock.at += 10.0
        await deployment.get(demo, "/poll", ann)
    deployment.proxy.activities.tick()
    deployment.proxy.activities._times.clear()
    await deployment.get(demo, "/poll", ann)
    deployment.proxy.activities.tick()
    assert deployment.proxy.activities._times == {}
    await deployment.get(demo, "/poll", ann, port=3000)
    deployment.proxy.activities.tick()
    assert set(deployment.proxy.activities._times) == {demo.id}
