"""The space of cases a controller can meet, as independent axes; `test_exhaustive` walks all of it.

A case is a row as loaded and what one look at the state says. The wish and the moment are kept apart, because
the judge must not depend on them (checked), so one judgement serves all of them.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import timedelta
from itertools import product
from typing import Any

from codehub.domain.errors import ErrorReason
from codehub.domain.judge import ArchiveState, Facts
from codehub.domain.workspace import (
    NO_ARCHIVE,
    NO_CONTAINER,
    NO_VOLUME,
    Condition,
    Conditions,
    Desired,
    HomeContext,
    Operation,
    Phase,
    RecoverAction,
    Workspace,
)
from tests.rows import (
    INSTANCE,
    KEY,
    LONG_AGO,
    NOW,
    OP_ID,
    OTHER_KEY,
    OTHER_OP_ID,
    VOLUME,
    container,
    error_info,
    workspace,
)

LIVING = (Phase.PENDING, Phase.ARCHIVED, Phase.STANDBY, Phase.RUNNING)
STANDINGS = (
    *product(LIVING, Operation),
    # all that the check constraint `phase = ERROR → operation IN (NONE, DELETING)` lets stand
    (Phase.ERROR, Operation.NONE),
    (Phase.ERROR, Operation.DELETING),
)
HOMES = ("none", "live, marked by another operation", "live, marked by this one", "restoring", "leaving")
VOLUMES = ("present", "replaced", "absent", "unknown")
CONTAINERS = ("absent", "exited", "ready", "unknown")
ARCHIVES = (
    (None, ArchiveState.UNKNOWN),
    *product((KEY, OTHER_KEY), (ArchiveState.READABLE, ArchiveState.NOT_FOUND, ArchiveState.UNKNOWN)),
)
ERRORS = ("none", "next try due", "next try later", "terminal")
"""The errors of a row in ERROR, where there is always a terminal one: passing, and the same three."""
MOMENTS: dict[str, dict[str, Any]] = {
    "calm": {},
    "overdue": {"op_started_at": LONG_AGO, "op_progress_at": LONG_AGO},
    "recover asked": {"recover_requested_at": NOW},
    "restore asked": {"restore_requested_at": NOW},
}

JUDGEMENTS = len(STANDINGS) * len(HOMES) * len(VOLUMES) * len(CONTAINERS) * len(ARCHIVES) * len(ERRORS)
COMBINATIONS = JUDGEMENTS * len(Desired) * len(MOMENTS)

READY = Condition(status=True, reason="Ready")
UNHEALTHY = Condition(status=False, reason=ErrorReason.RETRY_EXCEEDED.value, message="it broke")
_STORED = {
    Phase.PENDING: Conditions(),
    Phase.ARCHIVED: Conditions(archive_ready=READY),
    Phase.STANDBY: Conditions(volume_ready=READY),
    Phase.RUNNING: Conditions(volume_ready=READY, container_ready=READY),
    Phase.ERROR: Conditions(NO_VOLUME, NO_ARCHIVE, NO_CONTAINER, UNHEALTHY),
}
_CONTAINERS = {"exited": container(running=False, answered=False), "ready": container()}


@dataclass(frozen=True, slots=True)
class Case:
    """One case. `completions`: every definite state that the unanswered questions leave possible."""

    row: Workspace
    facts: Facts
    completions: tuple[Facts, ...]


def cases() -> Iterator[Case]:
    seen = tuple(product(VOLUMES, CONTAINERS))
    looks = {
        state: [(facts, tuple(_completions(facts))) for facts in (_facts(v, c, state) for v, c in seen)]
        for _, state in ARCHIVES
    }
    for (phase, operation), home, (key, archive), error in product(STANDINGS, HOMES, ARCHIVES, ERRORS):
        row = _row(phase, operation, home, key, error)
        for facts, possible in looks[archive]:
            yield Case(row, facts, possible)


def _row(phase: Phase, operation: Operation, home: str, key: str | None, error: str) -> Workspace:
    row = workspace(
        phase=phase,
        phase_changed_at=NOW - timedelta(seconds=30),
        conditions=_STORED[phase],
        operation=operation,
        op_id=OP_ID,
        archive_op_id=OP_ID,
        archive_key=key,
        home_store_key=VOLUME,
        home=_home(home, key),
        restore_from=OTHER_KEY,
        recover_action=RecoverAction.RETRY,
    )
    if operation is not Operation.NONE:
        row = replace(row, op_started_at=NOW, op_progress_at=NOW)
    return _with_error(row, error)


def _home(state: str, key: str | None) -> HomeContext:
    home = HomeContext(incarnation=1, volume_instance=INSTANCE)
    match state:
        case "live, marked by this one":
            return replace(home, live=True, marker=(key or KEY, OP_ID))
        case "live, marked by another operation":
            return replace(home, live=True, marker=(key or KEY, OTHER_OP_ID))
        case "restoring":
            return replace(home, restoring=key or KEY)
        case "leaving":
            return replace(home, deleting_volume=True)
        case _:
            return home


def _with_error(row: Workspace, error: str) -> Workspace:
    in_error = row.phase is Phase.ERROR
    if error == "none" and not in_error:
        return row
    passing = ErrorReason.ARCHIVE_ACCESS_ERROR if error == "none" else ErrorReason.RETRY_EXCEEDED
    terminal = in_error or error == "terminal"
    info = error_info(passing if terminal else ErrorReason.ACTION_FAILED, is_terminal=terminal, error_count=1)
    retry_at = {"next try due": NOW - timedelta(hours=1), "next try later": NOW + timedelta(hours=1)}.get(error)
    return replace(row, error_info=info, error_reason=info.reason, error_count=1, retry_at=retry_at)


def _facts(volume: str, box: str, archive: ArchiveState) -> Facts:
    return Facts(
        container=_CONTAINERS.get(box),
        container_known=box != "unknown",
        volumes={"present": {VOLUME: INSTANCE}, "replaced": {VOLUME: "another"}, "absent": {}}.get(volume),
        archive=archive,
    )


def _completions(facts: Facts) -> Iterator[Facts]:
    boxes = (facts.container,) if facts.container_known else (None, container())
    volumes = (facts.volumes,) if facts.volumes is not None else ({}, {VOLUME: INSTANCE})
    unasked = facts.archive is not ArchiveState.UNKNOWN
    archives = (facts.archive,) if unasked else (ArchiveState.READABLE, ArchiveState.NOT_FOUND)
    for box, names, archive in product(boxes, volumes, archives):
        yield Facts(container=box, volumes=names, archive=archive)
