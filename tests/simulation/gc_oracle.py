"""What the collector may never take (contract 9), stated a second time: which restore points a user can count on.

It learns of each archive when it is recorded and of each sweep when the backends change, never from the code under
test.
"""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import TYPE_CHECKING
from uuid import UUID

from codehub.domain.gc_rules import Retention
from codehub.domain.workspace import Workspace

if TYPE_CHECKING:
    from tests.simulation.oracle import Oracle, Watched

DELETES_A_VOLUME = ("ARCHIVING", "DELETING")


class GcOracle:
    def __init__(self, states: "Watched", retention: Retention, oracle: "Oracle") -> None:
        self._states = states
        self._newest = retention.restore_points
        self._undo = timedelta(seconds=retention.undo_seconds)
        self._grace = retention.grace_seconds
        self._oracle = oracle
        self._points: dict[UUID, list[str]] = {}
        self._marked_since: dict[tuple[str, str], float] = {}
        self._wanted_at_the_look: dict[str, set[str]] = {}
        self._garbage_since: dict[str, float] = {}
        self.let_go: set[tuple[UUID, tuple[int, ...]]] = set()
        self.leads = True

    # ── what is written ──────────────────────────────────────────────────────────────────────────────────────────────

    def written(self, before: Workspace | None, row: Workspace, reason: str) -> None:
        if before and row.archive_key and row.archive_key != before.archive_key and reason == "archived":
            mine = self._points.setdefault(row.id, [])
            if row.archive_key not in mine:
                mine.append(row.archive_key)
        if before is not None:
            self._purges(before, row)

    def _purges(self, before: Workspace, row: Workspace) -> None:
        broken = self._oracle.break_
        if row.purged_at is not None and before.purged_at is None:
            if row.deleted_at is None or not self._undo_is_over(before):
                broken("a workspace was purged that can be wanted back", f"{row.id} deleted at {row.deleted_at}")
            elif self._now() < row.deleted_at + self._undo + timedelta(seconds=self._grace):
                broken("a workspace was purged before its grace was over", f"{row.id} deleted at {row.deleted_at}")
        if row.purged_at is not None and row.undelete_requested_at != before.undelete_requested_at:
            broken("an undelete was accepted after the purge", f"{row.id}")
        if row.purged_at is not None and row.deleted_at is None:
            broken("a purged workspace came back", f"{row.id}")

    def expected(self, row: Workspace) -> set[str]:
        """The archives that must be there. Until it is purged, a deleted workspace keeps all it had."""
        if row.purged_at is not None:
            return set()
        points = self._points.get(row.id, [])
        keys = {row.archive_key} if row.archive_key else set()
        if row.deleted_at is not None or row.phase == "ERROR":
            return keys | set(points)
        if row.archive_op_id is not None:
            keys.add(f"{row.id}/{row.archive_op_id}/home.tar.zst")
        if row.restore_pending and row.restore_from in points:
            keys.add(row.restore_from)
        return keys | set(points[-self._newest :])

    # ── what happens ─────────────────────────────────────────────────────────────────────────────────────────────────

    @contextmanager
    def watching(self, holder: str, name: str) -> Iterator[None]:
        """Watch what vanishes by this call."""
        match name:
            case "db.collector":
                yield
                self._wanted_at_the_look[holder] = self._protected()
            case "db.remark":
                yield
                self._marked(holder)
            case "db.give_up":
                before = set(self._states.database.collector.marks)
                yield
                for kind, thing in sorted(before - set(self._states.database.collector.marks)):
                    self._given_up(kind, thing)
            case "archives.delete":
                objects = set(self._states.archives.objects)
                yield
                for key in sorted(objects - set(self._states.archives.objects)):
                    self._swept(key)
            case "runtime.delete_volume":
                volumes = dict(self._states.runtime.volumes)
                yield
                for volume in sorted(volumes.keys() - self._states.runtime.volumes.keys()):
                    self._volume_deleted(volume, volumes[volume].workspace_id)
            case _:
                yield

    def _protected(self) -> set[str]:
        rows = [row for row in self._states.database.rows.values() if not self._undo_is_over(row)]
        return set().union(*map(self.expected, rows))

    def _undo_is_over(self, row: Workspace) -> bool:
        return row.deleted_at is not None and not row.undelete_pending and self._now() >= row.deleted_at + self._undo

    def _marked(self, holder: str) -> None:
        marks, now = self._states.database.collector.marks, self._time()
        self._marked_since = {mark: self._marked_since.get(mark, now) for mark in marks}
        wanted = self._wanted_at_the_look.get(holder, set()) & self._protected()
        for name in sorted(wanted & {name for _, name in marks}):
            self._oracle.break_("9: what is protected stays marked", name)

    def _given_up(self, kind: str, name: str) -> None:
        if self._time() - self._marked_since.pop((kind, name), float("-inf")) < self._grace - 0.001:
            self._oracle.break_("9: something was given up without grace", name)
        if kind != "object":
            return
        row = self._states.database.rows.get(UUID(name.split("/", 1)[0]))
        if row is not None and name in self.expected(row):
            self._oracle.break_("9: a restore point that is kept was given up", f"{name} in {row.phase}")
        archive = self._states.archives.objects.get(name)
        if row is not None:
            self._points[row.id] = [key for key in self._points.get(row.id, []) if key != name]
            self.let_go |= {(row.id, archive.content)} if archive else set()

    def _swept(self, key: str) -> None:
        row = self._states.database.rows.get(UUID(key.split("/", 1)[0]))
        if row is not None and key in self.expected(row):
            self._oracle.break_("9: a restore point that is kept was swept", f"{key} in {row.phase}")

    def _volume_deleted(self, name: str, workspace_id: UUID) -> None:
        row = self._states.database.rows.get(workspace_id)
        if row is None or row.purged_at is not None or row.home_store_key != name:
            return
        self._oracle.excuse_delete(workspace_id)
        if not self.leads:
            return
        if row.home.live:
            self._oracle.break_("1: the living home is deleted", f"{name} under {row.operation}")
        if row.operation not in DELETES_A_VOLUME and (row.deleted_at is not None or row.phase == "ERROR"):
            self._oracle.break_("9: a volume that is kept was swept", f"{name} in {row.phase}")

    # ── in the end ───────────────────────────────────────────────────────────────────────────────────────────────────

    def garbage_waits(self, longest: float) -> bool:
        """Whether any garbage has yet to go, but for what a late effect has brought. None may be left for longer than
        that; the timers go on in the quiet and make more, so each piece has its own time."""
        now, left = self._time(), dict(self._garbage())
        self._garbage_since = {name: self._garbage_since.get(name, now) for name in left}
        waits = [name for name, owner in left.items() if not self._oracle.brought_late(owner)]
        for name in waits:
            if now - self._garbage_since[name] > longest:
                self._oracle.break_("7: garbage is left", name)
        return bool(waits)

    def _garbage(self) -> Iterator[tuple[str, UUID]]:
        """All garbage, and whose it is."""
        states = self._states
        rows = {key: row for key, row in states.database.rows.items() if row.purged_at is None}
        yield from ((f"container of {key}", key) for key in sorted(states.runtime.containers.keys() - rows.keys()))
        for name, volume in sorted(states.runtime.volumes.items()):
            row = rows.get(volume.workspace_id)
            if row is None or (name != row.home_store_key and row.phase != "ERROR"):
                yield name, volume.workspace_id
        for key in sorted(states.archives.objects):
            owner = UUID(key.split("/", 1)[0])
            row = rows.get(owner)
            if row is None or (key not in self.expected(row) and row.phase != "ERROR"):
                yield key, owner

    def all_kept_is_there(self) -> None:
        states = self._states
        for row in states.database.rows.values():
            for key in sorted(self.expected(row) - states.archives.objects.keys()):
                if key in self._points.get(row.id, []):
                    self._oracle.break_("9: a restore point is not there", key)

    def _now(self) -> datetime:
        return self._states.database.now()

    def _time(self) -> float:
        return asyncio.get_running_loop().time()
