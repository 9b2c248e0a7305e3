"""What the garbage collector may never touch (contract 9). Pure; the sweep itself only follows these answers.

In doubt a resource is kept: a workspace in ERROR keeps everything, a deleted one keeps its copies for the undo window.
What is garbage stays garbage: names are never used again, so that a delete which arrives late harms nobody. The one
way back is undelete, and `purged_at` closes it before the first copy goes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from uuid import UUID

from codehub.domain import naming
from codehub.domain.workspace import Operation, Phase, Workspace

REQUEST_LIFETIME_SECONDS = 600
"""An admin's request for a collection that no leader took by then is void: nobody expects it any more."""


@dataclass(frozen=True, slots=True)
class RestorePoint:
    """A proven archive of one workspace. `released_at`: when DISCARDING gave it up; it is kept until the undo window is
    over."""

    workspace_id: UUID
    op_id: UUID
    key: str
    bytes: int
    files: int
    sha256: str
    created_at: datetime
    verified_at: datetime
    released_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Retention:
    """How long resources are kept. `undo_seconds` is for what a person gave up and may want back: a deleted workspace,
    a discarded home. `grace_seconds` is for what nobody can want back, such as unfinished uploads and restore points
    beyond the newest: it lies between the mark and the sweep."""

    restore_points: int = 3
    undo_seconds: int = 7 * 24 * 3600
    grace_seconds: int = 2 * 3600
    prefix: str = ""

    @property
    def undo(self) -> timedelta:
        return timedelta(seconds=self.undo_seconds)

    @property
    def grace(self) -> timedelta:
        return timedelta(seconds=self.grace_seconds)


class ResourceKind(StrEnum):
    """The kinds of backend resources, in the order in which they are deleted: a volume in use is not deleted."""

    CONTAINER = "container"
    VOLUME = "volume"
    OBJECT = "object"


@dataclass(frozen=True, slots=True)
class BackendResource:
    """A container, volume or object of ours in a backend. An archive and its `.meta` are one object."""

    kind: ResourceKind
    name: str
    workspace_id: UUID


def undo_is_over(ws: Workspace, undo: timedelta, now: datetime) -> bool:
    """Whether the workspace was deleted, and nobody has asked for it back in time."""
    return ws.deleted_at is not None and now - ws.deleted_at >= undo and not ws.undelete_pending


def undo_until(ws: Workspace, undo: timedelta) -> datetime | None:
    """Until when a deleted workspace can be brought back for certain; None if it lives, or is gone for good."""
    return None if ws.deleted_at is None or ws.purged_at is not None else ws.deleted_at + undo


class GarbageReason(StrEnum):
    """Why a resource is no longer protected. The values are sentences for the report; programs use the names."""

    UNKNOWN = "no workspace of that id is known"
    PURGED = "its workspace was purged"
    DELETED = "its workspace was deleted and the undo window is over"
    NEWER_HOME = "a home that is newer than the database knows"
    FORMER_HOME = "not the home of its workspace any more"
    CUT_OFF = "left by an upload that was cut off; the archive was made since"
    UNFINISHED = "an upload that was never finished or never recorded"
    DISCARDED = "discarded, and the undo window is over"
    TOO_OLD = "older than the newest restore points, which are kept"


def garbage(  # noqa: PLR0911 - one line per reason
    resource: BackendResource, retention: Retention, ws: Workspace | None, points: Sequence[RestorePoint], now: datetime
) -> GarbageReason | None:
    """Why this resource is garbage; None if it is protected. What the database must have lost is garbage by name only:
    the checks of gc_safety refuse to sweep it."""
    if ws is None:
        return GarbageReason.UNKNOWN
    if ws.purged_at is not None:
        return GarbageReason.PURGED
    in_error = ws.deleted_at is None and ws.phase is Phase.ERROR
    if not in_error and is_unrecorded_home(resource, ws):
        return GarbageReason.NEWER_HOME
    if undo_is_over(ws, retention.undo, now):
        return GarbageReason.DELETED
    if in_error or resource.kind is ResourceKind.CONTAINER:
        return None
    if resource.kind is ResourceKind.VOLUME:
        kept = protected_volumes(ws, retention, now)
        return None if resource.name in kept else GarbageReason.FORMER_HOME
    return _garbage_object(resource, ws, points, retention, now)


def is_unrecorded_home(resource: BackendResource, ws: Workspace) -> bool:
    """Whether the resource is a home whose number the row never gave. Numbers are recorded before their volumes are
    made, so the row that gave it was lost: the database is older than its backends."""
    if resource.kind is not ResourceKind.VOLUME:
        return False
    number = naming.incarnation_of(ws.id, resource.name) or 0
    return number > ws.home.incarnation or number in ws.home.passed_over


def _garbage_object(
    resource: BackendResource, ws: Workspace, points: Sequence[RestorePoint], retention: Retention, now: datetime
) -> GarbageReason | None:
    stored = naming.stored_name(retention.prefix, resource.name)
    if stored is None:
        return None
    proven = {point.key: point for point in points}
    if stored.unfinished and stored.key in proven:
        return GarbageReason.CUT_OFF
    if stored.key in protected_keys(ws, points, retention, now):
        return None
    if stored.key not in proven:
        return GarbageReason.UNFINISHED
    if proven[stored.key].released_at is not None:
        return GarbageReason.DISCARDED
    return GarbageReason.TOO_OLD


def may_sweep(
    resource: BackendResource, retention: Retention, ws: Workspace | None, points: Sequence[RestorePoint], now: datetime
) -> bool:
    """Whether the resource is garbage that no undelete can bring back: a deleted workspace is purged before a copy
    goes."""
    purge_first = ws is not None and ws.purged_at is None and undo_is_over(ws, retention.undo, now)
    return garbage(resource, retention, ws, points, now) is not None and not purge_first


def protected_keys(
    ws: Workspace,
    points: Sequence[RestorePoint],
    retention: Retention,
    now: datetime,
) -> frozenset[str]:
    """The archive keys of this workspace that must stay."""
    if ws.purged_at is not None or undo_is_over(ws, retention.undo, now):
        return frozenset()
    keys = {ws.archive_key} if ws.archive_key else set()
    if ws.deleted_at is not None:
        return frozenset(keys | {p.key for p in points})
    if ws.archive_op_id is not None:
        keys.add(naming.archive_key(retention.prefix, ws.id, ws.archive_op_id))
    if ws.restore_pending and ws.restore_from:
        keys.add(ws.restore_from)
    if ws.phase is Phase.ERROR:
        return frozenset(keys | {p.key for p in points})
    held = [p for p in points if p.released_at is None]
    newest = sorted(held, key=lambda p: (p.created_at, p.op_id), reverse=True)[: retention.restore_points]
    undoable = {p.key for p in points if p.released_at is not None and now - p.released_at < retention.undo}
    return frozenset(keys | {p.key for p in newest} | undoable)


def protected_volumes(ws: Workspace, retention: Retention, now: datetime) -> frozenset[str]:
    """The volumes of this workspace that must stay: the live home, and one that an operation may be about to use."""
    if ws.home_store_key is None or ws.purged_at is not None or undo_is_over(ws, retention.undo, now):
        return frozenset()
    in_use = ws.volume_may_be_only_copy or ws.phase is Phase.ERROR or ws.operation is not Operation.NONE
    return frozenset({ws.home_store_key}) if in_use or ws.deleted_at is not None else frozenset()
