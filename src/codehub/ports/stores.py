"""The database, as two single-writer stores and what stands around them (contract 3).

`WorkspaceSpecs` is for people and timers, `WorkspaceStatuses` for the controller; neither has the other's writes.
Every write appends its ledger entries in the same transaction. Time is the database's. Around them: the ledger,
leadership, the traffic of the last day and the usage of the last hour, the identities of our backends, templates, and
the idempotency keys of requests that create workspaces.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Protocol
from uuid import UUID

from codehub.domain.admission import Slots
from codehub.domain.gc_rules import RestorePoint
from codehub.domain.ledger import LedgerEntry
from codehub.domain.naming import Backend
from codehub.domain.template import Template
from codehub.domain.usage import Usage, UsageSample
from codehub.domain.workspace import Workspace

DEPOSE_AFTER = timedelta(seconds=4)
"""A leader that has not renewed its term for so long is silent, and a rival takes its place."""

SpecDecision = Callable[[Workspace, Slots, datetime], Workspace]
"""A pure function: (the row, who else holds slots, now) → the row with changed *spec* fields; raises Refused to change
nothing."""


@dataclass(frozen=True, slots=True)
class Actor:
    """Who asks, and from where. A robot acts for the leader of `epoch`, and is refused (Stale) once that term is
    over."""

    name: str
    epoch: int | None = None
    address: str = ""


class WorkspaceSpecs(Protocol):
    """What people and timers may write."""

    async def create(self, workspace: Workspace, decide: SpecDecision, actor: Actor) -> Workspace:
        """Insert the row that `decide` returns. Conflict if the owner has a live workspace of that name or the slug
        is taken; the timestamps are the database's."""
        ...

    async def change(
        self,
        workspace_id: UUID,
        decide: SpecDecision,
        actor: Actor,
        *,
        reason: str = "",
        admission: bool = False,
    ) -> Workspace:
        """Lock the row, let `decide` choose, write the spec fields that differ. NotFound if there is no such row.
        With `admission`, all such calls of the installation stand in one line, so that `Slots` cannot be stale.
        Without it `Slots` is empty."""
        ...

    async def get(self, workspace_id: UUID) -> Workspace | None: ...

    async def touch(self, accessed: Mapping[UUID, datetime], actor: Actor) -> None:
        """Set last_access_at to the later of the two times; unknown ids are ignored; no ledger entry."""
        ...

    async def hold(self, workspace_id: UUID, holder: str, until: datetime) -> None:
        """Take a lease; it replaces one that the holder has already. The row's version grows: who has seen it without
        this lease has seen an old one."""
        ...

    async def leases(self) -> Mapping[UUID, datetime]:
        """For each workspace, the latest end of the leases that still hold."""
        ...

    async def release_leases(self, workspace_id: UUID, actor: Actor) -> None: ...

    async def idle_candidates(self) -> tuple[Sequence[Workspace], datetime]:
        """The rows that could be put to sleep (settled RUNNING or STANDBY), and the database's now."""
        ...


class WorkspaceStatuses(Protocol):
    """What the controller may write, in one term: every write reads its epoch under a share lock in the same
    transaction and raises Stale, having changed nothing, if the term is over."""

    async def versions(self) -> Mapping[UUID, int]:
        """Each row that is not deleted, or is deleted and not at rest, with a number that grows with every write."""
        ...

    async def active(self) -> Collection[UUID]:
        """The rows that are not at rest: an operation, a phase that is not the desired state, a one-off request."""
        ...

    async def load(self, ids: Collection[UUID]) -> tuple[Sequence[Workspace], datetime]:
        """The rows that exist, and the database's now. A row that cannot be read is left out and reported in the
        log, never raised: one bad row does not stop the others."""
        ...

    async def record(
        self,
        before: Workspace,
        after: Workspace,
        *,
        reason: str = "",
        point: RestorePoint | None = None,
    ) -> Workspace:
        """Write the status fields that differ, if `operation` and `op_id` are still `before`'s, and `point` as a
        restore point (an existing one of the same key is kept); else Stale. So is the beginning of a start whose
        desired state has changed since (`overtaken`). Returns the row as it now stands."""
        ...

    async def record_observations(self, changes: Sequence[tuple[Workspace, Workspace]]) -> int:
        """Many (before, after) pairs in one statement; a pair whose row has changed since (by version) is skipped.
        Returns how many rows were written."""
        ...

    async def pass_safe_point(self, workspace: Workspace) -> Workspace | None:
        """One CAS: home.deleting_volume = true and live = false, if operation and op_id still hold and the desired
        state still gives the volume up (desired in GIVES_UP_VOLUME, or a restore is pending). None if the desired
        state wants the volume back; Stale if the operation is no longer ours."""
        ...

    async def restore_points(self, workspace_id: UUID) -> Sequence[RestorePoint]:
        """The workspace's restore points, newest first; released ones included."""
        ...

    async def release_restore_points(self, workspace: Workspace) -> None:
        """Stamp `released_at` on the unreleased restore points of a workspace whose home is being discarded."""
        ...


KEPT_ENTRIES = 20
"""How many of a workspace's newest entries are kept whatever their age: they say why it is as it is, and tell the
collector up to when the database knows its history."""


class Ledger(Protocol):
    async def entries(self, workspace_id: UUID, limit: int = 100) -> Sequence[LedgerEntry]:
        """The workspace's ledger entries, newest first."""
        ...

    async def forget_older(self, seconds: float, epoch: int) -> int:
        """Delete older entries; returns how many. The newest KEPT_ENTRIES of each workspace stay. Stale once that term
        is over."""
        ...


class Term(Protocol):
    """One term of leadership."""

    @property
    def epoch(self) -> int: ...

    def held(self) -> bool:
        """Whether we still lead, by our own clock: renewed so recently that no rival can have taken over. No I/O."""
        ...

    async def lost(self) -> None:
        """Wait until the term is over."""
        ...

    async def resign(self) -> None:
        """Give the term up. Idempotent; never raises."""
        ...


@dataclass(frozen=True, slots=True)
class Leader:
    """Who leads now, as the database has it."""

    epoch: int
    holder: str
    renewed_at: datetime
    age_seconds: float

    @property
    def is_silent(self) -> bool:
        return self.age_seconds >= DEPOSE_AFTER.total_seconds()


class Leadership(Protocol):
    async def campaign(self, holder: str) -> Term:
        """Wait until we lead: the lock is ours and the epoch is bumped. A holder that is silent is deposed.
        Raises Unreachable if the database cannot be asked."""
        ...

    async def leader(self) -> Leader | None: ...


class Traffic(Protocol):
    """What passes the front doors, counted for the charts of the last day."""

    async def add(self, requests: int, socket_seconds: float) -> None:
        """Add to the database's present minute, on top of whatever other front doors add; what is older than a day
        goes. `socket_seconds`: how long WebSockets were open, all of them together. Raises Unreachable: whether it was
        added is then not known."""
        ...


class UsageHistory(Protocol):
    """What running workspaces used in the last hour, sampled by the leader."""

    async def record(self, used: Mapping[UUID, Usage], epoch: int) -> None:
        """Add a sample of each workspace at the database's present time; what is older than an hour goes. Raises Stale,
        having added nothing, if the term is over."""
        ...

    async def of(self, workspace_id: UUID) -> Sequence[UsageSample]:
        """The workspace's samples of the last hour, oldest first."""
        ...

    async def newest(self, ids: Collection[UUID], within: timedelta) -> Mapping[UUID, UsageSample]:
        """The newest sample of each workspace that has one which is no older than `within`."""
        ...


@dataclass(frozen=True, slots=True)
class BackendRecord:
    identity: str
    since: datetime


class BackendIdentities(Protocol):
    """Which runtime and which store we first used: recorded once, by a leader in its term; forgotten only by an
    operator who moved them on purpose."""

    async def remembered(self) -> Mapping[Backend, BackendRecord]: ...

    async def adopt(self, backend: Backend, identity: str, epoch: int) -> str:
        """Record this identity if none is recorded; returns the recorded one. Stale once that term is over."""
        ...

    async def forget(self, backend: Backend) -> bool:
        """Remove the record, so that the leader adopts what it finds. False: there was none."""
        ...


class Templates(Protocol):
    """What workspaces may be made from."""

    async def get(self, name: str) -> Template | None:
        """The template of that name, also a disabled one."""
        ...

    async def all(self) -> Sequence[Template]:
        """All templates in the order of names, disabled ones too."""
        ...

    async def put(self, template: Template, actor: Actor) -> Template:
        """Insert or replace the whole template. `disabled_at`: any time means from now on (or since when it was)."""
        ...


@dataclass(frozen=True, slots=True)
class IdempotencyClaim:
    """What an idempotency key stands for. `first`: this very call made it."""

    workspace_id: UUID
    response: Mapping[str, Any] | None
    first: bool


class IdempotencyKeys(Protocol):
    """The keys by which a request to create a workspace that is sent twice creates once. The workspace's id is chosen
    before it is created, and kept here, so a second request after a crash goes on with the same one."""

    async def claim(self, user_id: UUID, key: str, request_hash: bytes, workspace_id: UUID) -> IdempotencyClaim:
        """The first claim of the key stays. Conflict `idempotency_key_reused` if that was for another request."""
        ...

    async def answer(self, user_id: UUID, key: str, response: Mapping[str, Any]) -> None:
        """Store what to answer from now on; the first answer stays."""
        ...

    async def release(self, user_id: UUID, key: str) -> None:
        """Free the key of a request that was refused, unless it has an answer."""
        ...

    async def forget_older(self, seconds: float, epoch: int | None = None) -> int:
        """Delete older rows; returns how many. With `epoch`, for the leader of that term: Stale once it is over."""
        ...
