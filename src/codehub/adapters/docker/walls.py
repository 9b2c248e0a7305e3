"""The network that workspaces live on, and the packet filter around it; no workspace starts before both stand.

The filter is the engine's machine's, so a container of ours on that machine's network puts it up: it works alike for
a local engine, a remote one, and a CodeHub that is itself in a container. It is looked at again every minute, for
whoever reloads a machine's firewall takes our rules with it.
"""

import asyncio
import re
from contextlib import suppress
from uuid import uuid4

import structlog
from aiodocker import DockerError

from codehub.adapters.docker import firewall, payloads
from codehub.adapters.docker.engine import CONFLICT, NOT_FOUND, Engine, doing
from codehub.adapters.docker.payloads import Site
from codehub.domain.errors import BackendError
from codehub.domain.naming import INSTALL_LABEL

log = structlog.get_logger(__name__)

_FRESH_SECONDS = 60.0
_SCRIPT_SECONDS = 40.0
_A_WHILE = re.compile(r"(minute|hour|day|week|month|year)s? ago")
_ADVICE = "set CODEHUB_DOCKER_WALLS=operator if a firewall of your own keeps workspaces from your network"


class Walls:
    """`ours=False`: the operator has a firewall of its own; only the network is made."""

    def __init__(self, engine: Engine, site: Site, *, ours: bool = True) -> None:
        self._engine = engine
        self._site = site
        self._ours = ours
        self._stood_at = float("-inf")
        self._alone = asyncio.Lock()
        self._again: asyncio.Task[None] | None = None

    async def close(self) -> None:
        if self._again is not None:
            self._again.cancel()
            await asyncio.gather(self._again, return_exceptions=True)

    async def stand(self, *, afresh: bool = False) -> None:
        """The first time, and after a failure, it is waited for; then they are renewed beside what goes on."""
        if afresh:
            self._stood_at = float("-inf")
        if self._stood_at == float("-inf"):
            await self._put_up_once()
        elif self._age() > _FRESH_SECONDS and (self._again is None or self._again.done()):
            self._again = asyncio.create_task(self._renew())

    async def missing(self) -> str:
        """What of the packet filter is not there, for people; empty if nothing."""
        code, said = await self._run(firewall.check(self._site.bridge, self._site.reachable))
        return "" if code == 0 else said.strip() or f"exit code {code}"

    async def gateway(self) -> str:
        """The engine's machine, as a workspace sees it."""
        await self.stand()
        with doing("the network cannot be looked at"):
            docker = await self._engine.docker()
            found = await (await docker.networks.get(self._site.network)).show()
        return str(found["IPAM"]["Config"][0]["Gateway"])

    async def take_down(self) -> None:
        """The filter's rules and the network, once nothing is on it any more."""
        await self._run(firewall.take_down(self._site.bridge))
        with doing("the network cannot be removed"):
            docker = await self._engine.docker()
            with suppress(DockerError):
                await (await docker.networks.get(self._site.network)).delete()
        self._stood_at = float("-inf")

    async def _renew(self) -> None:
        try:
            await self._put_up()
        except BackendError as error:
            self._stood_at = float("-inf")
            log.warning("the walls could not be looked at", error=str(error))

    async def _put_up_once(self) -> None:
        async with self._alone:
            if self._stood_at == float("-inf"):
                await self._put_up()

    async def _put_up(self) -> None:
        await self._make_network()
        if self._ours:
            code, said = await self._run(firewall.put_up(self._site.bridge, self._site.reachable))
            if code != 0:
                raise BackendError(f"the walls around workspaces cannot be put up ({said.strip()[-300:]}); {_ADVICE}")
        await self._remove_leftovers()
        self._stood_at = asyncio.get_running_loop().time()

    async def _remove_leftovers(self) -> None:
        """Of those who ran something short and died before they could tidy up."""
        for role in (payloads.WALLS, payloads.PROBE):
            labels = [f"{INSTALL_LABEL}={self._site.install_id}", f"{payloads.ROLE_LABEL}={role}"]
            for container in await self._engine.containers(labels):
                if is_leftover(container["State"], container["Status"]):
                    await self._engine.end(container["Id"])

    async def _make_network(self) -> None:
        with doing(f"network {self._site.network} cannot be made"):
            docker = await self._engine.docker()
            try:
                found = await (await docker.networks.get(self._site.network)).show()
            except DockerError as error:
                if error.status != NOT_FOUND:
                    raise
                try:
                    await docker.networks.create(payloads.network(self._site))
                except DockerError as other:
                    if other.status != CONFLICT:  # made by another of us just now
                        raise
                return
        wanted = payloads.network(self._site)
        if (found["Labels"] or {}).get(INSTALL_LABEL) != self._site.install_id or not (
            wanted["Options"].items() <= (found["Options"] or {}).items()
        ):
            raise BackendError(
                f"there is a network {self._site.network} that is not ours: remove it, or name another "
                "(CODEHUB_DOCKER_NETWORK)"
            )

    async def _run(self, script: str) -> tuple[int, str]:
        if not await self._engine.has_image(self._site.codehub_image):
            raise BackendError(
                f"the image {self._site.codehub_image} is not there, and it puts the walls up: build it with "
                "`make images`, or name yours (CODEHUB_IMAGE)"
            )
        try:
            return await self._engine.run(
                payloads.walls(self._site, script), f"codehub-walls-{uuid4().hex[:8]}", _SCRIPT_SECONDS
            )
        except TimeoutError:
            raise BackendError(f"the walls around workspaces took over {_SCRIPT_SECONDS:.0f} s; {_ADVICE}") from None

    def _age(self) -> float:
        return asyncio.get_running_loop().time() - self._stood_at


def is_leftover(state: str, status: str) -> bool:
    """Ended a minute ago or more; whoever waited for its end has had it by then."""
    return state in {"exited", "dead"} and _A_WHILE.search(status) is not None
