"""The network that workspaces live on, and the packet filter around it; no workspace starts before both stand.

The filter is the engine's machine's, so a container of ours on that machine's network keeps it: the isolation monitor.
It works alike for a local engine, a remote one, and a CodeHub that is itself in a container. Whoever reloads the
machine's firewall takes our rules with it, so the monitor looks at them every few seconds, puts them back, and says so;
it goes on while nobody leads. Nothing starts unless it was heard a moment ago to say that the rules stand.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, suppress
from uuid import uuid4

import structlog
from aiodocker import DockerError

from codehub.adapters.docker import firewall, payloads
from codehub.adapters.docker.engine import CONFLICT, NOT_FOUND, Engine, doing
from codehub.adapters.docker.payloads import SPEC_LABEL, DockerSite
from codehub.domain.errors import BackendError, Deferred
from codehub.domain.naming import INSTALL_LABEL
from codehub.ports.runtime import IsolationReport

log = structlog.get_logger(__name__)

FRESH_SECONDS = 20.0
"""How old the monitor's last good word may be when a workspace starts."""
_ANSWER_SECONDS = 40.0
_LAST_LINES = 10_000
_LOOK_AGAIN_SECONDS = 0.2
_ADVICE = "set CODEHUB_DOCKER_ISOLATION=operator if a firewall of your own keeps workspaces from your network"


class NetworkIsolation:
    """`ours=False`: the operator has a firewall of its own; only the network is made."""

    def __init__(self, engine: Engine, site: DockerSite, *, ours: bool = True) -> None:
        self._engine = engine
        self._site = site
        self._ours = ours
        self._stood_at = float("-inf")
        self._trouble = ""
        self._alone = asyncio.Lock()

    @property
    def monitor_name(self) -> str:
        return f"codehub-isolation-{self._site.bridge}"

    async def stand(self, *, afresh: bool = False) -> None:
        """Returns if the rules were seen in place within the last seconds, by whoever watches or now; Deferred if they
        are not, or nobody can say. `afresh`: what was seen before does not count."""
        if afresh:
            self._stood_at = float("-inf")
        async with self._alone:
            if not self._is_fresh():
                await self._see_for_ourselves()

    async def watch(self) -> AsyncIterator[IsolationReport]:
        """Keeps the monitor running and yields what it finds out of order. Raises when it cannot be made or heard."""
        if not self._ours:
            await asyncio.Event().wait()
        while True:
            async with aclosing(self._lines(await self._ensure())) as lines:
                async for line in lines:
                    if (report := self._noted(line)) is not None:
                        yield report
            log.warning("the isolation monitor has ended and is started again")

    async def missing(self) -> str:
        """What of the packet filter is not there, for people; empty if nothing."""
        code, said = await self._run(firewall.check(self._site.bridge, self._site.reachable))
        return "" if code == 0 else said.strip() or f"exit code {code}"

    async def disturbances(self) -> list[str]:
        """What the monitor has found out of order since it was started, each with the engine's time. Raises Deferred if
        none runs."""
        found = await self._engine.container(self.monitor_name)
        if found is None or not found["State"]["Running"]:
            raise Deferred("the isolation monitor does not run: nobody looks whether the rules stay")
        said = await self._engine.output(self.monitor_name, _LAST_LINES, timestamps=True)
        lines = [line.partition(" ") for line in said.splitlines()]
        return [f"{at[:19]}Z {words}" for at, _, words in lines if not words.startswith(firewall.INTACT)]

    async def gateway(self) -> str:
        """The address of the engine's machine, as a workspace sees it."""
        await self.stand()
        with doing("the network cannot be looked at"):
            docker = await self._engine.docker()
            found = await (await docker.networks.get(self._site.network)).show()
        return str(found["IPAM"]["Config"][0]["Gateway"])

    async def take_down(self) -> None:
        """Removes the monitor, the filter's rules and the network, once nothing is on it any more."""
        await self._engine.end(self.monitor_name)
        await self._run(firewall.take_down(self._site.bridge))
        with doing("the network cannot be removed"):
            docker = await self._engine.docker()
            with suppress(DockerError):
                await (await docker.networks.get(self._site.network)).delete()
        self._stood_at = float("-inf")

    def _is_fresh(self) -> bool:
        age = asyncio.get_running_loop().time() - self._stood_at
        return age < FRESH_SECONDS or (not self._ours and age < float("inf"))

    async def _see_for_ourselves(self) -> None:
        """Waits for one line of the monitor that is from now."""
        try:
            async with asyncio.timeout(_ANSWER_SECONDS):
                started = await self._ensure()
                if not self._ours:
                    self._stood_at = asyncio.get_running_loop().time()
                    return
                async with aclosing(self._lines(started)) as lines:
                    self._noted(await anext(lines, f"{firewall.GONE}: the isolation monitor has ended"))
        except TimeoutError:
            raise Deferred(f"whether workspaces are isolated is not known: {self.monitor_name} is silent") from None
        if not self._is_fresh():
            raise Deferred(self._trouble)

    def _noted(self, line: str) -> IsolationReport | None:
        """What one line of the monitor's reports; None: all is well."""
        kind, _, words = line.strip().partition(": ")
        if kind in {firewall.INTACT, firewall.RESTORED}:
            self._stood_at = asyncio.get_running_loop().time()
            return IsolationReport(words, holds=True) if kind == firewall.RESTORED else None
        self._stood_at = float("-inf")
        self._trouble = f"workspaces are not isolated ({words[-300:]}); {_ADVICE}"
        return IsolationReport(self._trouble, holds=False)

    async def _ensure(self) -> bool:
        """Makes the network, and on it the monitor that is wanted now. True: it was started just now."""
        await self._make_network()
        return self._ours and await self._start_monitor()

    async def _start_monitor(self) -> bool:
        await self._need_image()
        script = firewall.monitor(self._site.bridge, self._site.reachable)
        payload = payloads.isolation_monitor(self._site, script)
        found = await self._engine.container(self.monitor_name)
        if found is not None:
            if found["Config"]["Labels"].get(INSTALL_LABEL) != self._site.install_id:
                raise BackendError(f"there is a container {self.monitor_name} that is not ours: rename or remove it")
            fits = found["Config"]["Labels"].get(SPEC_LABEL) == payload["Labels"][SPEC_LABEL]
            if fits and found["State"]["Running"] and not found["State"]["Paused"]:
                return False
            await self._engine.end(found["Id"])
        with doing("the isolation monitor cannot be started"):
            docker = await self._engine.docker()
            try:
                await (await docker.containers.create(payload, name=self.monitor_name)).start()
            except DockerError as error:
                if error.status not in {CONFLICT, NOT_FOUND}:  # another of us was at it just now
                    raise
                return False
        return True

    async def _lines(self, from_the_start: bool) -> AsyncGenerator[str, None]:  # noqa: FBT001 - one of two ways to begin
        """What the monitor prints from now on, or since it was started, until it ends. Unreachable if it falls silent:
        each line says that it lives."""
        tail = "all" if from_the_start else "0"
        async with aclosing(self._engine.follow(self.monitor_name, tail, FRESH_SECONDS)) as said:
            async for line in said:
                yield line

    async def _make_network(self, tries: int = 10) -> None:
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
                    made_by_another = other.status == CONFLICT or "conflicts with network" in str(other.message)
                    if not made_by_another or not tries:
                        raise
                else:
                    return
                await asyncio.sleep(_LOOK_AGAIN_SECONDS)
                await self._make_network(tries - 1)
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
        await self._need_image()
        try:
            return await self._engine.run(
                payloads.firewall_helper(self._site, script), f"codehub-firewall-{uuid4().hex[:8]}", _ANSWER_SECONDS
            )
        except TimeoutError:
            raise BackendError(
                f"the packet filter around workspaces took over {_ANSWER_SECONDS:.0f} s; {_ADVICE}"
            ) from None

    async def _need_image(self) -> None:
        if not await self._engine.has_image(self._site.codehub_image):
            raise Deferred(
                f"the image {self._site.codehub_image} is not there, and it keeps workspaces isolated: build it with "
                "`make images`, or name yours (CODEHUB_IMAGE)"
            )
