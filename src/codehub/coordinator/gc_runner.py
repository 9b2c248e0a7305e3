"""The collector's frame: what could be swept and why, and why a sweep would be refused. It deletes nothing yet."""

from collections.abc import Mapping
from dataclasses import dataclass
from uuid import UUID

from codehub.domain.naming import META_SUFFIX
from codehub.domain.protection import Inventory, Retention, protected_keys, protected_volumes, refusal
from codehub.ports.archives import Archives, StoredObject
from codehub.ports.runtime import Runtime
from codehub.ports.stores import CollectorData, CollectorView


@dataclass(frozen=True, slots=True)
class Candidate:
    kind: str
    name: str
    bytes: int
    why: str


@dataclass(frozen=True, slots=True)
class CollectorReport:
    objects: int
    volumes: int
    candidates: tuple[Candidate, ...]
    refusal: str | None


class GcRunner:
    def __init__(self, view: CollectorView, archives: Archives, runtime: Runtime, retention: Retention) -> None:
        self._view = view
        self._archives = archives
        self._runtime = runtime
        self._retention = retention

    async def report(self) -> CollectorReport:
        """The outside is listed before the database is read: what is made meanwhile is then known to the database."""
        objects = sorted(await self._archives.objects(), key=lambda o: o.key)
        volumes = await self._runtime.volumes()
        data = await self._view.read()
        candidates = (*self._unprotected_objects(objects, data), *self._unprotected_volumes(volumes, data))
        count = sum(len(names) for names in volumes.values())
        times = [o.modified_at for o in objects]
        inventory = Inventory(
            existing=len(objects) + count,
            marked=len(candidates),
            newest_object_at=max(times, default=None),
            newest_ledger_at=data.newest_entry_at,
            oldest_object_at=min(times, default=None),
            oldest_workspace_at=min((ws.created_at for ws in data.workspaces), default=None),
        )
        return CollectorReport(len(objects), count, candidates, refusal(inventory))

    def _unprotected_objects(self, objects: list[StoredObject], data: CollectorData) -> list[Candidate]:
        kept: set[str] = set()
        for ws in data.workspaces:
            kept |= protected_keys(ws, data.points.get(ws.id, ()), self._retention, data.now)
        return [
            Candidate("object", o.key, o.bytes, "no workspace protects it")
            for o in objects
            if o.key.removesuffix(META_SUFFIX) not in kept
        ]

    def _unprotected_volumes(self, volumes: Mapping[UUID, Mapping[str, str]], data: CollectorData) -> list[Candidate]:
        rows = {ws.id: ws for ws in data.workspaces}
        found = []
        for workspace_id, names in sorted(volumes.items()):
            ws = rows.get(workspace_id)
            kept = protected_volumes(ws, self._retention, data.now) if ws else frozenset()
            why = "not the live home of its workspace" if ws else "its workspace is not known"
            found += [Candidate("volume", name, 0, why) for name in sorted(set(names) - kept)]
        return found
