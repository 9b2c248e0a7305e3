"""Random commands for two databases at once: drawn from a seed, so that both are asked exactly the same.

Times that a command names are fixed and long past or far ahead; times that only the database knows are compared by
being the database's, not by value.
"""

import random
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from codehub.domain.admission import RunningLimits, Slots, admit
from codehub.domain.errors import ErrorReason, Refused
from codehub.domain.gc_rules import BackendResource, ResourceKind
from codehub.domain.workspace import (
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
from codehub.ports.stores import Actor
from tests.contracts.databases import Database, Decide, RealClock, fresh, restore_point
from tests.rows import NOW, error_info

FAR = datetime(2099, 1, 1, tzinfo=UTC)
LIMITS = RunningLimits(max_running_per_user=2, max_running_global=3)
NAMES = ("demo", "Demo", "other", "OTHER", "third")
SLUGS = tuple(f"slug-{n}" for n in range(12))

Command = Callable[[Database], Awaitable[object]]


def wishing(changes: dict[str, Any], *, refused: bool = False) -> Decide:
    """As the use cases decide: whoever wants to run asks for admission."""

    def decide(row: Workspace, slots: Slots, _now: datetime) -> Workspace:
        if refused:
            raise Refused("no")
        if changes.get("desired_state") is Desired.RUNNING:
            admit(slots, LIMITS)
        return replace(row, **changes)

    return decide


class Story:
    """The plot: what is asked next. It knows ids and epochs, never what either database answered."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._tick = 0
        self.ids: list[UUID] = []
        self.epoch = 0

    def next(self) -> tuple[str, Command]:
        draw = self._random
        if not self.ids:
            return self.create()
        kinds = (
            self.create,
            self.change,
            self.change,
            self.record,
            self.record,
            self.record_late,
            self.observe,
            self.safe_point,
            self.touch,
            self.hold,
            self.release_leases,
            self.point,
            self.release_points,
            self.remark,
            self.give_up,
            self.bump,
        )
        return draw.choice(kinds)()

    # ── what is drawn ────────────────────────────────────────────────────────────────────────────────────────────────

    def _time(self) -> datetime:
        self._tick += 1
        return NOW + timedelta(seconds=self._tick)

    def _uuid(self) -> UUID:
        return UUID(int=self._random.getrandbits(128), version=4)

    def _id(self) -> UUID:
        return self._uuid() if self._random.random() < 0.05 else self._random.choice(self.ids)

    def _epoch(self) -> int:
        return self.epoch - (self._random.random() < 0.1)

    def _actor(self) -> Actor:
        return Actor("ann") if self._random.random() < 0.6 else Actor("robot", self._epoch())

    def _spec(self) -> dict[str, Any]:
        at = self._time()
        draw = self._random
        return draw.choice(
            [
                {"memo": f"memo {draw.randint(0, 2)}"},
                {"name": draw.choice(NAMES)},
                {"slug": draw.choice(SLUGS)},
                {"desired_state": draw.choice(list(Desired)), "desired_by": "x"},
                {"desired_state": Desired.RUNNING, "last_access_at": at},
                {"recover_action": draw.choice(list(RecoverAction)), "recover_requested_at": at},
                {"restore_from": "k", "restore_requested_at": at},
                {"undelete_requested_at": at},
                {"deleted_at": at, "desired_state": Desired.DELETED},
                {"deleted_at": None, "purged_at": None},
                {"deleted_at": at, "purged_at": at},
                {"standby_ttl_seconds": draw.choice([None, 0, 60])},
                {},
            ]
        )

    def _late_status(self) -> dict[str, Any]:
        """Fields that any operation may write at any time."""
        at, draw = self._time(), self._random
        return draw.choice(
            [
                {"error_count": draw.randint(0, 3)},
                {"op_progress": Progress(draw.randint(0, 9), 1, None, "upload"), "op_progress_at": at},
                {"home": HomeContext(draw.randint(0, 2), live=draw.random() < 0.5)},
                {"retry_at": at, "observed_at": at},
                {"archive_key": draw.choice([None, "k1", "k2"])},
                {"conditions": self._conditions()},
                {"recover_handled_at": at, "restore_handled_at": at, "undelete_handled_at": at},
            ]
        )

    def _status(self) -> dict[str, Any]:
        at, draw = self._time(), self._random
        reason = draw.choice(list(ErrorReason))
        idle: dict[str, Any] = {"operation": Operation.NONE, "op_started_at": None, "op_progress": None}
        operation = draw.choice([op for op in Operation if op is not Operation.NONE])
        phase = draw.choice([phase for phase in Phase if phase is not Phase.ERROR])
        return draw.choice(
            [
                {"operation": operation, "op_id": self._uuid(), "op_started_at": at, "phase": phase},
                {
                    "operation": Operation.ARCHIVING,
                    "op_id": self._uuid(),
                    "op_started_at": at,
                    "phase": Phase.STANDBY,
                    "home": HomeContext(1, live=True),
                },
                {**idle, "phase": phase, "phase_changed_at": at, "error_reason": None, "error_info": None},
                {
                    **idle,
                    "phase": Phase.ERROR,
                    "error_reason": reason,
                    "error_info": error_info(reason, is_terminal=True),
                },
                {"archive_key": draw.choice([None, "k1", "k2"]), "archive_op_id": draw.choice([None, self._uuid()])},
                self._late_status(),
                {},
            ]
        )

    def _conditions(self) -> Conditions:
        status = self._random.choice([True, False, None])
        reason = self._random.choice(["NoContainer", "docker.Running", "docker.Exited"])
        return Conditions(container_ready=Condition(status, reason, "", self._time()))

    # ── what is asked ────────────────────────────────────────────────────────────────────────────────────────────────

    def create(self) -> tuple[str, Command]:
        draw = self._random
        key, actor = self._uuid(), self._actor()
        row = fresh(id=key, name=draw.choice([*NAMES, f"n {key}"]), slug=draw.choice(SLUGS), owner_id=draw.choice("ab"))
        changes = {"desired_state": draw.choice([wish for wish in Desired if wish is not Desired.DELETED])}
        self.ids.append(key)
        return f"create {row.name} {changes}", lambda db: db.specs().create(row, wishing(changes), actor)

    def change(self) -> tuple[str, Command]:
        key, actor, changes = self._id(), self._actor(), self._spec()
        decide = wishing(changes, refused=self._random.random() < 0.05)
        admission = changes.get("desired_state") is Desired.RUNNING or self._random.random() < 0.2
        return f"change {key} {changes} {actor}", lambda db: db.specs().change(
            key, decide, actor, reason="asked", admission=admission
        )

    def record(self) -> tuple[str, Command]:
        key, epoch, changes = self._id(), self._epoch(), self._status()
        wrong = self._uuid() if self._random.random() < 0.15 else None

        async def run(database: Database) -> object:
            row = await _row(database, key)
            before = replace(row, op_id=wrong) if wrong else row
            after = replace(before, **changes)
            if after.phase is Phase.ERROR and after.operation not in (Operation.NONE, Operation.DELETING):
                after = replace(after, phase=Phase.STANDBY)
            if after.operation is not Operation.NONE and after.op_started_at is None:
                after = replace(after, op_started_at=NOW)
            return await database.statuses(epoch).record(before, after, reason="planned")

        return f"record {key} {changes} wrong={wrong} epoch={epoch}", run

    def record_late(self) -> tuple[str, Command]:
        """Decided on a row that the other side, or an observation, has changed since."""
        key, epoch, changes, meanwhile = self._id(), self._epoch(), self._late_status(), self._late_status()

        async def run(database: Database) -> object:
            row = await _row(database, key)
            await database.statuses(self.epoch).record(row, replace(row, **meanwhile))
            return await database.statuses(epoch).record(row, replace(row, **changes))

        return f"record late {key} {meanwhile} then {changes}", run

    def observe(self) -> tuple[str, Command]:
        epoch, draw = self._epoch(), self._random
        chosen = draw.sample(self.ids, min(len(self.ids), draw.randint(1, 4)))
        late = {key for key in chosen if draw.random() < 0.3}
        seen = {key: (self._conditions(), self._time(), draw.random() < 0.5) for key in chosen}

        async def run(database: Database) -> object:
            pairs = []
            for key in chosen:
                row = await _row(database, key)
                conditions, at, settles = seen[key]
                after = replace(row, conditions=conditions, observed_at=at)
                if settles and row.phase is not Phase.ERROR:
                    after = replace(after, phase=Phase.RUNNING, phase_changed_at=at)
                pairs.append((replace(row, version=row.version - 1) if key in late else row, after))
            return await database.statuses(epoch).record_observations(pairs)

        return f"observe {chosen} late={late} epoch={epoch}", run

    def safe_point(self) -> tuple[str, Command]:
        key, epoch = self._id(), self._epoch()
        wrong = self._uuid() if self._random.random() < 0.2 else None

        async def run(database: Database) -> object:
            row = await _row(database, key)
            return await database.statuses(epoch).pass_safe_point(replace(row, op_id=wrong) if wrong else row)

        return f"safe point {key} wrong={wrong} epoch={epoch}", run

    def touch(self) -> tuple[str, Command]:
        at = self._time() - timedelta(seconds=self._random.randint(0, 20))
        seen, actor = {self._id(): at, self._id(): at}, self._actor()
        return f"touch {seen} {actor}", lambda db: db.specs().touch(seen, actor)

    def hold(self) -> tuple[str, Command]:
        key, holder = self._id(), self._random.choice(["job", "shell"])
        until = self._time() if self._random.random() < 0.3 else FAR + timedelta(seconds=self._random.randint(0, 9))
        return f"hold {key} {holder} {until}", lambda db: db.specs().hold(key, holder, until)

    def release_leases(self) -> tuple[str, Command]:
        key = self._id()
        return f"release leases {key}", lambda db: db.specs().release_leases(key, Actor("ann"))

    def point(self) -> tuple[str, Command]:
        key, epoch, at, op_id = self._id(), self._epoch(), self._time(), self._uuid()
        name = f"{key}/{self._random.randint(0, 3)}"

        async def run(database: Database) -> object:
            row = await _row(database, key)
            return await database.statuses(epoch).record(
                row, row, point=restore_point(row, name, created_at=at, op_id=op_id)
            )

        return f"point {name} epoch={epoch}", run

    def release_points(self) -> tuple[str, Command]:
        key, epoch = self._id(), self._epoch()

        async def run(database: Database) -> object:
            await database.statuses(epoch).release_restore_points(await _row(database, key))
            return None

        return f"release points {key} epoch={epoch}", run

    def _resources(self) -> list[BackendResource]:
        return [BackendResource(kind, f"{key}/{n}", key) for kind in ResourceKind for key in self.ids for n in range(4)]

    def remark(self) -> tuple[str, Command]:
        epoch, resources = self._epoch(), self._resources()
        found = dict.fromkeys(self._random.sample(resources, min(len(resources), 6)), "garbage")
        return f"remark {len(found)} epoch={epoch}", lambda db: db.marks(epoch).remark(found)

    def give_up(self) -> tuple[str, Command]:
        """Decided by the row: one that is deleted is let go, with or without a restore point of that name."""
        epoch, resource = self._epoch(), self._random.choice(self._resources())
        return f"give up {resource} epoch={epoch}", lambda db: db.marks(epoch).give_up(
            resource, lambda ws, points, _now: ws is not None and (ws.deleted_at is not None or bool(points))
        )

    def bump(self) -> tuple[str, Command]:
        self.epoch += 1

        async def run(database: Database) -> object:
            term = await database.leadership(RealClock()).campaign("next")
            await term.resign()
            return term.epoch

        return "bump", run


async def _row(database: Database, key: UUID) -> Workspace:
    """The row as it stands, or one that no database has: asked about a stranger, both must answer alike."""
    return await database.specs().get(key) or fresh(id=key)
