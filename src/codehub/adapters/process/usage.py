"""What workspaces that are processes use, as the kernel counts it in /proc.

A workspace is its shim and whatever descends from it. The time of processes that have ended is counted by those that
waited for them, so the sum over the living only grows. Memory is what belongs to its processes alone: programs and
libraries that they read from the disk are shared with everybody.
"""

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple
from uuid import UUID

from codehub.adapters.process.table import ProcessEntry
from codehub.domain.usage import ComputeUsage

_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")
_PROC = Path("/proc")


class _Process(NamedTuple):
    pid: int
    parent: int
    cpu_seconds: float


def compute_usage(entries: Mapping[UUID, ProcessEntry]) -> dict[UUID, ComputeUsage]:
    """CPU and memory of running workspaces, by one look at all processes."""
    processes = {process.pid: process for process in _all_processes()} if entries else {}
    children: dict[int, list[int]] = {}
    for process in processes.values():
        children.setdefault(process.parent, []).append(process.pid)
    found = {key: _tree(entry.pid, processes, children) for key, entry in entries.items()}
    return {key: _sum(entries[key].instance, tree) for key, tree in found.items() if tree}


def _tree(shim: int, processes: Mapping[int, _Process], children: Mapping[int, list[int]]) -> list[_Process]:
    """The shim and its descendants."""
    waiting, found = [shim], []
    while waiting:
        pid = waiting.pop()
        if pid in processes:
            found.append(processes[pid])
            waiting += children.get(pid, ())
    return found


def _sum(instance: str, tree: list[_Process]) -> ComputeUsage:
    return ComputeUsage(
        instance,
        cpu_seconds=sum(process.cpu_seconds for process in tree),
        cpu_limit=float(len(os.sched_getaffinity(0))),
        memory_bytes=sum(_own_memory(process.pid) for process in tree),
    )


def _all_processes() -> Iterator[_Process]:
    for name in os.listdir(_PROC):  # noqa: PTH208 - names are all we need
        if name.isdigit():
            try:
                stat = (_PROC / name / "stat").read_bytes()
            except OSError:  # it has ended
                continue
            # The name of the program is in parentheses and may hold any of them itself.
            words = stat[stat.rindex(b")") + 2 :].split()
            yield _Process(int(name), int(words[1]), sum(map(int, words[11:15])) / _TICKS)


def _own_memory(pid: int) -> int:
    try:
        words = (_PROC / str(pid) / "statm").read_bytes().split()
    except OSError:
        return 0
    return (int(words[1]) - int(words[2])) * _PAGE
