"""The state machine, once, as data (contract 5). plan(), the diagram in the documents, the database's check constraints
and every label derive from this table or are checked against it.

One step at a time and to neighbours only; an operation is done when its effect is *observed* (contract 1), never when
an actuator returns.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from codehub.domain import naming
from codehub.domain.workspace import NO_CONTAINER, NO_VOLUME, Desired, Operation, Phase, Workspace


@dataclass(frozen=True, slots=True)
class Transition:
    phase: Phase
    desired: tuple[Desired, ...]
    operation: Operation
    leads_to: Phase


TABLE: tuple[Transition, ...] = (
    Transition(Phase.PENDING, (Desired.STANDBY, Desired.RUNNING), Operation.PROVISIONING, Phase.STANDBY),
    Transition(Phase.PENDING, (Desired.ARCHIVED,), Operation.CREATE_EMPTY_ARCHIVE, Phase.ARCHIVED),
    Transition(Phase.PENDING, (Desired.DELETED,), Operation.DELETING, Phase.DELETED),
    Transition(Phase.ARCHIVED, (Desired.STANDBY, Desired.RUNNING), Operation.RESTORING, Phase.STANDBY),
    Transition(Phase.ARCHIVED, (Desired.PENDING,), Operation.DISCARDING, Phase.PENDING),
    Transition(Phase.ARCHIVED, (Desired.DELETED,), Operation.DELETING, Phase.DELETED),
    Transition(Phase.STANDBY, (Desired.RUNNING,), Operation.STARTING, Phase.RUNNING),
    Transition(
        Phase.STANDBY, (Desired.ARCHIVED, Desired.PENDING, Desired.DELETED), Operation.ARCHIVING, Phase.ARCHIVED
    ),
    Transition(
        Phase.RUNNING,
        (Desired.STANDBY, Desired.ARCHIVED, Desired.PENDING, Desired.DELETED),
        Operation.STOPPING,
        Phase.STANDBY,
    ),
    Transition(Phase.ERROR, (Desired.DELETED,), Operation.DELETING, Phase.DELETED),
)

_BY_STATE: Mapping[tuple[Phase, Desired], Transition] = MappingProxyType(
    {(row.phase, desired): row for row in TABLE for desired in row.desired},
)

GIVES_UP_VOLUME = (Desired.ARCHIVED, Desired.PENDING, Desired.DELETED)
"""The desired states under which the safe point of ARCHIVING may be passed."""

REMOVES_CONTAINER = (Operation.STOPPING, Operation.ARCHIVING, Operation.RESTORING, Operation.DELETING)
"""The operations that end any container first, so that one which is seen meanwhile is their work and no anomaly."""

RUNS_A_JOB = (Operation.ARCHIVING, Operation.RESTORING)

MAY_RUN_IN_ERROR = (Operation.NONE, Operation.DELETING)


def transition(phase: Phase, desired: Desired) -> Transition | None:
    return _BY_STATE.get((phase, desired))


def _provisioned(ws: Workspace) -> bool:
    return ws.conditions.volume_ready.status is True


def _archive_is_ours(ws: Workspace) -> bool:
    return ws.conditions.archive_ready.status is True and naming.is_archive_of(ws.archive_key, ws.id, ws.archive_op_id)


def _restored(ws: Workspace) -> bool:
    return ws.conditions.volume_ready.status is True and ws.home.marker == (ws.archive_key, ws.op_id)


def _started(ws: Workspace) -> bool:
    return ws.conditions.container_ready.status is True


def _stopped(ws: Workspace) -> bool:
    """Whether the container is gone, not only exited."""
    ready = ws.conditions.container_ready
    return ready.status is False and ready.reason == NO_CONTAINER.reason


def _archived(ws: Workspace) -> bool:
    volume = ws.conditions.volume_ready
    return volume.status is False and volume.reason == NO_VOLUME.reason and _archive_is_ours(ws)


def _discarded(ws: Workspace) -> bool:
    return ws.archive_key is None


def _deleted(ws: Workspace) -> bool:
    return ws.deleted_at is not None


@dataclass(frozen=True, slots=True)
class OperationRule:
    """How an operation ends. `progress_counts`: the deadline counts from the last progress, not from the start."""

    done: Callable[[Workspace], bool]
    done_when: str
    deadline_seconds: int
    progress_counts: bool = False


OPERATIONS: Mapping[Operation, OperationRule] = MappingProxyType(
    {
        Operation.PROVISIONING: OperationRule(_provisioned, "volume_ready", 300),
        Operation.CREATE_EMPTY_ARCHIVE: OperationRule(
            _archive_is_ours, "archive_ready ∧ archive_key is this operation's", 300
        ),
        Operation.RESTORING: OperationRule(
            _restored, "volume_ready ∧ restore_marker = (archive_key, this operation)", 1800, progress_counts=True
        ),
        Operation.STARTING: OperationRule(_started, "container_ready", 300),
        Operation.STOPPING: OperationRule(_stopped, "the container is gone", 300),
        Operation.ARCHIVING: OperationRule(
            _archived, "no volume ∧ archive_ready ∧ archive_key is this operation's", 1800, progress_counts=True
        ),
        Operation.DISCARDING: OperationRule(_discarded, "no archive_key", 300),
        Operation.DELETING: OperationRule(_deleted, "deleted_at set", 300),
    },
)
