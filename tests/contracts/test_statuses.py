"""WorkspaceStatuses and the ledger: what the controller may write, in one term, on every database."""

from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import datetime, timedelta
from itertools import product
from typing import Any
from uuid import uuid4

import pytest

from codehub.domain.errors import ErrorReason, Stale
from codehub.domain.ledger import LedgerKind
from codehub.domain.transitions import GIVES_UP_VOLUME
from codehub.domain.workspace import (
    Condition,
    Conditions,
    Desired,
    HomeContext,
    Operation,
    Phase,
    Progress,
    Workspace,
)
from codehub.ports.stores import WorkspaceStatuses
from tests.contracts.databases import ANN, Database, fresh, new_term, restore_point, setting, stored
from tests.rows import LONG_AGO, NOW, OP_ID, OTHER_OP_ID, busy, error_info


def began(row: Workspace, operation: Operation = Operation.STARTING, **changes: Any) -> Workspace:
    return busy(row, operation, **changes)


# ── which rows ───────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_version_grows_with_every_write_of_either_side(database: Database) -> None:
    row = await stored(database)
    seen = [(await database.statuses(0).versions())[row.id]]
    writes: list[Callable[[], Awaitable[object]]] = [
        lambda: database.specs().change(row.id, setting(memo="x"), ANN),
        lambda: database.specs().touch({row.id: NOW}, ANN),
        lambda: database.statuses(0).record(row, replace(row, error_count=1)),
    ]
    for write in writes:
        await write()
        seen.append((await database.statuses(0).versions())[row.id])
    assert seen == sorted(set(seen))
    [now] = (await database.statuses(0).load([row.id]))[0]
    assert now.version == seen[-1]


async def test_a_deleted_row_is_in_sight_until_it_rests(database: Database) -> None:
    live = await stored(database)
    dying = await stored(database, desired_state=Desired.DELETED, deleted_at=NOW)
    dead = await stored(database, desired_state=Desired.DELETED, deleted_at=NOW, phase=Phase.DELETED)
    wanted = await stored(
        database, desired_state=Desired.DELETED, deleted_at=NOW, phase=Phase.DELETED, undelete_requested_at=NOW
    )
    statuses = database.statuses(0)
    assert set(await statuses.versions()) == {live.id, dying.id, wanted.id}
    assert set(await statuses.active()) == {dying.id, wanted.id}
    await statuses.record(wanted, replace(wanted, undelete_handled_at=NOW))
    assert set(await statuses.versions()) == {live.id, dying.id}
    assert dead.id not in await statuses.versions()


@pytest.mark.parametrize("deleted_at", [None, NOW])
@pytest.mark.parametrize("pending", ["none", "recover", "restore", "undelete", "handled"])
async def test_active_is_whatever_is_not_at_rest(database: Database, pending: str, deleted_at: datetime | None) -> None:
    requests: dict[str, Any] = {"recover_action": "retry"}
    for request in ("recover", "restore", "undelete"):
        if pending in (request, "handled"):
            requests[f"{request}_requested_at"] = NOW
            requests[f"{request}_handled_at"] = LONG_AGO if pending == request else NOW
    rows = []
    for phase, desired, busy_with in product(Phase, Desired, (Operation.NONE, Operation.DELETING)):
        operation = {"operation": busy_with, "op_id": OP_ID, "op_started_at": NOW} if busy_with != "NONE" else {}
        rows.append(
            await stored(database, desired_state=desired, phase=phase, deleted_at=deleted_at, **(requests | operation))
        )
    expected = {row.id for row in rows if not row.is_at_rest}
    assert expected
    assert set(await database.statuses(0).active()) == expected


@pytest.mark.parametrize("wish", ["recover", "restore", "undelete"])
async def test_a_one_off_wish_is_active_until_handled(database: Database, wish: str) -> None:
    row = await stored(database, recover_action="retry")
    asked = await database.specs().change(row.id, setting(**{f"{wish}_requested_at": NOW}), ANN)
    statuses = database.statuses(0)
    assert list(await statuses.active()) == [row.id]
    done: dict[str, Any] = {f"{wish}_handled_at": NOW}
    handled = await statuses.record(asked, replace(asked, **done))
    assert list(await statuses.active()) == []
    later = NOW + timedelta(seconds=1)
    await database.specs().change(handled.id, setting(**{f"{wish}_requested_at": later}), ANN)
    assert list(await statuses.active()) == [row.id]


async def test_load_gives_what_exists_and_the_time(database: Database) -> None:
    row, other = await stored(database), await stored(database)
    found, now = await database.statuses(0).load([row.id, uuid4(), other.id])
    assert {ws.id: ws for ws in found} == {row.id: row, other.id: other}
    assert now >= max(row.updated_at, other.updated_at)
    nothing, later = await database.statuses(0).load([])
    assert list(nothing) == []
    assert later >= now


# ── record ───────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_record_keeps_every_status_field(database: Database) -> None:
    row = await stored(database)
    condition = Condition(None, "Odd", "it's «odd»\n", NOW)
    home = HomeContext(2, live=True, restoring="k", deleting_volume=True, marker=("k", OP_ID), ready_instance="c1")
    status: dict[str, Any] = {
        "conditions": Conditions(
            condition, condition, replace(condition, status=True), condition, {"later.version": {"status": None}}
        ),
        "phase": Phase.STANDBY,
        "phase_changed_at": NOW,
        "observed_at": NOW,
        "operation": Operation.RESTORING,
        "op_started_at": NOW,
        "op_id": OP_ID,
        "op_progress": Progress(2**40, 3, 2**41, "upload"),
        "op_progress_at": NOW,
        "op_excused_seconds": 0.1,
        "archive_op_id": OTHER_OP_ID,
        "archive_key": "k",
        "home_store_key": "v",
        "home": home,
        "error_reason": ErrorReason.TIMEOUT,
        "error_count": 2,
        "error_info": error_info(ErrorReason.TIMEOUT, context={"limit": 1.5, "deep": [{"a": None}]}),
        "retry_at": NOW,
        "recover_handled_at": NOW,
        "restore_handled_at": NOW,
        "undelete_handled_at": NOW,
    }
    after = await database.statuses(0).record(row, replace(row, **status))
    assert replace(row, **status, version=after.version, updated_at=after.updated_at) == after
    assert (await database.statuses(0).load([row.id]))[0] == [after]
    empty = await database.statuses(0).record(after, replace(row, op_id=None))
    assert replace(row, version=empty.version, updated_at=empty.updated_at) == empty


async def test_record_writes_only_what_differs_and_only_the_status_side(database: Database) -> None:
    row = await stored(database)
    await database.specs().change(row.id, setting(memo="meanwhile", desired_state=Desired.RUNNING), ANN)
    await database.statuses(0).record(row, replace(row, error_count=3))
    after = await database.statuses(0).record(row, replace(row, archive_key="k", memo="never"))
    assert (after.memo, after.desired_state, after.error_count, after.archive_key) == (
        "meanwhile",
        Desired.RUNNING,
        3,
        "k",
    )


async def test_record_of_another_operation_is_stale(database: Database) -> None:
    row = await stored(database)
    statuses = database.statuses(0)
    running = await statuses.record(row, began(row))
    wrong = [row, replace(running, op_id=OTHER_OP_ID), replace(running, operation=Operation.STOPPING), fresh()]
    for before in wrong:
        with pytest.raises(Stale):
            await statuses.record(before, replace(before, error_count=9), point=restore_point(row, "k"))
        with pytest.raises(Stale):
            await statuses.record(before, before)
    assert await database.specs().get(row.id) == running
    assert await statuses.restore_points(row.id) == []


async def test_a_start_begins_only_under_the_wish_it_was_planned_for(database: Database) -> None:
    """Its slot was free from the moment the wish changed, and may be another's."""
    row = await stored(database, phase=Phase.STANDBY, desired_state=Desired.RUNNING)
    statuses = database.statuses(0)
    stopped = await database.specs().change(row.id, setting(desired_state=Desired.STANDBY), ANN)
    with pytest.raises(Stale):
        await statuses.record(row, began(row))
    assert await database.specs().get(row.id) == stopped
    await database.specs().change(row.id, setting(desired_state=Desired.RUNNING), ANN)
    starting = await statuses.record(row, began(row))
    assert starting.operation is Operation.STARTING
    # what has begun goes on, whatever is wished meanwhile
    await database.specs().change(row.id, setting(desired_state=Desired.STANDBY), ANN)
    assert (await statuses.record(starting, replace(starting, error_count=1))).error_count == 1


async def test_record_without_difference_writes_nothing(database: Database) -> None:
    row = await stored(database)
    changed = await database.specs().change(row.id, setting(memo="x"), ANN)
    assert await database.statuses(0).record(row, row) == changed


async def test_record_is_explained_by_the_controller(database: Database) -> None:
    row = await stored(database)
    statuses = database.statuses(0)
    await database.specs().change(row.id, setting(desired_state=Desired.RUNNING), ANN)
    running = await statuses.record(row, began(row, Operation.PROVISIONING), reason="planned")
    await statuses.record(running, replace(running, operation=Operation.NONE, op_started_at=None, phase=Phase.STANDBY))
    entries = [(e.kind, e.actor, e.before, e.after, e.op_id) for e in await database.ledger().entries(row.id)]
    assert entries == [
        (LedgerKind.PHASE, "controller", "PENDING", "STANDBY", OP_ID),
        (LedgerKind.OPERATION_ENDED, "controller", "PROVISIONING", "NONE", OP_ID),
        (LedgerKind.OPERATION_BEGAN, "controller", "NONE", "PROVISIONING", OP_ID),
        (LedgerKind.WISH, "ann", "PENDING", "RUNNING", None),
        (LedgerKind.CREATED, "ann", None, "PENDING", None),
    ]


async def test_the_ledger_is_newest_first_and_bounded(database: Database) -> None:
    row = await stored(database)
    for wish in (Desired.RUNNING, Desired.STANDBY, Desired.ARCHIVED):
        await database.specs().change(row.id, setting(desired_state=wish), ANN)
    entries = await database.ledger().entries(row.id, limit=2)
    assert [entry.after for entry in entries] == ["ARCHIVED", "STANDBY"]
    assert entries[0].at >= entries[1].at
    assert await database.ledger().entries(uuid4()) == []


# ── observations ─────────────────────────────────────────────────────────────────────────────────────────────────────


def seen_standby(row: Workspace) -> Workspace:
    ready = Conditions(volume_ready=Condition(status=True, reason="VolumeProvisioned", last_transition_time=NOW))
    return replace(row, conditions=ready, phase=Phase.STANDBY, phase_changed_at=NOW, observed_at=NOW)


async def test_observations_are_written_and_explained(database: Database) -> None:
    rows = [await stored(database) for _ in range(3)]
    pairs = [(row, seen_standby(row)) for row in rows[:2]]
    pairs.append((rows[2], replace(rows[2], home=HomeContext(1, live=True), archive_op_id=OP_ID, error_count=4)))
    assert await database.statuses(0).record_observations(pairs) == 3
    for before, after in pairs:
        found = await database.specs().get(before.id)
        assert found is not None
        assert found == replace(after, version=found.version, updated_at=found.updated_at)
    [entry, _created] = await database.ledger().entries(rows[0].id)
    assert (entry.kind, entry.after) == (LedgerKind.PHASE, "STANDBY")
    assert await database.statuses(0).record_observations([]) == 0


async def test_an_observation_of_a_row_that_changed_since_is_skipped(database: Database) -> None:
    row, other, ghost = await stored(database), await stored(database), fresh()
    changed = await database.specs().change(row.id, setting(memo="since"), ANN)
    pairs = [(ws, seen_standby(ws)) for ws in (row, other, ghost)]
    assert await database.statuses(0).record_observations(pairs) == 1
    assert await database.specs().get(row.id) == changed
    assert len(await database.ledger().entries(row.id)) == 1
    found = await database.specs().get(other.id)
    assert found is not None
    assert found.phase is Phase.STANDBY


async def test_an_observation_never_writes_the_spec_side(database: Database) -> None:
    row = await stored(database)
    await database.statuses(0).record_observations([(row, replace(seen_standby(row), memo="no"))])
    found = await database.specs().get(row.id)
    assert found is not None
    assert (found.memo, found.phase) == ("", Phase.STANDBY)


# ── the safe point ───────────────────────────────────────────────────────────────────────────────────────────────────


async def archiving(database: Database, **spec: Any) -> Workspace:
    return await stored(
        database,
        operation=Operation.ARCHIVING,
        op_id=OP_ID,
        op_started_at=NOW,
        phase=Phase.STANDBY,
        home=HomeContext(1, live=True, ready_instance="c"),
        **spec,
    )


@pytest.mark.parametrize("desired", Desired)
async def test_the_safe_point_is_passed_only_while_nobody_wants_the_volume(
    database: Database, desired: Desired
) -> None:
    row = await archiving(database, desired_state=desired)
    passed = await database.statuses(0).pass_safe_point(row)
    if desired in GIVES_UP_VOLUME:
        assert passed is not None
        assert passed.home == HomeContext(1, live=False, deleting_volume=True, ready_instance="c")
        assert await database.specs().get(row.id) == passed
    else:
        assert passed is None
        assert await database.specs().get(row.id) == row


async def test_the_safe_point_reads_the_wish_of_now(database: Database) -> None:
    row = await archiving(database, desired_state=Desired.ARCHIVED)
    await database.specs().change(row.id, setting(desired_state=Desired.RUNNING), ANN)
    assert await database.statuses(0).pass_safe_point(row) is None
    await database.specs().change(row.id, setting(restore_from="k", restore_requested_at=NOW), ANN)
    assert await database.statuses(0).pass_safe_point(row) is not None


async def test_a_handled_restore_does_not_give_the_volume_up(database: Database) -> None:
    row = await archiving(database, desired_state=Desired.RUNNING, restore_from="k", restore_requested_at=NOW)
    handled = await database.statuses(0).record(row, replace(row, restore_handled_at=NOW))
    assert await database.statuses(0).pass_safe_point(handled) is None


async def test_the_safe_point_of_another_operation_is_stale(database: Database) -> None:
    row = await archiving(database, desired_state=Desired.ARCHIVED)
    for wrong in (replace(row, op_id=OTHER_OP_ID), replace(row, operation=Operation.STOPPING), fresh()):
        with pytest.raises(Stale):
            await database.statuses(0).pass_safe_point(wrong)
    assert await database.specs().get(row.id) == row


# ── restore points ───────────────────────────────────────────────────────────────────────────────────────────────────


async def test_restore_points_are_kept_once_newest_first(database: Database) -> None:
    row, other = await stored(database), await stored(database)
    statuses = database.statuses(0)
    first = restore_point(row, "first")
    second = restore_point(row, "second", created_at=LONG_AGO + timedelta(seconds=1), bytes=2**40)
    for point in (first, second, replace(first, bytes=99, op_id=OTHER_OP_ID)):
        await statuses.record(row, row, point=point)
    await statuses.record(other, other, point=restore_point(other, "other"))
    assert await statuses.restore_points(row.id) == [second, first]
    assert await statuses.restore_points(uuid4()) == []


async def test_released_restore_points_are_stamped_once(database: Database) -> None:
    row = await stored(database)
    statuses = database.statuses(0)
    await statuses.record(row, row, point=restore_point(row, "first"))
    await statuses.release_restore_points(row)
    [released] = await statuses.restore_points(row.id)
    assert released.released_at is not None
    await statuses.record(row, row, point=restore_point(row, "second", created_at=NOW))
    await statuses.release_restore_points(row)
    second, first = await statuses.restore_points(row.id)
    assert first == released
    assert second.released_at is not None
    assert second.released_at >= released.released_at
    with pytest.raises(Stale):
        await statuses.release_restore_points(replace(row, op_id=OP_ID))


async def test_the_collector_sees_everything_not_purged(database: Database) -> None:
    row = await stored(database)
    deleted = await stored(database, deleted_at=NOW)
    purged = await stored(database, deleted_at=NOW, purged_at=NOW)
    await database.statuses(0).record(row, row, point=restore_point(row, "k"))
    data = await database.collector().read()
    assert {ws.id for ws in data.workspaces} == {row.id, deleted.id}
    assert {key: [p.key for p in points] for key, points in data.points.items()} == {row.id: ["k"]}
    assert data.newest_entry_at == (await database.ledger().entries(purged.id))[0].at
    assert data.now >= data.newest_entry_at


# ── terms ────────────────────────────────────────────────────────────────────────────────────────────────────────────

Write = Callable[[WorkspaceStatuses, Workspace], Awaitable[object]]
WRITES: dict[str, Write] = {
    "record": lambda statuses, row: statuses.record(row, replace(row, error_count=1)),
    "record nothing": lambda statuses, row: statuses.record(row, row),
    "record point": lambda statuses, row: statuses.record(row, row, point=restore_point(row, "new")),
    "observe": lambda statuses, row: statuses.record_observations([(row, seen_standby(row))]),
    "safe point": lambda statuses, row: statuses.pass_safe_point(row),
    "release": lambda statuses, row: statuses.release_restore_points(row),
}


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES.keys())
async def test_no_write_outside_its_term(database: Database, write: Write) -> None:
    row = await archiving(database, desired_state=Desired.ARCHIVED)
    await database.statuses(0).record(row, row, point=restore_point(row, "k"))
    async with new_term(database) as epoch:
        for wrong in (epoch - 1, epoch + 1):
            with pytest.raises(Stale):
                await write(database.statuses(wrong), row)
        assert await database.specs().get(row.id) == row
        assert [p.released_at for p in await database.statuses(epoch).restore_points(row.id)] == [None]
        await write(database.statuses(epoch), row)


async def test_reading_needs_no_term(database: Database) -> None:
    row = await stored(database)
    async with new_term(database) as epoch:
        old = database.statuses(epoch - 1)
        assert list(await old.versions()) == [row.id]
        assert (await old.load([row.id]))[0] == [row]
