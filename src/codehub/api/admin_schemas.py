"""The schemas of the routes for admins and of the health routes."""

from datetime import datetime
from typing import Annotated, Any
from uuid import UUID

from pydantic import AfterValidator, Field, StrictBool, StrictInt

from codehub.api.schemas import Incoming, Outgoing, Secret, TemplateShown, Text, User, Username, Workspace
from codehub.domain.errors import ErrorReason
from codehub.domain.gc_safety import NEVER_WAIVED, WAIVABLE, SafetyCheck
from codehub.domain.identity import Role
from codehub.domain.workspace import RecoverAction


class NewUser(Incoming):
    """Without a password one is made, and shown in the answer."""

    username: Username
    role: Role = Role.USER
    password: Secret | None = None
    max_running: Annotated[StrictInt, Field(ge=0, le=10_000)] | None = None


class CreatedUser(User):
    password: str | None = Field(description="The password that was made; shown this once.")


class UserChange(Incoming):
    """Only the fields that are sent change. `max_running` null: the installation's limit again."""

    role: Role | None = None
    disabled: StrictBool | None = None
    reset_password: StrictBool = False
    max_running: Annotated[StrictInt, Field(ge=0, le=10_000)] | None = None


class BulkRecovery(Incoming):
    """Which of those in ERROR: by reason, by id, or, with neither, all."""

    action: RecoverAction = RecoverAction.RETRY
    reason: ErrorReason | None = None
    ids: list[UUID] | None = Field(default=None, max_length=500)


class BulkOutcome(Outgoing):
    id: UUID
    accepted: bool
    code: str | None
    detail: str | None


class BulkRecovered(Outgoing):
    items: list[BulkOutcome]


class ErrorGroup(Outgoing):
    reason: ErrorReason
    count: int
    meaning: str
    what_to_do: str


class Errors(Outgoing):
    """Workspaces in ERROR, and the reasons of those on this page."""

    items: list[Workspace]
    next_cursor: str | None
    reasons: list[ErrorGroup]


class TemplateChange(Incoming):
    """Put whole. `image_ref` empty: the runtime's own image. A limit that is left out: the runtime's own."""

    description: Annotated[Text, Field(max_length=500)] = ""
    image_ref: Annotated[Text, Field(max_length=500, examples=["registry.example.com/ide:1"])] = ""
    env: dict[Text, Text] = Field(default_factory=dict, max_length=100)
    cpu: Annotated[float, Field(gt=0, le=10_000, allow_inf_nan=False)] | None = None
    memory_bytes: Annotated[StrictInt, Field(gt=0, lt=2**63)] | None = None
    disk_bytes: Annotated[StrictInt, Field(gt=0, lt=2**63)] | None = None
    pids: Annotated[StrictInt, Field(gt=0, lt=2**63)] | None = None
    disabled: StrictBool = False


class AdminTemplate(TemplateShown):
    env: dict[str, str]
    cpu: float | None
    memory_bytes: int | None
    disk_bytes: int | None
    pids: int | None
    created_at: datetime
    updated_at: datetime
    disabled_at: datetime | None


class AdminTemplateList(Outgoing):
    items: list[AdminTemplate]


class AuditShown(Outgoing):
    id: int
    at: datetime
    actor: str
    action: str
    subject: str
    details: dict[str, Any]
    address: str


class GcCandidate(Outgoing):
    """`may_go_at`: null while it is not marked yet."""

    kind: str
    name: str
    workspace: UUID
    bytes: int
    why: str
    reason: str = Field(examples=["unfinished"], description="`why`, for programs.")
    marked_at: datetime | None
    may_go_at: datetime | None


class GcRefusal(Outgoing):
    check: str = Field(examples=["too-many"])
    sentence: str


class GcReport(Outgoing):
    """What a sweep would take, and why it would be refused, if so. Nothing was changed. `existing`: how many there are
    of each kind; `strangers`: objects with names that we do not give, which are never touched."""

    now: datetime
    existing: dict[str, int]
    strangers: int
    candidates: list[GcCandidate]
    refusals: list[GcRefusal]


def _waivable(check: SafetyCheck) -> SafetyCheck:
    if check in NEVER_WAIVED:
        raise ValueError(f"cannot be waived; these can: {', '.join(WAIVABLE)}")
    return check


class GcOrder(Incoming):
    """`waive`: checks that a person has looked into. Two of them nobody may waive."""

    waive: list[Annotated[SafetyCheck, AfterValidator(_waivable)]] = Field(
        [], max_length=len(SafetyCheck), examples=[["too-many"]]
    )


class GcRun(Outgoing):
    """A run that the leading coordinator was asked for. `swept`: how many things went, once it is done."""

    id: int
    is_done: bool
    swept: int
    refusals: list[GcRefusal]


class LeaderShown(Outgoing):
    """All null: no coordinator has ever led."""

    holder: str | None = Field(examples=["node-1:4711"])
    epoch: int | None = Field(description="Counts the terms; every write of a leader carries it.")
    renewed_at: datetime | None
    age_seconds: float | None


class HistoryStep(Outgoing):
    """`at`: where it ends. `running`: then. The rest: within it; seconds are null without a start.
    `requests`: that the front doors answered. `sockets`: WebSockets through them, open on average."""

    at: datetime
    running: int
    starts: int
    start_seconds_median: float | None
    start_seconds_worst: float | None
    archives: int
    archived_bytes: int
    requests: int
    sockets: float


class HistoryShown(Outgoing):
    """The last day, oldest first."""

    step_seconds: int
    items: list[HistoryStep]


# ── health ───────────────────────────────────────────────────────────────────────────────────────────────────────────


class CheckShown(Outgoing):
    name: str
    ok: bool
    required: bool
    detail: str
    seconds: float


class Readiness(Outgoing):
    """`controller_age_seconds`: since the leading coordinator last renewed its term; null = nobody leads."""

    ready: bool
    checks: list[CheckShown]
    controller_age_seconds: float | None
