"""WorkspaceSpecs: what people and timers may write, on every database."""

import asyncio
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest

from codehub.domain.admission import RunningLimits, Slots, admit, admit_another, holds_slot
from codehub.domain.errors import Conflict, ErrorReason, LimitReached, NotFound, Refused, Stale
from codehub.domain.ledger import LedgerKind
from codehub.domain.workspace import (
    NO_CONTAINER,
    Condition,
    Conditions,
    Desired,
    Operation,
    Phase,
    RecoverAction,
    Workspace,
)
from codehub.ports.stores import Actor
from tests.contracts.databases import ANN, Database, as_given, fresh, new_term, setting, stored
from tests.rows import LONG_AGO, NOW, OP_ID, broken

CONTAINER = Conditions(container_ready=Condition(status=True, reason="docker.Running"))

STARTING = {"operation": Operation.STARTING, "op_id": OP_ID, "op_started_at": NOW}


def refuse(_row: Workspace, _slots: Slots, _now: datetime) -> Workspace:
    raise Refused("no")


class Seeing:
    """Keeps what the store showed to the decision."""

    def __init__(self) -> None:
        self.slots = Slots()
        self.row: Workspace | None = None
        self.now: datetime | None = None

    def __call__(self, row: Workspace, slots: Slots, now: datetime) -> Workspace:
        self.row, self.slots, self.now = row, slots, now
        return row


# ── create ───────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_create_stores_what_was_decided(database: Database) -> None:
    given = fresh(description="mine", memo="note", template="big", image_ref="ide:1", standby_ttl_seconds=0)
    row = await database.specs().create(given, setting(desired_state=Desired.RUNNING, desired_by="ann"), ANN)
    assert (row.desired_state, row.desired_by, row.description) == (Desired.RUNNING, "ann", "mine")
    assert await database.specs().get(row.id) == row
    unlike = {"created_at", "updated_at", "phase_changed_at", "desired_state", "desired_by", "version"}
    assert replace(given, **{name: getattr(row, name) for name in unlike}) == row


async def test_create_takes_the_database_s_time(database: Database) -> None:
    seeing = Seeing()
    row = await database.specs().create(fresh(), seeing, ANN)
    assert row.created_at > LONG_AGO
    assert seeing.row is not None
    assert seeing.now is not None
    assert seeing.row.created_at == row.created_at == row.phase_changed_at
    assert row.created_at <= seeing.now


async def test_create_is_explained(database: Database) -> None:
    row = await database.specs().create(fresh(), setting(desired_state=Desired.RUNNING), ANN)
    [entry] = await database.ledger().entries(row.id)
    assert (entry.kind, entry.actor, entry.after, entry.message) == (LedgerKind.CREATED, "ann", "RUNNING", row.name)


async def test_a_refused_create_leaves_nothing(database: Database) -> None:
    given = fresh()
    with pytest.raises(Refused):
        await database.specs().create(given, refuse, ANN)
    assert await database.specs().get(given.id) is None
    assert await database.ledger().entries(given.id) == []


async def test_an_owner_s_live_names_differ_whatever_their_case(database: Database) -> None:
    first = await stored(database, name="Demo")
    with pytest.raises(Conflict) as refused:
        await database.specs().create(fresh(name="dEMO"), as_given, ANN)
    assert refused.value.code == "name_taken"
    await stored(database, name="demo", owner_id="bob")
    await database.specs().change(first.id, setting(deleted_at=NOW), ANN)
    await stored(database, name="demo")


async def test_a_slug_is_taken_for_ever(database: Database) -> None:
    first = await stored(database, slug="demo", deleted_at=NOW)
    assert first.deleted_at == NOW
    with pytest.raises(Conflict) as refused:
        await database.specs().create(fresh(slug="demo", owner_id="bob"), as_given, ANN)
    assert refused.value.code == "slug_taken"


async def test_an_id_is_used_once(database: Database) -> None:
    first = await stored(database)
    with pytest.raises(Conflict):
        await database.specs().create(fresh(id=first.id, slug="other", name="other"), as_given, ANN)


# ── change ───────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_change_writes_the_spec_side_only(database: Database) -> None:
    row = await stored(database)
    after = await database.specs().change(
        row.id, setting(memo="new", phase=Phase.RUNNING, error_count=7), ANN, reason="asked"
    )
    assert (after.memo, after.phase, after.error_count) == ("new", Phase.PENDING, 0)
    assert after.version > row.version
    assert after.updated_at >= row.updated_at
    assert await database.specs().get(row.id) == after


async def test_change_is_explained(database: Database) -> None:
    row = await stored(database)
    await database.specs().change(row.id, setting(desired_state=Desired.RUNNING), ANN, reason="asked")
    entry = (await database.ledger().entries(row.id))[0]
    assert (entry.kind, entry.actor, entry.before, entry.after, entry.reason) == (
        LedgerKind.WISH,
        "ann",
        "PENDING",
        "RUNNING",
        "asked",
    )


async def test_every_wish_survives_the_way_to_the_disk(database: Database) -> None:
    row = await stored(database)
    changes: dict[str, Any] = {
        "desired_state": Desired.DELETED,
        "desired_by": "bob",
        "recover_action": RecoverAction.EMPTY_HOME,
        "recover_requested_at": NOW,
        "restore_from": "a/b",
        "restore_requested_at": NOW,
        "undelete_requested_at": NOW,
        "deleted_at": NOW,
        "purged_at": NOW,
        "standby_ttl_seconds": 5,
        "archive_ttl_seconds": 0,
        "last_access_at": NOW,
        "owner_id": "bob",
        "name": "다른 이름",
        "slug": "other",
        "description": "d",
        "memo": "m\n",
        "template": "t",
        "runtime": "docker",
    }
    after = await database.specs().change(row.id, setting(**changes), ANN)
    assert replace(row, **changes, version=after.version, updated_at=after.updated_at) == after
    assert await database.specs().get(row.id) == after


async def test_change_of_nobody_is_not_found(database: Database) -> None:
    with pytest.raises(NotFound):
        await database.specs().change(uuid4(), as_given, ANN)
    with pytest.raises(NotFound):
        await database.specs().change(uuid4(), as_given, ANN, admission=True)
    assert await database.specs().get(uuid4()) is None


async def test_no_difference_is_no_write(database: Database) -> None:
    row = await stored(database)
    assert await database.specs().change(row.id, as_given, ANN) == row
    with pytest.raises(Refused):
        await database.specs().change(row.id, refuse, ANN)
    assert await database.specs().get(row.id) == row
    assert len(await database.ledger().entries(row.id)) == 1


async def test_a_name_cannot_be_taken_by_renaming_nor_by_undeleting(database: Database) -> None:
    gone = await stored(database, name="demo", deleted_at=NOW)
    live = await stored(database, name="demo")
    other = await stored(database, name="other")
    with pytest.raises(Conflict):
        await database.specs().change(other.id, setting(name="DEMO"), ANN)
    with pytest.raises(Conflict):
        await database.specs().change(gone.id, setting(deleted_at=None), ANN)
    assert await database.specs().get(other.id) == other
    await database.specs().change(live.id, setting(name="Demo"), ANN)


async def test_writes_at_once_lose_nothing(database: Database) -> None:
    row = await stored(database, memo="")

    def add(row: Workspace, _slots: Slots, _now: datetime) -> Workspace:
        return replace(row, memo=row.memo + "x")

    await asyncio.gather(*(database.specs().change(row.id, add, ANN) for _ in range(20)))
    found = await database.specs().get(row.id)
    assert found is not None
    assert found.memo == "x" * 20


# ── admission ────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("changes", "holds"),
    [
        ({}, False),
        ({"desired_state": Desired.RUNNING}, True),
        ({"desired_state": Desired.STANDBY}, False),
        ({"conditions": CONTAINER}, True),
        ({"conditions": Conditions(container_ready=Condition(None, "docker.Running"))}, True),
        ({"conditions": Conditions(container_ready=Condition(None, NO_CONTAINER.reason))}, False),
        (STARTING, True),
        (STARTING | {"operation": Operation.STOPPING}, False),
        (STARTING | {"deleted_at": NOW}, False),
        ({"desired_state": Desired.RUNNING, "deleted_at": NOW}, False),
        ({"conditions": CONTAINER, "deleted_at": NOW}, False),
    ],
)
async def test_slots_count_whoever_runs_or_will(database: Database, changes: dict[str, object], holds: bool) -> None:
    other = await stored(database, **changes)
    seeing = Seeing()
    await database.specs().create(fresh(), seeing, ANN)
    assert (list(seeing.slots.mine), seeing.slots.total) == (([other.name], 1) if holds else ([], 0))


@pytest.mark.parametrize("reason", ErrorReason)
@pytest.mark.parametrize("recovering", [False, True])
async def test_who_is_in_error_holds_a_slot_if_the_domain_says_so(
    database: Database, reason: ErrorReason, recovering: bool
) -> None:
    row = await stored(database, desired_state=Desired.RUNNING)
    ill = await database.statuses(0).record(row, broken(row, reason))
    if recovering:
        ill = await database.specs().change(
            row.id, setting(recover_action=RecoverAction.RETRY, recover_requested_at=NOW), ANN
        )
    seeing = Seeing()
    await database.specs().create(fresh(), seeing, ANN)
    assert (list(seeing.slots.mine), seeing.slots.total) == (([row.name], 1) if holds_slot(ill) else ([], 0))


async def test_slots_are_the_others_and_only_for_admission(database: Database) -> None:
    me = await stored(database, desired_state=Desired.RUNNING)
    mine = await stored(database, desired_state=Desired.RUNNING)
    await stored(database, desired_state=Desired.RUNNING, owner_id="bob")
    seeing = Seeing()
    await database.specs().change(me.id, seeing, ANN, admission=True)
    assert (list(seeing.slots.mine), seeing.slots.total) == ([mine.name], 2)
    await database.specs().change(me.id, seeing, ANN)
    assert seeing.slots == Slots()


async def test_slots_count_what_else_the_owner_has(database: Database) -> None:
    me = await stored(database)
    await stored(database, desired_state=Desired.RUNNING)
    await stored(database, owner_id="bob")
    await stored(database, deleted_at=NOW)
    seeing = Seeing()
    await database.specs().change(me.id, seeing, ANN, admission=True)
    assert seeing.slots.owned == 1
    await database.specs().create(fresh(), seeing, ANN)
    assert seeing.slots.owned == 2


async def test_nobody_gets_more_workspaces_however_many_are_asked_for_at_once(database: Database) -> None:
    await stored(database)
    limits = RunningLimits(max_workspaces_per_user=3)

    def keep(row: Workspace, slots: Slots, _now: datetime) -> Workspace:
        admit_another(slots, limits)
        return row

    asked = [database.specs().create(fresh(), keep, ANN) for _ in range(8)]
    answers = await asyncio.gather(*asked, return_exceptions=True)
    assert sum(isinstance(answer, Workspace) for answer in answers) == 2
    assert sum(isinstance(answer, LimitReached) for answer in answers) == 6


async def test_limits_are_exact_however_many_ask_at_once(database: Database) -> None:
    rows = [await stored(database) for _ in range(8)]
    limits = RunningLimits(max_running_per_user=3)

    def start(row: Workspace, slots: Slots, _now: datetime) -> Workspace:
        admit(slots, limits)
        return replace(row, desired_state=Desired.RUNNING)

    asked = [database.specs().change(row.id, start, ANN, admission=True) for row in rows]
    asked += [database.specs().create(fresh(), start, ANN) for _ in range(4)]
    answers = await asyncio.gather(*asked, return_exceptions=True)
    assert sum(isinstance(answer, Workspace) for answer in answers) == 3
    assert sum(isinstance(answer, LimitReached) for answer in answers) == 9


# ── robots ───────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_robot_of_an_old_term_changes_nothing(database: Database) -> None:
    row = await stored(database)
    new = fresh()
    async with new_term(database) as epoch:
        for old in (epoch - 1, epoch + 1):
            robot = Actor("ttl", old)
            with pytest.raises(Stale):
                await database.specs().change(row.id, setting(memo="no"), robot)
            with pytest.raises(Stale):
                await database.specs().create(new, as_given, robot)
            with pytest.raises(Stale):
                await database.specs().touch({row.id: NOW}, robot)
        assert await database.specs().get(row.id) == row
        assert await database.specs().get(new.id) is None
        after = await database.specs().change(row.id, setting(desired_state=Desired.STANDBY), Actor("ttl", epoch))
        assert after.desired_state is Desired.STANDBY
        assert (await database.ledger().entries(row.id))[0].actor == "ttl"


# ── reading, access, leases ──────────────────────────────────────────────────────────────────────────────────────────


async def test_access_never_moves_back(database: Database) -> None:
    early, late = NOW, NOW + timedelta(seconds=5)
    row, other = await stored(database), await stored(database)
    await database.specs().touch({row.id: late, other.id: early, uuid4(): late}, ANN)
    await database.specs().touch({row.id: early, other.id: late}, ANN)
    await database.specs().touch({}, ANN)
    found = [await database.specs().get(key) for key in (row.id, other.id)]
    assert [at.last_access_at for at in found if at] == [late, late]
    assert len(await database.ledger().entries(row.id)) == 1


async def test_the_longest_lease_counts_and_a_holder_has_one(database: Database) -> None:
    row, other = await stored(database), await stored(database)
    now = (await database.specs().idle_candidates())[1]
    soon, later, past = now + timedelta(hours=1), now + timedelta(hours=2), now - timedelta(seconds=1)
    specs = database.specs()
    await specs.hold(row.id, "job", later)
    await specs.hold(row.id, "shell", soon)
    await specs.hold(other.id, "job", past)
    assert await specs.leases() == {row.id: later}
    await specs.hold(row.id, "job", past)
    assert await specs.leases() == {row.id: soon}
    await specs.release_leases(row.id, ANN)
    await specs.release_leases(row.id, ANN)
    assert await specs.leases() == {}


async def test_who_saw_the_row_without_the_lease_saw_an_old_row(database: Database) -> None:
    row = await stored(database)
    await database.specs().hold(row.id, "job", NOW)
    held = await database.specs().get(row.id)
    assert held is not None
    assert held.version > row.version
    assert len(await database.ledger().entries(row.id)) == 1


async def test_nobody_s_lease_is_not_found(database: Database) -> None:
    with pytest.raises(NotFound):
        await database.specs().hold(uuid4(), "job", NOW)


async def test_idle_candidates_are_settled_and_awake(database: Database) -> None:
    standby = await stored(database, phase=Phase.STANDBY, desired_state=Desired.STANDBY)
    running = await stored(database, phase=Phase.RUNNING, desired_state=Desired.RUNNING)
    await stored(database, phase=Phase.RUNNING, desired_state=Desired.STANDBY)
    await stored(database, phase=Phase.ARCHIVED, desired_state=Desired.ARCHIVED)
    await stored(
        database,
        phase=Phase.STANDBY,
        desired_state=Desired.STANDBY,
        operation=Operation.ARCHIVING,
        op_id=OP_ID,
        op_started_at=NOW,
    )
    await stored(
        database, phase=Phase.STANDBY, desired_state=Desired.STANDBY, restore_from="k", restore_requested_at=NOW
    )
    found, now = await database.specs().idle_candidates()
    assert {row.id for row in found} == {standby.id, running.id}
    assert now >= running.updated_at


async def test_idle_candidates_of_nothing_still_tell_the_time(database: Database) -> None:
    found, now = await database.specs().idle_candidates()
    assert list(found) == []
    assert now > LONG_AGO
