"""Workspaces and storage jobs as plain processes of one machine: nothing to install, for trying CodeHub out.

A volume is a directory, a container is a supervised process tree, and both outlive the coordinator. Without bubblewrap
a workspace runs as the user who runs CodeHub and can do all that this user can, other homes included: one account only.
With it a workspace sees the system read-only, its own home and nothing else of this user; the network is shared, and
as root it still reads what root may read in `/etc`. One machine only: the locks are its kernel's. A service manager
must end the coordinator alone, not all that it started (systemd: `KillMode=process`).
"""

from codehub.adapters.process.jobs import ProcessJobs
from codehub.adapters.process.runtime import ProcessRuntime

__all__ = ["ProcessJobs", "ProcessRuntime"]
