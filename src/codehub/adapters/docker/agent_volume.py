"""The volume with the workspace agent, which every workspace's container mounts to read.

Its content is in CodeHub's own image, and a short-lived container of that image copies it, once. Another image has
another volume, so that workspaces which run keep theirs; one that nobody has any more goes when the next is made.
"""

import asyncio
from contextlib import suppress
from uuid import uuid4

from aiodocker import DockerError

from codehub.adapters.docker import payloads
from codehub.adapters.docker.engine import Engine, doing
from codehub.adapters.docker.payloads import ROLE_LABEL, DockerSite
from codehub.domain.errors import BackendError
from codehub.domain.naming import INSTALL_LABEL

_FILLING_SECONDS = 60.0


class AgentVolume:
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
        filling = payloads.agent_filling(self._site, name)
        try:
            code, said = await self._engine.run(filling, f"{name}-{uuid4().hex[:8]}", _FILLING_SECONDS)
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
