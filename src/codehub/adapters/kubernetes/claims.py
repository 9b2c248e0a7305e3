"""Homes as PersistentVolumeClaims. The mark of a volume is its claim's UID.

Deleting a claim cannot be taken back: one that a pod still has stays Terminating until that pod ends, and then is gone.
So it is asked for only when no pod at all names it. A claim that is Terminating is no volume any more once no pod of
ours has it.
"""

import asyncio
from collections.abc import Collection, Iterable
from itertools import chain
from uuid import UUID

import structlog

from codehub.adapters.kubernetes import manifests
from codehub.adapters.kubernetes.cache import Followed, owner
from codehub.adapters.kubernetes.cluster import CLAIMS, PODS, Cluster, Manifest, Refusal
from codehub.adapters.kubernetes.manifests import KubernetesSite
from codehub.adapters.kubernetes.observations import is_terminating
from codehub.domain.errors import BackendError, VolumeInUse
from codehub.domain.naming import INSTALL_LABEL, WORKSPACE_LABEL, incarnation_of, volume_name

log = structlog.get_logger(__name__)

_GONE_SECONDS = 30.0
_LOOK_AGAIN_SECONDS = 0.1
_FEW = 20
"""Up to so many workspaces' claims are looked up by name."""
AT_ONCE = 100
"""How many workspaces one label selector names."""


class Claims:
    def __init__(self, cluster: Cluster, site: KubernetesSite, known: Followed) -> None:
        self._cluster = cluster
        self._site = site
        self._known = known

    async def found(self, ids: Collection[UUID] | None) -> Iterable[Manifest]:
        """The claims of all workspaces as they are known, or of `ids` as they are now, Terminating ones too."""
        return await self._known.all() if ids is None else await self._asked(list(ids))

    async def own(self, workspace_id: UUID, name: str) -> Manifest | None:
        """The claim, if it is there and that workspace's, Terminating or not."""
        found = await self._cluster.get(CLAIMS, name)
        if found is None or not self._is_ours(found) or owner(found) != workspace_id:
            return None
        return found

    async def create(
        self, workspace_id: UUID, name: str, disk_bytes: int | None, storage_class: str | None = None
    ) -> None:
        wanted = manifests.claim(self._site, workspace_id, name, disk_bytes, storage_class)
        until = asyncio.get_running_loop().time() + _GONE_SECONDS
        while (made := await self._made(wanted)) is None:
            found = await self._cluster.get(CLAIMS, name)
            if found is not None and not is_terminating(found):
                if not self._is_ours(found) or owner(found) != workspace_id:
                    raise BackendError(f"claim {name} is there and is not ours: rename or remove it")
                made = found
                break
            if asyncio.get_running_loop().time() > until:
                raise BackendError(f"claim {name} of before is still Terminating: a pod uses it")
            await asyncio.sleep(_LOOK_AGAIN_SECONDS)
        self._known.note(made)

    async def delete(self, workspace_id: UUID, name: str) -> None:
        found = await self.own(workspace_id, name)
        if found is None:
            return
        holders = await self.holders(name)
        if holders:
            raise VolumeInUse(f"claim {name} is in use; remove the pod that has it ({', '.join(holders)})")
        uid = found["metadata"]["uid"]
        await self._cluster.delete(CLAIMS, name, uid)
        await self._until_gone(name, uid)
        self._known.note_gone(name, uid)

    async def grow(self, claim: Manifest, disk_bytes: int | None) -> None:
        """Asks for a larger claim if the template has grown. A storage class that cannot do so is no reason not to
        start."""
        wanted = disk_bytes or 0
        asked = (((claim.get("spec") or {}).get("resources") or {}).get("requests") or {}).get("storage", "0")
        if wanted <= quantity(asked):
            return
        name = claim["metadata"]["name"]
        try:
            change = {"spec": {"resources": {"requests": {"storage": str(wanted)}}}}
            await self._cluster.patch(CLAIMS, name, {**change, "metadata": {"uid": claim["metadata"]["uid"]}})
        except Refusal as refusal:
            log.warning("a claim does not grow with its template", claim=name, wanted=wanted, error=str(refusal))

    async def holders(self, name: str) -> list[str]:
        """The pods of the namespace, ours or not, that name the claim, as the API server has them now."""
        pods, _ = await self._cluster.list(PODS)
        return sorted(pod["metadata"]["name"] for pod in pods if name in claims_of(pod))

    async def _asked(self, ids: list[UUID]) -> list[Manifest]:
        """The claims of these workspaces as the API server has them now. A list by labels goes through all claims of
        the namespace there, so few are asked for by their names where these are known."""
        names = self._names(ids)
        if names is not None:
            present = await asyncio.gather(*(self._cluster.get(CLAIMS, name) for name in names))
            return [one for one in present if one is not None and self._is_ours(one) and owner(one) in ids]
        found: list[Manifest] = []
        for start in range(0, len(ids), AT_ONCE):
            named = ",".join(str(key) for key in ids[start : start + AT_ONCE])
            selector = f"{manifests.ours(self._site)},{WORKSPACE_LABEL} in ({named})"
            found += (await self._cluster.list(CLAIMS, selector))[0]
        return found

    def _names(self, ids: list[UUID]) -> list[str] | None:
        """The names of all claims that these workspaces can have; None if that is not known. The next home's is among
        them: somebody may have made it, and we not heard of it yet."""
        known = self._known.names_of(ids) if len(ids) <= _FEW else None
        if known is None or not all(known.values()):
            return None
        latest = {key: max(incarnation_of(key, name) or 0 for name in names) for key, names in known.items()}
        return [*chain(*known.values()), *(volume_name(key, number + 1) for key, number in latest.items())]

    async def _made(self, wanted: Manifest) -> Manifest | None:
        """The claim, made just now; None if one of that name is there."""
        try:
            return await self._cluster.create(CLAIMS, wanted)
        except Refusal as refusal:
            if refusal.already_exists:
                return None
            raise BackendError(f"claim {wanted['metadata']['name']} cannot be made: {refusal}") from refusal

    async def _until_gone(self, name: str, uid: str) -> None:
        """Waits until the claim is gone, which takes a moment; one that somebody took meanwhile goes with its pod."""
        until = asyncio.get_running_loop().time() + _GONE_SECONDS
        while asyncio.get_running_loop().time() < until:
            found = await self._cluster.get(CLAIMS, name)
            if found is None or found["metadata"]["uid"] != uid:
                return
            await asyncio.sleep(_LOOK_AGAIN_SECONDS)

    def _is_ours(self, found: Manifest) -> bool:
        return bool((found["metadata"].get("labels") or {}).get(INSTALL_LABEL) == self._site.install_id)


def claims_of(pod: Manifest) -> set[str]:
    """The names of the claims that a pod names."""
    volumes = (pod.get("spec") or {}).get("volumes") or ()
    return {one["persistentVolumeClaim"]["claimName"] for one in volumes if one.get("persistentVolumeClaim")}


_UNITS = {
    "": 1,
    "k": 10**3,
    "M": 10**6,
    "G": 10**9,
    "T": 10**12,
    "P": 10**15,
    "E": 10**18,
    "Ki": 1 << 10,
    "Mi": 1 << 20,
    "Gi": 1 << 30,
    "Ti": 1 << 40,
    "Pi": 1 << 50,
    "Ei": 1 << 60,
    "n": 1e-9,
    "u": 1e-6,
    "m": 1e-3,
}


def quantity(text: str) -> float:
    """A number as Kubernetes writes it, such as 500m or 10Gi."""
    digits = text.rstrip("kKMGTPEinum")
    return float(digits) * _UNITS[text[len(digits) :]]
