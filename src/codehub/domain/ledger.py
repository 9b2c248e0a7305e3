"""What is recorded of what happened: the kinds of the ledger's entries, and the actions of the audit log. Pure.

Ledger entries are derived from the difference of two rows, so that no change can go unexplained. The names of kinds and
actions are stored: one that was ever used keeps its meaning.
"""

import hashlib
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Protocol
from uuid import UUID

from codehub.domain.workspace import Operation, Phase, Workspace


class LedgerKind(StrEnum):
    CREATED = "created"
    WISH = "wish"
    PHASE = "phase"
    OPERATION_BEGAN = "operation_began"
    OPERATION_ENDED = "operation_ended"
    ATTEMPT_FAILED = "attempt_failed"
    ERROR = "error"
    ARCHIVE = "archive"
    RECOVER_ASKED = "recover_asked"
    RESTORE_ASKED = "restore_asked"
    UNDELETE_ASKED = "undelete_asked"
    DELETED = "deleted"
    UNDELETED = "undeleted"
    PURGED = "purged"


EVICTED = "evicted"
"""The reason of a phase that fell because the backend took the container away."""


AUDITED_COMMAND = 1000
_BEGINNING, _END = 700, 290


def command_details(command: str) -> dict[str, str]:
    """What the audit log keeps of a command that somebody runs: one printable line. Of a longer one its beginning and
    its end, and its length and hash, so that nothing can be hidden in between."""
    shown = "".join(one if one.isprintable() else "\N{REPLACEMENT CHARACTER}" for one in command)
    if len(shown) <= AUDITED_COMMAND:
        return {"command": shown}
    digest = hashlib.sha256(command.encode(errors="surrogateescape")).hexdigest()
    cut = f"{shown[:_BEGINNING]} … {shown[-_END:]}"
    return {"command": cut, "command_length": str(len(command)), "command_sha256": digest}


class AuditAction(StrEnum):
    """What the audit log can say that somebody did."""

    SIGN_IN = "sign_in"
    SIGN_IN_OIDC = "sign_in_oidc"
    SIGN_IN_FAILED = "sign_in_failed"
    SIGN_OUT = "sign_out"
    PROVE_SESSION = "prove_session"
    REVOKE_SESSION = "revoke_session"
    CHANGE_PASSWORD = "change_password"  # noqa: S105 - an action's name
    RESET_PASSWORD = "reset_password"  # noqa: S105 - an action's name
    CREATE_TOKEN = "create_token"  # noqa: S105 - an action's name
    REVOKE_TOKEN = "revoke_token"  # noqa: S105 - an action's name
    ADD_SSH_KEY = "add_ssh_key"
    REMOVE_SSH_KEY = "remove_ssh_key"
    CREATE_USER = "create_user"
    ENABLE_USER = "enable_user"
    DISABLE_USER = "disable_user"
    SET_ROLE = "set_role"
    SET_MAX_RUNNING = "set_max_running"
    PUT_TEMPLATE = "put_template"
    PUT_SECRET = "put_secret"  # noqa: S105 - an action's name
    DELETE_SECRET = "delete_secret"  # noqa: S105 - an action's name
    USE_SECRETS = "use_secrets"
    RESEAL_SECRETS = "reseal_secrets"
    SET_GIT_IDENTITY = "set_git_identity"
    SET_DOTFILES = "set_dotfiles"
    RESTORE = "restore"
    FORGET_BACKEND = "forget_backend"
    COLLECT_GARBAGE = "collect_garbage"
    SHOW_WORKSPACE = "show_workspace"
    CHANGE_WORKSPACE = "change_workspace"
    READ_EVENTS = "read_events"
    READ_LOGS = "read_logs"
    ISSUE_TICKET = "issue_ticket"
    OPEN_SSH = "open_ssh"
    ENTER_WORKSPACE = "enter_workspace"
    EXEC = "exec"
    LIST_ARCHIVES = "list_archives"
    LIST_ARCHIVE = "list_archive"
    DOWNLOAD_FROM_ARCHIVE = "download_from_archive"
    DOWNLOAD_ARCHIVE = "download_archive"


@dataclass(frozen=True, slots=True)
class LedgerEntry:
    at: datetime
    workspace_id: UUID
    actor: str
    kind: LedgerKind
    before: str | None
    after: str | None
    reason: str
    op_id: UUID | None
    message: str


class Note(Protocol):
    """The function by which `entries` collects what it finds."""

    def __call__(self, kind: LedgerKind, old: object, new: object, why: str = "", message: str = "") -> None: ...


def entries(
    before: Workspace | None, after: Workspace, actor: str, reason: str, now: datetime
) -> tuple[LedgerEntry, ...]:
    found: list[LedgerEntry] = []

    def note(kind: LedgerKind, old: object, new: object, why: str = "", message: str = "") -> None:
        found.append(
            LedgerEntry(
                now,
                after.id,
                actor,
                kind,
                None if old is None else str(old),
                None if new is None else str(new),
                why or reason,
                after.op_id,
                message,
            )
        )

    if before is None:
        note(LedgerKind.CREATED, None, after.desired_state, message=after.name)
        return tuple(found)
    _requests(before, after, note)
    if after.operation is not before.operation or (
        after.operation is not Operation.NONE and after.op_id != before.op_id
    ):
        if before.operation is not Operation.NONE:
            note(LedgerKind.OPERATION_ENDED, before.operation, after.operation)
        if after.operation is not Operation.NONE:
            note(LedgerKind.OPERATION_BEGAN, before.operation, after.operation)
    if after.phase is not before.phase:
        note(LedgerKind.PHASE, before.phase, after.phase, *_phase_reason(before, after))
    if after.archive_key != before.archive_key:
        note(LedgerKind.ARCHIVE, before.archive_key, after.archive_key)
    _errors(before, after, note)
    return tuple(found)


def _requests(before: Workspace, after: Workspace, note: Note) -> None:
    if after.desired_state is not before.desired_state:
        note(LedgerKind.WISH, before.desired_state, after.desired_state)
    if after.recover_requested_at != before.recover_requested_at:
        note(LedgerKind.RECOVER_ASKED, None, after.recover_action)
    if after.restore_requested_at != before.restore_requested_at:
        note(LedgerKind.RESTORE_ASKED, None, after.restore_from)
    if after.undelete_requested_at != before.undelete_requested_at:
        note(LedgerKind.UNDELETE_ASKED, None, None)
    if after.deleted_at != before.deleted_at:
        note(LedgerKind.DELETED if after.deleted_at else LedgerKind.UNDELETED, None, None)
    if after.purged_at is not None and before.purged_at is None:
        note(LedgerKind.PURGED, None, None)


def _errors(before: Workspace, after: Workspace, note: Note) -> None:
    info = after.error_info
    if info is None or info == before.error_info:
        return
    kind = LedgerKind.ERROR if info.is_terminal else LedgerKind.ATTEMPT_FAILED
    note(kind, None, info.reason, info.reason.value, info.message)


def _phase_reason(before: Workspace, after: Workspace) -> tuple[str, str]:
    """Why the phase changed, if the rows tell, and what the backend said of it."""
    if after.phase is Phase.ERROR:
        return after.conditions.healthy.reason, ""
    if before.phase is Phase.RUNNING and after.home.evicted is not None:
        return EVICTED, after.home.evicted
    return "", ""
