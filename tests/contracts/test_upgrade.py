"""From every released schema to this program's, with rows in it: nothing is lost, and the program can read them."""

import json
from typing import Any
from uuid import UUID, uuid4

import asyncpg
import pytest

from codehub.adapters.postgres import PostgresDatabase, SchemaMismatch, check_schema
from codehub.adapters.postgres.schema import MIGRATIONS, migrate, schema_head, schema_revisions
from codehub.domain.workspace import Desired, Phase
from codehub.ports.stores import Actor
from tests.contracts.databases import setting

pytestmark = pytest.mark.system

RELEASED = schema_revisions()[:-1]
CONDITION = {"status": True, "reason": "Ready", "message": "", "last_transition_time": "2026-01-01T00:00:00+00:00"}

HOME = {"incarnation": 1, "live": True, "restoring": None, "deleting_volume": False, "ready_instance": None}
HOME |= {"restore_marker": None}


async def fill(connection: "asyncpg.Connection[Any]") -> UUID:
    """As the program of the first schema wrote it."""
    key = uuid4()
    conditions = dict.fromkeys(("storage.volume_ready", "policy.healthy"), CONDITION)
    conditions |= {name: CONDITION | {"status": False, "reason": "No"} for name in ("storage.archive_ready",)}
    conditions["infra.container_ready"] = CONDITION | {"status": False, "reason": "NoContainer"}
    await connection.execute(
        """
        INSERT INTO workspaces (id, owner_id, name, slug, description, memo, template, image_ref, runtime, created_at,
            updated_at, version, desired_state, desired_by, conditions, phase, phase_changed_at, operation,
            op_excused_seconds, home_store_key, home_ctx, error_count, archive_key)
        VALUES ($1, 'ann', 'demo', 'demo', 'words', 'memo', 'default', '', 'process', now(), now(), 7, 'STANDBY', 'ann',
            $2, 'STANDBY', now(), 'NONE', 0, 'ws-1-home', $3, 0, 'a/b/home.tar.zst')
        """,
        key,
        json.dumps(conditions),
        json.dumps(HOME),
    )
    await connection.execute(
        "INSERT INTO archives VALUES ('a/b/home.tar.zst', $1, $2, 10, 2, 'ab', now(), now())", key, uuid4()
    )
    await connection.execute("INSERT INTO leases VALUES ($1, 'ann', now() + interval '1 h')", key)
    await connection.execute(
        "INSERT INTO workspace_events (at, workspace_id, actor, kind, reason, message) "
        "VALUES (now(), $1, 'ann', 'created', '', 'demo')",
        key,
    )
    return key


async def rows(connection: "asyncpg.Connection[Any]") -> dict[str, list[dict[str, Any]]]:
    tables = ("workspaces", "archives", "leases", "workspace_events", "installation", "leadership")
    return {name: [dict(row) for row in await connection.fetch(f"SELECT * FROM {name}")] for name in tables}


@pytest.mark.parametrize("released", RELEASED)
async def test_rows_of_a_released_schema_are_kept(released: str, fresh_database: str) -> None:
    await migrate(fresh_database, released)
    connection = await asyncpg.connect(fresh_database)
    try:
        key = await fill(connection)
        before = await rows(connection)
        async with await PostgresDatabase.open(fresh_database) as database:
            with pytest.raises(SchemaMismatch, match=f"has schema {released}.*codehub migrate"):
                await check_schema(database)
        done = await migrate(fresh_database)
        assert (done.before, done.after) == (released, schema_head())
        after = await rows(connection)
        for table, kept in before.items():
            assert [{name: row[name] for name in old} for old, row in zip(kept, after[table], strict=True)] == kept
    finally:
        await connection.close()
    async with await PostgresDatabase.open(fresh_database) as database:
        await check_schema(database)
        row = await database.specs().get(key)
        assert row is not None
        assert (row.name, row.phase, row.desired_state, row.home.live) == ("demo", Phase.STANDBY, Desired.STANDBY, True)
        changed = await database.specs().change(key, setting(desired_state=Desired.ARCHIVED), Actor("ann"))
        assert changed.version == row.version + 1
        assert [entry.message for entry in await database.ledger().entries(key)] == ["", "demo"]


def test_the_files_are_numbered_without_a_gap() -> None:
    names = sorted(path.name for path in MIGRATIONS.iterdir() if path.suffix == ".sql")
    assert [name[:5] for name in names] == [f"{number:04}_" for number in range(1, len(names) + 1)]
    assert schema_revisions() == [name[:4] for name in names]
