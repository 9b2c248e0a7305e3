"""The leader hears whether workspaces are isolated, and tells the admins of each disturbance once."""

import asyncio

from codehub.domain.notices import isolation_broken, isolation_restored
from tests.coordinator.harness import CoordinatorHarness, in_virtual_time


@in_virtual_time
async def test_each_disorder_is_told_and_one_that_lasts_only_once() -> None:
    harness = await CoordinatorHarness.open()
    leading = asyncio.create_task(harness.term_runner.run())
    await asyncio.sleep(1)
    state = harness.states.runtime
    state.disturb_isolation("missing: -A INPUT", holds=True)
    for _ in range(3):
        state.disturb_isolation("iptables does not work", holds=False)
    state.disturb_isolation("missing: -A INPUT", holds=True)
    state.disturb_isolation("iptables does not work", holds=False)
    await asyncio.sleep(1)
    told = harness.notifier.notices
    assert told == [
        isolation_restored("missing: -A INPUT"),
        isolation_broken("iptables does not work"),
        isolation_restored("missing: -A INPUT"),
        isolation_broken("iptables does not work"),
    ]
    leading.cancel()
    await asyncio.gather(leading, return_exceptions=True)


@in_virtual_time
async def test_leftovers_are_removed_by_the_leader_now_and_then() -> None:
    harness = await CoordinatorHarness.open()
    harness.states.runtime.orphans = 3
    leading = asyncio.create_task(harness.term_runner.run())
    await asyncio.sleep(60)
    assert harness.states.runtime.orphans == 0
    assert harness.network.calls.count("runtime.remove_orphans") <= 5
    leading.cancel()
    await asyncio.gather(leading, return_exceptions=True)
