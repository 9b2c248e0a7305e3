"""How much a workspace uses of its machine: CPU, memory and disk, as they are measured and as they are kept.

None means that a value is not known, and never that it is 0. The rules of when a disk is nearly full are here alone.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

SPAN = timedelta(hours=1)
"""How long samples are kept."""

NEARLY_FULL = 0.9
FILLING = 0.75
FILLING_FREE_BYTES = 8 << 30
FREE_SPACE_BYTES = 2 << 30
"""A file system is never called nearly full while this much of it is free, however large it is."""


@dataclass(frozen=True, slots=True)
class ComputeUsage:
    """CPU and memory of one run of a workspace. `instance`: which run; `cpu_seconds` counts from its start.
    `cpu_limit`: how many processors it can use at once. `memory_limit_bytes` None: it has no limit of its own."""

    instance: str
    cpu_seconds: float | None = None
    cpu_limit: float | None = None
    memory_bytes: int | None = None
    memory_limit_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class DiskUsage:
    """What a home holds. `limit_bytes`: what it is held to; None without such a limit. `total_bytes` and `free_bytes`:
    of the file system that it is on."""

    used_bytes: int | None = None
    limit_bytes: int | None = None
    total_bytes: int | None = None
    free_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Usage:
    """What a workspace uses at one moment. `cpu`: how many processors, on average since the measurement before."""

    cpu: float | None = None
    cpu_limit: float | None = None
    memory_bytes: int | None = None
    memory_limit_bytes: int | None = None
    disk: DiskUsage | None = None


@dataclass(frozen=True, slots=True)
class UsageSample:
    at: datetime
    usage: Usage


class UsageWarning(StrEnum):
    DISK_NEARLY_FULL = "disk_nearly_full"
    FILE_SYSTEM_NEARLY_FULL = "file_system_nearly_full"


WARNING_MESSAGES = {
    UsageWarning.DISK_NEARLY_FULL: "The disk of this workspace is nearly full: remove what is not needed, or ask an "
    "administrator for a template with a larger disk.",
    UsageWarning.FILE_SYSTEM_NEARLY_FULL: "The disk that all workspaces share is nearly full: remove what is not "
    "needed, and tell an administrator.",
}


def usage_warnings(usage: Usage) -> Sequence[UsageWarning]:
    """What the workspace's owner should know before it becomes an error."""
    disk = usage.disk
    if disk is None:
        return ()
    found = []
    if _is_at_limit(disk):
        found.append(UsageWarning.DISK_NEARLY_FULL)
    if _is_on_full_file_system(disk):
        found.append(UsageWarning.FILE_SYSTEM_NEARLY_FULL)
    return found


def _is_at_limit(disk: DiskUsage) -> bool:
    if not disk.limit_bytes or disk.used_bytes is None:
        return False
    return disk.used_bytes >= NEARLY_FULL * disk.limit_bytes


def _is_on_full_file_system(disk: DiskUsage) -> bool:
    """Whether the file system below is nearly full. Under a limit, the figures are those of the limit."""
    if disk.limit_bytes or disk.free_bytes is None or not disk.total_bytes:
        return False
    is_used = disk.total_bytes - disk.free_bytes >= NEARLY_FULL * disk.total_bytes
    return is_used and disk.free_bytes <= FREE_SPACE_BYTES


def is_filling(disk: DiskUsage) -> bool:
    """Whether a disk has come near to a warning, so that it should be measured more often."""
    if disk.limit_bytes:
        return disk.used_bytes is not None and disk.used_bytes >= FILLING * disk.limit_bytes
    return disk.free_bytes is not None and disk.free_bytes <= FILLING_FREE_BYTES


def cpu_in_use(earlier: ComputeUsage | None, later: ComputeUsage, seconds: float) -> float | None:
    """How many processors were used on average in the `seconds` between two measurements of the same run."""
    if earlier is None or earlier.instance != later.instance or seconds <= 0:
        return None
    if earlier.cpu_seconds is None or later.cpu_seconds is None or later.cpu_seconds < earlier.cpu_seconds:
        return None
    return (later.cpu_seconds - earlier.cpu_seconds) / seconds


def usage_of(compute: ComputeUsage, cpu: float | None, disk: DiskUsage | None) -> Usage:
    return Usage(cpu, compute.cpu_limit, compute.memory_bytes, compute.memory_limit_bytes, disk)
