"""The TTL runner: warn, then sleep; in doubt nobody is stopped, and a fresh wake always wins."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest

from codehub.coordinator.context import Tuning
from codehub.domain.errors import Unreachable
from codehub.domain.idle import IdlePolicy
from codehub.domain.workspace import Desired, Operation, Phase, Workspace
from tests.coordinator.harness import FAILS, PERSON, CoordinatorHarness, in_virtual_time, now
from tests.rows import NOW, WORKSPACE_ID, busy, with_home

TTL = 600
POLICY = IdlePolicy(standby_ttl=TTL, archive_ttl=1800, flush_seconds=30)


def running(**changes: Any) -> Workspace:
    wanted: dict[str, Any] = {
        "phase": Phase.RUNNING,
        "desired_state": Desired.RUNNING,
        "phase_changed_at": NOW,
        "last_access_at": NOW,
    }
    return with_home(**(wanted | changes))


async def opened(row: Workspace, policy: IdlePolicy = POLICY) -> CoordinatorHarness:
    harness = await CoordinatorHarness.open(Tuning(idle=policy))
    harness.place(row, volume=(1,), container=row.phase is Phase.RUNNING)
    return harness


async def tick_until(harness: CoordinatorHarness, seconds: float) -> float | None:
    """Tick once a minute; returns when the desired state was lowered, or None."""
    ttl, before = harness.term_runner.ttl, harness.row.desired_state
    while asyncio.get_running_loop().time() < seconds:
        await asyncio.sleep(60)
        await ttl.tick()
        if harness.row.desired_state is not before:
            return asyncio.get_running_loop().time()
    return None


async def warnings(harness: CoordinatorHarness) -> AsyncIterator[tuple[float, str]]:
    async for message in harness.dependencies.bus.subscribe("codehub:sse:ann"):
        if message["type"] == "idle_warning":
            yield asyncio.get_running_loop().time(), message["becomes"]


CASES: dict[str, tuple[Workspace, IdlePolicy, Desired | None]] = {
    "idle in RUNNING": (running(), POLICY, Desired.STANDBY),
    "idle in STANDBY": (
        with_home(desired_state=Desired.STANDBY, phase_changed_at=NOW),
        POLICY,
        Desired.ARCHIVED,
    ),
    "its own TTL": (running(standby_ttl_seconds=120), IdlePolicy(0, 0), Desired.STANDBY),
    "never, by its own TTL": (running(standby_ttl_seconds=0), POLICY, None),
    "never, by the default": (running(), IdlePolicy(0, 0), None),
    "used all the time, but too old": (
        running(last_access_at=NOW + timedelta(days=1)),
        IdlePolicy(TTL, 0, max_lifetime=1200),
        Desired.STANDBY,
    ),
    "an operation under way": (busy(running(), Operation.STOPPING), POLICY, None),
    "another wish": (running(desired_state=Desired.STANDBY), POLICY, None),
    "a pending restore": (running(restore_from="k", restore_requested_at=NOW), POLICY, None),
}


@pytest.mark.parametrize(("row", "policy", "becomes"), CASES.values(), ids=CASES.keys())
@in_virtual_time
async def test_who_is_put_to_sleep(row: Workspace, policy: IdlePolicy, becomes: Desired | None) -> None:
    harness = await opened(row, policy)
    await tick_until(harness, 3600)
    assert harness.row.desired_state is (becomes or row.desired_state)
    assert harness.row.desired_by == ("ttl" if becomes else "")


@in_virtual_time
async def test_it_warns_twice_and_then_sleeps() -> None:
    harness = await opened(running())
    heard: list[tuple[float, str]] = []

    async def listen() -> None:
        async for warning in warnings(harness):
            heard.append(warning)  # noqa: PERF401 - heard one by one, until cancelled

    listening = asyncio.create_task(listen())
    slept = await tick_until(harness, 3600)
    listening.cancel()
    assert slept is not None
    assert slept >= TTL + POLICY.flush_seconds
    (first, _), (last, _) = heard
    assert (slept - first, slept - last) == (300, 120)
    assert {becomes for _, becomes in heard} == {"STANDBY"}


@in_virtual_time
async def test_a_warning_that_could_not_be_sent_was_not_given() -> None:
    harness = await opened(running())
    harness.network.faults["bus"] = FAILS
    assert await tick_until(harness, 3600) is None
    del harness.network.faults["bus"]
    slept = await tick_until(harness, 7200)
    assert slept is not None
    assert slept >= 3600 + 120


@in_virtual_time
async def test_nobody_is_stopped_while_activity_cannot_be_read() -> None:
    harness = await opened(running())
    harness.network.faults["activity"] = FAILS
    for _ in range(60):
        await asyncio.sleep(60)
        with pytest.raises(Unreachable):
            await harness.term_runner.ttl.tick()
    assert harness.row.desired_state is Desired.RUNNING
    assert "db.idle_candidates" not in harness.network.calls


@in_virtual_time
async def test_activity_is_drained_into_the_row_and_newer_activity_stays() -> None:
    harness = await opened(running())
    activity = harness.states.signals.activity
    await asyncio.sleep(500)
    seen = now()
    activity[WORKSPACE_ID] = seen
    harness.network.meanwhile["activity.forget"] = lambda: activity.update({WORKSPACE_ID: seen + timedelta(seconds=1)})
    await harness.term_runner.ttl.tick()
    assert harness.row.last_access_at == seen
    assert activity == {WORKSPACE_ID: seen + timedelta(seconds=1)}
    await harness.term_runner.ttl.tick()
    assert activity == {}
    slept = await tick_until(harness, 3600)
    assert slept is not None
    assert slept >= 500 + TTL


@pytest.mark.parametrize(
    "meanwhile",
    [{"last_access_at": NOW + timedelta(hours=2)}, {"desired_state": Desired.ARCHIVED, "desired_by": "ann"}],
    ids=["somebody opened it", "somebody wished otherwise"],
)
@in_virtual_time
async def test_a_fresh_wish_wins(meanwhile: dict[str, Any]) -> None:
    harness = await opened(running())
    harness.network.meanwhile["db.change"] = harness.change(**meanwhile)
    await tick_until(harness, 3600)
    assert harness.network.meanwhile == {}
    assert {name: getattr(harness.row, name) for name in meanwhile} == meanwhile
    assert harness.row.desired_by != "ttl"


@pytest.mark.parametrize(
    ("row", "policy", "holds"),
    [
        (running(), POLICY, True),
        (with_home(desired_state=Desired.STANDBY, phase_changed_at=NOW), POLICY, True),
        (running(), IdlePolicy(TTL, 0, max_lifetime=1200), False),
    ],
    ids=["RUNNING", "STANDBY", "not against the maximum lifetime"],
)
@in_virtual_time
async def test_a_lease_holds_until_it_ends(row: Workspace, policy: IdlePolicy, holds: bool) -> None:
    harness = await opened(row, policy)
    await harness.dependencies.specs.hold(WORKSPACE_ID, "make train", NOW + timedelta(hours=3))
    slept = await tick_until(harness, 24 * 3600)
    assert slept is not None
    assert (slept >= 3 * 3600) is holds


@in_virtual_time
async def test_a_lease_that_comes_during_the_tick_holds() -> None:
    """Somebody answers the last warning while others are being stopped."""
    harness = await opened(running())

    def answers_the_warning() -> None:
        with contextlib.suppress(StopIteration):  # nothing of it waits
            harness.dependencies.specs.hold(WORKSPACE_ID, "ann", now() + timedelta(hours=3)).send(None)

    harness.network.meanwhile["db.change"] = answers_the_warning
    slept = await tick_until(harness, 24 * 3600)
    assert slept is not None
    assert slept >= 3 * 3600


@in_virtual_time
async def test_an_explicit_wish_needs_no_timer() -> None:
    """A lease holds timers, not people."""
    harness = await opened(running())
    await harness.dependencies.specs.hold(WORKSPACE_ID, "make train", NOW + timedelta(hours=3))
    await harness.commands.want(WORKSPACE_ID, Desired.STANDBY, PERSON)
    await harness.converge()
    assert harness.row.phase is Phase.STANDBY
