"""The seven invariants (docs/CONTRACTS.md), checked against the truth of the world at every step.

The oracle never asks the code under test: it hears each effect when it is issued and when it happens, sees each row as
it is written, and knows every byte that a person wrote.
"""

import asyncio
import hashlib
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TypeVar
from uuid import UUID

from codehub.adapters.memory.archives import ArchiveWorld
from codehub.adapters.memory.database import DatabaseWorld
from codehub.adapters.memory.jobs import JobWorld
from codehub.adapters.memory.runtime import RuntimeWorld
from codehub.domain.workspace import Workspace

T = TypeVar("T")

HELD_SECONDS = 3.0
ACTS_UNDER: dict[str, tuple[str, ...]] = {
    "runtime.create_volume": ("PROVISIONING", "RESTORING"),
    "runtime.delete_volume": ("ARCHIVING", "DELETING"),
    "runtime.start_container": ("STARTING",),
    "runtime.remove_container": ("STOPPING", "ARCHIVING", "RESTORING", "DELETING", "STARTING", "NONE"),
    "jobs.start": ("ARCHIVING", "RESTORING"),
}


class Violation(AssertionError):
    """An invariant is broken."""


@dataclass
class Home:
    """What a person knows of their home."""

    content: tuple[int, ...] = ()
    choices: set[tuple[int, ...]] = field(default_factory=set)
    damaged: bool = False
    hand_removed: bool = False
    touched_at: float = float("-inf")
    last_activity: float = float("-inf")


@dataclass
class Watched:
    database: DatabaseWorld
    runtime: RuntimeWorld
    archives: ArchiveWorld
    jobs: JobWorld


class Oracle:
    def __init__(self, worlds: Watched, limit: int, standby_ttl: float) -> None:
        self._worlds = worlds
        self._limit = limit
        self._standby_ttl = standby_ttl
        self.homes: dict[UUID, Home] = {}
        self.epochs: dict[str, int] = {}
        self.renewals: dict[str, float] = {}
        self.trace = hashlib.sha256()
        self.show = False
        self.steps = 0
        self.happened: Counter[str] = Counter()
        self.first: Violation | None = None
        self._delivering_late = False
        self._in_flight: Counter[tuple[str, UUID]] = Counter()
        self._late: dict[UUID, float] = {}
        worlds.database.watchers.append(self._written)

    # ── what the wires tell ──────────────────────────────────────────────────────────────────────────────────────────

    def issued(self, holder: str, name: str, about: UUID) -> None:
        self._in_flight[holder, about] += 1
        if self._in_flight[holder, about] > 1:
            self.break_("2: two workers act on one workspace", f"{holder} {name} {about}")
        silent = self._time() - self.renewals.get(holder, float("-inf"))
        if silent >= HELD_SECONDS + 0.001:
            self.break_("3: an effect is issued by a leader that cannot know it leads", f"{name} after {silent:.1f} s")
        self._recorded_first(holder, name, about)

    def returned(self, holder: str, about: UUID) -> None:
        self._in_flight[holder, about] -= 1

    def forget(self, holder: str) -> None:
        """It was killed: nothing of it is under way."""
        for key in [key for key in self._in_flight if key[0] == holder]:
            del self._in_flight[key]

    def happening(self, holder: str, name: str, effect: Callable[[], T], about: UUID | None) -> T:
        self.steps += 1
        self.happened[name] += 1
        leads = self.epochs.get(holder) == self._worlds.database.leadership.epoch and not self._delivering_late
        if name == "leadership.renew":
            self.renewals[holder] = self._time()
        if about is not None and not leads:
            self._late[about] = self._time()
        if name == "runtime.start_container" and about is not None and leads:
            self._no_job_at_work(about)
        before = self._worlds.database.row_writes
        answer = effect()
        self._note(f"{holder} {name} {about}")
        if name == "leadership.take" and isinstance(answer, int):
            self.epochs[holder] = answer
            self.renewals[holder] = self._time()
        if self._worlds.database.row_writes != before and not leads and name.startswith("db."):
            self.break_("3: a write under a stale epoch", f"{holder} {name}")
        return answer

    # ── what is written ──────────────────────────────────────────────────────────────────────────────────────────────

    def _written(self, before: Workspace | None, row: Workspace, actor: str, reason: str) -> None:
        self._note(f"{row.id} {row.phase} {row.operation} {row.desired_state} {row.error_reason} {reason}")
        self._limits_hold(row)
        if before is not None:
            self._operation_rules(before, row, reason)
            self._truth_of_errors(before, row)
            self._truth_of_running(before, row)
            self._timer_rules(before, row, actor)
        self.check_homes(row)

    def _limits_hold(self, row: Workspace) -> None:
        wanting = [
            ws for ws in self._worlds.database.rows.values()
            if ws.owner_id == row.owner_id and ws.deleted_at is None and ws.desired_state == "RUNNING"
            and (ws.phase != "ERROR" or ws.recover_pending)
        ]
        if len(wanting) > self._limit:
            self.break_("5: more workspaces wanted than the limit", f"{len(wanting)} of {row.owner_id}")

    def _operation_rules(self, before: Workspace, row: Workspace, reason: str) -> None:
        if before.operation != "NONE" and row.operation == before.operation and row.op_id != before.op_id:
            self.break_("an operation changed its id", f"{row.operation}")
        if before.operation != "NONE" and row.operation not in (before.operation, "NONE"):
            self.break_("an operation began while another ran", f"{before.operation} → {row.operation}")
        if row.phase == "ERROR" and row.operation not in ("NONE", "DELETING"):
            self.break_("an operation runs in ERROR", f"{row.operation}")
        if row.operation != before.operation and row.operation != "NONE":
            conditions = row.conditions
            if conditions.volume_ready.status is None or conditions.container_ready.status is None:
                self.break_("4: an operation began although the runtime is unknown", f"{row.operation}")
        if before.operation != "NONE" and row.operation == "NONE" and reason == "observed":
            self._truth_of_completion(before, row)

    def _truth_of_completion(self, before: Workspace, row: Workspace) -> None:
        """Late effects of a stalled leader can undo it in the same instant; else what was completed is true."""
        if self._recently_late(row.id) or self._time() - self.home(row.id).touched_at < 30:
            return
        world = self._worlds
        container = world.runtime.containers.get(row.id)
        true = {
            "PROVISIONING": row.home_store_key in world.runtime.volumes,
            "RESTORING": row.home_store_key in world.runtime.volumes,
            "STARTING": row.home.ready_instance is not None,
            "STOPPING": container is None,
            "ARCHIVING": row.home_store_key not in world.runtime.volumes
            and (world.archives.is_complete(row.archive_key or "") or self.home(row.id).damaged),
        }.get(before.operation, True)
        if not true:
            self.break_("1: an operation was called complete before its effect", f"{before.operation}")

    def _truth_of_errors(self, before: Workspace, row: Workspace) -> None:
        if row.phase == "ERROR" and before.phase != "ERROR" and row.error_reason == "DataLost":
            if row.home_store_key in self._worlds.runtime.volumes:
                self.break_("4: DataLost although the volume is there", f"{row.home_store_key}")

    def _truth_of_running(self, before: Workspace, row: Workspace) -> None:
        fell = before.phase == "RUNNING" and row.phase == "STANDBY"
        container = self._worlds.runtime.containers.get(row.id)
        if fell and container and container.running and container.instance == before.home.ready_instance:
            if not self._recently_late(row.id):
                self.break_("1: a running container was called stopped", f"{container.instance}")

    def _timer_rules(self, before: Workspace, row: Workspace, actor: str) -> None:
        if actor != "ttl" or row.desired_state == before.desired_state:
            return
        if before.desired_state.value != before.phase.value:
            self.break_("the timer overwrote a fresh wish", f"{before.desired_state} at {before.phase}")
        idle = self._time() - self.home(row.id).last_activity
        if before.phase == "RUNNING" and idle < self._standby_ttl:
            self.break_("the timer stopped somebody at work", f"active {idle:.0f} s ago")

    # ── what a person sees ───────────────────────────────────────────────────────────────────────────────────────────

    def home(self, workspace_id: UUID) -> Home:
        return self.homes.setdefault(workspace_id, Home())

    def person_works(self, workspace_id: UUID, value: int) -> None:
        """Through the front door: only a RUNNING workspace is reached. They must find their home as they left it."""
        row = self._worlds.database.rows[workspace_id]
        container = self._worlds.runtime.containers.get(workspace_id)
        if row.phase != "RUNNING" or container is None or not container.running:
            return
        volume = self._worlds.runtime.volumes.get(container.volume)
        if volume is None:
            return
        home = self.home(workspace_id)
        if volume.content != home.content and volume.content not in home.choices:
            self.break_("1: a person finds another home than they left", f"{volume.content} not {home.content}")
        if self._worlds.runtime.write(workspace_id, value):
            home.content = volume.content
            if not row.wish_pending:
                home.choices.clear()
            home.hand_removed = home.damaged = False
        home.last_activity = self._time()

    def check_homes(self, row: Workspace) -> None:
        """(1) What a person wrote last is in a whole volume or in a proven archive."""
        home = self.homes.get(row.id)
        if home is None or home.hand_removed or home.damaged or not home.content:
            return
        volumes = self._worlds.runtime.volumes.values()
        if any(v.workspace_id == row.id and v.content == home.content for v in volumes):
            return
        archives = self._worlds.archives.objects.items()
        prefix = f"{row.id}/"
        if any(a.committed and a.content == home.content and k.startswith(prefix) for k, a in archives):
            return
        self.break_("1: the newest write is nowhere", f"{home.content}")

    # ── the rest ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def _recorded_first(self, holder: str, name: str, about: UUID) -> None:
        if self.epochs.get(holder) != self._worlds.database.leadership.epoch:
            return
        row = self._worlds.database.rows.get(about)
        allowed = ACTS_UNDER.get(name)
        if row is None or allowed is None:
            return
        if row.operation.value not in allowed:
            self.break_("acted before recording", f"{name} under {row.operation}")
        if name == "runtime.remove_container" and row.operation.value == "NONE" and not row.recover_pending:
            self.break_("acted before recording", f"{name} under no operation")
        home = self.home(about)
        if name == "runtime.create_volume" and home.hand_removed and row.phase != "ERROR" and not home.choices:
            self.break_("a hand-removed volume was silently replaced", f"{row.home_store_key}")

    def _no_job_at_work(self, about: UUID) -> None:
        job = self._worlds.jobs.jobs.get(about)
        if job is not None and job.state == "running" and not self._recently_late(about):
            self.break_("a container starts while a job uses its volume", f"{job.spec.kind} {job.spec.op_id}")

    def _recently_late(self, workspace_id: UUID) -> bool:
        return self._time() - self._late.get(workspace_id, float("-inf")) < 120

    @contextmanager
    def delivering_late(self) -> Iterator[None]:
        """What the network delivers now was sent long ago."""
        self._delivering_late = True
        try:
            yield
        finally:
            self._delivering_late = False

    def break_(self, what: str, detail: str) -> None:
        violation = Violation(f"{what} ({detail}) at {self._time():.3f} s")
        self._note(str(violation))
        self.first = self.first or violation

    def _time(self) -> float:
        return asyncio.get_running_loop().time()

    def _note(self, text: str) -> None:
        line = f"{self._time():.6f} {text}\n"
        self.trace.update(line.encode())
        if self.show:
            sys.stderr.write(line)
