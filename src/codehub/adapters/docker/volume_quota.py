"""Homes of a given size: held to it where the engine can, and said where it cannot.

The engine's local driver does it by project quotas of the file system below its data, which must be mounted with them
(xfs: `pquota`, ext4: `prjquota`). Nothing that an engine tells of itself says whether it can, so it is asked to.
"""

import re
from uuid import uuid4

import structlog
from aiodocker import DockerError

from codehub.adapters.docker.engine import Engine, doing
from codehub.adapters.docker.payloads import Payload, trial_volume

log = structlog.get_logger(__name__)

_CANNOT = re.compile(r"quota|invalid option", re.IGNORECASE)
"""The latter from engines that know no sizes at all."""


async def make_volume(engine: Engine, payload: Payload) -> None:
    """Makes the volume, without its limit where the engine cannot hold it: a home without a limit is better than none.
    Call it inside `doing`."""
    docker = await engine.docker()
    try:
        await docker.volumes.create(payload)
    except DockerError as error:
        if not is_refusal(payload, error):
            raise
        log.warning("disk limits are not enforced on this engine", volume=payload["Name"], error=str(error.message))
        await docker.volumes.create({name: value for name, value in payload.items() if name != "DriverOpts"})


async def why_not(engine: Engine, install_id: str) -> str:
    """Why this engine holds no volume to its size, in its own words; empty if it does."""
    payload = trial_volume(install_id, f"codehub-trial-{uuid4().hex}")
    with doing("whether disks can be limited cannot be found out"):
        docker = await engine.docker()
        try:
            await docker.volumes.create(payload)
        except DockerError as error:
            if not is_refusal(payload, error):
                raise
            return str(error.message).strip().removeprefix(f"create {payload['Name']}: ")
        await engine.delete_volume(payload["Name"])
    return ""


def is_refusal(payload: Payload, error: DockerError) -> bool:
    """Whether it was the size that the engine did not want."""
    return "DriverOpts" in payload and _CANNOT.search(str(error.message)) is not None
