"""Twins of every port in memory: for speed, for tests and for the simulation. They pass the same contract suites.

State is apart from the stores that read and write it, so that two coordinators can share one state, each over a network
of its own that can fail, hang, lose answers, deliver late or twice.
"""

from codehub.adapters.memory.accounts import MemoryAccountDatabase
from codehub.adapters.memory.archives import MemoryArchives, MemoryContents
from codehub.adapters.memory.database import MemoryDatabase
from codehub.adapters.memory.database_state import AccountTables
from codehub.adapters.memory.fault_injection import Fault, FaultyNetwork, Network
from codehub.adapters.memory.jobs import MemoryJobs
from codehub.adapters.memory.runtime import MemoryRuntime
from codehub.adapters.memory.secrets import MemoryKeyring, numbered_ssh_key
from codehub.adapters.memory.sign_in import MemoryPasswords, MemoryProvider
from codehub.adapters.memory.signals import MemoryActivity, MemoryBus, MemoryNotifier

__all__ = [
    "AccountTables",
    "Fault",
    "FaultyNetwork",
    "MemoryAccountDatabase",
    "MemoryActivity",
    "MemoryArchives",
    "MemoryBus",
    "MemoryContents",
    "MemoryDatabase",
    "MemoryJobs",
    "MemoryKeyring",
    "MemoryNotifier",
    "MemoryPasswords",
    "MemoryProvider",
    "MemoryRuntime",
    "Network",
    "numbered_ssh_key",
]
