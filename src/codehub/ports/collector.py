"""The collector's part of the database: what it must know, its marks, and what admins ask of it (contract 9).

Whoever may read the view may report; only the leader's `CollectorMarks` can mark and give up, in its own term.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol
from uuid import UUID

from codehub.domain.gc_rules import BackendResource, RestorePoint
from codehub.domain.workspace import Workspace


@dataclass(frozen=True, slots=True)
class Mark:
    """A resource marked as garbage since `marked_at` (the database's clock), without interruption as far as the runs
    have seen."""

    resource: BackendResource
    reason: str
    marked_at: datetime


@dataclass(frozen=True, slots=True)
class RestoredDatabase:
    """That the database was restored from a backup: it cannot know what was made between the two times."""

    backup_at: datetime
    restored_at: datetime


@dataclass(frozen=True, slots=True)
class CollectorData:
    """What the collector must know, read in one transaction: rows not yet purged, deleted ones included.
    `oldest_workspace_at` counts the purged ones too, and `purged` names them: no row is ever removed, so an id that is
    in neither is one that the database has lost."""

    workspaces: Sequence[Workspace]
    points: Mapping[UUID, Sequence[RestorePoint]]
    marks: Sequence[Mark]
    newest_entry_at: datetime | None
    oldest_workspace_at: datetime | None
    now: datetime
    purged: Collection[UUID] = frozenset()
    restored: RestoredDatabase | None = None


@dataclass(frozen=True, slots=True)
class CollectionRequest:
    """An admin's request for a collection. `report` is there once the leader has done it."""

    id: int
    asked_by: str
    waived: tuple[str, ...]
    report: Mapping[str, Any] | None = None


SweepDecision = Callable[[Workspace | None, Sequence[RestorePoint], datetime], bool]
"""A pure function: (the row, its restore points, now) → may it go? The row is None if there is none; a purged row is
given."""


class CollectorView(Protocol):
    async def read(self) -> CollectorData:
        """All that the collector must know. A row that cannot be read is an error: left out, it would protect
        nothing."""
        ...

    async def recorded(self, operations: Collection[UUID]) -> Collection[UUID]:
        """Those of the operations that the ledger has an entry of."""
        ...

    async def ask(self, asked_by: str, waived: Collection[str]) -> int:
        """Ask the leader for a run; returns the request's id."""
        ...

    async def request(self, request_id: int) -> CollectionRequest | None: ...


class CollectorMarks(Protocol):
    """The leader's marks, in one term: every write reads its epoch in the same transaction and raises Stale if the term
    is over."""

    async def remark(self, found: Mapping[BackendResource, str]) -> Sequence[Mark]:
        """Replace the marks by those of `found`: one that was marked before keeps its time, whoever marked it."""
        ...

    async def give_up(self, resource: BackendResource, decide: SweepDecision) -> bool:
        """Under the lock of the workspace's row: if `decide` says so, the mark is taken off and, for an archive, the
        restore point is forgotten, so that nobody can choose it any more. True: it may be deleted now."""
        ...

    async def pending(self) -> CollectionRequest | None:
        """The oldest request that is not done and not void."""
        ...

    async def finish(self, request_id: int, report: Mapping[str, Any]) -> None: ...
