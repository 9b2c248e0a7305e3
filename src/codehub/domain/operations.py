"""How an operation begins, goes on and ends: pure functions from the judged row to the row to record before anything is
done. What a failed attempt writes is in failures.py.

A retry keeps its op_id; only a new operation gets a new one. `op_id` and `archive_op_id` stay when an operation ends.
"""

from collections.abc import Collection
from dataclasses import replace
from datetime import datetime
from uuid import UUID

from codehub.domain import naming
from codehub.domain.errors import Unreachable
from codehub.domain.transitions import OPERATIONS
from codehub.domain.workspace import HomeContext, Operation, Phase, Progress, Workspace


def begin(
    ws: Workspace, operation: Operation, op_id: UUID, now: datetime, volumes: Collection[str] | None
) -> Workspace:
    """The row with a new operation. `volumes`: the names of the workspace's volumes as just observed; None if they were
    not."""
    row = replace(
        ws,
        operation=operation,
        op_id=op_id,
        op_started_at=now,
        op_progress=None,
        op_progress_at=now,
        op_excused_seconds=0.0,
        retry_at=None,
    )
    if not _goes_on_trying(ws, operation):
        row = replace(row, error_count=0)
        if ws.phase is not Phase.ERROR:
            row = replace(row, error_reason=None, error_info=None)
    match operation:
        case Operation.PROVISIONING:
            return _new_incarnation(row, volumes, restoring=None)
        case Operation.RESTORING:
            return _new_incarnation(row, volumes, restoring=row.archive_key)
        case Operation.STARTING | Operation.STOPPING:
            return replace(row, archive_op_id=None)
        case Operation.CREATE_EMPTY_ARCHIVE:
            return replace(row, archive_op_id=op_id)
        case Operation.ARCHIVING:
            return replace(row, archive_op_id=row.archive_op_id or op_id)
        case _:
            return row


def _goes_on_trying(ws: Workspace, operation: Operation) -> bool:
    """Whether the operation keeps the count of failed tries: each operation has tries of its own. A start that
    succeeded leaves its count and no error, since a container that dies right away was a failed attempt too
    (failures.crashed_after_start)."""
    tried = ws.error_info.operation if ws.error_info else Operation.STARTING.value
    return operation.value == tried


def _new_incarnation(ws: Workspace, volumes: Collection[str] | None, restoring: str | None) -> Workspace:
    """The row with a new name for a new volume. The old home's archive id must not name the new home's archive. A
    number is recorded before its volume is made, so one above ours that is there already was made under a row that the
    database has lost: it is passed over, and never written to."""
    if volumes is None:
        raise Unreachable("which volumes there are is not known: a new home is not named by a guess")
    newer = {number for name in volumes if (number := naming.incarnation_of(ws.id, name) or 0) > ws.home.incarnation}
    number = max(newer, default=ws.home.incarnation) + 1
    home = HomeContext(incarnation=number, restoring=restoring, ready_instance=ws.home.ready_instance)
    home = replace(
        home,
        passed_over=(*ws.home.passed_over, *sorted(newer)),
        half_restored=half_restored_volumes(ws.home),
        corrupted=ws.home.corrupted,
    )
    return replace(ws, home=home, home_store_key=naming.volume_name(ws.id, number), archive_op_id=None)


def half_restored_volumes(home: HomeContext) -> tuple[tuple[int, str], ...]:
    """The half-restored volumes on record once the present incarnation is given up, which may be one of them."""
    given_up = () if home.restoring is None else ((home.incarnation, home.restoring),)
    return (*home.half_restored, *(half for half in given_up if half not in home.half_restored))


def without_leftovers(ws: Workspace, volumes: Collection[str]) -> Workspace:
    """The row without the record of half-restored volumes that no longer exist."""
    kept = tuple(half for half in ws.home.half_restored if naming.volume_name(ws.id, half[0]) in volumes)
    return replace(ws, home=replace(ws.home, half_restored=kept))


def complete(ws: Workspace) -> Workspace:
    """The row after the operation's effect was observed. The failed attempts of a start count until the phase has held;
    all others are over."""
    home = ws.home
    if ws.operation is Operation.ARCHIVING:
        home = replace(home, deleting_volume=False, live=False, marker=None, volume_instance=None)
    row = ended(replace(ws, home=home))
    if ws.phase is Phase.ERROR:
        return row
    count = ws.error_count if ws.operation is Operation.STARTING else 0
    return replace(row, error_count=count, error_reason=None, error_info=None, retry_at=None)


def abandon(ws: Workspace) -> Workspace:
    return replace(ended(ws), retry_at=None)


def ended(ws: Workspace) -> Workspace:
    return replace(
        ws, operation=Operation.NONE, op_started_at=None, op_progress=None, op_progress_at=None, op_excused_seconds=0.0
    )


def progressed(ws: Workspace, progress: Progress, now: datetime) -> Workspace:
    if progress == ws.op_progress:
        return ws
    excuse = 0.0 if OPERATIONS[ws.operation].progress_counts else ws.op_excused_seconds
    return replace(ws, op_progress=progress, op_progress_at=now, op_excused_seconds=excuse)


def excused(ws: Workspace, seconds: float) -> Workspace:
    return replace(ws, op_excused_seconds=ws.op_excused_seconds + seconds)


def restarted(ws: Workspace, now: datetime) -> Workspace:
    """The row whose operation starts over: no time before now counts against its deadline, and its progress is none."""
    return replace(ws, op_progress=None, op_progress_at=now, op_excused_seconds=0.0)


def without_corruption_mark(ws: Workspace, key: str | None) -> Workspace:
    kept = tuple(other for other in ws.home.corrupted if other != key)
    return replace(ws, home=replace(ws.home, corrupted=kept))


def lost_archive_replaced(ws: Workspace, archive_key: str | None) -> Workspace:
    """The row whose archive is lost while its volume lives: the volume is the home again, whatever ARCHIVING was about
    to do."""
    home = replace(ws.home, deleting_volume=False, live=True)
    row = replace(ws, archive_key=archive_key, archive_op_id=None, home=home)
    return abandon(row) if row.operation is Operation.ARCHIVING else row


def take_restore_point(ws: Workspace) -> Workspace:
    half = half_restored_volumes(ws.home)
    row = replace(
        ws,
        archive_key=ws.restore_from,
        archive_op_id=None,
        restore_handled_at=ws.restore_requested_at,
        home=replace(ws.home, live=False, restoring=None, marker=None, half_restored=half),
    )
    return without_corruption_mark(row, ws.restore_from)
