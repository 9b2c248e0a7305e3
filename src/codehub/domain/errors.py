"""Everything that can go wrong, as one small tree, and what each reason means to the person who reads it.

CodeHubError
├── Refused            a request that may not be granted (the caller can act on the message)
│   ├── NotFound       no such workspace, or not yours
│   ├── Conflict       the workspace is in a state that forbids it
│   │   ├── NotRunning     a command can run only in a workspace that runs
│   │   └── AgentTooOld    its agent is of a version that cannot do that
│   ├── LimitReached   no free slot, or too many of something (contract: limits are exact)
│   ├── Unauthenticated  nobody we know, or no longer signed in
│   ├── Forbidden      known, but may not do that
│   │   ├── WrongPassword  the present one, when it is to be changed
│   │   └── ProofNeeded    it has been a while since they proved who they are
│   ├── TooManyTries   too many failed sign-ins; carries how long to wait
│   └── Invalid        the value itself is wrong
├── BackendError       a backend answered with a failure; carries an ErrorReason
│   ├── Unreachable    it did not answer: the truth is unknown
│   │   ├── JobInterrupted  a storage job could not reach the store, or ended with its engine
│   │   ├── ExecInterrupted  the connection to a command inside a workspace ended before the command did
│   │   └── CircuitOpen  we did not even ask
│   │       └── WrongBackend  it is not the one that holds our homes or archives
│   ├── Deferred       not begun: something must be in order first, and is looked at again
│   ├── VolumeInUse    a container still holds the volume
│   └── JobConflict    a job of another operation still runs
└── Stale              our term or operation is over: drop the result, touch nothing
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from types import MappingProxyType
from typing import Any


class ErrorReason(StrEnum):
    MISMATCH = "Mismatch"
    UNREACHABLE = "Unreachable"
    ACTION_FAILED = "ActionFailed"
    TIMEOUT = "Timeout"
    RETRY_EXCEEDED = "RetryExceeded"
    DATA_LOST = "DataLost"
    IMAGE_PULL_FAILED = "ImagePullFailed"
    CONTAINER_WITHOUT_VOLUME = "ContainerWithoutVolume"
    ARCHIVE_CORRUPTED = "ArchiveCorrupted"
    ARCHIVE_ACCESS_ERROR = "ArchiveAccessError"


@dataclass(frozen=True, slots=True)
class ReasonRule:
    """How a failure of this reason is treated. `is_outage`: the backend gave no answer, so nothing failed for certain:
    it is waited for and uses up no try."""

    terminal_at_once: bool
    clears_itself: bool
    meaning: str
    what_to_do: str
    is_outage: bool = False


REASONS: Mapping[ErrorReason, ReasonRule] = MappingProxyType(
    {
        ErrorReason.MISMATCH: ReasonRule(
            False,
            False,
            "What was observed is not what the operation expects.",
            "It is retried; if it stays, look at the workspace's events, then recover with 'retry'.",
        ),
        ErrorReason.UNREACHABLE: ReasonRule(
            False,
            False,
            "A backend (engine, object store) did not answer.",
            "Bring the backend back; CodeHub waits for it and goes on by itself.",
            is_outage=True,
        ),
        ErrorReason.ACTION_FAILED: ReasonRule(
            False,
            False,
            "A backend refused or failed the action.",
            "Read the message for the cause (full disk, crashed container), mend it, then recover with 'retry'.",
        ),
        ErrorReason.TIMEOUT: ReasonRule(
            True,
            False,
            "The operation made no progress within its deadline.",
            "Find what blocks it (the message names the operation), then recover with 'retry'.",
        ),
        ErrorReason.RETRY_EXCEEDED: ReasonRule(
            True,
            False,
            "Every retry of the operation failed.",
            "The message says how the last try failed: mend that, then recover with 'retry'.",
        ),
        ErrorReason.DATA_LOST: ReasonRule(
            True,
            False,
            "The home volume vanished without CodeHub having deleted it.",
            "Choose a restore point (recover with 'use_archive') or begin anew ('empty_home').",
        ),
        ErrorReason.IMAGE_PULL_FAILED: ReasonRule(
            True,
            False,
            "The image does not exist or may not be pulled.",
            "Correct the template's image or its credentials, then recover with 'retry'.",
        ),
        ErrorReason.CONTAINER_WITHOUT_VOLUME: ReasonRule(
            True,
            True,
            "A container runs although its home volume is gone.",
            "Recover with 'remove_container', then choose a restore point; it clears itself if the volume returns.",
        ),
        ErrorReason.ARCHIVE_CORRUPTED: ReasonRule(
            True,
            False,
            "The archive's bytes are not those that were written.",
            "Choose another restore point ('use_archive') or forget this one ('forget_archive').",
        ),
        ErrorReason.ARCHIVE_ACCESS_ERROR: ReasonRule(
            True,
            True,
            "The archive cannot be read: it is missing, expired or damaged.",
            "It clears itself when the object returns; else take another ('use_archive') or 'forget_archive'.",
        ),
    },
)


CONTEXT_FIELDS: Mapping[ErrorReason, tuple[str, ...]] = MappingProxyType(
    {
        ErrorReason.MISMATCH: ("expected", "actual"),
        ErrorReason.UNREACHABLE: ("endpoint", "status_code", "error"),
        ErrorReason.ACTION_FAILED: ("action", "exit_code", "stderr"),
        ErrorReason.TIMEOUT: ("operation", "elapsed_seconds", "limit_seconds"),
        ErrorReason.RETRY_EXCEEDED: ("max_retries", "last_error"),
        ErrorReason.DATA_LOST: ("archive_key", "detail"),
        ErrorReason.IMAGE_PULL_FAILED: ("action", "image"),
        ErrorReason.CONTAINER_WITHOUT_VOLUME: ("expected", "actual"),
        ErrorReason.ARCHIVE_CORRUPTED: ("archive_key", "detail"),
        ErrorReason.ARCHIVE_ACCESS_ERROR: ("archive_key", "detail"),
    }
)
"""What `error_info.context` holds for each reason, always; null where it is not known."""


@dataclass(frozen=True, slots=True)
class ErrorInfo:
    """A failure as it stands in the row: what people see, and what the next controller needs to know."""

    reason: ErrorReason
    message: str
    operation: str
    is_terminal: bool
    error_count: int
    previous_phase: str
    occurred_at: datetime
    context: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return {
            "reason": self.reason.value,
            "message": self.message,
            "operation": self.operation,
            "is_terminal": self.is_terminal,
            "error_count": self.error_count,
            "previous_phase": self.previous_phase,
            "occurred_at": self.occurred_at.isoformat(),
            "context": dict(self.context),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "ErrorInfo":
        return cls(
            reason=ErrorReason(data["reason"]),
            message=data["message"],
            operation=data["operation"],
            is_terminal=data["is_terminal"],
            error_count=data["error_count"],
            previous_phase=data["previous_phase"],
            occurred_at=datetime.fromisoformat(data["occurred_at"]),
            context=dict(data["context"]),
        )


class CodeHubError(Exception):
    """The root of our errors; its text is always a sentence for a person."""


class Refused(CodeHubError):
    code = "refused"


class NotFound(Refused):
    code = "not_found"


class Conflict(Refused):
    code = "conflict"

    def __init__(self, message: str, code: str = "conflict") -> None:
        super().__init__(message)
        self.code = code


class NotRunning(Conflict):
    """The workspace does not run, or not any more."""

    code = "not_running"

    def __init__(self, message: str = "The workspace does not run: start it first.") -> None:
        super().__init__(message, type(self).code)


class AgentTooOld(Conflict):
    """The workspace runs with the agent of an older version of CodeHub."""

    code = "agent_too_old"

    def __init__(
        self, message: str = "This workspace was started by an older version of CodeHub: stop it and start it once."
    ) -> None:
        super().__init__(message, type(self).code)


class LimitReached(Refused):
    """No free slot, or too many of something. `holders`: the asker's own workspaces that hold the slots."""

    def __init__(self, message: str, holders: Sequence[str] = (), code: str = "limit_reached") -> None:
        super().__init__(message)
        self.code = code
        self.holders = tuple(holders)


class Invalid(Refused):
    """A value is wrong. `field`: which one, if it is a single field."""

    code = "invalid"

    def __init__(self, message: str, field: str | None = None) -> None:
        super().__init__(message)
        self.field = field


class Unauthenticated(Refused):
    code = "unauthenticated"


class Forbidden(Refused):
    code = "forbidden"


class WrongPassword(Forbidden):
    code = "wrong_password"


class ProofNeeded(Forbidden):
    code = "proof_needed"


class TooManyTries(Refused):
    """Too many failed sign-ins. `retry_after`: the seconds to wait before the next try."""

    code = "too_many_tries"

    def __init__(self, message: str, retry_after: int) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class BackendError(CodeHubError):
    reason = ErrorReason.ACTION_FAILED

    def __init__(self, message: str, *, reason: ErrorReason | None = None, **context: Any) -> None:  # noqa: ANN401 - per-reason fields
        super().__init__(message)
        self.reason = reason or type(self).reason
        self.context: dict[str, Any] = context


class Unreachable(BackendError):
    reason = ErrorReason.UNREACHABLE


class JobInterrupted(Unreachable):
    """A storage job could not reach the store, or was ended with its engine: all the time since its last progress was
    an outage."""


class ExecInterrupted(Unreachable):
    """The connection to a command inside a workspace ended before the command did: how it ended is not known."""


class CircuitOpen(Unreachable):
    """The backend was not even asked: its circuit breaker is open."""


class WrongBackend(CircuitOpen):
    """The backend is not the one that holds our homes or archives: its answers are not about us."""


class Deferred(BackendError):
    """The backend answers and must not begin this yet: waiting costs no try, and the deadline stands still."""


class VolumeInUse(BackendError):
    pass


class JobConflict(BackendError):
    pass


class Stale(CodeHubError):
    """A guarded write found no row of ours: another leader or operation owns the workspace now."""
