"""Old records go, the newest of each story stay, and only the present leader may let them go: on every database."""

from uuid import uuid4

import pytest

from codehub.adapters.memory import MemoryAccountDatabase, MemoryDatabase
from codehub.adapters.postgres import PostgresDatabase, connections
from codehub.domain.errors import Stale
from codehub.ports.accounts import SessionRules
from codehub.ports.stores import KEPT_ENTRIES
from tests.contracts.account_stores import ROOT, AccountStores, person
from tests.contracts.databases import ANN, Database, new_term, setting, stored

FUTURE = -3600.0
"""Everything is older than an hour from now."""


def stores_of(database: Database) -> AccountStores:
    if isinstance(database, MemoryDatabase):
        return MemoryAccountDatabase(database.state.accounts)
    assert isinstance(database, PostgresDatabase)
    return database


async def with_entries(database: Database, entries: int) -> list[str]:
    """Stores a workspace with so many ledger entries: its desired states, newest first, after its creation."""
    row = await stored(database)
    for number in range(entries - 1):
        wish = ("STANDBY", "ARCHIVED")[number % 2]
        await database.specs().change(row.id, setting(desired_state=wish), ANN, reason=f"wish {number}")
    told = [entry.reason for entry in await database.ledger().entries(row.id, 1000)]
    assert len(told) == entries
    return told


async def reasons(database: Database) -> list[list[str]]:
    rows = sorted((await database.collector().read()).workspaces, key=lambda row: row.created_at)
    return [[entry.reason for entry in await database.ledger().entries(row.id, 1000)] for row in rows]


async def test_the_newest_entries_of_each_workspace_stay(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "BATCH", 7)
    long_story, short_story = await with_entries(database, KEPT_ENTRIES + 17), await with_entries(database, 3)
    async with new_term(database) as epoch:
        assert await database.ledger().forget_older(3600, epoch) == 0
        assert await database.ledger().forget_older(FUTURE, epoch) == 17
        assert await database.ledger().forget_older(FUTURE, epoch) == 0
    assert await reasons(database) == [long_story[:KEPT_ENTRIES], short_story]


async def test_a_leader_of_yesterday_forgets_nothing(database: Database) -> None:
    await with_entries(database, KEPT_ENTRIES + 1)
    stores = stores_of(database)
    ann = await person(stores)
    await stores.idempotency_keys().claim(ann.id, "key", b"hash", uuid4())
    await stores.accounts().open_session("ab" * 32, ann.id, SessionRules(), ROOT)
    ended = SessionRules(idle_seconds=FUTURE)
    async with new_term(database) as before:
        pass
    async with new_term(database) as epoch:
        for stale in (
            database.ledger().forget_older(FUTURE, before),
            stores.audit().forget_older(FUTURE, before),
            stores.idempotency_keys().forget_older(FUTURE, before),
            stores.accounts().forget_expired(ended, before),
        ):
            with pytest.raises(Stale):
                await stale
        assert await database.ledger().forget_older(FUTURE, epoch) == 1
        assert await stores.audit().forget_older(FUTURE, epoch) == 2
        assert await stores.idempotency_keys().forget_older(FUTURE, epoch) == 1
        assert await stores.accounts().forget_expired(ended, epoch) == 1


async def test_many_old_rows_go_in_batches(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "BATCH", 3)
    stores = stores_of(database)
    ann = await person(stores)
    for number in range(7):
        await stores.audit().append(ROOT, "act", f"thing {number}")
        await stores.idempotency_keys().claim(ann.id, f"key {number}", b"hash", uuid4())
    assert await stores.audit().forget_older(FUTURE) == 8
    assert await stores.idempotency_keys().forget_older(FUTURE) == 7
    assert await stores.audit().entries() == []
