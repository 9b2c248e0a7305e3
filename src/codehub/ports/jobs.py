"""Storage jobs: one per workspace at a time, outliving the coordinator that started it (contract 7).

A job is stateless and crash-only: it may be ended at any byte and run again with the same arguments.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol
from uuid import UUID

from codehub.domain.errors import ErrorReason
from codehub.domain.template import NO_KUBERNETES_OPTIONS, KubernetesOptions
from codehub.domain.workspace import Progress


class JobKind(StrEnum):
    ARCHIVE = "archive"
    RESTORE = "restore"


class JobState(StrEnum):
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class StoreOwner:
    """The object that says whose the store is, and whose it must be."""

    key: str
    name: str


@dataclass(frozen=True, slots=True)
class JobSpec:
    """What a job is to do. `key` names the archive that is written or read; `op_id` is the operation the job belongs
    to. `owner`: a store that is not theirs is neither read nor written, and the job fails as if it did not answer.
    `kubernetes`: what only a cluster looks at, such as the nodes that the template's pods run on."""

    workspace_id: UUID
    op_id: UUID
    kind: JobKind
    volume: str
    key: str
    owner: StoreOwner | None = None
    kubernetes: KubernetesOptions = NO_KUBERNETES_OPTIONS


@dataclass(frozen=True, slots=True)
class JobResult:
    """What an archive job has written and read back, or a restore job has put into the volume."""

    key: str
    sha256: str
    bytes: int
    files: int


@dataclass(frozen=True, slots=True)
class JobSeen:
    """A job as observed. `exit_code` and `stderr`: of one that failed by itself, as far as they are known."""

    op_id: UUID
    kind: JobKind
    state: JobState
    progress: Progress | None = None
    result: JobResult | None = None
    reason: ErrorReason | None = None
    message: str = ""
    exit_code: int | None = None
    stderr: str = ""


class Jobs(Protocol):
    async def find(self, ids: Collection[UUID] | None = None) -> Mapping[UUID, JobSeen]:
        """The job of each workspace that has one, running or ended and not yet cleared."""
        ...

    async def start(self, spec: JobSpec) -> None:
        """Start the job. One with the same op_id, running or ended, stays: success. JobConflict if one of another op_id
        is there. An archive job reads back and compares before it succeeds; an archive that is there already is
        success."""
        ...

    async def clear(self, workspace_id: UUID) -> None:
        """End the workspace's job if it runs, and forget it. When this returns, the job touches the volume no more.
        Gone is success."""
        ...
