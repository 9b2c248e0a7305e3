"""Twins of every port in memory: for speed, for tests and for the simulation. They pass the same contract suites.

State (a "world") is apart from the view on it, so that two coordinators can look at one world, each through a wire
of its own that can fail, hang, lose answers, deliver late or twice.
"""

from codehub.adapters.memory.archives import MemoryArchives
from codehub.adapters.memory.database import MemoryDatabase
from codehub.adapters.memory.jobs import MemoryJobs
from codehub.adapters.memory.runtime import MemoryRuntime
from codehub.adapters.memory.signals import MemoryActivity, MemoryBus, MemoryNotifier
from codehub.adapters.memory.wire import Fault, FaultyWire, Wire

__all__ = [
    "Fault",
    "FaultyWire",
    "MemoryActivity",
    "MemoryArchives",
    "MemoryBus",
    "MemoryDatabase",
    "MemoryJobs",
    "MemoryNotifier",
    "MemoryRuntime",
    "Wire",
]
