"""Twins of every port in memory: for speed, for tests and for the simulation. They pass the same contract suites.

State (a "world") is apart from the view on it, so that two coordinators can look at one world, each through a wire
of its own that can fail, hang, lose answers, deliver late or twice.
"""

from codehub.adapters.memory.accounts import MemoryDirectory
from codehub.adapters.memory.archives import MemoryArchives
from codehub.adapters.memory.contents import MemoryContents
from codehub.adapters.memory.database import MemoryDatabase
from codehub.adapters.memory.jobs import MemoryJobs
from codehub.adapters.memory.oidc import MemoryProvider
from codehub.adapters.memory.passwords import MemoryPasswords
from codehub.adapters.memory.people import PeopleWorld
from codehub.adapters.memory.runtime import MemoryRuntime
from codehub.adapters.memory.signals import MemoryActivity, MemoryBus, MemoryNotifier
from codehub.adapters.memory.wire import Fault, FaultyWire, Wire

__all__ = [
    "Fault",
    "FaultyWire",
    "MemoryActivity",
    "MemoryArchives",
    "MemoryBus",
    "MemoryContents",
    "MemoryDatabase",
    "MemoryDirectory",
    "MemoryJobs",
    "MemoryNotifier",
    "MemoryPasswords",
    "MemoryProvider",
    "MemoryRuntime",
    "PeopleWorld",
    "Wire",
]
