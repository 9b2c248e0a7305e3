"""The collector's part of the database: marks that outlive their leader, a give-up under the row's lock, requests."""

import asyncio
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import asyncpg
import pytest

from codehub.adapters.memory import MemoryDatabase
from codehub.adapters.postgres import PostgresDatabase
from codehub.domain import naming, operations
from codehub.domain.admission import RunningLimits
from codehub.domain.errors import BackendError, Conflict, Stale
from codehub.domain.gc_rules import REQUEST_LIFETIME_SECONDS, BackendResource, ResourceKind, RestorePoint
from codehub.domain.workspace import Desired, Operation, Phase, Workspace
from codehub.ports.stores import Actor
from codehub.usecases.workspace_commands import WorkspaceCommands
from tests.contracts.databases import ANN, Database, epoch_of, new_term, restore_point, setting, stored
from tests.contracts.test_schema import ask
from tests.eventually import eventually
from tests.rows import LONG_AGO

NO_UNDO = timedelta(0)


def archive_of(workspace_id: UUID) -> BackendResource:
    return BackendResource(ResourceKind.OBJECT, naming.archive_key("", workspace_id, uuid4()), workspace_id)


def yes(_row: Workspace | None, _points: Sequence[RestorePoint], _now: datetime) -> bool:
    return True


async def with_point(database: Database, **changes: Any) -> tuple[Workspace, BackendResource]:
    row = await stored(database, **changes)
    resource = archive_of(row.id)
    point = restore_point(row, resource.name)
    await database.statuses(await epoch_of(database)).record(row, row, point=point)
    return row, resource


async def marked(database: Database) -> dict[BackendResource, datetime]:
    return {mark.resource: mark.marked_at for mark in (await database.collector().read()).marks}


# ── marks ────────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_mark_keeps_its_time_while_it_is_not_interrupted(database: Database) -> None:
    marks = database.marks(await epoch_of(database))
    stays, comes_and_goes = archive_of(uuid4()), BackendResource(ResourceKind.VOLUME, "ws-1-home", uuid4())
    first = {mark.resource: mark.marked_at for mark in await marks.remark({stays: "a", comes_and_goes: "b"})}
    assert set(first) == {stays, comes_and_goes}
    assert await marked(database) == first
    await asyncio.sleep(0.002)
    assert {mark.resource: mark.marked_at for mark in await marks.remark({stays: "other"})} == {stays: first[stays]}
    await asyncio.sleep(0.002)
    again = {mark.resource: mark.marked_at for mark in await marks.remark({stays: "a", comes_and_goes: "b"})}
    assert again[stays] == first[stays]
    assert again[comes_and_goes] > first[comes_and_goes]
    assert await marks.remark({}) == []
    assert await marked(database) == {}


async def test_the_same_name_of_another_kind_is_another_thing(database: Database) -> None:
    owner = uuid4()
    resources = {BackendResource(kind, "name", owner): "why" for kind in ResourceKind}
    assert {mark.resource for mark in await database.marks(await epoch_of(database)).remark(resources)} == set(
        resources
    )


async def test_a_new_leader_goes_on_with_the_marks_and_the_old_one_cannot(database: Database) -> None:
    old = await epoch_of(database)
    resource = archive_of(uuid4())
    [mark] = await database.marks(old).remark({resource: "why"})
    request = await database.collector().ask("admin", [])
    async with new_term(database) as epoch:
        late = database.marks(old)
        for write in (late.remark({}), late.give_up(resource, yes), late.finish(request, {})):
            with pytest.raises(Stale):
                await write
        assert await database.marks(epoch).remark({resource: "why"}) == [mark]


# ── giving up ────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_what_is_given_up_loses_its_mark_and_its_restore_point(database: Database) -> None:
    row, resource = await with_point(database)
    other = restore_point(row, f"{row.id}/other")
    epoch = await epoch_of(database)
    await database.statuses(epoch).record(row, row, point=other)
    marks = database.marks(epoch)
    await marks.remark({resource: "why", archive_of(row.id): "why"})
    assert await marks.give_up(resource, yes)
    assert [point.key for point in await database.statuses(epoch).restore_points(row.id)] == [other.key]
    assert resource not in await marked(database)
    assert len(await marked(database)) == 1
    assert await marks.give_up(resource, yes)


async def test_whoever_decides_sees_the_row_as_it_is_now(database: Database) -> None:
    row, resource = await with_point(database, memo="before")
    await database.specs().change(row.id, setting(memo="now"), ANN)
    marks = database.marks(await epoch_of(database))
    await marks.remark({resource: "why"})
    seen: list[tuple[Workspace | None, list[str], datetime]] = []

    def no(ws: Workspace | None, points: Sequence[RestorePoint], now: datetime) -> bool:
        seen.append((ws, [point.key for point in points], now))
        return False

    assert not await marks.give_up(resource, no)
    [(ws, keys, now)] = seen
    assert ws is not None
    assert (ws.memo, keys) == ("now", [resource.name])
    assert now >= ws.updated_at
    assert resource in await marked(database)
    assert not await marks.give_up(archive_of(uuid4()), no)
    assert seen[1][:2] == (None, [])


async def test_a_purged_row_is_seen_too(database: Database) -> None:
    row, resource = await with_point(database, deleted_at=LONG_AGO, purged_at=LONG_AGO)
    marks = database.marks(await epoch_of(database))
    assert await marks.give_up(resource, lambda ws, points, _now: ws is not None and ws.purged_at and len(points) == 1)  # type: ignore[arg-type,return-value]
    live = await stored(database)
    data = await database.collector().read()
    assert ({ws.id for ws in data.workspaces}, set(data.purged)) == ({live.id}, {row.id})


async def test_a_volume_of_the_same_name_leaves_restore_points_alone(database: Database) -> None:
    row, resource = await with_point(database)
    epoch = await epoch_of(database)
    assert await database.marks(epoch).give_up(BackendResource(ResourceKind.VOLUME, resource.name, row.id), yes)
    assert len(await database.statuses(epoch).restore_points(row.id)) == 1


async def test_the_ledger_tells_which_operations_it_knows(database: Database) -> None:
    row, began, unknown = await stored(database), uuid4(), uuid4()
    view = database.collector()
    assert set(await view.recorded([began, unknown])) == set()
    busy = operations.begin(row, Operation.STOPPING, began, LONG_AGO, ())
    await database.statuses(await epoch_of(database)).record(row, busy)
    assert set(await view.recorded([began, unknown])) == {began}
    assert set(await view.recorded([unknown])) == set(await view.recorded([])) == set()


@pytest.mark.system
async def test_it_is_judged_after_whoever_holds_the_row_has_written(
    postgres: PostgresDatabase, database_url: str
) -> None:
    """A wish that came first is seen: nothing can be chosen and given up at the same time."""
    row, resource = await with_point(postgres)
    seen: list[str | None] = []

    def look(ws: Workspace | None, _points: Sequence[RestorePoint], _now: datetime) -> bool:
        seen.append(ws.restore_from if ws else None)
        return False

    async def waits() -> bool:
        return bool(await ask(database_url, "SELECT 1 FROM pg_locks WHERE NOT granted"))

    wisher: asyncpg.Connection[Any] = await asyncpg.connect(database_url)
    try:
        async with wisher.transaction():
            await wisher.execute("UPDATE workspaces SET restore_from = $2 WHERE id = $1", row.id, resource.name)
            giving_up = asyncio.create_task(postgres.marks(0).give_up(resource, look))
            await eventually(waits)
            assert seen == []
        assert not await giving_up
    finally:
        await wisher.close()
    assert seen == [resource.name]


@pytest.mark.system
async def test_a_row_that_cannot_be_read_gives_nothing_up(postgres: PostgresDatabase, database_url: str) -> None:
    row, resource = await with_point(postgres)
    await ask(database_url, "UPDATE workspaces SET home_ctx = '{}' WHERE id = $1", row.id)
    with pytest.raises(BackendError, match="cannot be read"):
        await postgres.marks(0).give_up(resource, yes)
    with pytest.raises(BackendError, match="cannot be read"):
        await postgres.collector().read()
    assert len(await postgres.statuses(0).restore_points(row.id)) == 1


# ── the view ─────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_the_oldest_workspace_counts_when_it_is_purged(database: Database) -> None:
    assert (await database.collector().read()).oldest_workspace_at is None
    first = await stored(database, deleted_at=LONG_AGO, purged_at=LONG_AGO)
    second = await stored(database)
    data = await database.collector().read()
    assert (data.oldest_workspace_at, [ws.id for ws in data.workspaces]) == (first.created_at, [second.id])
    assert data.newest_entry_at is not None
    assert data.now >= data.newest_entry_at >= first.created_at


# ── requests ─────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_requests_are_served_in_their_order_and_answered_once(database: Database) -> None:
    view, marks = database.collector(), database.marks(await epoch_of(database))
    assert await marks.pending() is None
    first, second = await view.ask("ann", ["too-many"]), await view.ask("bob", [])
    pending = await marks.pending()
    assert pending is not None
    assert (pending.id, pending.asked_by, pending.waived, pending.report) == (first, "ann", ("too-many",), None)
    await marks.finish(first, {"swept": [1, 2]})
    await marks.finish(first, {"swept": []})
    done = await view.request(first)
    assert done is not None
    assert done.report == {"swept": [1, 2]}
    pending = await marks.pending()
    assert pending is not None
    assert pending.id == second
    assert await view.request(second + 1) is None


async def test_a_request_that_nobody_took_in_time_is_void(
    database: Database, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    await database.collector().ask("ann", ["too-many"])
    if isinstance(database, MemoryDatabase):
        late = database.state.now() + timedelta(seconds=REQUEST_LIFETIME_SECONDS)
        monkeypatch.setattr(database.state, "now", lambda: late)
    else:
        url: str = request.getfixturevalue("database_url")
        await ask(url, f"UPDATE gc_requests SET asked_at = asked_at - interval '{REQUEST_LIFETIME_SECONDS} s'")
    assert await database.marks(await epoch_of(database)).pending() is None


# ── the purge ────────────────────────────────────────────────────────────────────────────────────────────────────────


def commands(database: Database) -> WorkspaceCommands:
    return WorkspaceCommands(database.specs(), RunningLimits())


async def test_a_purge_closes_the_way_back(database: Database) -> None:
    row = await stored(database, desired_state=Desired.DELETED, deleted_at=LONG_AGO)
    robot = Actor("collector", await epoch_of(database))
    assert await commands(database).purge(row.id, NO_UNDO, robot)
    purged = await database.specs().get(row.id)
    assert purged is not None
    assert purged.purged_at is not None
    with pytest.raises(Conflict) as refused:
        await commands(database).undelete(row.id, ANN)
    assert refused.value.code == "purged"
    assert await commands(database).purge(row.id, NO_UNDO, robot)
    assert await database.specs().get(row.id) == purged
    assert next(entry.kind for entry in await database.ledger().entries(row.id)) == "purged"


NOT_PURGED: dict[str, dict[str, Any]] = {
    "alive": {},
    "put to sleep": {"phase": Phase.STANDBY},
    "wanted back": {"deleted_at": LONG_AGO, "undelete_requested_at": LONG_AGO + timedelta(hours=9)},
}


@pytest.mark.parametrize("changes", NOT_PURGED.values(), ids=NOT_PURGED.keys())
async def test_what_can_be_wanted_back_is_not_purged(database: Database, changes: dict[str, Any]) -> None:
    row = await stored(database, **changes)
    assert not await commands(database).purge(row.id, NO_UNDO, Actor("collector", await epoch_of(database)))
    assert await database.specs().get(row.id) == row


async def test_the_undo_window_is_the_database_s(database: Database) -> None:
    row = await stored(database)
    robot = Actor("collector", await epoch_of(database))
    deleted = await commands(database).want(row.id, Desired.DELETED, ANN)
    assert await commands(database).mark_deleted(deleted.id, robot)
    assert not await commands(database).purge(row.id, timedelta(hours=1), robot)
    assert await commands(database).purge(row.id, NO_UNDO, robot)


async def test_an_old_leader_purges_nothing(database: Database) -> None:
    row = await stored(database, deleted_at=LONG_AGO)
    old = Actor("collector", await epoch_of(database))
    async with new_term(database):
        with pytest.raises(Stale):
            await commands(database).purge(row.id, NO_UNDO, old)
    assert await database.specs().get(row.id) == row
