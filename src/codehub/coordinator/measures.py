"""The controller's metrics, read off the difference of two rows, as the ledger is."""

from datetime import datetime

from codehub.domain.workspace import Operation, Phase, Workspace
from codehub.telemetry import (
    OPERATION_SECONDS,
    OPERATIONS_COMPLETED,
    OPERATIONS_FAILED,
    OPERATIONS_STARTED,
    ROWS_WRITTEN,
    TERMINAL_ERRORS,
    Metrics,
)


def count_change(metrics: Metrics, before: Workspace, after: Workspace, now: datetime) -> None:
    metrics.add(ROWS_WRITTEN)
    operation = before.operation.value.lower()
    if after.operation is not before.operation and after.operation is not Operation.NONE:
        metrics.add(OPERATIONS_STARTED, operation=after.operation.value.lower())
    if after.error_info is not None and after.error_info != before.error_info:
        metrics.add(OPERATIONS_FAILED, operation=operation, reason=after.error_info.reason.value)
    elif before.operation is not Operation.NONE and after.operation is Operation.NONE:
        metrics.add(OPERATIONS_COMPLETED, operation=operation)
        if before.op_started_at is not None:
            metrics.observe(OPERATION_SECONDS, (now - before.op_started_at).total_seconds(), operation=operation)
    if after.phase is Phase.ERROR and before.phase is not Phase.ERROR and after.error_reason is not None:
        metrics.add(TERMINAL_ERRORS, reason=after.error_reason.value)
