"""What this installation has in the cluster, kept current: one paged list of each kind, then a watch from its version.

A settled fleet costs the API server next to nothing: a watch that is begun again every minute. A stream that was cut
goes on where it was left. A version that is too old, or a server that does not answer, is a gap: until the next list
nothing is known. What we do ourselves is noted at once, so that a look which follows an effect shows it.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping
from contextlib import suppress
from uuid import UUID

import structlog

from codehub.adapters.kubernetes.cluster import CLAIMS, ENDPOINT, JOBS, PODS, Cluster, Kind, Manifest
from codehub.domain.errors import BackendError, Unreachable
from codehub.domain.naming import WORKSPACE_LABEL

log = structlog.get_logger(__name__)

_FIRST_LIST_SECONDS = 45.0
_AGAIN_SECONDS, _AGAIN_AT_MOST_SECONDS = 0.5, 15.0
_MOST_GONE = 1000
FRESH_SECONDS = 90.0
"""How long after a watch was opened or heard from its objects count as current. It is opened anew every minute."""


def owner(manifest: Manifest) -> UUID | None:
    """The workspace that the object belongs to."""
    try:
        return UUID(((manifest.get("metadata") or {}).get("labels") or {}).get(WORKSPACE_LABEL, ""))
    except ValueError:
        return None


class Followed:
    """The objects of one kind. `changed` hears each that came, changed or went; None: something may have been
    missed."""

    def __init__(
        self,
        cluster: Cluster,
        kind: Kind,
        labels: str,
        changed: Callable[[Manifest | None], None],
        *,
        fresh_seconds: float = FRESH_SECONDS,
    ) -> None:
        self._cluster = cluster
        self._kind = kind
        self._labels = labels
        self._changed = changed
        self._objects: dict[str, Manifest] = {}
        self._gone: dict[str, None] = {}
        self._current = asyncio.Event()
        self._trouble: Exception | None = None
        self._fresh_seconds = fresh_seconds
        self._heard_at = float("-inf")

    async def all(self) -> Iterable[Manifest]:
        """The objects as they are known now; waits for the first list. Unreachable if there is none."""
        if not self._current.is_set():
            with suppress(TimeoutError):
                async with asyncio.timeout(_FIRST_LIST_SECONDS):
                    await self._current.wait()
        if not self._current.is_set():
            raise Unreachable(str(self._trouble or f"the list of {self._kind.plural} takes long"), endpoint=ENDPOINT)
        if asyncio.get_running_loop().time() - self._heard_at > self._fresh_seconds:
            raise Unreachable(f"the watch of {self._kind.plural} has not been heard from for long", endpoint=ENDPOINT)
        return list(self._objects.values())

    def names_of(self, ids: Collection[UUID]) -> Mapping[UUID, Collection[str]] | None:
        """The names of these workspaces' objects as they are known now; None while nothing is known for certain."""
        is_fresh = asyncio.get_running_loop().time() - self._heard_at <= self._fresh_seconds
        if not self._current.is_set() or not is_fresh:
            return None
        found: dict[str, list[str]] = {str(key): [] for key in ids}
        for name, one in self._objects.items():
            key = (one["metadata"].get("labels") or {}).get(WORKSPACE_LABEL)
            if key in found:
                found[key].append(name)
        return {UUID(key): names for key, names in found.items()}

    def note(self, manifest: Manifest) -> None:
        """Takes note of an object that we have just made."""
        told = manifest["metadata"]
        present = self._objects.get(told["name"])
        if (
            self._current.is_set()
            and told["uid"] not in self._gone
            and (present is None or present["metadata"]["uid"] != told["uid"])
        ):
            self._objects[told["name"]] = _trimmed(manifest)

    def note_gone(self, name: str, uid: str) -> None:
        """Takes note of an object that we have just seen to be gone."""
        self._gone[uid] = None
        if len(self._gone) > _MOST_GONE:
            del self._gone[next(iter(self._gone))]
        present = self._objects.get(name)
        if present is not None and present["metadata"]["uid"] == uid:
            del self._objects[name]

    async def follow(self) -> None:
        """Keeps the objects current for as long as it runs, whatever the server answers."""
        pause = _AGAIN_SECONDS
        while True:
            try:
                version = await self._listed()
                pause = _AGAIN_SECONDS
                await self._watched(version)
            except BackendError as error:
                self._lose(error)
            except Exception as error:
                log.exception("the watch of the cluster has failed", kind=self._kind.plural)
                self._lose(error)
            await asyncio.sleep(pause)
            pause = min(2 * pause, _AGAIN_AT_MOST_SECONDS)

    async def _listed(self) -> str:
        found, version = await self._cluster.list(self._kind, self._labels)
        kept = [one for one in found if one["metadata"]["uid"] not in self._gone]
        self._objects = {one["metadata"]["name"]: _trimmed(one) for one in kept}
        self._alive()
        self._current.set()
        return version

    async def _watched(self, version: str) -> None:
        """Follows the changes after `version`. A stream that is cut is taken up again at once, and only if that fails
        too is it a gap."""
        cut = False
        while True:
            before = version
            try:
                async for event, found in self._cluster.watch(self._kind, version, self._labels, opened=self._alive):
                    self._alive()
                    version, cut = str(found["metadata"]["resourceVersion"]), False
                    if event != "BOOKMARK":
                        self._hear(event, found)
            except Unreachable:
                if cut and version == before:
                    raise
                cut = True

    def _alive(self) -> None:
        self._heard_at = asyncio.get_running_loop().time()

    def _hear(self, event: str, found: Manifest) -> None:
        told = found["metadata"]
        if event == "DELETED":
            self.note_gone(told["name"], told["uid"])
        else:
            self._objects[told["name"]] = _trimmed(found)
        self._changed(found)

    def _lose(self, error: Exception) -> None:
        if self._current.is_set():
            log.info("the watch of the cluster has a gap", kind=self._kind.plural, error=str(error))
            self._changed(None)
        self._trouble = error
        self._current.clear()


class ClusterCache:
    """Pods, claims and jobs of the installation, followed from the first question on."""

    def __init__(self, cluster: Cluster, labels: str) -> None:
        self.pods = Followed(cluster, PODS, labels, self._changed)
        self.claims = Followed(cluster, CLAIMS, labels, self._changed)
        self.jobs = Followed(cluster, JOBS, labels, self._changed)
        self.tasks: dict[Followed, asyncio.Task[None]] = {}
        self._listeners: set[asyncio.Queue[UUID | None]] = set()

    def begin(self) -> None:
        """Follows the cluster where nobody does so yet, or not any more."""
        for one in (self.pods, self.claims, self.jobs):
            if one not in self.tasks or self.tasks[one].done():
                self.tasks[one] = asyncio.create_task(one.follow())

    async def close(self) -> None:
        tasks, self.tasks = list(self.tasks.values()), {}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _changed(self, found: Manifest | None) -> None:
        about = None if found is None else owner(found)
        if found is None or about is not None:
            for listener in self._listeners:
                listener.put_nowait(about)

    async def hints(self, answered: "asyncio.Queue[UUID]") -> AsyncIterator[UUID]:
        """The workspaces of which something changed, and those of `answered`. Unreachable at a gap."""
        heard: asyncio.Queue[UUID | None] = asyncio.Queue()
        self.begin()
        for one in (self.pods, self.claims, self.jobs):
            await one.all()
        self._listeners.add(heard)
        change, answer = asyncio.ensure_future(heard.get()), asyncio.ensure_future(answered.get())
        try:
            while True:
                await asyncio.wait((change, answer), return_when=asyncio.FIRST_COMPLETED)
                if answer.done():
                    yield answer.result()
                    answer = asyncio.ensure_future(answered.get())
                if change.done():
                    if (about := change.result()) is None:
                        raise Unreachable("the watch of the cluster had a gap", endpoint=ENDPOINT)
                    yield about
                    change = asyncio.ensure_future(heard.get())
        finally:
            self._listeners.discard(heard)
            change.cancel()
            answer.cancel()


def _trimmed(manifest: Manifest) -> Manifest:
    """The object without what nobody looks at here, which is most of it."""
    told, spec = manifest["metadata"], manifest.get("spec") or {}
    keys = ("name", "uid", "labels", "creationTimestamp", "deletionTimestamp")
    kept: Mapping[str, object] = {key: told[key] for key in keys if key in told}
    node = {"nodeName": spec["nodeName"]} if "nodeName" in spec else {}
    return {"metadata": kept, "spec": node, "status": manifest.get("status") or {}}
