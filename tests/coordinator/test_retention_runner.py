"""The retention runner: each kind goes by its age, 0 is for ever, and only the present leader deletes."""

import asyncio
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from codehub.adapters.memory import MemoryAccountDatabase, MemoryDatabase
from codehub.coordinator.context import Tuning
from codehub.coordinator.process import TermRunner
from codehub.coordinator.retention_runner import RecordAges, Records, RetentionRunner
from codehub.domain.errors import Stale
from codehub.ports.stores import KEPT_ENTRIES, Actor
from codehub.telemetry import ROWS_FORGOTTEN
from tests.coordinator.harness import FAILS, CoordinatorHarness, in_virtual_time, now
from tests.rows import workspace

HOUR = 3600.0


def records(harness: CoordinatorHarness) -> Records:
    state = harness.states.database
    state.accounts.now = now
    people = MemoryAccountDatabase(state.accounts, harness.network)
    ledger = MemoryDatabase(state, harness.network).ledger()
    return Records(people.accounts(), people.audit(), people.idempotency_keys(), ledger)


async def with_old_records() -> CoordinatorHarness:
    harness = await CoordinatorHarness.open()
    found = records(harness)
    harness.place(workspace())
    placed = harness.states.database.ledger
    [first] = placed
    placed[:] = [first] * (KEPT_ENTRIES + 5)
    await found.audit.append(Actor("ann"), "act", "thing")
    harness.states.database.now = harness.states.database.accounts.now = lambda: now() + timedelta(days=1)
    return harness


def runner(harness: CoordinatorHarness, **ages: Any) -> RetentionRunner:
    return RetentionRunner(records(harness), RecordAges(**ages), harness.term.epoch, harness.metrics)


@in_virtual_time
async def test_each_kind_goes_by_its_own_age() -> None:
    harness = await with_old_records()
    sweeping = runner(harness, ledger=HOUR, audit=2 * HOUR)
    harness.states.database.accounts.now = lambda: now() + timedelta(hours=1.5)
    assert await sweeping.tick() == {"sessions": 0, "idempotency_keys": 0, "audit": 0, "ledger": 5}
    harness.states.database.accounts.now = lambda: now() + timedelta(hours=2.5)
    assert (await sweeping.tick())["audit"] == 1
    assert harness.metrics.registry.get_sample_value(ROWS_FORGOTTEN.name, {"kind": "ledger"}) == 5


@in_virtual_time
async def test_zero_is_for_ever() -> None:
    harness = await with_old_records()
    gone = await runner(harness, ledger=0, audit=0, idempotency_keys=0).tick()
    assert list(gone) == ["sessions"]
    assert len(harness.states.database.ledger) == KEPT_ENTRIES + 5


@in_virtual_time
async def test_one_kind_that_fails_does_not_keep_the_others() -> None:
    harness = await with_old_records()
    harness.network.faults["audit"] = FAILS
    gone = await runner(harness, ledger=HOUR, audit=HOUR).tick()
    assert (gone.get("audit"), gone["ledger"]) == (None, 5)


@in_virtual_time
async def test_a_term_that_is_over_forgets_nothing() -> None:
    harness = await with_old_records()
    sweeping = runner(harness, ledger=HOUR, audit=HOUR)
    await harness.term.resign()
    await harness.dependencies.leadership.campaign("somebody else")
    with pytest.raises(Stale):
        await sweeping.tick()
    assert len(harness.states.database.ledger) == KEPT_ENTRIES + 5


@pytest.mark.parametrize("interval", [10.0, 140.0])
@in_virtual_time
async def test_a_term_sweeps_by_itself_however_short_it_is(interval: float) -> None:
    harness = await with_old_records()
    tuning = Tuning(retention_interval=interval, ages=RecordAges(ledger=HOUR))
    term_runner = TermRunner(harness.term, replace(harness.dependencies, records=records(harness)), tuning)
    harness.states.database.accounts.now = lambda: now() + timedelta(days=1)
    running = asyncio.create_task(term_runner.run())
    await asyncio.sleep(15.0)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    placed = [entry for entry in harness.states.database.ledger if entry.reason == "placed"]
    assert 0 < len(placed) < KEPT_ENTRIES + 5
