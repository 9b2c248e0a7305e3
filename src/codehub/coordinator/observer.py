"""The observer: one bulk look per backend and pass, never a call per workspace (contract 2).

A pass over settled workspaces writes nothing: what was settled, and whose row and observation are as they were, is not
even loaded. Rows whose observation changed and that need no act are written in one statement; all else is queued.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import chain
from typing import TypeVar
from uuid import UUID

from codehub.coordinator.context import TermContext
from codehub.domain.errors import Unreachable
from codehub.domain.failures import settle_health
from codehub.domain.judge import ArchiveState, ContainerSeen, Facts, judge
from codehub.domain.plan import Settled, plan
from codehub.domain.workspace import Workspace

LOAD_CHUNK = 2000
YIELD_EVERY = 250
"""How many rows are judged before other tasks of the event loop get their turn."""
FRESH_SECONDS = 1.0

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What the runtime has of the workspaces `asked` for (of all, if empty). None: the runtime did not answer."""

    begun: float
    asked: frozenset[UUID]
    containers: Mapping[UUID, ContainerSeen] | None
    volumes: Mapping[UUID, Mapping[str, str]] | None

    @property
    def whole(self) -> bool:
        return self.containers is not None and self.volumes is not None

    def key(self, workspace_id: UUID) -> object:
        if self.containers is None or self.volumes is None:
            return None
        return self.containers.get(workspace_id), self.volumes.get(workspace_id)

    def moved_since(self, earlier: "Snapshot | None") -> Sequence[UUID] | None:
        """The workspaces whose container or volumes differ between two snapshots of all. None: any may differ."""
        containers = _differing(earlier.containers, self.containers) if earlier else None
        volumes = _differing(earlier.volumes, self.volumes) if earlier else None
        return None if containers is None or volumes is None else [*containers, *volumes]

    def facts(self, ws: Workspace, archive: ArchiveState) -> Facts:
        seen = self.containers.get(ws.id) if self.containers is not None else None
        known = self.containers is not None and (seen is None or seen.known)
        return Facts(
            container=seen if known else None,
            container_known=known,
            volumes=None if self.volumes is None else self.volumes.get(ws.id, {}),
            archive=archive,
            container_unknown=seen.detail if seen is not None and not known else "",
        )


@dataclass(frozen=True, slots=True)
class PassReport:
    rows: int
    judged: int
    written: int
    queued: int
    whole: bool
    """Whether the runtime answered. A pass that saw nothing is no good pass."""


class Observer:
    def __init__(self, context: TermContext) -> None:
        self._backends = context.backends
        self._statuses = context.statuses
        self._queue = context.queue
        self._clock = context.clock
        self._policy = context.tuning.policy
        self._inventory_seconds = context.tuning.inventory_interval
        self._inventory: set[str] | None = None
        self._listed_at = float("-inf")
        self._hinted: dict[UUID, float] = {}
        self._settled: dict[UUID, object] = {}
        self._seen: Snapshot | None = None
        self._active: Snapshot | None = None
        self._last_looks: dict[UUID, object] = {}
        self.last_pass_at = float("-inf")

    async def full_pass(self) -> PassReport:
        snapshot = await self._look(None)
        await self._refresh_inventory()
        self._unsettle_moved(snapshot)
        versions = await self._statuses.versions()
        changed = self._unsettled(versions)
        written = queued = 0
        for chunk in _chunks(changed, LOAD_CHUNK):
            rows, now = await self._statuses.load(chunk)
            pairs: list[tuple[Workspace, Workspace]] = []
            for some in _chunks(rows, YIELD_EVERY):
                observed, busy = self._assess(some, snapshot, versions, now)
                pairs += observed
                for workspace_id in busy:
                    self._queue.add(workspace_id)
                queued += len(busy)
                await self._clock.sleep(0)
            written += await self._statuses.record_observations(pairs) if pairs else 0
        if snapshot.whole:
            self.last_pass_at = self._clock.monotonic()
        return PassReport(len(versions), len(changed), written, queued, snapshot.whole)

    async def active_pass(self, woken: Collection[UUID] = ()) -> int:
        """Take one filtered look at the rows that are not at rest and at those lately woken. Queue whatever is not at
        rest, and of the others what looks different from the last time. Returns how many were queued."""
        active = dict.fromkeys(await self._statuses.active())
        resting = [workspace_id for workspace_id in woken if workspace_id not in active]
        if not active and not resting:
            return 0
        self._active = snapshot = await self._look([*active, *resting])
        looks = {workspace_id: snapshot.key(workspace_id) for workspace_id in resting}
        changed = [key for key, seen in looks.items() if seen is None or self._last_looks.get(key) != seen]
        self._last_looks = looks
        for workspace_id in chain(active, changed):
            self._queue.add(workspace_id)
        return len(active) + len(changed)

    async def facts(self, ws: Workspace) -> Facts:
        """The freshest usable facts of one workspace: from the active pass, or by a call of its own."""
        snapshot = self._active
        if snapshot is None or not self._usable(snapshot, ws.id):
            return await self.look(ws)
        if snapshot.containers is not None and ws.id not in snapshot.containers and ws.container_exists:
            return await self.look(ws)
        return await self._facts(ws, snapshot)

    async def look(self, ws: Workspace) -> Facts:
        """The facts of one workspace by calls of its own, for what must be certain."""
        return await self._facts(ws, await self._look([ws.id]))

    def distrust(self, workspace_id: UUID) -> None:
        """Believe no snapshot of this workspace that was begun before now: something may have changed."""
        now = self._clock.monotonic()
        self._hinted = {key: at for key, at in self._hinted.items() if now - at < FRESH_SECONDS}
        self._hinted[workspace_id] = now

    def _usable(self, snapshot: Snapshot, workspace_id: UUID) -> bool:
        fresh = self._clock.monotonic() - snapshot.begun < FRESH_SECONDS
        since = max(self._backends.acted_at(workspace_id), self._hinted.get(workspace_id, float("-inf")))
        return fresh and snapshot.begun > since and workspace_id in snapshot.asked

    async def _facts(self, ws: Workspace, snapshot: Snapshot) -> Facts:
        facts = snapshot.facts(ws, await self._archive(ws))
        seen = facts.container
        if seen is None or not seen.running or seen.instance == ws.home.ready_instance:
            return facts
        try:
            answered = await self._backends.answers(ws.id)
        except Unreachable:
            return replace(facts, container_known=False)
        return replace(facts, container=replace(seen, answered=answered))

    async def _archive(self, ws: Workspace) -> ArchiveState:
        if ws.archive_key is None:
            return ArchiveState.UNKNOWN
        try:
            state = await self._backends.look(ws.archive_key)
        except Unreachable:
            return ArchiveState.UNKNOWN
        if self._inventory is not None and state is ArchiveState.READABLE:
            self._inventory.add(ws.archive_key)
        return state

    async def _look(self, ids: Collection[UUID] | None) -> Snapshot:
        begun = self._clock.monotonic()
        try:
            volumes: Mapping[UUID, Mapping[str, str]] | None = await self._backends.volumes(ids)
        except Unreachable:
            volumes = None
        try:
            containers: Mapping[UUID, ContainerSeen] | None = await self._backends.containers(ids)
        except Unreachable:
            containers = None
        return Snapshot(begun, frozenset(ids or ()), containers, volumes)

    async def _refresh_inventory(self) -> None:
        if self._inventory is not None and self._clock.monotonic() - self._listed_at < self._inventory_seconds:
            return
        try:
            inventory: set[str] | None = set(await self._backends.inventory())
        except Unreachable:
            inventory = None
        if inventory != self._inventory:
            self._settled.clear()
        self._inventory, self._listed_at = inventory, self._clock.monotonic()

    def _unsettled(self, versions: Mapping[UUID, object]) -> Sequence[UUID]:
        if self._settled == versions:
            return []  # many times cheaper than to go through them
        self._settled = {key: version for key, version in self._settled.items() if key in versions}
        return [key for key, version in versions.items() if self._settled.get(key) != version]

    def _unsettle_moved(self, snapshot: Snapshot) -> None:
        moved = snapshot.moved_since(self._seen)
        self._seen = snapshot
        if moved is None:
            self._settled.clear()
        else:
            for workspace_id in moved:
                self._settled.pop(workspace_id, None)

    def _assess(
        self,
        rows: Sequence[Workspace],
        snapshot: Snapshot,
        versions: Mapping[UUID, object],
        now: datetime,
    ) -> tuple[list[tuple[Workspace, Workspace]], list[UUID]]:
        pairs: list[tuple[Workspace, Workspace]] = []
        busy: list[UUID] = []
        for ws in rows:
            if snapshot.begun <= self._backends.acted_at(ws.id):
                busy.append(ws.id)
                continue
            facts = snapshot.facts(ws, self._listed_state(ws))
            judged = settle_health(ws, judge(ws, facts, now), now)
            decision = plan(ws, judged, facts, self._policy, now)
            if not isinstance(decision, Settled) or _needs_a_closer_look(ws, judged):
                busy.append(ws.id)
            elif judged != ws:
                pairs.append((ws, judged))
            elif ws.error_count == 0:
                self._settled[ws.id] = versions[ws.id]
        return pairs, busy

    def _listed_state(self, ws: Workspace) -> ArchiveState:
        """The archive's state by the inventory. That an archive is not listed is only a suspicion: the phase differs
        then, and is confirmed by a look at that workspace alone."""
        if ws.archive_key is None or self._inventory is None:
            return ArchiveState.UNKNOWN
        return ArchiveState.READABLE if ws.archive_key in self._inventory else ArchiveState.NOT_FOUND


def _needs_a_closer_look(ws: Workspace, judged: Workspace) -> bool:
    """Whether a change must first be confirmed for this workspace alone: a change of the phase, or that an archive is
    lost."""
    old, new = ws.conditions.archive_ready.status, judged.conditions.archive_ready.status
    return judged.phase is not ws.phase or judged.error_info != ws.error_info or (new is False and old is not False)


def _differing(old: Mapping[UUID, object] | None, new: Mapping[UUID, object] | None) -> Sequence[UUID] | None:
    if old is None or new is None:
        return None
    if old == new:
        return []  # most often, and many times cheaper to see
    return [key for key, seen in new.items() if old.get(key) != seen] + [key for key in old if key not in new]


def _chunks(items: Sequence[T], size: int) -> Iterable[Sequence[T]]:
    return (items[start : start + size] for start in range(0, len(items), size))
