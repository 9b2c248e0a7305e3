"""What no write may do to a row, whoever makes it: rules on the row before and after, stated a second time."""

from collections.abc import Iterator

from codehub.domain.workspace import Conditions, Workspace

Broken = Iterator[tuple[str, str]]

CLEARS_ITSELF = ("ContainerWithoutVolume", "ArchiveAccessError")
GIVES_THE_VOLUME_UP = ("ARCHIVED", "PENDING", "DELETED")


def broken_rules(before: Workspace, row: Workspace, reason: str) -> Broken:
    yield from _operations(before, row)
    yield from _ends(before, row, reason)
    yield from _safe_point(before, row)
    yield from _tries(before, row)
    yield from _errors(before, row)
    if row.error_reason == "ArchiveCorrupted" and row.conditions.archive_ready.status is True:
        yield "an archive that was found damaged is called ready", f"{row.archive_key}"
    if row.deleted_at is not None and before.deleted_at is None and row.desired_state != "DELETED":
        yield "a workspace was deleted that is wanted", f"{row.desired_state}"


def _operations(before: Workspace, row: Workspace) -> Broken:
    if before.operation != "NONE" and row.operation == before.operation and row.op_id != before.op_id:
        yield "an operation changed its id", f"{row.operation}"
    if before.operation not in {"NONE", row.operation} and row.operation != "NONE":
        yield "an operation began while another ran", f"{before.operation} → {row.operation}"
    if row.phase == "ERROR" and row.operation not in {"NONE", "DELETING"}:
        yield "an operation runs in ERROR", f"{row.operation}"
    if row.operation not in {before.operation, "NONE"} and row.conditions != before.conditions:
        # conditions that stay as they were may be another pass's, which saw less than the one that begins
        conditions = row.conditions
        if conditions.volume_ready.status is None or conditions.container_ready.status is None:
            yield "4: an operation began although the runtime is unknown", f"{row.operation}"


def _ends(before: Workspace, row: Workspace, reason: str) -> Broken:
    if before.operation == "NONE" or row.operation != "NONE":
        return
    if not reason and row.phase != "ERROR":
        yield "an operation vanished", f"{before.operation}"
    if reason == "observed" and not _observed(before.operation, row.conditions):
        yield "1: an operation was called complete and nothing was observed", f"{before.operation}"


def _observed(operation: str, seen: Conditions) -> bool:
    volume, archive, container = seen.volume_ready, seen.archive_ready, seen.container_ready
    return {
        "PROVISIONING": volume.status is True,
        "CREATE_EMPTY_ARCHIVE": archive.status is True,
        "RESTORING": volume.status is True,
        "STARTING": container.status is True,
        "STOPPING": container.reason == "NoContainer" and container.status is False,
        "ARCHIVING": volume.reason == "NoVolume" and volume.status is False and archive.status is True,
    }.get(operation, True)


def _safe_point(before: Workspace, row: Workspace) -> Broken:
    passed = row.home.deleting_volume and not before.home.deleting_volume
    if passed and row.desired_state not in GIVES_THE_VOLUME_UP and not row.restore_pending:
        yield "the safe point was passed although the home is wanted", f"{row.desired_state}"


def _tries(before: Workspace, row: Workspace) -> Broken:
    """Check the pauses: within one operation, try k + 1 comes at least 2^(k−1) s (less a tenth) after try k was
    begun."""
    last, this = before.error_info, row.error_info
    if (
        last is None
        or this is None
        or this == last
        or row.error_count <= before.error_count
        or this.reason == "Timeout"
        or last.reason == "Unreachable"  # no try: the last one lies further back
    ):
        return
    same = before.op_id == row.op_id and before.operation != "NONE" and last.operation == this.operation
    if not same or before.op_started_at is None or last.occurred_at < before.op_started_at:
        return
    waited = (this.occurred_at - last.occurred_at).total_seconds()
    if waited < 0.9 * 2 ** (before.error_count - 1):
        yield "tried again before its time", f"{this.operation} after {waited:.1f} s"


def _errors(before: Workspace, row: Workspace) -> Broken:
    """Check what replaces an error. A failed try to delete, in ERROR, hides the error that was there; that one is not
    looked for."""
    info = before.error_info
    if before.phase != "ERROR" or info is None or not info.is_terminal or info.reason in CLEARS_ITSELF:
        return
    if row.recover_handled_at != before.recover_handled_at:
        return
    if row.phase == "ERROR" and row.error_reason in CLEARS_ITSELF:
        yield "an error that needs a person gave way to one that clears itself", f"{row.error_reason}"
    if row.phase not in {"ERROR", "DELETED"}:
        yield "an error that needs a person cleared itself", f"{info.reason} → {row.phase}"
