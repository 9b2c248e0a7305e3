"""What the admins are told of, and with which details: one function for each notice. They get it as a log line, in
their open pages and by webhook."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple
from uuid import UUID

from codehub.domain.usage import DiskUsage
from codehub.domain.workspace import Workspace


class Notice(NamedTuple):
    subject: str
    details: Mapping[str, Any]


def workspace_in_error(workspace: Workspace) -> Notice:
    error = workspace.error_info
    return Notice(
        "workspace in ERROR",
        {
            **_of(workspace),
            "reason": error.reason.value if error else "",
            "message": error.message if error else "",
        },
    )


def newer_home_found(workspace: Workspace, kept: Sequence[str]) -> Notice:
    """`kept`: the volumes that the database knew nothing of."""
    details = {**_of(workspace), "kept": list(kept), "opened": workspace.home_store_key}
    return Notice("a home newer than the database was found", details)


def archive_lost(workspace_id: UUID, lost: str | None, now: str | None) -> Notice:
    """`now`: the archive that takes its place, if there is one."""
    return Notice("archive lost beside a living volume", {"workspace": str(workspace_id), "lost": lost, "now": now})


def secrets_not_opened(workspace: Workspace, names: Mapping[str, Any], why: str) -> Notice:
    return Notice("secrets could not be opened", {**_of(workspace), **names, "why": why})


def collection_stopped(reason: str, message: str) -> Notice:
    return Notice("garbage collection stopped", {"reason": reason, "message": message})


def isolation_broken(message: str) -> Notice:
    return Notice("workspaces are not isolated: none is started", {"details": message})


def isolation_restored(message: str) -> Notice:
    return Notice("the isolation of workspaces was broken and has been restored", {"details": message})


def disk_nearly_full(disk: DiskUsage, workspaces: int) -> Notice:
    details = {"free_bytes": disk.free_bytes, "total_bytes": disk.total_bytes, "workspaces": workspaces}
    return Notice("the disk that workspaces share is nearly full", details)


def backend_silent(backend: str, error: str) -> Notice:
    return Notice("backend does not answer", {"backend": backend, "error": error})


def backend_answers(backend: str) -> Notice:
    return Notice("backend answers again", {"backend": backend})


def _of(workspace: Workspace) -> dict[str, str]:
    return {"workspace": str(workspace.id), "name": workspace.name}
