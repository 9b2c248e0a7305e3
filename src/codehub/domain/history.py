"""The last day in steps of 15 minutes: what ran, how often and how fast workspaces started, how much was archived, what
passed the proxy. Pure.

It is computed from the ledger, the restore points and the traffic that proxies record per minute, which outlive every
process, so that every process answers the same.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TypeVar
from uuid import UUID

from codehub.domain.ledger import LedgerEntry, LedgerKind
from codehub.domain.workspace import Operation, Phase

T = TypeVar("T")

SPAN = timedelta(days=1)
STEP = timedelta(minutes=15)


@dataclass(frozen=True, slots=True)
class TrafficMinute:
    """The traffic of all proxies in the minute that begins at `at`. `socket_seconds`: how long WebSockets were open,
    all of them together."""

    at: datetime
    requests: int
    socket_seconds: float


@dataclass(frozen=True, slots=True)
class HistoryData:
    """What the history of the last day is made from. `entries`: RUNNING entered and left, STARTING begun and ended,
    oldest first. `archived`: when, and how many bytes. `running`: how many workspaces run now."""

    now: datetime
    running: int
    entries: Sequence[LedgerEntry]
    archived: Sequence[tuple[datetime, int]]
    traffic: Sequence[TrafficMinute] = ()


@dataclass(frozen=True, slots=True)
class HistoryPoint:
    """One step of the history, which ends at `at`. `running`: how many workspaces ran then. The rest is within the
    step: seconds are None without a start, `sockets` is how many were open on average."""

    at: datetime
    running: int
    starts: int
    start_seconds_median: float | None
    start_seconds_worst: float | None
    archives: int
    archived_bytes: int
    requests: int
    sockets: float


def history(day: HistoryData) -> tuple[HistoryPoint, ...]:
    count = SPAN // STEP
    ends = [day.now - STEP * (count - 1 - place) for place in range(count)]
    starts = _by_step(ends, _starts(day.entries))
    stored = _by_step(ends, day.archived)
    passed = _by_step(ends, ((minute.at, minute) for minute in day.traffic))
    running = _running(day, ends)
    return tuple(
        HistoryPoint(
            at=end,
            running=running[place],
            starts=len(starts[place]),
            start_seconds_median=_median(starts[place]),
            start_seconds_worst=max(starts[place], default=None),
            archives=len(stored[place]),
            archived_bytes=sum(stored[place]),
            requests=sum(minute.requests for minute in passed[place]),
            sockets=sum(minute.socket_seconds for minute in passed[place]) / STEP.total_seconds(),
        )
        for place, end in enumerate(ends)
    )


def _by_step(ends: Sequence[datetime], found: Iterable[tuple[datetime, T]]) -> list[list[T]]:
    """What was found, sorted into the steps by its times; what is too old is left out."""
    steps: list[list[T]] = [[] for _ in ends]
    for at, value in found:
        if (place := _place(ends, at)) is not None:
            steps[place].append(value)
    return steps


def _place(ends: Sequence[datetime], at: datetime) -> int | None:
    """The number of the step that holds this time; None if it is too old. What is newer than now belongs to the last
    step."""
    begin = ends[0] - STEP
    return min(-((begin - at) // STEP) - 1, len(ends) - 1) if at > begin else None


def _starts(entries: Sequence[LedgerEntry]) -> list[tuple[datetime, float]]:
    """When each successful start ended, and how many seconds it took."""
    begun: dict[UUID, LedgerEntry] = {}
    found = []
    for entry in entries:
        if entry.kind is LedgerKind.OPERATION_BEGAN and entry.after == Operation.STARTING:
            begun[entry.workspace_id] = entry
        elif entry.kind is LedgerKind.PHASE and entry.after == Phase.RUNNING and entry.workspace_id in begun:
            first = begun.pop(entry.workspace_id)
            found.append((entry.at, (entry.at - first.at).total_seconds()))
    return found


def _running(day: HistoryData, ends: Sequence[datetime]) -> Mapping[int, int]:
    """How many ran at the end of each step, counted back from what runs now."""
    changes = [entry for entry in day.entries if entry.kind is LedgerKind.PHASE]
    counted, running = {}, day.running
    for place in reversed(range(len(ends))):
        while changes and changes[-1].at > ends[place]:
            entry = changes.pop()
            running += (entry.before == Phase.RUNNING) - (entry.after == Phase.RUNNING)
        counted[place] = max(0, running)
    return counted


def _median(values: Sequence[float]) -> float | None:
    return sorted(values)[len(values) // 2] if values else None
