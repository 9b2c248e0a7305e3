"""The schemas of requests and responses, which clients may rely on.

Input is strict: an unknown field is refused by name, text holds nothing that a database cannot hold, and numbers are
numbers.
"""

from datetime import datetime
from typing import Annotated, Any, Generic, Literal, TypeVar
from uuid import UUID

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SecretStr,
    Strict,
    StrictBool,
    StrictInt,
    StrictStr,
)

from codehub.domain.addresses import local_path
from codehub.domain.errors import ErrorReason
from codehub.domain.gc_safety import NEVER_WAIVED, WAIVABLE, SafetyCheck
from codehub.domain.identity import Role, Scope
from codehub.domain.template import KubernetesOptions
from codehub.domain.usage import UsageWarning
from codehub.domain.workspace import Desired, Operation, Phase, RecoverAction

T = TypeVar("T")

LONGEST_TTL = 10 * 366 * 24 * 3600
AN_ID = "6f1c2b54-8d0e-4a7b-9f57-0c1d6b0f2a11"
ANOTHER_ID = "0b9f7a52-51c3-4d0c-8f4e-3a5d2c9e7b60"


def storable(text: str) -> str:
    if "\x00" in text:
        raise ValueError("NUL cannot be stored.")
    if any("\ud800" <= character <= "\udfff" for character in text):
        raise ValueError("This is not Unicode text: half a surrogate pair is in it.")
    return text


def _storable_secret(secret: SecretStr) -> SecretStr:
    storable(secret.get_secret_value())
    return secret


def local(path: str) -> str:
    if local_path(path) != path:
        raise ValueError("This is no path: begin with one slash, encode what is not plain, leave the fragment out.")
    return path


Text = Annotated[StrictStr, AfterValidator(storable)]
Name = Annotated[Text, Field(min_length=1, max_length=100, examples=["demo"])]
Description = Annotated[Text, Field(max_length=1_000, examples=["The shop's backend"])]
Memo = Annotated[Text, Field(max_length=10_000, examples=["ask Ann for the test data"])]
TemplateName = Annotated[Text, Field(min_length=1, max_length=40, examples=["default"])]
TtlSeconds = Annotated[StrictInt, Field(ge=0, le=LONGEST_TTL, examples=[3600], description="0 = never")]
GitUrl = Annotated[Text, Field(min_length=1, max_length=1_000, examples=["https://git.example.com/team/shop.git"])]
GitRef = Annotated[Text, Field(min_length=1, max_length=255, examples=["main"], description="A branch or tag.")]
LocalPath = Annotated[
    Text,
    Field(max_length=2_000, examples=["/?folder=/home/coder/shop"], description="Where to arrive inside it."),
    AfterValidator(local),
]
Username = Annotated[Text, Field(min_length=1, max_length=64, examples=["ann"])]
Secret = Annotated[Text, Field(min_length=1, max_length=1_024, examples=["correct horse battery staple"])]


class Incoming(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Outgoing(BaseModel):
    model_config = ConfigDict(from_attributes=True)


class Page(Outgoing, Generic[T]):
    """`next_cursor` null: this was the last page."""

    items: list[T]
    next_cursor: str | None


# ── problems ─────────────────────────────────────────────────────────────────────────────────────────────────────────


class FieldError(Outgoing):
    field: str
    message: str


class Problem(Outgoing):
    """RFC 9457. `code` is stable; `holders` comes with limit_reached, `errors` with 422, `request_id` with 500."""

    type: str = Field(examples=["urn:codehub:problem:not_found"])
    title: str = Field(examples=["Not found"])
    status: int = Field(examples=[404])
    detail: str = Field(examples=["There is no such workspace, or it is not yours."])
    code: str = Field(examples=["not_found"])
    errors: list[FieldError] | None = None
    holders: list[str] | None = None
    request_id: str | None = None


# ── who ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


class SignIn(Incoming):
    username: Annotated[Text, Field(max_length=1_024, examples=["ann"])]
    password: Annotated[Text, Field(max_length=4_096, examples=["correct horse battery staple"])]


class PasswordChange(Incoming):
    old_password: Secret
    new_password: Secret
    revoke_tokens: StrictBool = Field(default=False, description="Revoke all personal tokens too.")


class Proof(Incoming):
    password: Secret


class UserShown(Outgoing):
    id: UUID = Field(examples=[ANOTHER_ID])
    username: str = Field(examples=["ann"])
    role: Role
    created_at: datetime
    disabled_at: datetime | None
    max_running: int | None = Field(description="This person's own limit; null = the installation's.")
    has_password: bool
    issuer: str | None = Field(description="The OpenID provider that knows this person, if one does.")


class SessionShown(Outgoing):
    """Who asks, and what this very credential may do."""

    user: UserShown
    kind: str = Field(examples=["session"], description="`session` or `token`")
    scopes: list[Scope]
    expires_at: datetime | None
    is_fresh: bool = Field(description="Has just proved who it is: may change accounts and make tokens.")


class BrowserSession(Outgoing):
    id: str
    created_at: datetime
    last_seen_at: datetime
    expires_at: datetime
    address: str
    agent: str
    current: bool


class SessionList(Outgoing):
    items: list[BrowserSession]


class TokenCreate(Incoming):
    name: Annotated[Text, Field(min_length=1, max_length=100, examples=["ci"])]
    scopes: list[Scope] = Field(min_length=1, max_length=3, examples=[["read"]])
    expires_in_seconds: Annotated[StrictInt, Field(ge=60, le=366 * 24 * 3600, examples=[86400])] | None = None


class Token(Outgoing):
    id: UUID
    name: str
    scopes: Annotated[list[Scope], BeforeValidator(sorted)]
    created_at: datetime
    expires_at: datetime | None
    last_used_at: datetime | None


class CreatedToken(Token):
    """`token` is shown this once."""

    token: str = Field(examples=["chub_…"])


class TokenList(Outgoing):
    items: list[Token]


# ── what people keep for their workspaces ────────────────────────────────────────────────────────────────────────────

HiddenText = Annotated[SecretStr, Strict(), AfterValidator(_storable_secret)]
"""Text that no answer, log line or error ever shows."""


class SecretPut(Incoming):
    value: Annotated[
        HiddenText,
        Field(min_length=1, max_length=65_536, description="At most 64 KiB in UTF-8.", examples=["npm_2vEXAMPLE"]),
    ]


class SecretItem(Outgoing):
    """A secret, without its value."""

    name: str = Field(examples=["NPM_TOKEN"])
    updated_at: datetime
    is_readable: bool = Field(description="false: its encryption key is not there any more; set it again.")


class SecretList(Outgoing):
    items: list[SecretItem]


class GitTokenPut(Incoming):
    username: Annotated[Text, Field(min_length=1, max_length=100, examples=["ann"])] = "git"
    token: Annotated[HiddenText, Field(min_length=1, max_length=4_096, examples=["glpat-EXAMPLE"])]


class GitCredentialShown(Outgoing):
    """`username` is of a token, `public_key` of an SSH key."""

    host: str = Field(examples=["git.example.com"])
    kind: Literal["token", "ssh_key"]
    username: str | None
    public_key: str | None = Field(examples=["ssh-ed25519 AAAA… ann@codehub:git.example.com"])
    updated_at: datetime
    is_readable: bool = Field(description="false: its encryption key is not there any more; set it again.")


class GitCredentialList(Outgoing):
    items: list[GitCredentialShown]


class SshKeyAdd(Incoming):
    public_key: Annotated[
        Text,
        Field(
            min_length=1,
            max_length=8_192,
            description="One line in OpenSSH's format: the content of the file that ends in .pub.",
            examples=["ssh-ed25519 AAAA… ann@laptop"],
        ),
    ]
    name: Annotated[Text, Field(max_length=100, examples=["laptop"])] = Field(
        default="", description="Empty: the key's comment."
    )


class SshKeyShown(Outgoing):
    """A public key with which its owner reaches workspaces over SSH."""

    id: UUID
    name: str = Field(examples=["laptop"])
    algorithm: str = Field(examples=["ssh-ed25519"])
    fingerprint: str = Field(examples=["SHA256:jYJ7…"])
    comment: str = Field(examples=["ann@laptop"])
    created_at: datetime
    last_used_at: datetime | None


class SshKeyList(Outgoing):
    items: list[SshKeyShown]


class GitIdentityChange(Incoming):
    name: Annotated[Text, Field(min_length=1, max_length=200, examples=["Ann Lee"])]
    email: Annotated[Text, Field(min_length=3, max_length=254, examples=["ann@example.com"])]


class GitIdentityShown(Outgoing):
    name: str | None
    email: str | None


class DotfilesChange(Incoming):
    url: Annotated[Text, Field(min_length=1, max_length=1_000, examples=["https://git.example.com/ann/dotfiles.git"])]
    command: Annotated[Text, Field(max_length=1_000, examples=["./install.sh"])] | None = Field(
        default=None, description="What installs them; null = what the repository brings."
    )


class DotfilesShown(Outgoing):
    url: str | None
    command: str | None


# ── workspaces ───────────────────────────────────────────────────────────────────────────────────────────────────────


class WorkspaceCreate(Incoming):
    name: Name
    description: Description = ""
    memo: Memo = ""
    template: TemplateName = "default"
    desired_state: Desired = Desired.RUNNING
    standby_ttl_seconds: TtlSeconds | None = None
    archive_ttl_seconds: TtlSeconds | None = None
    git_url: GitUrl | None = None
    git_ref: GitRef | None = None
    asleep_if_full: StrictBool = Field(default=False, description="No free slot: made asleep (STANDBY), and no 429.")


ExecText = Annotated[str, Field(max_length=128 << 10), AfterValidator(storable)]


class ExecCommand(Incoming):
    """A command for a running workspace."""

    argv: list[ExecText] = Field(
        min_length=1,
        max_length=1000,
        description="The program and its arguments; no shell reads them.",
        examples=[["sh", "-c", "pytest -q | tail -1"]],
    )
    env: dict[ExecText, ExecText] = Field(
        default_factory=dict, max_length=200, description="Besides the workspace's own variables."
    )
    cwd: ExecText | None = Field(default=None, description="Absolute, or below the home; null: the home.")
    stdin: Annotated[str, AfterValidator(storable)] = Field(default="", description="What it reads as its input.")


class WorkspaceChange(Incoming):
    """Only the fields that are sent change. Null for a TTL: the installation's default again."""

    name: Name | None = None
    description: Description | None = None
    memo: Memo | None = None
    template: TemplateName | None = None
    standby_ttl_seconds: TtlSeconds | None = None
    archive_ttl_seconds: TtlSeconds | None = None
    git_url: GitUrl | None = None
    git_ref: GitRef | None = None
    desired_state: Desired | None = None
    if_idle: StrictBool = Field(default=False, description="409 instead of waiting while an operation is under way.")
    discard_home: StrictBool = Field(default=False, description="PENDING gives up the home: say that you mean it.")


class ConditionShown(Outgoing):
    status: bool | None = Field(description="null = could not be observed")
    reason: str
    message: str
    last_transition_time: datetime | None


class ProgressShown(Outgoing):
    bytes: int
    files: int
    total_bytes: int | None
    step: str


class WorkspaceError(Outgoing):
    reason: ErrorReason
    message: str
    is_terminal: bool
    operation: str
    count: int
    context: dict[str, Any]
    occurred_at: datetime


class WorkspaceShown(Outgoing):
    id: UUID = Field(examples=[AN_ID])
    name: str = Field(examples=["demo"])
    description: str
    memo: str
    owner: str = Field(examples=["ann"], description="The owner's username.")
    template: str = Field(examples=["default"])
    image_ref: str = Field(description="What it runs, or ran last; empty: the runtime's own image.")
    next_image_ref: str = Field(description="What its next start gets: its template's image of now.")
    runtime: str = Field(examples=["process"])
    git_url: str | None
    git_ref: str | None = Field(description="The branch or tag that is cloned; null: the repository's default branch.")
    url: str = Field(examples=["http://demo-0f2a11.localhost:8000/"])
    phase: Phase
    desired_state: Desired
    operation: Operation
    is_at_rest: bool = Field(description="Nothing is left to do: it is as desired, or in ERROR until it is recovered.")
    op_id: UUID | None
    op_started_at: datetime | None
    progress: ProgressShown | None
    conditions: dict[str, ConditionShown]
    archive_key: str | None
    error: WorkspaceError | None
    evicted: str | None = Field(description="Why the backend took its container away; null once it runs again.")
    last_access_at: datetime | None
    phase_changed_at: datetime
    standby_ttl_seconds: int | None
    archive_ttl_seconds: int | None
    created_at: datetime
    updated_at: datetime
    deleted_at: datetime | None
    purged_at: datetime | None = Field(description="Gone for good since then; null = it can be brought back.")
    undo_until: datetime | None = Field(description="A deleted one can be brought back until then, at least.")


class LedgerEntryShown(Outgoing):
    at: datetime
    actor: str
    kind: str
    before: str | None
    after: str | None
    reason: str
    op_id: UUID | None
    message: str


class CauseShown(Outgoing):
    reason: str = Field(examples=["idle"])
    actor: str = Field(examples=["ttl"])
    at: datetime


class ObstacleShown(Outgoing):
    kind: str = Field(examples=["lease"])
    message: str
    until: datetime | None


class LifecycleShown(Outgoing):
    """Why it is up, when it stops and becomes what, what keeps it from stopping, and why it stopped last."""

    phase: Phase
    desired_state: Desired
    why_up: CauseShown | None
    last_activity_at: datetime | None
    stops_at: datetime | None
    becomes: Desired | None
    stop_reason: str | None
    blocked_by: list[ObstacleShown]
    warnings: list[datetime] = Field(description="When the owner is warned before the stop.")
    last_stop: CauseShown | None


class DiskShown(Outgoing):
    """What a home holds. Null: not known; for `limit_bytes`: it is held to no size."""

    used_bytes: int | None
    limit_bytes: int | None
    total_bytes: int | None = Field(description="The size of the file system that the home is on.")
    free_bytes: int | None = Field(description="What is left of it.")


class UsageWarningShown(Outgoing):
    code: UsageWarning
    message: str


class UsageValues(Outgoing):
    """Null: not known, and for a limit also: there is none."""

    cpu: float | None = Field(examples=[0.25], description="Processors in use, on average over the last moments.")
    cpu_limit: float | None = Field(examples=[2.0], description="How many processors it can use at once.")
    memory_bytes: int | None
    memory_limit_bytes: int | None
    disk: DiskShown | None = Field(description="Measured every few minutes; more often when it is filling up.")


class UsageShown(UsageValues):
    warnings: list[UsageWarningShown]


class WorkspaceUsageShown(UsageShown):
    id: UUID = Field(examples=[AN_ID])


class UsageList(Outgoing):
    items: list[WorkspaceUsageShown]


class UsagePoint(UsageValues):
    at: datetime


class UsageHistoryShown(Outgoing):
    now: UsageShown | None = Field(description="Null: it does not run, or nothing is known.")
    items: list[UsagePoint]


class KeepAlive(Incoming):
    seconds: Annotated[StrictInt, Field(ge=0, le=LONGEST_TTL, examples=[7200], description="0 lets go")]


class LeaseShown(Outgoing):
    until: datetime
    seconds: int
    capped: bool
    message: str
    stops_at: datetime | None


class Recovery(Incoming):
    action: RecoverAction = Field(examples=["retry"])
    archive: UUID | None = Field(default=None, description="For use_archive: the restore point's op_id.")


class Restoration(Incoming):
    archive: UUID = Field(description="The restore point's op_id.", examples=[ANOTHER_ID])


class TicketOrder(Incoming):
    port: Annotated[StrictInt, Field(ge=1, le=65535)] | None = Field(
        default=None, description="A port inside the workspace; null = its IDE."
    )
    path: LocalPath = "/"


class TicketShown(Outgoing):
    """`url` is where to go: the ticket is in it. `ticket` opens the workspace's own host once, within
    `expires_in_seconds`. Where workspaces are paths of our own host, `url` needs none."""

    ticket: str
    url: str
    expires_in_seconds: int


class LogsShown(Outgoing):
    """`text`: the last lines the IDE printed; empty when no container is there."""

    text: str


class ArchiveShown(Outgoing):
    """A restore point. `is_present`: what the workspace sleeps on, or was last restored from. `released_at`: given up,
    kept for undo."""

    op_id: UUID
    bytes: int
    files: int
    created_at: datetime
    verified_at: datetime
    released_at: datetime | None
    is_present: bool


class ArchiveList(Outgoing):
    items: list[ArchiveShown]


class TreeEntry(Outgoing):
    """`name` is for people. `path` is for `?path=`, percent-encoded: names are bytes, and not all of them are text."""

    name: str
    path: str = Field(examples=["project/read%20me.txt"])
    kind: str = Field(examples=["file"])
    size: int
    mode: int
    mtime: datetime
    target: str | None


class Tree(Outgoing):
    path: str
    entries: list[TreeEntry]
    next_cursor: str | None = Field(description="For the next page; null: this was the last.")


class SlotHolder(Outgoing):
    id: UUID
    name: str
    phase: Phase
    desired_state: Desired
    operation: Operation
    since: datetime = Field(description="Since when it is in this phase.")


class LimitsShown(Outgoing):
    """`holders` are yours. `is_own`: the limit was set for you alone."""

    max_running: int
    running: int
    is_own: bool
    holders: list[SlotHolder]
    max_running_global: int
    running_global: int
    undo_seconds: int = Field(description="How long what is deleted can be brought back.", examples=[604_800])


class TemplateShown(Outgoing):
    name: str
    description: str
    image_ref: str


class TemplateList(Outgoing):
    items: list[TemplateShown]


# ── for admins ───────────────────────────────────────────────────────────────────────────────────────────────────────


class UserCreate(Incoming):
    """Without a password one is made, and shown in the answer."""

    username: Username
    role: Role = Role.USER
    password: Secret | None = None
    max_running: Annotated[StrictInt, Field(ge=0, le=10_000)] | None = None


class CreatedUser(UserShown):
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

    items: list[WorkspaceShown]
    next_cursor: str | None
    reasons: list[ErrorGroup]


class KubernetesTemplate(Incoming):
    """What a template says to a Kubernetes cluster. `command`: what an image runs that is not made from CodeHub's own.
    `tolerations`: as Kubernetes has them. Classes and secrets are named."""

    command: Annotated[list[Text], Field(min_length=1, max_length=64)] | None = None
    node_selector: dict[Text, Text] = Field(default_factory=dict, max_length=20)
    tolerations: list[dict[Text, Text | StrictInt]] = Field(default_factory=list, max_length=20)
    runtime_class: Annotated[Text, Field(max_length=253)] | None = None
    priority_class: Annotated[Text, Field(max_length=253)] | None = None
    storage_class: Annotated[Text, Field(max_length=253)] | None = None
    pull_secrets: list[Annotated[Text, Field(max_length=253)]] = Field(default_factory=list, max_length=20)


class TemplateChange(Incoming):
    """Put whole. `image_ref` empty: the runtime's own image. A limit that is left out: the runtime's own. `sudo`:
    people may become root inside their own container. `kubernetes`: what only a cluster looks at."""

    description: Annotated[Text, Field(max_length=500)] = ""
    image_ref: Annotated[Text, Field(max_length=500, examples=["registry.example.com/ide:1"])] = ""
    env: dict[Text, Text] = Field(default_factory=dict, max_length=100)
    cpu: Annotated[float, Field(gt=0, le=10_000, allow_inf_nan=False)] | None = None
    memory_bytes: Annotated[StrictInt, Field(gt=0, lt=2**63)] | None = None
    disk_bytes: Annotated[StrictInt, Field(gt=0, lt=2**63)] | None = None
    pids: Annotated[StrictInt, Field(gt=0, lt=2**63)] | None = None
    sudo: StrictBool = False
    kubernetes: KubernetesTemplate = KubernetesTemplate()
    disabled: StrictBool = False


def _options_shown(options: object) -> object:
    return options.to_json() if isinstance(options, KubernetesOptions) else options


class AdminTemplate(TemplateShown):
    env: dict[str, str]
    cpu: float | None
    memory_bytes: int | None
    disk_bytes: int | None
    pids: int | None
    sudo: bool
    kubernetes: Annotated[dict[str, Any], BeforeValidator(_options_shown)]
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
