"""The labels of the domain's states for people, and the actions that each state allows.

docs/generate.py writes it to `static/core/states.js`, the only place from which the pages know a state. Which actions a
phase allows is computed from the transitions, so the two cannot disagree; a state without words fails the generation.
"""

from collections.abc import Mapping
from typing import Any, Final

from codehub.domain.access import AccessAction, access_in_phase
from codehub.domain.errors import REASONS, ErrorReason
from codehub.domain.gc_rules import GarbageReason, ResourceKind
from codehub.domain.gc_safety import WAIVABLE, SafetyCheck
from codehub.domain.identity import Scope
from codehub.domain.ledger import AuditAction, LedgerKind
from codehub.domain.transitions import OPERATIONS, RUNS_A_JOB, TABLE, transition
from codehub.domain.workspace import CONDITION_NAMES, LEVEL, Desired, Operation, Phase, RecoverAction

PHASE_WORDS: Final[Mapping[Phase, tuple[str, str, str]]] = {
    Phase.RUNNING: ("Running", "good", "The editor is up. Open it any time."),
    Phase.STANDBY: ("Asleep", "rest", "The editor is off and the files are on disk. It wakes in seconds."),
    Phase.ARCHIVED: ("Archived", "cold", "The files are safe in the archive. They come back when it starts."),
    Phase.PENDING: ("Empty", "idle", "Nothing has been made for it yet."),
    Phase.ERROR: ("Needs attention", "bad", "Something went wrong, and nothing is touched until it is recovered."),
    Phase.DELETED: ("Deleted", "gone", "Kept for a while, in case it was a mistake."),
}
"""The label, the tone and the meaning of each phase."""

OPERATION_WORDS: Final[Mapping[Operation, str]] = {
    Operation.PROVISIONING: "Preparing",
    Operation.CREATE_EMPTY_ARCHIVE: "Preparing",
    Operation.RESTORING: "Restoring",
    Operation.STARTING: "Starting",
    Operation.STOPPING: "Stopping",
    Operation.ARCHIVING: "Archiving",
    Operation.DISCARDING: "Discarding",
    Operation.DELETING: "Deleting",
}

DESIRED_STATE_ACTIONS: Final[Mapping[str, tuple[str, Desired]]] = {
    "start": ("Start", Desired.RUNNING),
    "stop": ("Stop", Desired.STANDBY),
    "archive": ("Archive", Desired.ARCHIVED),
    "delete": ("Delete", Desired.DELETED),
}
"""The actions that only change the desired state, with the state that each asks for."""

RECOVERY_WORDS: Final[Mapping[RecoverAction, tuple[str, str, bool]]] = {
    RecoverAction.RETRY: ("Try again", "Does what failed once more. Nothing is lost by it.", False),
    RecoverAction.USE_ARCHIVE: (
        "Go back to a restore point",
        "Brings the files back from the restore point you choose.",
        False,
    ),
    RecoverAction.FORGET_ARCHIVE: (
        "Forget the archive",
        "Goes on without this archive. What only it holds is given up.",
        True,
    ),
    RecoverAction.REMOVE_CONTAINER: ("Remove the container", "Ends the container that has no home any more.", False),
    RecoverAction.EMPTY_HOME: ("Begin with an empty home", "Gives up what was in the home and begins anew.", True),
}
"""The label of each recovery, what it does, and whether something is given up."""

RECOVERIES: Final[Mapping[ErrorReason, tuple[RecoverAction, ...]]] = {
    ErrorReason.MISMATCH: (RecoverAction.RETRY,),
    ErrorReason.UNREACHABLE: (),
    ErrorReason.ACTION_FAILED: (RecoverAction.RETRY,),
    ErrorReason.TIMEOUT: (RecoverAction.RETRY,),
    ErrorReason.RETRY_EXCEEDED: (RecoverAction.RETRY,),
    ErrorReason.DATA_LOST: (RecoverAction.USE_ARCHIVE, RecoverAction.EMPTY_HOME),
    ErrorReason.IMAGE_PULL_FAILED: (RecoverAction.RETRY,),
    ErrorReason.CONTAINER_WITHOUT_VOLUME: (RecoverAction.REMOVE_CONTAINER,),
    ErrorReason.ARCHIVE_CORRUPTED: (RecoverAction.USE_ARCHIVE, RecoverAction.FORGET_ARCHIVE),
    ErrorReason.ARCHIVE_ACCESS_ERROR: (RecoverAction.USE_ARCHIVE, RecoverAction.FORGET_ARCHIVE),
}
"""The ways out that each reason's own advice names."""

CONDITION_WORDS: Final[Mapping[str, str]] = {
    "storage.volume_ready": "Files on disk",
    "storage.archive_ready": "Files in the archive",
    "infra.container_ready": "Editor",
    "policy.healthy": "Health",
}

AUDIT_WORDS: Final[Mapping[AuditAction, str]] = {
    AuditAction.SIGN_IN: "signed in",
    AuditAction.SIGN_IN_OIDC: "signed in through the provider",
    AuditAction.SIGN_IN_FAILED: "failed to sign in",
    AuditAction.SIGN_OUT: "signed out",
    AuditAction.PROVE_SESSION: "gave the password once more",
    AuditAction.REVOKE_SESSION: "ended a session",
    AuditAction.CHANGE_PASSWORD: "changed the password",
    AuditAction.RESET_PASSWORD: "set a new password",
    AuditAction.CREATE_TOKEN: "made a token",
    AuditAction.REVOKE_TOKEN: "revoked a token",
    AuditAction.ADD_SSH_KEY: "added an SSH key",
    AuditAction.REMOVE_SSH_KEY: "removed an SSH key",
    AuditAction.CREATE_USER: "made the account",
    AuditAction.ENABLE_USER: "enabled the account",
    AuditAction.DISABLE_USER: "disabled the account",
    AuditAction.SET_ROLE: "changed the role",
    AuditAction.SET_MAX_RUNNING: "changed how much may run at once",
    AuditAction.PUT_TEMPLATE: "changed the template",
    AuditAction.PUT_SECRET: "set a secret",
    AuditAction.DELETE_SECRET: "deleted a secret",
    AuditAction.USE_SECRETS: "gave the workspace its secrets",
    AuditAction.RESEAL_SECRETS: "encrypted all secrets anew",
    AuditAction.SET_GIT_IDENTITY: "changed the git identity",
    AuditAction.SET_DOTFILES: "changed the dotfiles",
    AuditAction.RESTORE: "restored the database from a backup",
    AuditAction.FORGET_BACKEND: "let another backend be used",
    AuditAction.COLLECT_GARBAGE: "asked for garbage to be collected",
    AuditAction.SHOW_WORKSPACE: "looked at the workspace",
    AuditAction.CHANGE_WORKSPACE: "changed the workspace's settings",
    AuditAction.READ_EVENTS: "read its history",
    AuditAction.READ_LOGS: "read its log",
    AuditAction.ISSUE_TICKET: "opened the workspace",
    AuditAction.OPEN_SSH: "opened the workspace over SSH",
    AuditAction.ENTER_WORKSPACE: "went into the workspace",
    AuditAction.EXEC: "ran a command in the workspace",
    AuditAction.LIST_ARCHIVES: "listed its restore points",
    AuditAction.LIST_ARCHIVE: "looked into a restore point",
    AuditAction.DOWNLOAD_FROM_ARCHIVE: "downloaded from a restore point",
    AuditAction.DOWNLOAD_ARCHIVE: "downloaded a whole restore point",
}

_ENTERED_BY: Final = frozenset({AccessAction.FORWARD, AccessAction.WAIT})


def phases_for(desired: Desired) -> list[str]:
    """The phases in which this desired state is offered: transitions lead there, upwards for a start and downwards for
    a stop."""
    up = desired is Desired.RUNNING

    def sensible(phase: Phase) -> bool:
        return phase not in LEVEL or (LEVEL[desired] > LEVEL[phase]) is up

    return [phase.value for phase in Phase if transition(phase, desired) is not None and sensible(phase)]


def states() -> dict[str, Any]:
    """Everything that `states.js` exports, by name."""
    return {
        "PHASES": {phase.value: _phase(phase) for phase in Phase},
        "OPERATIONS": {
            operation.value: {
                "label": OPERATION_WORDS[operation],
                "hasBytes": operation in RUNS_A_JOB,
                "deadlineSeconds": OPERATIONS[operation].deadline_seconds,
            }
            for operation in Operation
            if operation is not Operation.NONE
        },
        "TRANSITIONS": [
            {
                "phase": row.phase.value,
                "desired": [desired.value for desired in row.desired],
                "operation": row.operation.value,
                "leadsTo": row.leads_to.value,
            }
            for row in TABLE
        ],
        "ACTIONS": _actions(),
        "REASONS": {
            reason.value: {
                "meaning": rule.meaning,
                "whatToDo": rule.what_to_do,
                "clearsItself": rule.clears_itself,
                "recoveries": [action.value for action in RECOVERIES[reason]],
            }
            for reason, rule in REASONS.items()
        },
        "RECOVERIES": {action.value: _recovery(action) for action in RecoverAction},
        "CONDITIONS": {name: {"label": CONDITION_WORDS[name]} for name in CONDITION_NAMES},
        "KINDS": [kind.value for kind in LedgerKind],
        "GARBAGE": {why.name.lower(): why.value for why in GarbageReason},
        "REFUSALS": [check.value for check in SafetyCheck],
        "WAIVABLE": [check.value for check in WAIVABLE],
        "AUDIT": {action.value: AUDIT_WORDS[action] for action in AuditAction},
        "THINGS": [kind.value for kind in ResourceKind],
        "SCOPES": [scope.value for scope in Scope],
    }


def _phase(phase: Phase) -> dict[str, Any]:
    label, tone, meaning = PHASE_WORDS[phase]
    return {"label": label, "tone": tone, "meaning": meaning, "level": LEVEL.get(phase)}


def _recovery(action: RecoverAction) -> dict[str, Any]:
    label, meaning, gives_up = RECOVERY_WORDS[action]
    return {"label": label, "meaning": meaning, "givesUp": gives_up}


def _actions() -> dict[str, Any]:
    entered = [phase.value for phase in Phase if access_in_phase(phase).action in _ENTERED_BY]
    changing = {
        name: {"label": label, "desired": desired.value, "phases": phases_for(desired)}
        for name, (label, desired) in DESIRED_STATE_ACTIONS.items()
    }
    return {
        "open": {"label": "Open", "desired": None, "phases": entered},
        **changing,
        "recover": {"label": "Recover", "desired": None, "phases": [Phase.ERROR.value]},
        "undelete": {"label": "Bring back", "desired": None, "phases": [Phase.DELETED.value]},
    }
