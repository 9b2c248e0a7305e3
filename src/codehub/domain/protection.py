"""What the garbage collector may never touch (contract 9). Pure; the sweep itself only follows these answers.

In doubt a thing is kept: a workspace in ERROR keeps everything, a deleted one keeps its copies for the undo window.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

from codehub.domain import naming
from codehub.domain.workspace import Operation, Phase, Workspace


@dataclass(frozen=True, slots=True)
class RestorePoint:
    """A proven archive of one workspace. `released_at`: given up by DISCARDING; kept until the undo window is over."""

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
    restore_points: int = 3
    undo_seconds: int = 7200
    grace_seconds: int = 7200
    prefix: str = ""


def protected_keys(
    ws: Workspace,
    points: Sequence[RestorePoint],
    retention: Retention,
    now: datetime,
) -> frozenset[str]:
    """The archive keys of this workspace that must stay."""
    if ws.purged_at is not None:
        return frozenset()
    window = timedelta(seconds=retention.undo_seconds)
    keys = {ws.archive_key} if ws.archive_key else set()
    if ws.deleted_at is not None:
        inside = now - ws.deleted_at < window or ws.undelete_pending
        return frozenset(keys | {p.key for p in points}) if inside else frozenset()
    if ws.archive_op_id is not None:
        keys.add(naming.archive_key(retention.prefix, ws.id, ws.archive_op_id))
    if ws.restore_pending and ws.restore_from:
        keys.add(ws.restore_from)
    if ws.phase is Phase.ERROR:
        return frozenset(keys | {p.key for p in points})
    held = [p for p in points if p.released_at is None]
    newest = sorted(held, key=lambda p: (p.created_at, p.op_id), reverse=True)[: retention.restore_points]
    undoable = {p.key for p in points if p.released_at is not None and now - p.released_at < window}
    return frozenset(keys | {p.key for p in newest} | undoable)


def protected_volumes(ws: Workspace, retention: Retention, now: datetime) -> frozenset[str]:
    """A volume stays while it is the live home, or while any operation may be about to use it."""
    if ws.home_store_key is None or ws.purged_at is not None:
        return frozenset()
    if ws.deleted_at is not None:
        inside = now - ws.deleted_at < timedelta(seconds=retention.undo_seconds) or ws.undelete_pending
        return frozenset({ws.home_store_key}) if inside else frozenset()
    in_use = ws.volume_may_be_only_copy or ws.phase is Phase.ERROR or ws.operation is not Operation.NONE
    return frozenset({ws.home_store_key}) if in_use else frozenset()


@dataclass(frozen=True, slots=True)
class Inventory:
    """What the sweep is about to rely on."""

    existing: int
    marked: int
    newest_object_at: datetime | None
    newest_ledger_at: datetime | None
    oldest_workspace_at: datetime | None
    oldest_object_at: datetime | None


MOST_SHARE = 0.20
MOST_COUNT = 10
LEDGER_LAG = timedelta(hours=1)


def refusal(inventory: Inventory, override: Collection[str] = ()) -> str | None:
    """Why a sweep would be catastrophic, in a sentence, or None. `override` names the checks a person waives."""
    if inventory.existing == 0:
        return None
    if inventory.newest_ledger_at is None or inventory.oldest_workspace_at is None:
        return "database-empty: the database knows no workspace although objects exist; is this the right database?"
    oldest = inventory.oldest_object_at
    if "database-younger" not in override and oldest and oldest < inventory.oldest_workspace_at:
        return "database-younger: objects are older than the oldest workspace; was the database made anew?"
    newest = inventory.newest_object_at
    if "ledger-behind" not in override and newest and newest - inventory.newest_ledger_at > LEDGER_LAG:
        return (
            "ledger-behind: the newest object is over 1 h newer than the newest ledger row; was the database restored?"
        )
    too_many = inventory.marked > MOST_COUNT and inventory.marked > inventory.existing * MOST_SHARE
    if "too-many" not in override and too_many:
        return f"too-many: {inventory.marked} of {inventory.existing} would be swept, over {MOST_SHARE:.0%}"
    return None
