"""Workspaces and storage jobs as containers of a Docker engine, here or on another machine.

A container is a workspace, a named volume its home, and both are found again by their labels. A workspace runs without
any privilege, within its share of the machine, on a network where it reaches the outside and nothing of ours; the
engine sets up the isolation of their network by a container of CodeHub's own image, so a remote engine has it too.
"""

from codehub.adapters.docker.engine import Engine
from codehub.adapters.docker.jobs import DockerJobs
from codehub.adapters.docker.payloads import DockerSite
from codehub.adapters.docker.runtime import DockerRuntime

__all__ = ["DockerJobs", "DockerRuntime", "DockerSite", "Engine"]
