"""The workspace as a frozen value: its row, its conditions, and the state of its home.

`Phase` is computed (judge.py), never set by hand. Which side may write which field is said once, in `SPEC_FIELDS` and
`STATUS_FIELDS` (contract 3), and both stores take their columns from there.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from datetime import datetime
from enum import StrEnum
from typing import Any
from uuid import UUID

from codehub.domain.errors import ErrorInfo, ErrorReason


class Phase(StrEnum):
    DELETED = "DELETED"
    ERROR = "ERROR"
    PENDING = "PENDING"
    ARCHIVED = "ARCHIVED"
    STANDBY = "STANDBY"
    RUNNING = "RUNNING"


class Desired(StrEnum):
    DELETED = "DELETED"
    PENDING = "PENDING"
    ARCHIVED = "ARCHIVED"
    STANDBY = "STANDBY"
    RUNNING = "RUNNING"


class Operation(StrEnum):
    NONE = "NONE"
    PROVISIONING = "PROVISIONING"
    CREATE_EMPTY_ARCHIVE = "CREATE_EMPTY_ARCHIVE"
    RESTORING = "RESTORING"
    STARTING = "STARTING"
    STOPPING = "STOPPING"
    ARCHIVING = "ARCHIVING"
    DISCARDING = "DISCARDING"
    DELETING = "DELETING"


class RecoverAction(StrEnum):
    RETRY = "retry"
    USE_ARCHIVE = "use_archive"
    FORGET_ARCHIVE = "forget_archive"
    REMOVE_CONTAINER = "remove_container"
    EMPTY_HOME = "empty_home"


LEVEL: Mapping[str, int] = {"DELETED": -1, "PENDING": 0, "ARCHIVED": 5, "STANDBY": 10, "RUNNING": 20}


@dataclass(frozen=True, slots=True)
class Condition:
    """One condition of a workspace. `status` None: it could not be observed."""

    status: bool | None
    reason: str
    message: str = ""
    last_transition_time: datetime | None = None

    def to_json(self) -> dict[str, Any]:
        at = self.last_transition_time
        return {
            "status": self.status,
            "reason": self.reason,
            "message": self.message,
            "last_transition_time": at.isoformat() if at else None,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "Condition":
        at = data["last_transition_time"]
        return cls(data["status"], data["reason"], data["message"], datetime.fromisoformat(at) if at else None)


NO_VOLUME = Condition(status=False, reason="NoVolume")
NO_ARCHIVE = Condition(status=False, reason="NoArchive")
NO_CONTAINER = Condition(status=False, reason="NoContainer")
HEALTHY = Condition(status=True, reason="Healthy")


@dataclass(frozen=True, slots=True)
class Conditions:
    """The conditions of a workspace. `others`: those that this version does not know, as they stand in the row; every
    write keeps them."""

    volume_ready: Condition = NO_VOLUME
    archive_ready: Condition = NO_ARCHIVE
    container_ready: Condition = NO_CONTAINER
    healthy: Condition = HEALTHY
    others: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        known = {name: getattr(self, attribute).to_json() for name, attribute in CONDITION_NAMES.items()}
        return {**self.others, **known}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "Conditions":
        known = {
            attribute: Condition.from_json(data[name]) for name, attribute in CONDITION_NAMES.items() if name in data
        }
        return cls(**known, others={name: value for name, value in data.items() if name not in CONDITION_NAMES})


CONDITION_NAMES: Mapping[str, str] = {
    "storage.volume_ready": "volume_ready",
    "storage.archive_ready": "archive_ready",
    "infra.container_ready": "container_ready",
    "policy.healthy": "healthy",
}


@dataclass(frozen=True, slots=True)
class HomeContext:
    """What conditions cannot tell of the home: whether the volume under its name is good, half-made or on its way out.

    `live`: holds the user's work; its absence is DataLost. `restoring`: only part of that archive is in it; never start
    or archive it. `deleting_volume`: archived and proven, past the safe point; finish the delete. `volume_instance`:
    which volume of that name is meant. `ready_instance`: the container that has answered HTTP once. `marker`: (archive
    key, op id) of the last finished restore. `passed_over`: incarnations that were found although this row never made
    them: the database had lost the row that did, and they may hold newer work. `half_restored`: earlier incarnations,
    each with the key of the archive that was being restored into it when it was given up. `corrupted`: the keys of
    archives that a restore has read and found damaged. `evicted`: why the backend ends the container or has ended it,
    although it is wanted: None again once another has answered.
    """

    incarnation: int = 0
    live: bool = False
    restoring: str | None = None
    deleting_volume: bool = False
    marker: tuple[str, UUID] | None = None
    ready_instance: str | None = None
    volume_instance: str | None = None
    passed_over: tuple[int, ...] = ()
    half_restored: tuple[tuple[int, str], ...] = ()
    corrupted: tuple[str, ...] = ()
    evicted: str | None = None

    def to_json(self) -> dict[str, Any]:
        marker = self.marker
        return {
            "incarnation": self.incarnation,
            "live": self.live,
            "restoring": self.restoring,
            "deleting_volume": self.deleting_volume,
            "ready_instance": self.ready_instance,
            "volume_instance": self.volume_instance,
            "passed_over": list(self.passed_over),
            "half_restored": [{"incarnation": number, "archive_key": key} for number, key in self.half_restored],
            "corrupted": list(self.corrupted),
            "evicted": self.evicted,
            "restore_marker": {"archive_key": marker[0], "op_id": str(marker[1])} if marker else None,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "HomeContext":
        marker = data["restore_marker"]
        return cls(
            incarnation=data["incarnation"],
            live=data["live"],
            restoring=data["restoring"],
            deleting_volume=data["deleting_volume"],
            ready_instance=data["ready_instance"],
            volume_instance=data.get("volume_instance"),
            passed_over=tuple(data.get("passed_over", ())),
            half_restored=tuple((half["incarnation"], half["archive_key"]) for half in data.get("half_restored", ())),
            corrupted=tuple(data.get("corrupted", ())),
            evicted=data.get("evicted"),
            marker=(marker["archive_key"], UUID(marker["op_id"])) if marker else None,
        )


@dataclass(frozen=True, slots=True)
class Progress:
    bytes: int = 0
    files: int = 0
    total_bytes: int | None = None
    step: str = ""

    def to_json(self) -> dict[str, Any]:
        return {"bytes": self.bytes, "files": self.files, "total_bytes": self.total_bytes, "step": self.step}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "Progress":
        return cls(data["bytes"], data["files"], data["total_bytes"], data["step"])


SPEC = {"side": "spec"}
STATUS = {"side": "status"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Workspace:
    id: UUID
    owner_id: str = field(metadata=SPEC)
    name: str = field(metadata=SPEC)
    slug: str = field(metadata=SPEC)
    description: str = field(default="", metadata=SPEC)
    memo: str = field(default="", metadata=SPEC)
    template: str = field(default="default", metadata=SPEC)
    runtime: str = field(default="process", metadata=SPEC)
    git_url: str | None = field(default=None, metadata=SPEC)
    git_ref: str | None = field(default=None, metadata=SPEC)
    """The branch or tag of the repository that is cloned; None: its default branch."""
    created_at: datetime
    updated_at: datetime
    version: int = 1

    desired_state: Desired = field(default=Desired.PENDING, metadata=SPEC)
    desired_by: str = field(default="", metadata=SPEC)
    recover_action: RecoverAction | None = field(default=None, metadata=SPEC)
    recover_requested_at: datetime | None = field(default=None, metadata=SPEC)
    restore_from: str | None = field(default=None, metadata=SPEC)
    restore_requested_at: datetime | None = field(default=None, metadata=SPEC)
    undelete_requested_at: datetime | None = field(default=None, metadata=SPEC)
    deleted_at: datetime | None = field(default=None, metadata=SPEC)
    purged_at: datetime | None = field(default=None, metadata=SPEC)
    standby_ttl_seconds: int | None = field(default=None, metadata=SPEC)
    archive_ttl_seconds: int | None = field(default=None, metadata=SPEC)
    last_access_at: datetime | None = field(default=None, metadata=SPEC)

    image_ref: str = field(default="", metadata=STATUS)
    """The image that its container was last started with; the template says what the next one gets. Empty: the
    runtime's own."""
    conditions: Conditions = field(default_factory=Conditions, metadata=STATUS)
    phase: Phase = field(default=Phase.PENDING, metadata=STATUS)
    phase_changed_at: datetime = field(metadata=STATUS)
    observed_at: datetime | None = field(default=None, metadata=STATUS)
    operation: Operation = field(default=Operation.NONE, metadata=STATUS)
    op_started_at: datetime | None = field(default=None, metadata=STATUS)
    op_id: UUID | None = field(default=None, metadata=STATUS)
    op_progress: Progress | None = field(default=None, metadata=STATUS)
    op_progress_at: datetime | None = field(default=None, metadata=STATUS)
    op_excused_seconds: float = field(default=0.0, metadata=STATUS)
    archive_op_id: UUID | None = field(default=None, metadata=STATUS)
    archive_key: str | None = field(default=None, metadata=STATUS)
    home_store_key: str | None = field(default=None, metadata=STATUS)
    home: HomeContext = field(default_factory=HomeContext, metadata=STATUS)
    error_reason: ErrorReason | None = field(default=None, metadata=STATUS)
    error_count: int = field(default=0, metadata=STATUS)
    error_info: ErrorInfo | None = field(default=None, metadata=STATUS)
    retry_at: datetime | None = field(default=None, metadata=STATUS)
    recover_handled_at: datetime | None = field(default=None, metadata=STATUS)
    restore_handled_at: datetime | None = field(default=None, metadata=STATUS)
    undelete_handled_at: datetime | None = field(default=None, metadata=STATUS)

    @property
    def recover_pending(self) -> bool:
        return _pending(self.recover_requested_at, self.recover_handled_at)

    @property
    def restore_pending(self) -> bool:
        return _pending(self.restore_requested_at, self.restore_handled_at)

    @property
    def undelete_pending(self) -> bool:
        return _pending(self.undelete_requested_at, self.undelete_handled_at)

    @property
    def request_pending(self) -> bool:
        return self.recover_pending or self.restore_pending or self.undelete_pending

    @property
    def is_at_rest(self) -> bool:
        """Whether nothing is left for the controller to do: the workspace is where it is desired to be, or in ERROR
        until somebody recovers or deletes it. The column `workspaces.at_rest` is the same rule in SQL."""
        if self.operation is not Operation.NONE:
            return False
        if self.deleted_at is not None:
            return self.phase is Phase.DELETED and not self.undelete_pending
        waits_for_people = self.phase is Phase.ERROR and self.desired_state is not Desired.DELETED
        return (self.phase.value == self.desired_state.value or waits_for_people) and not self.request_pending

    @property
    def container_is_ending(self) -> bool:
        """Whether the container still runs and is about to end: as it was asked to, or because it is evicted."""
        return self.phase is Phase.RUNNING and (self.operation is Operation.STOPPING or self.home.evicted is not None)

    @property
    def container_exists(self) -> bool:
        """Whether a container existed when last observed; unknown counts as existing, so that nothing is built beside
        it."""
        return self.conditions.container_ready.reason != NO_CONTAINER.reason

    @property
    def volume_may_be_only_copy(self) -> bool:
        """Whether the volume may be the only copy of the user's newest work. A volume past the safe point is one too,
        should its archive be lost."""
        leaving_unproven = self.home.deleting_volume and self.conditions.archive_ready.status is not True
        return self.home.live or leaving_unproven


def _pending(requested: datetime | None, handled: datetime | None) -> bool:
    return requested is not None and (handled is None or handled < requested)


SPEC_FIELDS: tuple[str, ...] = tuple(f.name for f in fields(Workspace) if f.metadata.get("side") == "spec")
STATUS_FIELDS: tuple[str, ...] = tuple(f.name for f in fields(Workspace) if f.metadata.get("side") == "status")

PUBLISHED_FIELDS: tuple[str, ...] = (
    "name",
    "slug",
    "description",
    "memo",
    "template",
    "git_url",
    "git_ref",
    "image_ref",
    "desired_state",
    "standby_ttl_seconds",
    "archive_ttl_seconds",
    "last_access_at",
    "phase",
    "operation",
    "op_progress",
    "conditions",
    "archive_key",
    "error_reason",
    "error_info",
    "retry_at",
    "is_at_rest",
)
"""The fields that people are shown: a change of any of them is published as an event. Every database follows this list,
PostgreSQL by the trigger `tell_workspace`, and tests/contracts/test_changes.py compares them field by field."""

WAKING_FIELDS: tuple[str, ...] = (
    "desired_state",
    "recover_requested_at",
    "restore_requested_at",
    "undelete_requested_at",
)
"""The fields with which people ask for something: a change of any of them wakes the controller."""
