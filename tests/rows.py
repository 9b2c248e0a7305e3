"""Rows for tests: a workspace and its parts with plain defaults, changed only where a test says so."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from codehub.domain import naming
from codehub.domain.errors import ErrorInfo, ErrorReason
from codehub.domain.judge import ArchiveState, ContainerSeen, Facts
from codehub.domain.workspace import HomeContext, Operation, Phase, Workspace

NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
LONG_AGO = NOW - timedelta(days=30)

WORKSPACE_ID = UUID("11111111-1111-4111-8111-111111111111")
OP_ID = UUID("aaaaaaaa-aaaa-4aaa-8aaa-aaaaaaaaaaaa")
OTHER_OP_ID = UUID("bbbbbbbb-bbbb-4bbb-8bbb-bbbbbbbbbbbb")

VOLUME = naming.volume_name(WORKSPACE_ID, 1)
INSTANCE = "volume-0"
KEY = naming.archive_key("", WORKSPACE_ID, OP_ID)
OTHER_KEY = naming.archive_key("", WORKSPACE_ID, OTHER_OP_ID)


def workspace(**changes: Any) -> Workspace:
    """Settled PENDING since long ago, unless told otherwise."""
    row = Workspace(
        id=WORKSPACE_ID,
        owner_id="ann",
        name="demo",
        slug="demo-111111",
        created_at=LONG_AGO,
        updated_at=LONG_AGO,
        phase_changed_at=LONG_AGO,
    )
    return replace(row, **changes)


def with_home(**changes: Any) -> Workspace:
    """A live first home, settled in STANDBY; `facts()` shows it present."""
    settled: dict[str, Any] = {
        "phase": Phase.STANDBY,
        "home_store_key": VOLUME,
        "home": HomeContext(incarnation=1, live=True, volume_instance=INSTANCE),
    }
    return workspace(**(settled | changes))


def archived(**changes: Any) -> Workspace:
    """Its home is in the archive KEY and nowhere else."""
    settled: dict[str, Any] = {
        "phase": Phase.ARCHIVED,
        "archive_key": KEY,
        "archive_op_id": OP_ID,
        "home": HomeContext(incarnation=1),
    }
    return workspace(**(settled | changes))


def busy(row: Workspace, operation: Operation, **changes: Any) -> Workspace:
    """`row` with OP_ID's operation under way since NOW."""
    began: dict[str, Any] = {"operation": operation, "op_id": OP_ID, "op_started_at": NOW, "op_progress_at": NOW}
    return replace(row, **(began | changes))


def facts(*volumes: str, **changes: Any) -> Facts:
    """The runtime answers and shows these volumes and no container; the archive is readable."""
    return replace(Facts(volumes=dict.fromkeys(volumes, INSTANCE), archive=ArchiveState.READABLE), **changes)


def container(*, running: bool = True, answered: bool = True, instance: str = "c1", detail: str = "") -> ContainerSeen:
    return ContainerSeen(instance=instance, running=running, answered=answered, detail=detail)


def error_info(reason: ErrorReason = ErrorReason.ACTION_FAILED, **changes: Any) -> ErrorInfo:
    info = ErrorInfo(
        reason=reason,
        message="it broke",
        operation="STARTING",
        is_terminal=False,
        error_count=1,
        previous_phase="STANDBY",
        occurred_at=LONG_AGO,
    )
    return replace(info, **changes)


def broken(row: Workspace, reason: ErrorReason = ErrorReason.RETRY_EXCEEDED, **changes: Any) -> Workspace:
    """`row` in ERROR with a terminal error, as contract 4 has it written."""
    info = error_info(reason, is_terminal=True, error_count=3, previous_phase=row.phase.value)
    unhealthy = replace(row.conditions.healthy, status=False, reason=reason.value, message=info.message)
    written: dict[str, Any] = {
        "phase": Phase.ERROR,
        "operation": Operation.NONE,
        "conditions": replace(row.conditions, healthy=unhealthy),
        "error_reason": reason,
        "error_info": info,
        "error_count": 3,
    }
    return replace(row, **(written | changes))
