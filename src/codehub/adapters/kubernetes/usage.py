"""What workspaces that are pods use: CPU and memory by the cluster's metrics API, where it has one.

That API tells how many processors a pod used on average, and we are asked for the seconds since its start: they are
added up from what was told, from the first question on. A cluster without the metrics API tells nothing, and what a
home holds no API tells: it is left out.
"""

import asyncio
from collections.abc import Mapping
from uuid import UUID

from codehub.adapters.kubernetes.cache import owner
from codehub.adapters.kubernetes.claims import quantity
from codehub.adapters.kubernetes.cluster import POD_METRICS, Cluster, Manifest
from codehub.adapters.kubernetes.manifests import MAIN
from codehub.domain.errors import Unreachable
from codehub.domain.usage import ComputeUsage

_NOT_THERE = (404, 403, 503)
_AGAIN_SECONDS = 300.0
"""How long a cluster without the metrics API is not asked for it again."""
_MOST_REMEMBERED = 10_000


class PodUsage:
    def __init__(self, cluster: Cluster, labels: str) -> None:
        self._cluster = cluster
        self._labels = labels
        self._seconds: dict[str, tuple[float, float]] = {}
        self._absent_until = float("-inf")

    async def of(self, pods: Mapping[UUID, Manifest]) -> dict[UUID, ComputeUsage]:
        if not pods or asyncio.get_running_loop().time() < self._absent_until:
            return {}
        try:
            told, _ = await self._cluster.list(POD_METRICS, self._labels)
        except Unreachable as error:
            if error.context.get("status_code") not in _NOT_THERE:
                raise
            self._absent_until = asyncio.get_running_loop().time() + _AGAIN_SECONDS
            return {}
        by_owner = {owner(one): one for one in told}
        return {key: self._usage(pod, by_owner[key]) for key, pod in pods.items() if key in by_owner}

    def _usage(self, pod: Manifest, told: Manifest) -> ComputeUsage:
        uid = pod["metadata"]["uid"]
        cpu, memory = used(told)
        cpu_limit, memory_limit = limits(pod)
        return ComputeUsage(uid, self._counted(uid, cpu), cpu_limit, memory, memory_limit)

    def _counted(self, uid: str, cpu: float) -> float:
        now = asyncio.get_running_loop().time()
        if len(self._seconds) >= _MOST_REMEMBERED:
            self._seconds.clear()
        seconds, since = self._seconds.get(uid, (0.0, now))
        self._seconds[uid] = seconds + cpu * (now - since), now
        return self._seconds[uid][0]


def used(told: Manifest) -> tuple[float, int]:
    """How many processors, and how much memory, the containers of a pod use."""
    every = [one.get("usage") or {} for one in told.get("containers") or ()]
    cpu = sum(quantity(str(one.get("cpu", "0"))) for one in every)
    return cpu, int(sum(quantity(str(one.get("memory", "0"))) for one in every))


def limits(pod: Manifest) -> tuple[float | None, int | None]:
    """The limits of a pod's own container on processors and memory."""
    own: Manifest = next((one for one in pod["spec"].get("containers") or () if one["name"] == MAIN), {})
    found = (own.get("resources") or {}).get("limits") or {}
    cpu, memory = found.get("cpu"), found.get("memory")
    return (quantity(cpu) if cpu else None, int(quantity(memory)) if memory else None)
