"""Restore points are their owner's in every state of the workspace, and nobody else's in any."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar
from uuid import UUID, uuid4

import pytest

from codehub.adapters.memory import MemoryArchives, MemoryContents, MemoryDatabase, MemoryRuntime
from codehub.adapters.memory.archives import StoredArchive, StoredEntry
from codehub.adapters.memory.fault_injection import Network
from codehub.adapters.object_store.contents import ObjectContents
from codehub.domain.errors import BackendError, ErrorReason, Forbidden, NotFound
from codehub.domain.gc_rules import RestorePoint
from codehub.domain.identity import Caller, Role, Scope, User
from codehub.domain.naming import archive_key
from codehub.domain.workspace import Desired, Phase, Workspace
from codehub.ports.archives import ArchiveContents, EntryKind, Listing
from codehub.usecases.restore_points import (
    restore_point,
    workspace_with_restore_points,
)
from tests.job.harness import JobHarness
from tests.rows import LONG_AGO, NOW, broken, workspace

FIRST, SECOND = uuid4(), uuid4()
T = TypeVar("T")


def person(name: str, role: Role = Role.USER) -> Caller:
    return Caller(User(uuid4(), name, role, LONG_AGO), credential=f"session:{name}")


class RestorePointHarness:
    """Ann's workspace with two restore points, the second the present one, and another's beside it."""

    def __init__(self, **changes: Any) -> None:
        self.ann, self.bob, self.admin = person("ann"), person("bob"), person("root", Role.ADMIN)
        self.database = MemoryDatabase()
        self.archives, self.runtime = MemoryArchives(), MemoryRuntime()
        self.views = self.database.views()
        self.contents: ArchiveContents = MemoryContents(self.archives.state)
        row = workspace(id=uuid4(), owner_id=self.ann.user.owner_id)
        self.row = replace(row, archive_key=archive_key("", row.id, SECOND), **changes)
        self.put(self.row, FIRST, SECOND)
        self.other = workspace(id=uuid4(), owner_id=self.bob.user.owner_id, slug="bobs")
        self.others_op = uuid4()
        self.put(self.other, self.others_op)

    def put(self, row: Workspace, *op_ids: UUID) -> None:
        state = self.database.state
        state.rows[row.id] = row
        for age, op_id in enumerate(op_ids):
            key = archive_key("", row.id, op_id)
            at = LONG_AGO + timedelta(days=age)
            point = RestorePoint(row.id, op_id, key, 10 + age, 2 + age, "ab" * 32, at, at + timedelta(minutes=1))
            state.points.setdefault(row.id, []).insert(0, point)
            home = {b"": StoredEntry(EntryKind.FOLDER), b"who": StoredEntry(EntryKind.FILE, str(op_id).encode())}
            self.archives.state.objects[key] = StoredArchive((), datetime.now(UTC), committed=True, home=home)

    async def listed(self, caller: Caller) -> Sequence[RestorePoint]:
        owned = await workspace_with_restore_points(self.views, caller, self.row.id)
        return await self.views.restore_points(owned.workspace.id)

    async def place(self, workspace_id: UUID, op_id: UUID, caller: Caller) -> tuple[str, str]:
        """The key of the archive, and its owner."""
        owned = await workspace_with_restore_points(self.views, caller, workspace_id)
        return (await restore_point(self.views, owned, op_id)).key, owned.workspace.owner_id

    async def tree(self, caller: Caller, op_id: UUID = SECOND) -> Listing:
        key, owner = await self.place(self.row.id, op_id, caller)
        return await self.contents.tree(key, "", owner=owner)

    async def read(self, caller: Caller, op_id: UUID = SECOND, path: str = "who") -> bytes:
        key, owner = await self.place(self.row.id, op_id, caller)
        async with self.contents.content(key, path, owner=owner) as content:
            return b"".join([chunk async for chunk in content.chunks])

    async def original(self, caller: Caller, op_id: UUID = SECOND) -> int | None:
        key, _ = await self.place(self.row.id, op_id, caller)
        async with self.contents.original(key) as content:
            return content.size

    def questions(self, caller: Caller, op_id: UUID = SECOND) -> list[Callable[[], Awaitable[object]]]:
        return [
            lambda: self.listed(caller),
            lambda: self.tree(caller, op_id),
            lambda: self.read(caller, op_id),
            lambda: self.original(caller, op_id),
        ]


STATES: dict[str, dict[str, Any]] = {phase.value: {"phase": phase} for phase in Phase}
STATES["wished to run, over every limit"] = {"phase": Phase.ARCHIVED, "desired_state": Desired.RUNNING}
STATES["deleted, not purged"] = {"phase": Phase.DELETED, "desired_state": Desired.DELETED, "deleted_at": NOW}


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("who", ["ann", "admin"])
async def test_owner_and_admin_reach_them_in_every_state(state: str, who: str) -> None:
    harness = RestorePointHarness(**STATES[state])
    if state == "ERROR":
        harness.database.state.rows[harness.row.id] = broken(harness.row)
    before = harness.database.state.rows[harness.row.id]
    caller: Caller = getattr(harness, who)
    newest, oldest = await harness.listed(caller)
    assert (newest.op_id, newest.bytes, newest.files) == (SECOND, 11, 3)
    assert (oldest.op_id, oldest.bytes, oldest.files) == (FIRST, 10, 2)
    assert oldest.verified_at - oldest.created_at == timedelta(minutes=1)
    listing = await harness.tree(caller, FIRST)
    assert [entry.name for entry in listing.entries] == ["who"]
    assert await harness.read(caller, FIRST) == str(FIRST).encode()
    assert await harness.original(caller)
    assert harness.database.state.rows[harness.row.id] is before, "nothing was wished"
    assert harness.runtime.state.started == 0
    assert harness.database.state.ledger == []


async def test_what_is_not_yours_is_not_there() -> None:
    harness = RestorePointHarness()
    for ask in harness.questions(harness.bob):
        with pytest.raises(NotFound, match="There is no workspace"):
            await ask()


async def test_what_is_purged_is_gone_for_its_owner_too() -> None:
    harness = RestorePointHarness(phase=Phase.DELETED, deleted_at=NOW, purged_at=NOW)
    for ask in harness.questions(harness.ann):
        with pytest.raises(NotFound, match="purged"):
            await ask()
    with pytest.raises(NotFound, match="There is no workspace"):
        await harness.listed(harness.bob)


async def test_only_restore_points_of_that_workspace_can_be_named() -> None:
    harness = RestorePointHarness()
    unproven = uuid4()
    key = archive_key("", harness.row.id, unproven)
    harness.archives.state.objects[key] = StoredArchive((1,), NOW, committed=True)
    for op_id in (uuid4(), harness.others_op, unproven):
        for ask in harness.questions(harness.ann, op_id)[1:]:
            with pytest.raises(NotFound, match="has no restore point"):
                await ask()


async def test_a_token_needs_the_scope_to_read_and_an_admins_to_read_what_is_others() -> None:
    harness = RestorePointHarness()
    for ask in harness.questions(replace(harness.ann, scopes={Scope.WRITE})):
        with pytest.raises(Forbidden):
            await ask()
    for ask in harness.questions(replace(harness.admin, scopes={Scope.READ})):
        with pytest.raises(NotFound):
            await ask()


async def test_released_ones_are_shown_as_such() -> None:
    harness = RestorePointHarness()
    points = harness.database.state.points[harness.row.id]
    harness.database.state.points[harness.row.id] = [replace(point, released_at=NOW) for point in points]
    assert [point.released_at for point in await harness.listed(harness.ann)] == [NOW, NOW]
    assert await harness.read(harness.ann) == str(SECOND).encode()


async def test_an_object_that_is_gone_is_told_as_such() -> None:
    harness = RestorePointHarness()
    harness.archives.state.objects.clear()
    with pytest.raises(BackendError) as refusal:
        await harness.read(harness.ann)
    assert refusal.value.reason is ErrorReason.ARCHIVE_ACCESS_ERROR


class SlowWire(Network):
    """Nothing is answered until it is let; `asked` counts."""

    def __init__(self) -> None:
        self.asked = 0
        self.let = asyncio.Event()

    async def call(self, name: str, effect: Callable[[], T], about: UUID | None = None) -> T:
        self.asked += 1
        await self.let.wait()
        return await super().call(name, effect, about)


@pytest.mark.parametrize("what", ["tree", "content"])
async def test_all_that_is_one_owner_s_is_looked_into_one_after_another(what: str) -> None:
    harness, network = RestorePointHarness(), SlowWire()
    second, op_id = workspace(id=uuid4(), owner_id=harness.ann.user.owner_id, slug="second"), uuid4()
    harness.put(second, op_id)
    contents = MemoryContents(harness.archives.state, network)

    async def ask(workspace_id: UUID, op_id: UUID, caller: Caller) -> None:
        key, owner = await harness.place(workspace_id, op_id, caller)
        if what == "tree":
            await contents.tree(key, "", owner=owner)
        else:
            async with contents.content(key, "who", owner=owner):
                pass

    asked = [
        asyncio.create_task(ask(*one))
        for one in (
            (harness.row.id, FIRST, harness.ann),
            (harness.row.id, SECOND, harness.admin),
            (second.id, op_id, harness.ann),
            (harness.other.id, harness.others_op, harness.bob),
        )
    ]
    for _ in range(50):
        await asyncio.sleep(0)
    assert network.asked == 2, "one of Ann's, whoever asks, and Bob's"
    network.let.set()
    await asyncio.gather(*asked)
    assert network.asked == 4


async def test_on_a_real_archive(tmp_path: Path) -> None:
    harness, desk = RestorePointHarness(), JobHarness(tmp_path)
    (desk.home / "who").write_text("a real one")
    desk.key = archive_key("", harness.row.id, SECOND)
    assert desk.archive().code == 0
    with closing(ObjectContents(desk.store_url)) as contents:
        harness.contents = contents
        assert await harness.read(harness.ann) == b"a real one"
