"""Workspaces and storage jobs as plain processes of one machine: nothing to install, for trying CodeHub out.

A volume is a directory, a container is a supervised process tree, and both outlive the coordinator. Without bubblewrap
a workspace runs as the user who runs CodeHub and can do all that this user can, other homes included: one account only.
With it a workspace sees the system read-only, its own home and nothing else of this user. Under root each workspace has
a user id of its own; where slirp4netns works each has a network namespace of its own; an ordinary user's CodeHub
without slirp4netns is for one account, too. One machine only: the locks are its kernel's. A service manager must end
the coordinator alone, not all that it started (systemd: `KillMode=process`).
"""

from codehub.adapters.process.jobs import ProcessJobs
from codehub.adapters.process.runtime import ProcessRuntime

__all__ = ["ProcessJobs", "ProcessRuntime"]
