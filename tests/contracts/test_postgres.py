"""PostgreSQL alone: what happens when it does not answer, when a row is bad, and when a text cannot be stored."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any
from uuid import uuid4

import asyncpg
import pytest

from codehub.adapters.postgres import PostgresDatabase
from codehub.adapters.postgres.connections import DatabaseTimeouts
from codehub.domain.errors import BackendError, ErrorReason, Unreachable
from codehub.domain.workspace import Condition, Conditions, Operation, Phase
from tests.contracts.databases import ANN, as_given, fresh, setting, stored
from tests.contracts.test_leadership import network_to_postgres
from tests.eventually import eventually
from tests.rows import NOW, error_info

pytestmark = pytest.mark.system

ROW = fresh()
CALLS: dict[str, Callable[[PostgresDatabase], Awaitable[object]]] = {
    "create": lambda db: db.specs().create(ROW, as_given, ANN),
    "change": lambda db: db.specs().change(ROW.id, as_given, ANN, admission=True),
    "get": lambda db: db.specs().get(ROW.id),
    "touch": lambda db: db.specs().touch({ROW.id: NOW}, ANN),
    "hold": lambda db: db.specs().hold(ROW.id, "job", NOW),
    "leases": lambda db: db.specs().leases(),
    "release_leases": lambda db: db.specs().release_leases(ROW.id, ANN),
    "idle_candidates": lambda db: db.specs().idle_candidates(),
    "versions": lambda db: db.statuses(0).versions(),
    "active": lambda db: db.statuses(0).active(),
    "load": lambda db: db.statuses(0).load([ROW.id]),
    "record": lambda db: db.statuses(0).record(ROW, replace(ROW, error_count=1)),
    "record_observations": lambda db: db.statuses(0).record_observations([(ROW, replace(ROW, error_count=1))]),
    "pass_safe_point": lambda db: db.statuses(0).pass_safe_point(ROW),
    "restore_points": lambda db: db.statuses(0).restore_points(ROW.id),
    "release_restore_points": lambda db: db.statuses(0).release_restore_points(ROW),
    "entries": lambda db: db.ledger().entries(ROW.id),
    "collector": lambda db: db.collector().read(),
}


async def execute(url: str, statement: str, *values: object) -> None:
    connection = await asyncpg.connect(url)
    try:
        await connection.execute(statement, *values)
    finally:
        await connection.close()


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS.keys())
async def test_no_server_is_unreachable(call: Callable[[PostgresDatabase], Awaitable[object]]) -> None:
    async with await PostgresDatabase.open("postgresql://nobody@127.0.0.1:1/none") as database:
        with pytest.raises(Unreachable, match="PostgreSQL does not answer"):
            await call(database)


async def test_a_wrong_password_and_a_missing_database_are_unreachable(database_url: str) -> None:
    missing = database_url.replace("/test_", "/none_")
    for url in (missing, database_url.replace("codehub:", "codehub:wrong")):
        async with await PostgresDatabase.open(url) as database:
            with pytest.raises(Unreachable):
                await database.specs().leases()


async def test_a_server_that_ended_our_connections_is_asked_anew(postgres: PostgresDatabase, database_url: str) -> None:
    await postgres.specs().leases()
    end = (
        "SELECT pg_terminate_backend(pid, 60000) FROM pg_stat_activity WHERE datname = current_database() "
        "AND pid <> pg_backend_pid()"
    )
    await execute(database_url, end)
    await eventually(lambda: postgres.sessions._pool.get_size() == 0)
    assert await postgres.specs().leases() == {}


async def test_a_connection_that_breaks_inside_a_write_leaves_nothing(
    postgres: PostgresDatabase, database_url: str
) -> None:
    row = await stored(postgres)

    async def broken_write() -> None:
        async with postgres.sessions.writing() as connection:
            await connection.execute("UPDATE workspaces SET memo = 'half' WHERE id = $1", row.id)
            pid = await connection.fetchval("SELECT pg_backend_pid()")
            await execute(database_url, "SELECT pg_terminate_backend($1, 1000)", pid)
            await connection.execute("UPDATE workspaces SET memo = 'whole' WHERE id = $1", row.id)

    with pytest.raises(Unreachable):
        await broken_write()
    assert await postgres.specs().get(row.id) == row


async def test_a_cut_network_is_unreachable_in_bounded_time_and_then_mends(
    postgres: PostgresDatabase, database_url: str
) -> None:
    row = await stored(postgres)
    timeouts = DatabaseTimeouts(connect=3, statement=3)
    async with (
        network_to_postgres(database_url) as (network, url),
        await PostgresDatabase.open(url, timeouts=timeouts) as database,
    ):
        assert await database.specs().get(row.id) == row
        network.cut()
        for call in (database.specs().get(row.id), database.specs().change(row.id, setting(memo="x"), ANN)):
            async with asyncio.timeout(30):
                with pytest.raises(Unreachable):
                    await call
        network.mend()
        async with asyncio.timeout(60):
            found = None
            while found is None:
                try:
                    found = await database.specs().get(row.id)
                except Unreachable:
                    await asyncio.sleep(0.1)
        assert found == row


async def test_a_lock_held_too_long_is_unreachable(postgres: PostgresDatabase, database_url: str) -> None:
    row = await stored(postgres)
    holder: asyncpg.Connection[Any] = await asyncpg.connect(database_url)  # it may be idle for as long as it likes
    try:
        async with (
            holder.transaction(),
            await PostgresDatabase.open(database_url, timeouts=DatabaseTimeouts(statement=0.3)) as database,
        ):
            await holder.execute("SELECT 1 FROM workspaces WHERE id = $1 FOR UPDATE", row.id)
            with pytest.raises(Unreachable, match=r"(?i)timeout"):
                await database.specs().change(row.id, setting(memo="x"), ANN)
    finally:
        await holder.close()


async def test_a_full_pool_makes_callers_wait_not_fail(database_url: str) -> None:
    async with await PostgresDatabase.open(database_url, pool_size=2) as database:
        rows = [await stored(database) for _ in range(3)]
        found = await asyncio.gather(*(database.specs().get(row.id) for row in rows * 20))
        assert found == rows * 20


async def test_a_cancelled_write_leaves_nothing_and_no_lock(postgres: PostgresDatabase) -> None:
    row = await stored(postgres)
    async with postgres.sessions.writing() as holder:
        await holder.execute("SELECT 1 FROM workspaces WHERE id = $1 FOR UPDATE", row.id)
        waiting = asyncio.ensure_future(postgres.specs().change(row.id, setting(memo="x"), ANN, admission=True))
        await asyncio.sleep(0.2)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
    assert await postgres.specs().get(row.id) == row
    after = await asyncio.wait_for(postgres.specs().change(row.id, setting(memo="y"), ANN, admission=True), 60)
    assert after.memo == "y"


async def test_one_bad_row_does_not_hide_the_others(postgres: PostgresDatabase, database_url: str) -> None:
    good, bad = await stored(postgres), await stored(postgres)
    await execute(database_url, "UPDATE workspaces SET home_ctx = '{}' WHERE id = $1", bad.id)
    found, _now = await postgres.statuses(0).load([bad.id, good.id])
    assert list(found) == [good]
    assert set(await postgres.statuses(0).versions()) == {good.id, bad.id}
    with pytest.raises(BackendError, match=str(bad.id)):
        await postgres.collector().read()


async def test_what_breaks_a_rule_is_refused_without_showing_the_row(postgres: PostgresDatabase) -> None:
    row = await stored(postgres, memo="a secret")
    wrong = replace(row, phase=Phase.ERROR, operation=Operation.STARTING, op_id=uuid4(), op_started_at=NOW)
    with pytest.raises(BackendError, match="operation_in_error") as refused:
        await postgres.statuses(0).record(row, wrong)
    assert not isinstance(refused.value, Unreachable)
    assert "secret" not in str(refused.value)


async def test_no_message_keeps_a_failure_from_being_recorded(postgres: PostgresDatabase) -> None:
    row = await stored(postgres)
    ugly = "a\x00b\ud800c\\u0000 NaN"
    info = error_info(ErrorReason.TIMEOUT, message=ugly, context={"n": float("nan"), "id": row.id, ugly: [ugly]})
    conditions = Conditions(healthy=Condition(status=False, reason="Timeout", message=ugly))
    after = await postgres.statuses(0).record(
        row, replace(row, error_reason=info.reason, error_info=info, conditions=conditions, archive_key=ugly)
    )
    shown = "a\ufffdb?c\\u0000 NaN"
    assert after.error_info is not None
    assert (after.error_info.message, after.archive_key) == (shown, shown)
    assert after.conditions.healthy.message == shown
    assert dict(after.error_info.context) == {"n": "nan", "id": str(row.id), shown: [shown]}
    assert (await postgres.ledger().entries(row.id))[0].message == shown
    again = replace(after, conditions=replace(conditions, volume_ready=Condition(None, "x", ugly)))
    assert await postgres.statuses(0).record_observations([(after, again)]) == 1
