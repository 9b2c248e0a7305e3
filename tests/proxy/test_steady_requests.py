"""Requests through the whole front door: those at a steady period soon reach the store of activity no more."""

from collections.abc import AsyncIterator

import pytest

from codehub.adapters.system import SystemClock
from tests.proxy.hub import Hub, hub_on


class MovedClock(SystemClock):
    """Requests are timed by it, and it stands still unless moved."""

    at = 0.0

    def monotonic(self) -> float:
        return self.at


@pytest.fixture
async def hub() -> AsyncIterator[Hub]:
    async with hub_on() as opened:
        yield opened


@pytest.mark.parametrize("port", [None, 3000])
async def test_requests_at_a_steady_period_count_no_more_and_others_do(hub: Hub, port: int | None) -> None:
    ann = await hub.person()
    demo = await hub.workspace(ann)
    hub.runtime.state.listen(demo.id, 3000, hub.ide.endpoint)
    activities = hub.door.activities
    clock = activities._clock = MovedClock()

    async def counts(path: str) -> bool:
        assert (await hub.get(demo, path, ann, port=port)).status_code == 200
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


async def test_the_same_request_at_a_port_and_at_the_ide_are_two(hub: Hub) -> None:
    ann = await hub.person()
    demo = await hub.workspace(ann)
    hub.runtime.state.listen(demo.id, 3000, hub.ide.endpoint)
    clock = hub.door.activities._clock = MovedClock()
    for _ in range(12):
        clock.at += 10.0
        await hub.get(demo, "/poll", ann)
    hub.door.activities.tick()
    hub.door.activities._times.clear()
    await hub.get(demo, "/poll", ann)
    hub.door.activities.tick()
    assert hub.door.activities._times == {}
    await hub.get(demo, "/poll", ann, port=3000)
    hub.door.activities.tick()
    assert set(hub.door.activities._times) == {demo.id}
