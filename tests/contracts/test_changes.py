"""ChangeFeed: what was committed is told, on every database."""

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from typing import Any

import asyncpg
import pytest

from codehub.adapters.postgres import PostgresDatabase, connections
from codehub.domain.errors import ErrorReason, Refused, Unreachable
from codehub.domain.workspace import (
    PUBLISHED_FIELDS,
    SPEC_FIELDS,
    STATUS_FIELDS,
    WAKING_FIELDS,
    Condition,
    Conditions,
    Desired,
    HomeContext,
    Operation,
    Phase,
    Progress,
    RecoverAction,
    Workspace,
)
from codehub.ports.signals import Change, Channel
from tests.contracts.databases import ANN, Database, as_given, fresh, setting, stored
from tests.contracts.test_leadership import network_to_postgres
from tests.rows import NOW, OP_ID, OTHER_OP_ID, error_info

SSE, WAKE, DELETED = Channel.SSE, Channel.WAKE, Channel.DELETED

OTHER_ERROR = error_info(ErrorReason.UNREACHABLE)
BEFORE: dict[str, Any] = {
    "recover_action": RecoverAction.RETRY,
    "op_id": OP_ID,
    "op_started_at": NOW,
    "error_reason": ErrorReason.TIMEOUT,
    "error_info": error_info(ErrorReason.TIMEOUT),
}
AFTER: dict[str, Any] = dict.fromkeys(
    (name for name in (*SPEC_FIELDS, *STATUS_FIELDS) if name.endswith("_at")), NOW + timedelta(seconds=1)
) | {
    "owner_id": "bob",
    "name": "new",
    "slug": "new-address",
    "description": "new",
    "memo": "new",
    "template": "new",
    "runtime": "docker",
    "git_url": "https://example.org/new.git",
    "git_ref": "release/1.2",
    "desired_state": Desired.RUNNING,
    "desired_by": "bob",
    "recover_action": RecoverAction.EMPTY_HOME,
    "restore_from": "key",
    "standby_ttl_seconds": 7,
    "archive_ttl_seconds": 7,
    "image_ref": "new",
    "conditions": Conditions(volume_ready=Condition(None, "Odd")),
    "phase": Phase.STANDBY,
    "operation": Operation.STARTING,
    "op_id": OTHER_OP_ID,
    "op_progress": Progress(1, 1),
    "op_excused_seconds": 1.0,
    "archive_op_id": OP_ID,
    "archive_key": "key",
    "home_store_key": "volume",
    "home": HomeContext(incarnation=7),
    "error_reason": OTHER_ERROR.reason,
    "error_count": 7,
    "error_info": replace(error_info(ErrorReason.TIMEOUT), message="other words"),
}
"""For each field, a value that a row from `stored(**BEFORE)` does not have."""


class RecordedProgress:
    """Listens in the background. A write nobody else makes marks how far the feed has come."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self.changes: list[Change] = []

    async def listen(self) -> None:
        async for change in self._database.changes().changes():
            self.changes.append(change)

    async def until_now(self) -> list[Change]:
        """Everything heard since the last call, except the marks."""
        mark = (await self._database.specs().create(fresh(owner_id="mark"), as_given, ANN)).id
        async with asyncio.timeout(10):
            while not any(change.workspace_id == mark for change in self.changes):
                await asyncio.sleep(0.01)
        found = [change for change in self.changes if change.owner_id != "mark"]
        self.changes.clear()
        return found


@asynccontextmanager
async def hearing(database: Database) -> AsyncIterator[RecordedProgress]:
    heard = RecordedProgress(database)
    listening = asyncio.ensure_future(heard.listen())
    async with asyncio.timeout(10):
        while not heard.changes:  # until the feed is up, nothing is promised
            await database.specs().create(fresh(owner_id="mark"), as_given, ANN)
            await asyncio.sleep(0.02)
    await heard.until_now()
    try:
        yield heard
    finally:
        listening.cancel()
        await asyncio.gather(listening, return_exceptions=True)


def told(changes: list[Change]) -> set[Channel]:
    assert len(changes) == len(set(changes))
    return {change.channel for change in changes}


async def test_a_new_workspace_is_told_to_its_owner_and_wakes(database: Database) -> None:
    async with hearing(database) as heard:
        row = await stored(database, owner_id="bob")
        assert set(await heard.until_now()) == {Change(SSE, row.id, "bob"), Change(WAKE, row.id, "bob")}


@pytest.mark.parametrize(
    ("changes", "channels"),
    [
        ({"desired_state": Desired.RUNNING}, {SSE, WAKE}),
        ({"recover_action": RecoverAction.RETRY, "recover_requested_at": NOW}, {SSE, WAKE}),
        ({"restore_from": "k", "restore_requested_at": NOW}, {SSE, WAKE}),
        ({"undelete_requested_at": NOW}, {SSE, WAKE}),
        ({"name": "new"}, {SSE}),
        ({"description": "new"}, {SSE}),
        ({"memo": "new"}, {SSE}),
        ({"last_access_at": NOW}, {SSE}),
        ({"deleted_at": NOW}, {SSE, DELETED}),
        ({"desired_by": "bob"}, set()),
    ],
)
async def test_what_people_write_is_told(database: Database, changes: dict[str, Any], channels: set[Channel]) -> None:
    row = await stored(database)
    async with hearing(database) as heard:
        await database.specs().change(row.id, setting(**changes), ANN)
        assert told(await heard.until_now()) == channels


@pytest.mark.parametrize(
    ("changes", "channels"),
    [
        ({"phase": Phase.STANDBY}, {SSE}),
        ({"operation": Operation.STARTING, "op_id": OP_ID, "op_started_at": NOW}, {SSE}),
        ({"op_progress": Progress(1, 1)}, {SSE}),
        ({"conditions": Conditions(volume_ready=Condition(None, "Odd"))}, {SSE}),
        ({"error_reason": ErrorReason.TIMEOUT, "error_info": error_info(ErrorReason.TIMEOUT)}, {SSE}),
        ({"observed_at": NOW, "recover_handled_at": NOW, "op_excused_seconds": 1.0}, set()),
    ],
)
async def test_what_the_controller_writes_is_told(
    database: Database, changes: dict[str, Any], channels: set[Channel]
) -> None:
    row = await stored(database)
    async with hearing(database) as heard:
        await database.statuses(0).record(row, replace(row, **changes))
        assert told(await heard.until_now()) == channels


async def test_each_field_is_published_as_the_domain_lists_it(database: Database) -> None:
    published: dict[str, set[Channel]] = {}
    expected: dict[str, set[Channel]] = {}
    async with hearing(database) as heard:
        for name in (*SPEC_FIELDS, *STATUS_FIELDS):
            row = await stored(database, **BEFORE | ({"deleted_at": NOW} if name == "purged_at" else {}))
            await heard.until_now()
            changes = {name: AFTER[name]} | ({"error_info": OTHER_ERROR} if name == "error_reason" else {})
            if name in SPEC_FIELDS:
                await database.specs().change(row.id, setting(**changes), ANN)
            else:
                await database.statuses(0).record(row, replace(row, **changes))
            published[name] = told(await heard.until_now())
            expected[name] = _channels(name, rest_changed=replace(row, **changes).is_at_rest != row.is_at_rest)
    assert published == expected


def _channels(name: str, *, rest_changed: bool) -> set[Channel]:
    channels = {SSE: PUBLISHED_FIELDS, WAKE: WAKING_FIELDS, DELETED: ("deleted_at",)}
    names = {name, "is_at_rest"} if rest_changed else {name}
    return {channel for channel, listed in channels.items() if not names.isdisjoint(listed)}


@pytest.mark.system
async def test_the_trigger_s_columns_are_the_domain_s(postgres: PostgresDatabase) -> None:
    """Also for columns that no single write can change alone, such as an error's reason."""
    async with postgres.sessions.reading() as connection:
        source: str = await connection.fetchval("SELECT prosrc FROM pg_proc WHERE proname = 'tell_workspace'")
    compared = [
        (re.findall(r"NEW\.(\w+)", new), re.findall(r"OLD\.(\w+)", old))
        for new, old in re.findall(r"IF \((NEW[^)]*)\)\s+IS DISTINCT FROM\s+\((OLD[^)]*)\)", source)
    ]
    columns = tuple("at_rest" if name == "is_at_rest" else name for name in PUBLISHED_FIELDS)
    assert [tuple(new) for new, _old in compared] == [columns, WAKING_FIELDS]
    assert [new == old for new, old in compared] == [True, True]


async def test_deletion_is_told_both_ways(database: Database) -> None:
    row = await stored(database, deleted_at=NOW)
    async with hearing(database) as heard:
        await database.specs().change(row.id, setting(deleted_at=None), ANN)
        assert set(await heard.until_now()) == {Change(SSE, row.id, "ann"), Change(DELETED, row.id, "ann")}


async def test_observations_and_access_are_told_each(database: Database) -> None:
    rows = [await stored(database) for _ in range(3)]
    async with hearing(database) as heard:
        pairs = [(row, replace(row, phase=Phase.STANDBY)) for row in rows]
        await database.statuses(0).record_observations(pairs)
        assert {change.workspace_id for change in await heard.until_now()} == {row.id for row in rows}
        await database.specs().touch({row.id: NOW for row in rows[:2]}, ANN)
        assert {change.workspace_id for change in await heard.until_now()} == {row.id for row in rows[:2]}


async def test_what_was_not_committed_is_not_told(database: Database) -> None:
    def refuse(row: Workspace, *_rest: object) -> Workspace:
        raise Refused("no")

    async with hearing(database) as heard:
        with pytest.raises(Refused):
            await database.specs().create(fresh(), refuse, ANN)
        assert await heard.until_now() == []


async def test_two_listeners_hear_the_same(database: Database) -> None:
    async with hearing(database) as one, hearing(database) as other:
        await one.until_now()
        other.changes.clear()
        row = await stored(database)
        assert {change.workspace_id for change in await one.until_now()} == {row.id}
        assert {change.workspace_id for change in await other.until_now()} == {row.id}


# ── PostgreSQL alone ─────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.system
async def test_a_lost_connection_is_unreachable(postgres: PostgresDatabase) -> None:
    feed = postgres.changes().changes()
    listening = asyncio.ensure_future(anext(feed))
    async with postgres.sessions.reading() as connection:
        async with asyncio.timeout(10):
            while not await _end_listeners(connection):
                await asyncio.sleep(0.02)
    with pytest.raises(Unreachable):
        await asyncio.wait_for(listening, 5)


async def _end_listeners(connection: Any) -> bool:
    ended: bool = await connection.fetchval(
        "SELECT coalesce(bool_or(pg_terminate_backend(pid)), false) FROM pg_stat_activity "
        "WHERE application_name = 'codehub changes' AND query LIKE 'LISTEN%' AND datname = current_database()"
    )
    return ended


@pytest.mark.system
async def test_a_silent_network_is_unreachable(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "SIGN_OF_LIFE_SECONDS", 2.0)
    async with network_to_postgres(database_url) as (network, url), await PostgresDatabase.open(url) as database:
        up = asyncio.Event()
        listening = asyncio.ensure_future(anext(database.changes().changes(up.set)))
        await asyncio.wait_for(up.wait(), 30)
        await asyncio.sleep(5)  # quiet, and alive
        assert not listening.done()
        network.cut()
        with pytest.raises(Unreachable):
            await asyncio.wait_for(listening, 30)


@pytest.mark.system
async def test_a_feed_without_database_is_unreachable() -> None:
    async with await PostgresDatabase.open("postgresql://nobody@127.0.0.1:1/none") as database:
        with pytest.raises(Unreachable):
            await anext(database.changes().changes())


@pytest.mark.system
async def test_payloads_are_ids_only(postgres: PostgresDatabase, database_url: str) -> None:
    payloads: list[str] = []
    connection: asyncpg.Connection[Any] = await asyncpg.connect(database_url)
    try:
        for channel in Channel:
            await connection.add_listener(channel.value, lambda *message: payloads.append(str(message[3])))
        row = await stored(postgres, memo="a secret")
        await postgres.specs().change(row.id, setting(deleted_at=NOW), ANN)
        await connection.fetchval("SELECT 1")
    finally:
        await connection.close()
    assert set(payloads) == {f'{{"id" : "{row.id}", "owner_id" : "ann"}}'}
