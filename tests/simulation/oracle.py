"""The seven invariants (docs/CONTRACTS.md), checked against the true state of the backends at every step.

The oracle never asks the code under test: it hears each effect when it is issued and when it happens, sees each row as
it is written, and knows every byte that a user wrote.
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

from codehub.adapters.memory.archives import ArchivesState
from codehub.adapters.memory.database_state import DatabaseState
from codehub.adapters.memory.jobs import JobsState
from codehub.adapters.memory.runtime import RuntimeState, Volume
from codehub.domain.gc_rules import Retention
from codehub.domain.idle import IdlePolicy
from codehub.domain.workspace import Operation, Workspace
from tests.simulation.gc_oracle import GcOracle
from tests.simulation.row_rules import broken_rules

T = TypeVar("T")

HELD_SECONDS = 3.0
NEEDS_THE_STORE = (Operation.ARCHIVING, Operation.RESTORING, Operation.CREATE_EMPTY_ARCHIVE)
LONGEST_DELAY = 120.0
"""After how long a call has arrived, or never will."""
ACTS_UNDER: dict[str, tuple[str, ...]] = {
    "runtime.create_volume": ("PROVISIONING", "RESTORING"),
    "runtime.start_container": ("STARTING",),
    "runtime.remove_container": ("STOPPING", "ARCHIVING", "RESTORING", "DELETING", "STARTING", "NONE"),
    "jobs.start": ("ARCHIVING", "RESTORING"),
}


class Violation(AssertionError):
    """An invariant is broken."""


NEVER = float("-inf")
MOST_CALLS_AT_ONCE = 1000


@dataclass
class Home:
    """What a user knows of their home: `content` is what they left, `choices` what else they asked for and may find.
    `asking`: how many such requests are on the way. `damaged`: the last copy was lost by no fault of ours. `removed`:
    volumes that an operator removed by hand."""

    content: tuple[int, ...] = ()
    choices: set[tuple[int, ...]] = field(default_factory=set)
    asking: int = 0
    damaged: bool = False
    damaged_at: float = NEVER
    hand_removed: bool = False
    removed: set[str] = field(default_factory=set)
    touched_at: float = NEVER
    woken_at: float = NEVER
    returned_at: float = NEVER
    last_activity: float = NEVER


@dataclass
class Watched:
    database: DatabaseState
    runtime: RuntimeState
    archives: ArchivesState
    jobs: JobsState


class Oracle:
    def __init__(self, states: Watched, limit: int, idle: IdlePolicy, retention: Retention | None = None) -> None:
        self._states = states
        self._limit = limit
        self._idle = idle
        self.gc = GcOracle(states, retention or Retention(), self)
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
        self._archive_made_late_at = NEVER
        self._instant = NEVER
        self._calls_in_instant = 0
        self._silent: dict[str, list[tuple[float, float]]] = {}
        self._silent_since: dict[str, float] = {}
        self._tries: dict[UUID, tuple[str, int]] = {}
        states.database.watchers.append(self._written)

    # ── what the networks tell ───────────────────────────────────────────────────────────────────────────────────────

    def issued(self, holder: str, name: str, about: UUID) -> None:
        self._in_flight[holder, about] += 1
        if self._in_flight[holder, about] > 1:
            self.break_("2: two workers act on one workspace", f"{holder} {name} {about}")
        silent = self._time() - self.renewals.get(holder, NEVER)
        if silent >= HELD_SECONDS + 0.001:
            self.break_("3: an effect is issued by a leader that cannot know it leads", f"{name} after {silent:.1f} s")
        if self.epochs.get(holder) != self._states.database.leadership.epoch:
            self.break_("3: an effect is issued under a stale epoch", f"{holder} {name} {about}")
        self._recorded_first(holder, name, about)

    def returned(self, holder: str, about: UUID) -> None:
        self._in_flight[holder, about] -= 1

    def begun(self, name: str) -> bool:
        """Count a call. False: calls are made without end."""
        if self._instant != self._time():
            self._instant, self._calls_in_instant = self._time(), 0
        self._calls_in_instant += 1
        if self._calls_in_instant > MOST_CALLS_AT_ONCE:
            self.break_("7: much happens and no time passes", name)
        return self._calls_in_instant <= MOST_CALLS_AT_ONCE

    def forget(self, holder: str) -> None:
        """Forget a coordinator that was killed: nothing of it is under way."""
        for key in [key for key in self._in_flight if key[0] == holder]:
            del self._in_flight[key]

    def happening(self, holder: str, name: str, effect: Callable[[], T], about: UUID | None) -> T:
        self.steps += 1
        self.happened[name] += 1
        leads = self.epochs.get(holder) == self._states.database.leadership.epoch and not self._delivering_late
        self.gc.leads = leads
        if name == "leadership.renew":
            self.renewals[holder] = self._time()
        if about is not None and not leads:
            self._late[about] = self._time()
        if name == "archives.create_empty" and self._delivering_late:
            self._archive_made_late_at = self._time()
        if about is not None and leads:
            self._nobody_else_at_the_volume(name, about)
        before = self._states.database.row_writes
        with self.gc.watching(holder, name):
            answer = effect()
        self._note(f"{holder} {name} {about}")
        if name == "leadership.take" and isinstance(answer, int):
            self.epochs[holder] = answer
            self.renewals[holder] = self._time()
        if self._states.database.row_writes != before and not leads and name.startswith("db."):
            self.break_("3: a write under a stale epoch", f"{holder} {name}")
        return answer

    # ── what is written ──────────────────────────────────────────────────────────────────────────────────────────────

    def _written(self, before: Workspace | None, row: Workspace, actor: str, reason: str) -> None:
        self._note(f"{row.id} {row.phase} {row.operation} {row.desired_state} {row.error_reason} {reason}")
        self._limits_hold(row)
        self.gc.written(before, row, reason)
        if before is not None:
            for what, detail in broken_rules(before, row, reason):
                self.break_(what, detail)
            if before.operation != "NONE" and row.operation == "NONE" and reason == "observed":
                self._truth_of_completion(before, row)
            self._truth_of_tries(before, row)
            self._truth_of_errors(before, row, reason)
            self._truth_of_running(before, row)
            self._timer_rules(before, row, actor)
            if actor == "person" and row.last_access_at != before.last_access_at:
                self.home(row.id).woken_at = self._time()
        self.check_homes(row)

    def _limits_hold(self, row: Workspace) -> None:
        wanting = [
            ws
            for ws in self._states.database.rows.values()
            if ws.owner_id == row.owner_id
            and ws.deleted_at is None
            and ws.desired_state == "RUNNING"
            and (ws.phase != "ERROR" or ws.recover_pending)
        ]
        if len(wanting) > self._limit:
            self.break_("5: more workspaces wanted than the limit", f"{len(wanting)} of {row.owner_id}")

    def _truth_of_completion(self, before: Workspace, row: Workspace) -> None:
        """Check that what was called complete is true. Late effects of a stalled leader can undo it in the same
        instant."""
        if self._recently_late(row.id) or self._time() - self.home(row.id).touched_at < 30:
            return
        state = self._states
        container = state.runtime.containers.get(row.id)
        true = {
            "PROVISIONING": row.home_store_key in state.runtime.volumes,
            "RESTORING": self._holds_its_archive(row),
            "STARTING": row.home.ready_instance is not None,
            "STOPPING": container is None,
            "ARCHIVING": self.volume(before) is None
            and (state.archives.is_complete(row.archive_key or "") or self.home(row.id).damaged),
        }.get(before.operation, True)
        if not true:
            self.break_("1: an operation was called complete before its effect", f"{before.operation}")

    def volume(self, row: Workspace) -> Volume | None:
        """The row's own volume, not another of the same name."""
        found = self._states.runtime.volumes.get(row.home_store_key or "")
        return found if found is None or row.home.volume_instance in (None, found.instance) else None

    def _holds_its_archive(self, row: Workspace) -> bool:
        volume = self.volume(row)
        archive = self._states.archives.objects.get(row.archive_key or "")
        return volume is not None and (archive is None or volume.content == archive.content)

    def _truth_of_tries(self, before: Workspace, row: Workspace) -> None:
        """Check the count of tries: an outage is not a try, and each operation has tries of its own."""
        info = row.error_info
        operation, tries = self._tries.get(row.id, ("", 0))
        if row.operation not in {before.operation, "NONE"} and row.operation != operation:
            operation, tries = row.operation.value, 0
        if row.error_count > before.error_count or _fails_anew(before, row):
            failed = info.operation if info is not None and info != before.error_info else row.operation.value
            tries = tries + 1 if failed == operation else 1
            if info is not None and info.context.get("last_reason", info.reason) == "Unreachable" and failed != "NONE":
                self.break_("4: an outage used up a try", info.message)
            if row.error_count != tries:
                self.break_("tries of another operation were counted", f"{failed}: {row.error_count}, not {tries}")
            operation = failed
        self._tries[row.id] = (operation, tries if row.error_count else 0)

    def _truth_of_errors(self, before: Workspace, row: Workspace, reason: str) -> None:
        whole = self._states.archives.is_complete
        if reason == "archive_lost" and row.archive_key != before.archive_key and whole(before.archive_key or ""):
            self.break_("4: an archive was called lost although it is there", f"{before.archive_key}")
        if row.phase != "ERROR" or before.phase == "ERROR":
            return
        if row.error_reason in {"ArchiveAccessError", "ArchiveCorrupted"} and whole(row.archive_key or ""):
            self.break_(f"4: {row.error_reason} although the archive is there", f"{row.archive_key}")
        if row.error_reason == "DataLost":
            self._truth_of_loss(row)
        if row.error_reason == "Timeout":
            self._truth_of_timeout(before, row)

    def _truth_of_loss(self, row: Workspace) -> None:
        home = self.home(row.id)
        if self.volume(row) is not None:
            self.break_("4: DataLost although the volume is there", f"{row.home_store_key}")
        elif row.home_store_key not in home.removed and self._time() - home.damaged_at > LONGEST_DELAY:
            self.break_("1: a volume was lost and no operator removed it", f"{row.home_store_key}")

    def fell_silent(self, backend: str, *, wholly: bool) -> None:
        """Note that a backend gives no answer at all from now on; or, not `wholly`, that some or all get through
        again."""
        since = self._silent_since.pop(backend, None)
        if since is not None:
            self._silent.setdefault(backend, []).append((since, self._time()))
        if wholly:
            self._silent_since[backend] = self._time()

    def _silence(self, operation: Operation, begun: float, now: float) -> float:
        """How long something that the operation needs gave no answer; what overlaps counts once."""
        needed = {"runtime", "jobs"} | ({"archives"} if operation in NEEDS_THE_STORE else set())
        spans = [span for backend in needed for span in self._silent.get(backend, ())]
        spans += [(since, now) for backend, since in self._silent_since.items() if backend in needed]
        silent, until = 0.0, begun
        for start, end in sorted(spans):
            silent += max(0.0, min(end, now) - max(start, until))
            until = max(until, end)
        return silent

    def _truth_of_timeout(self, before: Workspace, row: Workspace) -> None:
        """Check that nobody is sent to ERROR for an outage; half of the limit is left for what cannot be measured so
        exactly."""
        if row.error_info is None or before.op_started_at is None:
            return
        now = self._time()
        begun = now - (row.error_info.occurred_at - before.op_started_at).total_seconds()
        silent = self._silence(before.operation, begun, now)
        if now - begun - silent < row.error_info.context["limit_seconds"] / 2:
            self.break_("4: an outage was counted as a time-out", f"{before.operation}, {silent:.0f} s of silence")

    def _truth_of_running(self, before: Workspace, row: Workspace) -> None:
        fell = before.phase == "RUNNING" and row.phase == "STANDBY"
        container = self._states.runtime.containers.get(row.id)
        if not fell or container is None or self._recently_late(row.id):
            return
        if container.running and container.instance == before.home.ready_instance:
            self.break_("1: a running container was called stopped", f"{container.instance}")

    def _timer_rules(self, before: Workspace, row: Workspace, actor: str) -> None:
        if actor != "ttl" or row.desired_state == before.desired_state:
            return
        if before.desired_state.value != before.phase.value:
            self.break_("the timer overwrote a fresh wish", f"{before.desired_state} at {before.phase}")
        if before.phase != "RUNNING":
            return
        home, now = self.home(row.id), self._time()
        if now - home.woken_at < self._idle.standby_ttl:
            self.break_("the timer stopped somebody who has just come", f"{now - home.woken_at:.0f} s ago")
        # what was done in the last moments may not have reached us yet
        known = now - home.returned_at > self._idle.flush_seconds
        if known and now - home.last_activity < self._idle.standby_ttl:
            self.break_("the timer stopped somebody at work", f"since {now - home.returned_at:.0f} s")

    # ── what a person sees ───────────────────────────────────────────────────────────────────────────────────────────

    def home(self, workspace_id: UUID) -> Home:
        return self.homes.setdefault(workspace_id, Home())

    def person_works(self, workspace_id: UUID, value: int) -> None:
        """A user works, who comes through the proxy to a RUNNING workspace alone; their programs work in any container
        that runs on the home, also one that was started late. Both must find the home as it was left."""
        row = self._states.database.rows[workspace_id]
        container = self._states.runtime.containers.get(workspace_id)
        if container is None or not container.running or container.volume != row.home_store_key:
            return
        volume = self._states.runtime.volumes.get(container.volume)
        if volume is None:
            return
        home = self.home(workspace_id)
        if volume.content != home.content and volume.content not in home.choices:
            self.break_("1: a person finds another home than they left", f"{volume.content} not {home.content}")
        if self._states.runtime.write(workspace_id, value):
            home.content = volume.content
            if not row.request_pending and not home.asking:
                home.choices.clear()
            home.hand_removed = home.damaged = False
        if row.phase != "RUNNING":
            return
        if self._time() - home.last_activity > self._idle.standby_ttl:
            home.returned_at = self._time()
        home.last_activity = self._time()

    def check_homes(self, row: Workspace) -> None:
        """Check (1): what a user wrote last is in the row's volume, or in a whole archive that the database knows of.
        Once they have another home that they asked for, what they left may grow too old to be kept."""
        home = self.homes.get(row.id)
        if home is None or home.hand_removed or home.damaged or not home.content or row.purged_at is not None:
            return
        state = self._states
        volume = self.volume(row)
        if volume is not None and volume.content == home.content:
            return
        if home.choices and (row.id, home.content) in self.gc.let_go:
            return
        points = state.database.points.get(row.id, ())
        known = {row.archive_key or "", *(point.key for point in points)}
        if any(
            state.archives.is_complete(key) and state.archives.objects[key].content == home.content for key in known
        ):
            return
        self.break_("1: the newest write is nowhere", f"{home.content}")

    # ── the rest ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def _recorded_first(self, holder: str, name: str, about: UUID) -> None:
        if self.epochs.get(holder) != self._states.database.leadership.epoch:
            return
        row = self._states.database.rows.get(about)
        allowed = ACTS_UNDER.get(name)
        if row is None or allowed is None:
            return
        if row.operation.value not in allowed:
            self.break_("acted before recording", f"{name} under {row.operation}")
        if name == "runtime.remove_container" and row.operation.value == "NONE" and not _may_lose_container(row):
            self.break_("acted before recording", f"{name} under no operation")
        home = self.home(about)
        if name == "runtime.create_volume" and home.hand_removed and row.phase != "ERROR" and not home.choices:
            archive = self._states.archives.objects.get(row.archive_key or "")
            if archive is not None and archive.content == home.content:
                return
            self.break_("a hand-removed volume was silently replaced", f"{row.home_store_key}")

    def _nobody_else_at_the_volume(self, name: str, about: UUID) -> None:
        """Check (2): a container and a job never share a volume, unless a late effect brought one of them."""
        if self._recently_late(about):
            return
        job = self._states.jobs.jobs.get(about)
        container = self._states.runtime.containers.get(about)
        row = self._states.database.rows.get(about)
        if name == "runtime.start_container" and job is not None and job.state == "running":
            self.break_("2: a container starts while a job uses its volume", f"{job.spec.kind} {job.spec.op_id}")
        used = container.volume if container and container.running else None
        if name == "jobs.start" and row is not None and used and used == row.home_store_key:
            self.break_("2: a job starts while a container uses its volume", f"{row.operation}")

    def excuse_delete(self, about: UUID) -> None:
        """Excuse a delete: an archive lost a moment ago may have been seen whole when the volume's delete was sent."""
        home = self.home(about)
        if self._time() - home.damaged_at < LONGEST_DELAY:
            home.damaged = True

    def brought_late(self, workspace_id: UUID) -> bool:
        """Whether what is there of the workspace may have come by a late effect, just now."""
        made_late = self._time() - self._archive_made_late_at <= LONGEST_DELAY
        return made_late or self._recently_late(workspace_id)

    def _recently_late(self, workspace_id: UUID) -> bool:
        return self._time() - self._late.get(workspace_id, NEVER) < LONGEST_DELAY

    @contextmanager
    def delivering_late(self) -> Iterator[None]:
        """While this lasts, what the network delivers was sent long ago."""
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


def _fails_anew(before: Workspace, row: Workspace) -> bool:
    """Whether another operation than the one before has failed, however few tries it has used up."""
    was, now = before.error_info, row.error_info
    if was is None or now is None or row.error_count == 0:
        return False
    return now.operation not in {was.operation, "NONE"} and now.reason != "Unreachable"


def _may_lose_container(row: Workspace) -> bool:
    return row.recover_pending or row.purged_at is not None
