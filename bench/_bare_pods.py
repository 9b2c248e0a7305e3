"""Bare pods of the workspace's image on Kubernetes, as confined as a workspace, until their page answers."""

import time
from collections.abc import Awaitable, Callable
from uuid import UUID, uuid4

from codehub.adapters.kubernetes import KubernetesRuntime
from codehub.adapters.kubernetes.cluster import PODS
from codehub.adapters.kubernetes.manifests import probe
from codehub.domain.naming import volume_name
from codehub.ports.runtime import ContainerSpec


class BarePods:
    name = "bare pod"

    def __init__(
        self, runtime: KubernetesRuntime, command: str, until_it_answers: Callable[[str], Awaitable[None]]
    ) -> None:
        self._runtime = runtime
        self._command = command
        self._until_it_answers = until_it_answers
        self._homes: set[UUID] = set()

    async def start(self, home: UUID) -> float:
        """The seconds from asking for a pod until its page answers; `home` names its claim, made at the first time."""
        if home not in self._homes:
            self._homes.add(home)
            await self._runtime.create_volume(home, volume_name(home, 1))
        spec, name = ContainerSpec(home, volume_name(home, 1), ""), f"bench-{uuid4().hex[:12]}"
        wanted = probe(self._runtime.site, spec, name, ("sh", "-c", self._command))
        began = time.perf_counter()
        pod = await self._runtime.cluster.create(PODS, wanted)
        await self._until_it_answers(await self._address(name, pod["metadata"]["resourceVersion"]))
        seconds = time.perf_counter() - began
        await self._runtime.end(pod, 1)
        return seconds

    async def _address(self, name: str, version: str) -> str:
        async for _, found in self._runtime.cluster.watch(PODS, version, fields=f"metadata.name={name}"):
            if address := (found.get("status") or {}).get("podIP"):
                return str(address)
        raise TimeoutError(f"pod {name} has no address")

    async def sweep(self) -> None:
        for key in await self._runtime.containers():
            await self._runtime.remove_container(key)
        for key, names in (await self._runtime.volumes()).items():
            for name in names:
                await self._runtime.delete_volume(key, name)
