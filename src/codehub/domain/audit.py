"""What the audit log can say that somebody did. The names are stored: one that was ever used keeps its meaning."""

from enum import StrEnum


class AuditAction(StrEnum):
    SIGN_IN = "sign_in"
    SIGN_IN_OIDC = "sign_in_oidc"
    SIGN_IN_FAILED = "sign_in_failed"
    SIGN_OUT = "sign_out"
    REVOKE_SESSION = "revoke_session"
    CHANGE_PASSWORD = "change_password"  # noqa: S105 - an action's name
    RESET_PASSWORD = "reset_password"  # noqa: S105 - an action's name
    CREATE_TOKEN = "create_token"  # noqa: S105 - an action's name
    REVOKE_TOKEN = "revoke_token"  # noqa: S105 - an action's name
    CREATE_USER = "create_user"
    ENABLE_USER = "enable_user"
    DISABLE_USER = "disable_user"
    SET_ROLE = "set_role"
    SET_MAX_RUNNING = "set_max_running"
    PUT_TEMPLATE = "put_template"
    RESTORE = "restore"
    FORGET_BACKEND = "forget_backend"
    COLLECT_GARBAGE = "collect_garbage"
    SHOW_WORKSPACE = "show_workspace"
    READ_EVENTS = "read_events"
    READ_LOGS = "read_logs"
    ISSUE_TICKET = "issue_ticket"
    ENTER_WORKSPACE = "enter_workspace"
    LIST_ARCHIVES = "list_archives"
    LIST_ARCHIVE = "list_archive"
    DOWNLOAD_FROM_ARCHIVE = "download_from_archive"
    DOWNLOAD_ARCHIVE = "download_archive"
