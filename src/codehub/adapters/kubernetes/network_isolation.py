"""The network policies around workspaces and jobs; no workspace starts before they stand.

Whoever leads looks at them every few seconds, puts back what is missing or was changed, and says so. That a cluster
does not enforce network policies cannot be seen from outside: `codehub doctor --probe` tries it from inside.
"""

import asyncio
from collections.abc import AsyncIterator
from uuid import uuid4

import structlog

from codehub.adapters.kubernetes import manifests
from codehub.adapters.kubernetes.cluster import CONFLICT, POLICIES, Cluster, Manifest, Refusal
from codehub.adapters.kubernetes.manifests import KubernetesSite
from codehub.domain.errors import BackendError, Deferred
from codehub.domain.naming import INSTALL_LABEL
from codehub.ports.runtime import IsolationReport

log = structlog.get_logger(__name__)

LOOK_SECONDS = 15.0
FRESH_SECONDS = 25.0
"""How old the last good look may be when a workspace starts."""


class NetworkIsolation:
    def __init__(self, cluster: Cluster, site: KubernetesSite, *, look_seconds: float = LOOK_SECONDS) -> None:
        self._cluster = cluster
        self._site = site
        self._look_seconds = look_seconds
        self._stood_at = float("-inf")
        self._alone = asyncio.Lock()

    async def stand(self) -> None:
        """Returns if the policies were seen in place within the last seconds, by whoever watches or now; Deferred if
        they are not, or nobody can say."""
        async with self._alone:
            if asyncio.get_running_loop().time() - self._stood_at < FRESH_SECONDS:
                return
            try:
                await self._put_right()
            except BackendError as error:
                raise Deferred(f"workspaces are not isolated: {error}") from error

    async def watch(self) -> AsyncIterator[IsolationReport]:
        """Looks at the policies for as long as it is listened to, and yields what was out of order. Raises when they
        cannot be looked at."""
        begun = False
        while True:
            try:
                mended = await self._put_right()
            except Refusal as refusal:
                self._stood_at = float("-inf")
                yield IsolationReport(f"workspaces are not isolated: {refusal}", holds=False)
            else:
                if mended and begun:
                    yield IsolationReport(f"put right: {', '.join(mended)}", holds=True)
            begun = True
            await asyncio.sleep(self._look_seconds)

    async def check(self) -> None:
        """Returns if there is a policy around each kind of pod; Deferred if not. What they say is not compared: whoever
        made them may have other settings than a probe from elsewhere."""
        around = [one["spec"]["podSelector"] for one in await self._there()]
        wanted = manifests.network_policies(self._site)
        missing = [one["metadata"]["name"] for one in wanted if one["spec"]["podSelector"] not in around]
        if missing:
            raise Deferred(f"network policies are not up: {', '.join(missing)}")

    async def missing(self) -> list[str]:
        """The names of the policies that are not there, or not as they should be."""
        return [wanted["metadata"]["name"] for wanted in self._missing(await self._there())]

    async def take_down(self) -> None:
        """Removes the policies, once nothing is there any more that they are for."""
        for found in (await self._cluster.list(POLICIES, self._ours))[0]:
            await self._cluster.delete(POLICIES, found["metadata"]["name"], found["metadata"]["uid"])
        self._stood_at = float("-inf")

    async def _put_right(self) -> list[str]:
        """Makes what is missing, and only then removes those of ours that are not wanted: policies only add up, so
        there are never fewer than before."""
        there = await self._there()
        missing = self._missing(there)
        for wanted in missing:
            await self._put(wanted, {one["metadata"]["name"] for one in there})
        unwanted = [one for one in there if not self._is_wanted(one)]
        for one in unwanted:
            await self._cluster.delete(POLICIES, one["metadata"]["name"], one["metadata"]["uid"])
        self._stood_at = asyncio.get_running_loop().time()
        names = dict.fromkeys(one["metadata"]["name"] for one in (*missing, *unwanted))
        return [f"network policy {name}" for name in names]

    async def _there(self) -> list[Manifest]:
        return (await self._cluster.list(POLICIES, self._ours))[0]

    def _missing(self, there: list[Manifest]) -> list[Manifest]:
        every = manifests.network_policies(self._site)
        return [wanted for wanted in every if all(_is_otherwise(wanted, one) for one in there)]

    def _is_wanted(self, found: Manifest) -> bool:
        return any(not _is_otherwise(wanted, found) for wanted in manifests.network_policies(self._site))

    async def _put(self, wanted: Manifest, taken: set[str]) -> None:
        """Makes the policy, under a name of its own if one of ours that was changed has its name."""
        name = wanted["metadata"]["name"]
        if name in taken:
            name = f"{name}-{uuid4().hex[:4]}"
        try:
            await self._cluster.create(POLICIES, {**wanted, "metadata": {**wanted["metadata"], "name": name}})
        except Refusal as refusal:
            if not refusal.already_exists or not await self._was_made_by_us(wanted):
                raise

    async def _was_made_by_us(self, wanted: Manifest) -> bool:
        """Whether another of us has made the policy just now; raises Refusal if what has its name is something else."""
        name = wanted["metadata"]["name"]
        found, _ = await self._cluster.list(POLICIES, fields=f"metadata.name={name}")
        for one in found:
            own = (one["metadata"].get("labels") or {}).get(INSTALL_LABEL)
            if own != self._site.install_id or _is_otherwise(wanted, one):
                message = f"network policy {name} is there and is not ours, or says something else: remove it"
                raise Refusal(message, CONFLICT)
        return bool(found)

    @property
    def _ours(self) -> str:
        return manifests.ours(self._site)


def _is_otherwise(wanted: Manifest, found: Manifest) -> bool:
    """Whether the policy was changed. A rule that was added opens something, whatever the others say."""
    rules = ("ingress", "egress", "podSelector", "policyTypes")
    there = {key: value for key, value in found["spec"].items() if key in rules}
    return there.keys() != wanted["spec"].keys() or manifests.differs(wanted["spec"], there)
