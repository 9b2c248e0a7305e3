"""Volumes of a Docker engine: homes held to a size where the engine can, and the volume with the workspace agent.

The engine's local driver limits a volume by project quotas of the file system below its data, which must be mounted
with them (xfs: `pquota`, ext4: `prjquota`). Nothing that an engine tells of itself says whether it can, so it is tried.
"""

import asyncio
import re
from contextlib import suppress
from uuid import uuid4

import structlog
from aiodocker import DockerError

from codehub.adapters.docker import payloads
from codehub.adapters.docker.engine import Engine, doing
from codehub.adapters.docker.payloads import ROLE_LABEL, DockerSite, Payload, trial_volume
from codehub.domain.errors import BackendError
from codehub.domain.naming import INSTALL_LABEL

log = structlog.get_logger(__name__)

_FILLING_SECONDS = 60.0
_NO_QUOTA = re.compile(r"quota|invalid option", re.IGNORECASE)
"""How an engine refuses a volume's size; the latter from engines that know no sizes at all."""


class AgentVolume:
    """The volume with the workspace agent, which every workspace's container mounts to read.

    Its content is in CodeHub's own image, and a short-lived container of that image copies it, once. Another image has
    another volume, so that workspaces which run keep theirs; one that nobody has any more goes when the next is
    made."""

    def __init__(self, engine: Engine, site: DockerSite) -> None:
        self._engine = engine
        self._site = site
        self._name: str | None = None
        self._alone = asyncio.Lock()

    async def name(self, *, afresh: bool = False) -> str:
        """The name of the volume, which is filled when this returns. `afresh`: a start found something of it
        missing."""
        if afresh:
            self._name = None
        async with self._alone:
            if self._name is None:
                self._name = await self._filled()
            return self._name

    async def _filled(self) -> str:
        image = await self._engine.image(self._site.codehub_image)
        if image is None:
            raise BackendError(
                f"the image {self._site.codehub_image} is not there, and the workspace agent is in it: build it with "
                "`make images`, or name yours (CODEHUB_IMAGE)"
            )
        name = payloads.agent_volume_name(self._site, image["Id"])
        with doing("the volume of the workspace agent cannot be made"):
            await (await self._engine.docker()).volumes.create(payloads.agent_volume(self._site, name))
        await self._fill(name)
        await self._remove_older(name)
        return name

    async def _fill(self, name: str) -> None:
        filling, files = payloads.agent_filling(self._site, name), payloads.agent_files(self._site)
        unpacked = (payloads.AGENT_NEW, files) if files else None
        try:
            code, said = await self._engine.run(filling, f"{name}-{uuid4().hex[:8]}", _FILLING_SECONDS, unpacked)
        except TimeoutError:
            raise BackendError(f"copying the workspace agent took over {_FILLING_SECONDS:.0f} s") from None
        if code != 0:
            raise BackendError(
                f"the workspace agent cannot be copied from the image {self._site.codehub_image} "
                f"({said.strip()[-200:]}): build it anew with `make images`, or name yours (CODEHUB_IMAGE)"
            )

    async def _remove_older(self, present: str) -> None:
        labels = [f"{INSTALL_LABEL}={self._site.install_id}", f"{ROLE_LABEL}={payloads.AGENT}"]
        for volume in await self._engine.volumes(labels):
            if volume["Name"] != present:
                with doing("an older agent's volume cannot be removed"), suppress(DockerError):  # a workspace has it
                    await self._engine.delete_volume(volume["Name"])


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


async def why_no_quota(engine: Engine, install_id: str) -> str:
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
    return "DriverOpts" in payload and _NO_QUOTA.search(str(error.message)) is not None
