"""The retention runner: each kind by its age, never for ever, and in the name of the present leader."""

import asyncio
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from codehub.adapters.memory import MemoryAccountDatabase, MemoryDatabase
from codehub.coordinator.process import LeaderTerm
from codehub.coordinator.retention_runner import RecordAges, Records, RetentionRunner
from codehub.coordinator.tuning import Tuning
from codehub.domain.errors import Stale
from codehub.ports.stores import KEPT_ENTRIES, Actor
from codehub.telemetry import ROWS_FORGOTTEN
from tests.coordinator.workshop import FAILS, Workshop, in_virtual_time, now
from tests.rows import workspace

HOUR = 3600.0


def records(shop: Workshop) -> Records:
    state = shop.worlds.database
    state.people.now = now
    people = MemoryAccountDatabase(state.people, shop.network)
    ledger = MemoryDatabase(state, shop.network).ledger()
    return Records(people.accounts(), people.audit(), people.idempotency_keys(), ledger)


async def shop_with_old_records() -> Workshop:
    shop = await Workshop.open()
    found = records(shop)
    shop.place(workspace())
    placed = shop.worlds.database.ledger
    [first] = placed
    placed[:] = [first] * (KEPT_ENTRIES + 5)
    await found.audit.append(Actor("ann"), "act", "thing")
    shop.worlds.database.now = shop.worlds.database.people.now = lambda: now() + timedelta(days=1)
    return shop


def runner(shop: Workshop, **ages: Any) -> RetentionRunner:
    return RetentionRunner(records(shop), RecordAges(**ages), shop.term.epoch, shop.metrics)


@in_virtual_time
async def test_each_kind_goes_by_its_own_age() -> None:
    shop = await shop_with_old_records()
    sweeping = runner(shop, ledger=HOUR, audit=2 * HOUR)
    shop.worlds.database.people.now = lambda: now() + timedelta(hours=1.5)
    assert await sweeping.tick() == {"sessions": 0, "idempotency_keys": 0, "audit": 0, "ledger": 5}
    shop.worlds.database.people.now = lambda: now() + timedelta(hours=2.5)
    assert (await sweeping.tick())["audit"] == 1
    assert shop.metrics.registry.get_sample_value(ROWS_FORGOTTEN.name, {"kind": "ledger"}) == 5


@in_virtual_time
async def test_zero_is_for_ever() -> None:
    shop = await shop_with_old_records()
    gone = await runner(shop, ledger=0, audit=0, idempotency_keys=0).tick()
    assert list(gone) == ["sessions"]
    assert len(shop.worlds.database.ledger) == KEPT_ENTRIES + 5


@in_virtual_time
async def test_one_kind_that_fails_does_not_keep_the_others() -> None:
    shop = await shop_with_old_records()
    shop.network.faults["audit"] = FAILS
    gone = await runner(shop, ledger=HOUR, audit=HOUR).tick()
    assert (gone.get("audit"), gone["ledger"]) == (None, 5)


@in_virtual_time
async def test_a_term_that_is_over_forgets_nothing() -> None:
    shop = await shop_with_old_records()
    sweeping = runner(shop, ledger=HOUR, audit=HOUR)
    await shop.term.resign()
    await shop.outside.leadership.campaign("somebody else")
    with pytest.raises(Stale):
        await sweeping.tick()
    assert len(shop.worlds.database.ledger) == KEPT_ENTRIES + 5


@pytest.mark.parametrize("interval", [10.0, 140.0])
@in_virtual_time
async def test_a_reign_sweeps_by_itself_however_short_it_is(interval: float) -> None:
    shop = await shop_with_old_records()
    tuning = Tuning(retention_interval=interval, ages=RecordAges(ledger=HOUR))
    reign = LeaderTerm(shop.term, replace(shop.outside, records=records(shop)), tuning)
    shop.worlds.database.people.now = lambda: now() + timedelta(days=1)
    running = asyncio.create_task(reign.run())
    await asyncio.sleep(15.0)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    placed = [entry for entry in shop.worlds.database.ledger if entry.reason == "placed"]
    assert 0 < len(placed) < KEPT_ENTRIES + 5
