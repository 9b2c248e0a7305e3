"""The network policies around workspaces and jobs; no workspace starts before they stand.

Whoever leads looks at them every few seconds, puts back what is missing or was changed, and says so. That a cluster
does not enforce network policies cannot be seen from outside: `codehub doctor --probe` tries it from inside.
"""

import asyncio
from collections.abc import AsyncIterator

import structlog

from codehub.adapters.kubernetes import manifests
from codehub.adapters.kubernetes.cluster import CONFLICT, POLICIES, Cluster, Manifest, Refusal
from codehub.adapters.kubernetes.manifests import KubernetesSite
from codehub.domain.errors import BackendError, Deferred
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
                    yield IsolationReport(f"put back: {', '.join(mended)}", holds=True)
            begun = True
            await asyncio.sleep(self._look_seconds)

    async def missing(self) -> list[str]:
        """The names of the policies that are not there, or not as they should be."""
        return [wanted["metadata"]["name"] for wanted, _ in await self._wrong()]

    async def take_down(self) -> None:
        """Removes the policies, once nothing is there any more that they are for."""
        for found in (await self._cluster.list(POLICIES, self._ours))[0]:
            await self._cluster.delete(POLICIES, found["metadata"]["name"], found["metadata"]["uid"])
        self._stood_at = float("-inf")

    async def _put_right(self) -> list[str]:
        mended = []
        for wanted, found in await self._wrong():
            await self._put(wanted, found)
            mended.append(f"network policy {wanted['metadata']['name']}")
        self._stood_at = asyncio.get_running_loop().time()
        return mended

    async def _wrong(self) -> list[tuple[Manifest, Manifest | None]]:
        """The policies that are wanted and not there as they should be, each with what is there."""
        there = {one["metadata"]["name"]: one for one in (await self._cluster.list(POLICIES, self._ours))[0]}
        wanted = [(one, there.get(one["metadata"]["name"])) for one in manifests.network_policies(self._site)]
        return [(one, found) for one, found in wanted if found is None or _is_otherwise(one, found)]

    async def _put(self, wanted: Manifest, found: Manifest | None) -> None:
        if found is not None:
            await self._cluster.delete(POLICIES, wanted["metadata"]["name"], found["metadata"]["uid"])
        try:
            await self._cluster.create(POLICIES, wanted)
        except Refusal as refusal:
            if refusal.status != CONFLICT:  # another of us was at it just now
                raise

    @property
    def _ours(self) -> str:
        return manifests.ours(self._site)


def _is_otherwise(wanted: Manifest, found: Manifest) -> bool:
    """Whether the policy was changed. A rule that was added opens something, whatever the others say."""
    rules = ("ingress", "egress", "podSelector", "policyTypes")
    there = {key: value for key, value in found["spec"].items() if key in rules}
    return there.keys() != wanted["spec"].keys() or manifests.differs(wanted["spec"], there)
