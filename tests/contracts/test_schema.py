"""The schema: migrated once however many ask, refused when it is not ours, and in agreement with the domain's table."""

import asyncio
import re
from dataclasses import fields
from enum import StrEnum
from itertools import product
from typing import Any
from uuid import uuid4

import asyncpg
import pytest

from codehub.adapters.postgres import PostgresDatabase, SchemaMismatch, check_schema
from codehub.adapters.postgres.schema import migrate, schema_head
from codehub.adapters.postgres.statements import column
from codehub.domain.admission import holds_slot
from codehub.domain.errors import BackendError, ErrorReason, Unreachable
from codehub.domain.identity import Role, Scope
from codehub.domain.transitions import MAY_RUN_IN_ERROR
from codehub.domain.workspace import Condition, Conditions, Desired, Operation, Phase, RecoverAction, Workspace
from tests.contracts.databases import epoch_of, stored
from tests.rows import LONG_AGO, NOW, OP_ID, error_info

pytestmark = pytest.mark.system

CONTAINER = Conditions(container_ready=Condition(status=True, reason="docker.Running"))


async def ask(url: str, statement: str, *values: object) -> list[tuple[Any, ...]]:
    connection: asyncpg.Connection[Any] = await asyncpg.connect(url)
    try:
        return [tuple(record) for record in await connection.fetch(statement, *values)]
    finally:
        await connection.close()


async def everything(url: str) -> list[tuple[Any, ...]]:
    """The catalogue and the versions: what a migration that does nothing must not touch."""
    ours = "namespace = 'public'::regnamespace ORDER BY oid"
    tables = await ask(url, f"SELECT oid, relname, relfilenode FROM pg_class WHERE rel{ours}")
    functions = await ask(url, f"SELECT oid, proname FROM pg_proc WHERE pro{ours}")
    versions = await ask(url, "SELECT xmin::text, * FROM alembic_version")
    return [*tables, *functions, *versions]


# ── versions ─────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_migrating_twice_changes_nothing(fresh_database: str) -> None:
    first = await migrate(fresh_database)
    assert first.before is None
    before = await everything(fresh_database)
    second = await migrate(fresh_database)
    assert second.before == second.after == first.after
    assert await everything(fresh_database) == before


async def test_migrating_at_once_migrates_once(fresh_database: str) -> None:
    done = await asyncio.gather(*(migrate(fresh_database) for _ in range(4)))
    assert sorted(m.before is None for m in done) == [False, False, False, True]
    async with await PostgresDatabase.open(fresh_database) as database:
        await check_schema(database)


async def test_a_version_table_without_a_row_is_an_empty_database(fresh_database: str) -> None:
    await ask(fresh_database, "CREATE TABLE alembic_version (version_num varchar(32) NOT NULL PRIMARY KEY)")
    assert (await migrate(fresh_database)).before is None
    assert await ask(fresh_database, "SELECT version_num FROM alembic_version") == [(schema_head(),)]


async def test_an_empty_database_asks_for_the_migration(fresh_database: str) -> None:
    async with await PostgresDatabase.open(fresh_database) as database:
        with pytest.raises(SchemaMismatch, match="run `codehub migrate`"):
            await check_schema(database)


async def test_a_schema_from_the_future_is_left_alone(database_url: str, postgres: PostgresDatabase) -> None:
    await check_schema(postgres)
    await ask(database_url, "UPDATE alembic_version SET version_num = '9999'")
    before = await everything(database_url)
    with pytest.raises(SchemaMismatch, match=r"newer than this binary.*upgrade CodeHub"):
        await check_schema(postgres)
    with pytest.raises(SchemaMismatch, match="newer than this binary"):
        await migrate(database_url)
    assert await everything(database_url) == before


async def test_a_failed_migration_is_rolled_back(fresh_database: str) -> None:
    await ask(fresh_database, "CREATE TABLE leases (mine int)")
    with pytest.raises(BackendError, match=r"rolled back.*leases"):
        await migrate(fresh_database)
    assert await ask(
        fresh_database, "SELECT relname FROM pg_class WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace"
    ) == [("leases",)]


async def test_no_database_is_unreachable() -> None:
    with pytest.raises(Unreachable):
        await migrate("postgresql+asyncpg://nobody@127.0.0.1:1/none")
    async with await PostgresDatabase.open("postgresql://nobody@127.0.0.1:1/none") as database:
        with pytest.raises(Unreachable):
            await check_schema(database)


async def test_an_installation_has_one_id(postgres: PostgresDatabase, database_url: str) -> None:
    assert await postgres.installation_id() == await postgres.installation_id()
    with pytest.raises(asyncpg.UniqueViolationError):
        await ask(database_url, "INSERT INTO installation DEFAULT VALUES")
    with pytest.raises(asyncpg.UniqueViolationError):
        await ask(database_url, "INSERT INTO leadership VALUES (5, '', NULL, now(), now())")


# ── agreement with the domain ────────────────────────────────────────────────────────────────────────────────────────


async def test_columns_are_the_row_s_fields(database_url: str) -> None:
    found = await ask(
        database_url,
        "SELECT attname FROM pg_attribute WHERE attrelid = 'workspaces'::regclass AND attnum > 0 AND attgenerated = '' "
        "AND NOT attisdropped",
    )
    assert {name for (name,) in found} == {column(field.name) for field in fields(Workspace)}


@pytest.mark.parametrize(
    ("constraint", "values"),
    [
        ("desired_state_known", Desired),
        ("phase_known", Phase),
        ("operation_known", Operation),
        ("recover_action_known", RecoverAction),
        ("error_reason_known", ErrorReason),
        ("role_known", Role),
        ("scopes_known", Scope),
    ],
)
async def test_the_lists_of_values_are_the_domain_s(database_url: str, constraint: str, values: type[StrEnum]) -> None:
    [(definition,)] = await ask(
        database_url, "SELECT pg_get_constraintdef(oid) FROM pg_constraint WHERE conname = $1", constraint
    )
    assert set(re.findall(r"'(\w+)'::text", definition)) == {value.value for value in values}


@pytest.mark.parametrize("operation", Operation)
async def test_in_error_runs_only_what_the_table_allows(
    postgres: PostgresDatabase, database_url: str, operation: Operation
) -> None:
    row = await stored(postgres, op_id=OP_ID, op_started_at=NOW)
    statement = "UPDATE workspaces SET phase = 'ERROR', operation = $2 WHERE id = $1"
    if operation in MAY_RUN_IN_ERROR:
        await ask(database_url, statement, row.id, operation.value)
    else:
        with pytest.raises(asyncpg.CheckViolationError, match="operation_in_error"):
            await ask(database_url, statement, row.id, operation.value)


@pytest.mark.parametrize(
    ("assignment", "constraint"),
    [
        ("operation = 'STARTING'", "operation_has_id"),
        ("operation = 'STARTING', op_id = gen_random_uuid()", "operation_has_id"),
        ("operation = 'WAITING', op_id = gen_random_uuid(), op_started_at = now()", "operation_known"),
        ("phase = 'SLEEPING'", "phase_known"),
        ("desired_state = 'ERROR'", "desired_state_known"),
        ("recover_action = 'pray'", "recover_action_known"),
        ("recover_requested_at = now()", "recover_names_action"),
        ("error_reason = 'Timeout'", "error_info_names_reason"),
        ("purged_at = now()", "purged_only_deleted"),
        ("slug = 'Upper'", "slug_is_a_label"),
        ("slug = '80--demo'", "slug_is_a_label"),
        ("slug = '-demo'", "slug_is_a_label"),
        ("error_count = -1", "counts_not_negative"),
        ("standby_ttl_seconds = -1", "counts_not_negative"),
    ],
)
async def test_what_no_side_may_write_the_database_refuses(
    postgres: PostgresDatabase, database_url: str, assignment: str, constraint: str
) -> None:
    row = await stored(postgres)
    with pytest.raises(asyncpg.CheckViolationError, match=constraint):
        await ask(database_url, f"UPDATE workspaces SET {assignment} WHERE id = $1", row.id)
    assert await postgres.specs().get(row.id) == row


async def test_slots_in_the_database_are_the_domain_s(postgres: PostgresDatabase, database_url: str) -> None:
    infos = [None, *(error_info(reason) for reason in ErrorReason)]
    for phase, desired, info in product(Phase, Desired, infos):
        await stored(
            postgres, phase=phase, desired_state=desired, error_info=info, error_reason=info.reason if info else None
        )
    for conditions, deleted_at in product((Conditions(), CONTAINER), (None, NOW)):
        await stored(postgres, conditions=conditions, deleted_at=deleted_at, desired_state=Desired.RUNNING)
    for operation, desired in product(Operation, Desired):
        await stored(postgres, operation=operation, op_id=OP_ID, op_started_at=NOW, desired_state=desired)
    slots = dict(await ask(database_url, "SELECT id, slot FROM workspaces"))
    rows = (await postgres.collector().read()).workspaces
    assert len(rows) == len(slots) == 6 * 5 * 11 + 4 + 9 * 5
    assert [row for row in rows if slots[row.id] != "perhaps" and holds_slot(row) != (slots[row.id] == "held")] == []
    assert {slots[row.id] for row in rows if row.phase is not Phase.ERROR} == {"held", "free"}


async def test_a_workspace_s_row_is_never_removed(postgres: PostgresDatabase, database_url: str) -> None:
    """The collector takes an id that the database does not know for one that it has lost."""
    row = await stored(postgres, deleted_at=LONG_AGO, purged_at=LONG_AGO)
    assert await postgres.ledger().forget_older(0, await epoch_of(postgres)) == 0
    with pytest.raises(asyncpg.ForeignKeyViolationError):
        await ask(database_url, "DELETE FROM workspaces WHERE id = $1", row.id)


async def test_the_ledger_is_append_only(postgres: PostgresDatabase, database_url: str) -> None:
    row = await stored(postgres)
    with pytest.raises(asyncpg.RaiseError, match="append-only"):
        await ask(database_url, "UPDATE workspace_events SET actor = 'nobody' WHERE workspace_id = $1", row.id)
    with pytest.raises(asyncpg.ForeignKeyViolationError):
        await ask(database_url, "INSERT INTO leases VALUES ($1, 'x', now())", uuid4())
