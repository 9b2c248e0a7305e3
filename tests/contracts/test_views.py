"""What people read: the same lists in memory and on PostgreSQL, in an order that no write changes."""

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest

from codehub.adapters.memory import MemoryAccountDatabase, MemoryDatabase
from codehub.adapters.postgres import PostgresDatabase
from codehub.domain.admission import RunningLimits, Slots, admit
from codehub.domain.errors import ErrorReason, LimitReached
from codehub.domain.ledger import LedgerKind
from codehub.domain.template import Template
from codehub.domain.workspace import Desired, Operation, Phase, Workspace
from codehub.ports.accounts import Accounts, NewUser
from codehub.ports.stores import Actor, Templates
from codehub.ports.views import Position, WorkspaceFilter, WorkspaceViews
from tests.contracts.databases import ANN, Database, epoch_of, fresh, restore_point, setting, stored
from tests.rows import error_info


@pytest.fixture
def views(database: Database) -> WorkspaceViews:
    assert isinstance(database, MemoryDatabase | PostgresDatabase)
    return database.views()


@pytest.fixture
def accounts(database: Database) -> Accounts:
    if isinstance(database, MemoryDatabase):
        return MemoryAccountDatabase(database.state.accounts).accounts()
    assert isinstance(database, PostgresDatabase)
    return database.accounts()


@pytest.fixture
def templates(database: Database) -> Templates:
    if isinstance(database, MemoryDatabase):
        return MemoryAccountDatabase(database.state.accounts).templates()
    assert isinstance(database, PostgresDatabase)
    return database.templates()


async def ids(views: WorkspaceViews, size: int = 2, **sought: Any) -> list[UUID]:
    """Through all pages."""
    found: list[UUID] = []
    after = None
    while page := await views.page(WorkspaceFilter(**sought), size, after):
        found += [owned.workspace.id for owned in page]
        last = page[-1].workspace
        after = Position(last.created_at, last.id)
    return found


async def test_pages_are_newest_first_and_whole(database: Database, views: WorkspaceViews) -> None:
    made = [(await stored(database, owner_id="ann")).id for _ in range(5)]
    await stored(database, owner_id="bob")
    assert await ids(views, owner_id="ann") == made[::-1]
    assert len(await ids(views)) == 6
    assert await ids(views, owner_id="nobody") == []


async def test_a_page_goes_on_where_the_last_ended(database: Database, views: WorkspaceViews) -> None:
    made = [await stored(database, owner_id="ann") for _ in range(4)]
    first = await views.page(WorkspaceFilter("ann"), 2)
    newcomer = await stored(database, owner_id="ann")
    await database.specs().change(made[3].id, setting(deleted_at=made[3].created_at), ANN)
    last = first[-1].workspace
    rest = await views.page(WorkspaceFilter("ann"), 9, Position(last.created_at, last.id))
    assert [owned.workspace.id for owned in rest] == [made[1].id, made[0].id]
    assert newcomer.id not in {owned.workspace.id for owned in rest}


@pytest.mark.parametrize(
    ("sought", "found"),
    [
        ({"text": "SHOP"}, "ab"),
        ({"text": "100%"}, "b"),
        ({"text": "1000"}, ""),
        ({"text": "_"}, "c"),
        ({"text": "\\"}, "c"),
        ({"phase": Phase.STANDBY}, "b"),
        ({"phase": Phase.ERROR}, "c"),
        ({"error_reason": ErrorReason.TIMEOUT}, "c"),
        ({"error_reason": ErrorReason.DATA_LOST}, ""),
        ({"deleted": True}, "d"),
        ({"text": "shop", "phase": Phase.PENDING}, "a"),
    ],
)
async def test_every_condition_must_hold(
    database: Database, views: WorkspaceViews, sought: dict[str, Any], found: str
) -> None:
    timeout = error_info(ErrorReason.TIMEOUT)
    rows = {
        "a": await stored(database, name="the Shop"),
        "b": await stored(database, name="b", description="100% shop", phase=Phase.STANDBY),
        "c": await stored(
            database, name="a_\\", phase=Phase.ERROR, error_info=timeout, error_reason=ErrorReason.TIMEOUT
        ),
    }
    rows["d"] = await stored(database, name="gone shop")
    await database.specs().change(rows["d"].id, setting(deleted_at=rows["d"].created_at), ANN)
    assert set(await ids(views, **sought)) == {rows[name].id for name in found}


async def test_owners_have_names(database: Database, views: WorkspaceViews, accounts: Accounts) -> None:
    ann = await accounts.create_user(NewUser(uuid4(), "ann"), Actor("test"))
    hers = await stored(database, owner_id=ann.owner_id)
    orphan = await stored(database, owner_id="import")
    for workspace_id, name in ((hers.id, "ann"), (orphan.id, "import")):
        found = await views.get(workspace_id)
        assert found is not None
        assert (found.workspace.id, found.owner) == (workspace_id, name)
    some = await views.some([hers.id, uuid4()])
    assert {key: owned.owner for key, owned in some.items()} == {hers.id: "ann"}
    assert [owned.workspace for owned in await views.everything(ann.owner_id)] == [hers]
    assert len(await views.everything()) == 2
    assert await views.get(uuid4()) is None


async def test_an_address_leads_to_the_one_that_lives_there(database: Database, views: WorkspaceViews) -> None:
    row, gone = await stored(database, owner_id="ann"), await stored(database)
    await stored(database)
    found = await views.by_slug(row.slug)
    assert found is not None
    assert (found.workspace, found.owner) == (row, "ann")
    assert await views.by_slug(gone.slug) is not None
    await database.specs().change(gone.id, setting(deleted_at=gone.created_at), ANN)
    for slug in (gone.slug, row.slug.upper(), f"{row.slug}x", f"80--{row.slug}", "", "\x00", "x" * 5_000, "\udc80"):
        assert await views.by_slug(slug) is None, slug


async def test_everything_leaves_the_deleted_out_and_a_look_does_not(database: Database, views: WorkspaceViews) -> None:
    gone = await stored(database)
    await database.specs().change(gone.id, setting(deleted_at=gone.created_at), ANN)
    assert await views.everything() == []
    assert await views.get(gone.id) is not None
    assert gone.id in await views.some([gone.id])


async def test_slots_and_the_owner_s_own_limit(database: Database, views: WorkspaceViews, accounts: Accounts) -> None:
    ann = await accounts.create_user(NewUser(uuid4(), "ann", max_running=7), Actor("test"))
    holds = await stored(database, owner_id=ann.owner_id, desired_state=Desired.RUNNING)
    await stored(database, owner_id=ann.owner_id)
    await stored(database, owner_id="bob", desired_state=Desired.RUNNING)
    mine, total, own = await views.slots(ann.owner_id)
    assert ([row.id for row in mine], total, own) == ([holds.id], 2, 7)
    assert (await views.slots("bob"))[2] is None


async def test_a_decision_sees_the_owner_s_own_limit(database: Database, accounts: Accounts) -> None:
    """Under the same lock as the slots, for whoever asks."""
    ann = await accounts.create_user(NewUser(uuid4(), "ann", max_running=1), Actor("test"))

    def running(row: Workspace, others: Slots, _now: datetime) -> Workspace:
        admit(others, RunningLimits(5, 100))
        return replace(row, desired_state=Desired.RUNNING)

    await database.specs().create(fresh(owner_id=ann.owner_id), running, ANN)
    with pytest.raises(LimitReached):
        await database.specs().create(fresh(owner_id=ann.owner_id), running, Actor("an admin"))
    asleep = await stored(database, owner_id=ann.owner_id)
    with pytest.raises(LimitReached):
        await database.specs().change(asleep.id, running, Actor("an admin"), admission=True)
    await accounts.change_user(ann.id, lambda user, _o, _n: replace(user, max_running=2), Actor("admin"), "limit")
    await database.specs().change(asleep.id, running, ANN, admission=True)


async def test_the_ledger_in_pages_and_by_kind(database: Database, views: WorkspaceViews) -> None:
    row = await stored(database)
    await stored(database)
    for desired in (Desired.STANDBY, Desired.RUNNING):
        await database.specs().change(row.id, setting(desired_state=desired), ANN, reason="asked")
    newest, older = (await views.entries(row.id, 1))[0], await views.entries(row.id, 9, before=None)
    assert newest[1].after == "RUNNING"
    rest = await views.entries(row.id, 9, before=newest[0])
    assert [entry.kind for _, entry in rest] == [LedgerKind.WISH, LedgerKind.CREATED]
    assert older == [newest, *rest]
    assert [entry.kind for _, entry in await views.entries(row.id, 9, kinds=[LedgerKind.CREATED])] == [
        LedgerKind.CREATED
    ]


async def test_restore_points_and_leases(database: Database, views: WorkspaceViews) -> None:
    row = await stored(database)
    assert await views.lease_until(row.id) is None
    now = await views.now()
    for holder, hours in (("a", 1), ("b", 2), ("c", -1)):
        await database.specs().hold(row.id, holder, now + timedelta(hours=hours))
    assert await views.lease_until(row.id) == now + timedelta(hours=2)
    point = restore_point(row, "k1")
    statuses = database.statuses(await epoch_of(database))
    await statuses.record(row, replace(row, archive_key="k1"), point=point)
    assert list(await views.restore_points(row.id)) == [point]
    assert list(await views.restore_points(uuid4())) == []


async def test_a_day_holds_what_its_history_is_made_from(database: Database, views: WorkspaceViews) -> None:
    row = await stored(database, owner_id="ann")
    epoch = await epoch_of(database)
    statuses = database.statuses(epoch)
    begins = replace(row, operation=Operation.STARTING, op_id=uuid4(), op_started_at=row.created_at)
    begun = await statuses.record(row, begins, reason="test")
    await statuses.record(
        begun, replace(begun, operation=Operation.NONE, op_started_at=None, phase=Phase.RUNNING), reason="test"
    )
    await stored(database, owner_id="ann")
    day = await views.history_data()
    assert day.running == 1
    assert [(found.kind, found.before, found.after) for found in day.entries] == [
        (LedgerKind.OPERATION_BEGAN, "NONE", "STARTING"),
        (LedgerKind.PHASE, "PENDING", "RUNNING"),
    ]
    assert [found.workspace_id for found in day.entries] == [row.id, row.id]
    assert day.archived == []
    assert all(day.now - found.at < timedelta(minutes=5) for found in day.entries)


async def test_a_workspace_is_read_with_the_image_that_its_template_names_now(
    database: Database, views: WorkspaceViews, templates: Templates
) -> None:
    row = await stored(database, template="ides", image_ref="ide:1")
    found = await views.get(row.id)
    assert found is not None
    assert (found.template_image, found.next_image_ref) == (None, "ide:1"), "there is no such template"
    for image in ("ide:2", ""):
        await templates.put(Template("ides", image_ref=image), ANN)
        found = await views.get(row.id)
        assert found is not None
        assert (found.workspace.image_ref, found.next_image_ref) == ("ide:1", image)
    assert [one.next_image_ref for one in await views.everything()] == [""]
