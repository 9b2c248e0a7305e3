"""The collector over generated histories: at each run exactly that goes which was garbage for the whole grace.

What is garbage is stated here a second time, from what happened, without a look at the rules under test.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from codehub.adapters.memory.archives import StoredArchive
from codehub.adapters.memory.runtime import Container, Volume
from codehub.coordinator.context import Tuning
from codehub.domain import naming
from codehub.domain.errors import Conflict
from codehub.domain.gc_rules import RestorePoint, Retention
from codehub.domain.gc_safety import GcLimits
from codehub.domain.workspace import Desired, HomeContext, Phase, Workspace
from codehub.ports.archives import StoredObject
from tests.coordinator.harness import PERSON, CoordinatorHarness, began, in_virtual_time, now
from tests.rows import broken, workspace

GRACE, UNDO, NEWEST = timedelta(seconds=30), timedelta(seconds=50), 2
TUNING = Tuning(
    retention=Retention(restore_points=NEWEST, undo_seconds=50, grace_seconds=30),
    gc_limits=GcLimits(most_count=10_000, ledger_lag=timedelta(days=1)),
)
MINE = [UUID(int=number) for number in (1, 2, 3)]

Seen = tuple[str, str]
"""The kind and the name of a resource."""


@dataclass
class Life:
    """What happened to one workspace."""

    points: list[str] = field(default_factory=list)
    released: dict[str, datetime] = field(default_factory=dict)
    proven: set[str] = field(default_factory=set)
    archive: str | None = None
    uploading: str | None = None
    chosen: str | None = None
    home: str | None = None
    broken: bool = False
    deleted_at: datetime | None = None
    purged: bool = False

    def gone(self) -> bool:
        return self.purged or (self.deleted_at is not None and now() - self.deleted_at >= UNDO)

    def keeps(self, kind: str, name: str) -> bool:
        if self.gone():
            return False
        if self.broken and self.deleted_at is None:
            return True
        if kind == "container":
            return True
        if kind == "volume":
            return name == self.home
        key, _, cut = name.partition("#")
        if cut and key.removesuffix(".meta") in self.proven:
            return False
        return key in self._archives()

    def _archives(self) -> set[str | None]:
        if self.deleted_at is not None:
            return {self.archive, *self.points, *self.released}
        recently = {key for key, at in self.released.items() if now() - at < UNDO}
        return {self.archive, self.uploading, self.chosen, *self.points[-NEWEST:], *recently}


class History:
    def __init__(self, harness: CoordinatorHarness) -> None:
        self._harness = harness
        self._states = harness.states
        self._number = 100
        self.lives: dict[UUID, Life] = {}
        self._since: dict[Seen, datetime] = {}
        self._made: dict[Seen, datetime] = {}
        self.swept = 0

    def _uuid(self) -> UUID:
        self._number += 1
        return UUID(int=self._number)

    def _row(self, key: UUID) -> Workspace:
        return self._states.database.rows[key]

    def _write(self, key: UUID, **changes: object) -> None:
        row = self._row(key)
        self._states.database.put(row, replace(row, **changes), "history", "")  # type: ignore[arg-type]

    # ── what happens ─────────────────────────────────────────────────────────────────────────────────────────────────

    def create(self, key: UUID) -> None:
        self.lives[key] = Life()
        self._states.database.put(None, workspace(id=key, name=str(key), slug=f"ws-{key.int}"), "history", "")

    def archive(self, key: UUID) -> None:
        life, op_id = self.lives[key], self._uuid()
        name = naming.archive_key("", key, op_id)
        self._states.archives.objects[name] = StoredArchive((1,), now(), committed=True)
        self._states.database.ledger.append(began(name))
        point = RestorePoint(key, op_id, name, 1, 1, "sha", now(), now())
        self._states.database.points.setdefault(key, []).insert(0, point)
        life.points.append(name)
        life.proven.add(name)
        life.archive, life.home, life.uploading = name, None, name
        home = HomeContext(incarnation=self._row(key).home.incarnation)
        self._write(key, archive_key=name, archive_op_id=op_id, phase=Phase.ARCHIVED, home=home)

    def upload(self, key: UUID) -> None:
        """An upload is begun and cut off; a directory keeps what came."""
        op_id = self._uuid()
        name = naming.archive_key("", key, op_id)
        self._states.archives.objects[name] = StoredArchive((1,), now())
        self._states.database.ledger.append(began(name))
        self._states.archives.unfinished[f"{name}#1"] = StoredObject(f"{name}#1", 5, now())
        self.lives[key].uploading = name
        self._write(key, archive_op_id=op_id)

    def cut_off_beside(self, key: UUID) -> None:
        for name in self.lives[key].points[-1:]:
            left = f"{name}.meta#2"
            self._states.archives.unfinished[left] = StoredObject(left, 5, now())

    def restore(self, key: UUID) -> None:
        life = self.lives[key]
        incarnation = self._row(key).home.incarnation + self._number
        life.home = naming.volume_name(key, incarnation)
        life.uploading = None
        self._number += 1
        self._states.runtime.volumes[life.home] = Volume(key)
        home = HomeContext(incarnation=incarnation, live=True)
        self._write(key, home_store_key=life.home, home=home, archive_op_id=None, phase=Phase.STANDBY)

    def discard(self, key: UUID) -> None:
        life, points = self.lives[key], self._states.database.points
        life.released |= {name: now() for name in life.points}
        life.points, life.archive, life.uploading = [], None, None
        points[key] = [p if p.released_at else replace(p, released_at=now()) for p in points.get(key, [])]
        self._write(key, archive_key=None, archive_op_id=None)

    def choose(self, key: UUID) -> None:
        known = [*self.lives[key].points, *self.lives[key].released]
        if known:
            self.lives[key].chosen = known[0]
            self._write(key, restore_from=known[0], restore_requested_at=now())

    def settle(self, key: UUID) -> None:
        """What was chosen is handled, and what was broken is mended."""
        life = self.lives[key]
        life.chosen, life.broken = None, False
        healthy = Phase.STANDBY if life.home else Phase.ARCHIVED if life.archive else Phase.PENDING
        self._write(key, restore_handled_at=now(), phase=healthy, error_info=None, error_reason=None, error_count=0)

    def fail(self, key: UUID) -> None:
        self.lives[key].broken = True
        row = self._row(key)
        self._states.database.put(row, broken(row), "history", "")

    def delete(self, key: UUID) -> None:
        self.lives[key].deleted_at = now()
        self._write(key, desired_state=Desired.DELETED, deleted_at=now(), phase=Phase.DELETED)

    async def undelete(self, key: UUID) -> None:
        life = self.lives[key]
        if life.purged:
            with pytest.raises(Conflict, match="purged"):
                await self._harness.commands.undelete(key, PERSON)
            return
        await self._harness.commands.undelete(key, PERSON)
        await self._harness.reconciler.reconcile(key)
        assert (self._row(key).deleted_at, self._row(key).undelete_pending) == (None, False)
        life.deleted_at, life.uploading = None, None
        life.broken = self._row(key).phase is Phase.ERROR

    def orphans(self) -> None:
        """Resources come late to a workspace that was purged: its row is still there."""
        nobody = self._uuid()
        gone = workspace(id=nobody, name=str(nobody), slug=f"ws-{nobody.int}", phase=Phase.DELETED)
        self._states.database.put(None, replace(gone, deleted_at=now(), purged_at=now()), "history", "")
        volume = naming.volume_name(nobody, 1)
        self._states.runtime.volumes[volume] = Volume(nobody)
        self._states.runtime.containers[nobody] = Container("c", volume)
        stray = naming.archive_key("", nobody, self._uuid())
        self._states.archives.objects[stray] = StoredArchive((1,), now(), committed=True)

    # ── the collector ────────────────────────────────────────────────────────────────────────────────────────────────

    def _there(self) -> dict[Seen, UUID]:
        states = self._states
        found = {("volume", name): volume.workspace_id for name, volume in states.runtime.volumes.items()}
        found |= {("container", naming.container_name(key)): key for key in states.runtime.containers}
        stored = [*states.archives.objects, *states.archives.unfinished]
        return found | {("object", name): UUID(name.split("/")[0]) for name in stored}

    def _garbage_from(self, seen: Seen, owner: UUID) -> datetime:
        """The earliest moment that its grace may count from."""
        life, name = self.lives.get(owner), seen[1]
        moments = [self._since[seen]]
        if life and life.deleted_at and life.gone() and not life.purged:
            moments.append(life.deleted_at + UNDO)
        stored = self._states.archives.objects.get(name) or self._states.archives.unfinished.get(name)
        return max([*moments, *([stored.modified_at] if stored else [])])

    async def tick(self) -> None:
        before = self._there()
        unwanted = {s for s, owner in before.items() if owner not in self.lives or not self.lives[owner].keeps(*s)}
        self._since = {seen: self._since.get(seen, now()) for seen in unwanted}
        due = {seen for seen in unwanted if now() - self._garbage_from(seen, before[seen]) >= GRACE}
        report = await self._harness.term_runner.gc.run()
        assert report.refusals == ()
        gone = before.keys() - self._there().keys()
        assert gone == due
        for seen in gone:
            del self._since[seen]
        self.swept += len(gone)
        for key, life in self.lives.items():
            expired = life.deleted_at is not None and any(before[seen] == key for seen in gone) and life.gone()
            life.purged = life.purged or expired
            assert (self._row(key).purged_at is not None) is life.purged
            if life.purged:
                continue
            present = {name for kind, name in self._there() if kind == "object"}
            assert {point.key for point in self._states.database.points.get(key, [])} <= present


EVENTS = ("archive", "archive", "upload", "cut_off_beside", "restore", "discard", "choose", "settle", "fail", "delete")
IN_ERROR = ("cut_off_beside", "choose", "settle", "delete")
steps = st.one_of(
    st.tuples(st.sampled_from((*EVENTS, "undelete")), st.sampled_from(MINE)),
    st.tuples(st.just("orphans"), st.none()),
    st.tuples(st.just("wait"), st.sampled_from((5, 20, 40))),
    st.tuples(st.just("tick"), st.none()),
)


@settings(max_examples=300)
@given(st.lists(steps, min_size=10, max_size=60))
@in_virtual_time
async def test_exactly_the_garbage_of_a_whole_grace_goes(story: Sequence[tuple[str, object]]) -> None:
    harness = await CoordinatorHarness.open(TUNING)
    history = History(harness)
    for key in MINE:
        history.create(key)
    for event, about in story:
        await happen(history, event, about)
    for _ in range(4):
        await asyncio.sleep(40)
        await history.tick()


async def happen(history: History, event: str, about: object) -> None:
    if event == "wait":
        assert isinstance(about, int)
        await asyncio.sleep(about)
    elif event == "tick":
        await history.tick()
    elif event == "orphans":
        history.orphans()
    else:
        assert isinstance(about, UUID)
        life = history.lives[about]
        if life.deleted_at is not None:
            if event == "undelete":
                await history.undelete(about)
        elif event in IN_ERROR or (event != "undelete" and not life.broken):
            getattr(history, event)(about)
