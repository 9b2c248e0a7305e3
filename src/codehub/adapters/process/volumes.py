"""Volumes as directories: `NAME/home` is the home, `NAME/labels.json` beside it says whose it is, `NAME/etc` holds what
a sandbox shows in its `/etc`.

One rename makes a volume and one rename removes it, so that it is there with its labels or not there at all, whenever
we are killed.
"""

import json
import os
from collections.abc import Collection, Iterator
from pathlib import Path
from uuid import UUID, uuid4

from codehub.adapters.process.trash import Trash
from codehub.domain.errors import BackendError, ErrorReason, Unreachable, VolumeInUse
from codehub.domain.naming import INSTALL_LABEL, WORKSPACE_LABEL
from codehub.job.volume import mounts_below, sync_file

_HOME, _LABELS, _INSTANCE_LABEL = "home", "labels.json", "codehub.volume-instance"


class Volumes:
    def __init__(self, root: Path, install_id: str) -> None:
        self._directory = root / "volumes"
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.trash = Trash(root / "trash")
        self._install_id = install_id
        self._known: dict[tuple[str, int, int], tuple[UUID, str] | None] = {}

    def home(self, name: str) -> Path:
        return self._directory / _plain(name) / _HOME

    def beside(self, name: str, what: str) -> Path:
        """A place that goes with the volume and is no part of the home."""
        return self._directory / _plain(name) / what

    def owner(self, name: str) -> UUID | None:
        """Whose volume it is; None if it is not there or another installation's."""
        found = self._look(_plain(name))
        return found[0] if found else None

    def list(self, ids: Collection[UUID] | None) -> dict[UUID, dict[str, str]]:
        found: dict[UUID, dict[str, str]] = {}
        for name, owner, instance in self._all():
            if ids is None or owner in ids:
                found.setdefault(owner, {})[name] = instance
        return found

    def create(self, workspace_id: UUID, name: str) -> None:
        if self.owner(name) == workspace_id:
            return
        fresh = self.trash.fresh(_plain(name))
        (fresh / _HOME).mkdir(mode=0o700, parents=True)
        instance = uuid4().hex
        labels = {INSTALL_LABEL: self._install_id, WORKSPACE_LABEL: str(workspace_id), _INSTANCE_LABEL: instance}
        (fresh / _LABELS).write_text(json.dumps(labels))
        sync_file(fresh / _LABELS, up_to=fresh)
        try:
            fresh.rename(self._directory / name)
        except OSError as error:
            self.trash.remove(fresh.name)
            if self.owner(name) != workspace_id:
                raise BackendError(f"volume {name} cannot be made: {error.strerror}") from error
        sync_file(self._directory / name / _LABELS, up_to=self._directory)

    def withdraw(self, name: str) -> None:
        """The volume is gone when this returns; what it held is in the trash."""
        place = self._directory / _plain(name)
        for mount in mounts_below(place):
            point = place / os.fsdecode(mount)
            raise VolumeInUse(f"volume {name} is kept: another filesystem is mounted at {point}; unmount it first")
        self.trash.throw(place)

    def _all(self) -> Iterator[tuple[str, UUID, str]]:
        try:
            with os.scandir(self._directory) as entries:
                present = [_mark(entry) for entry in entries]
        except FileNotFoundError as error:
            raise Unreachable(f"{self._directory} is not there") from error
        # Labels never change, so each volume's are read once; a bulk look is one directory listing.
        self._known = {mark: self._known[mark] if mark in self._known else self._look(mark[0]) for mark in present}
        for (name, *_), found in self._known.items():
            if found is not None:
                yield name, *found

    def _look(self, name: str) -> tuple[UUID, str] | None:
        labels = self._labels(name)
        if labels.get(INSTALL_LABEL) != self._install_id:
            return None
        return UUID(labels[WORKSPACE_LABEL]), labels.get(_INSTANCE_LABEL, "")

    def _labels(self, name: str) -> dict[str, str]:
        try:
            labels: dict[str, str] = json.loads((self._directory / name / _LABELS).read_bytes())
        except (FileNotFoundError, NotADirectoryError, ValueError):
            return {}
        return labels


def _mark(entry: os.DirEntry[str]) -> tuple[str, int, int]:
    """Inode numbers are used again, so the time its labels were put there belongs to it. Gone meanwhile: nobody's."""
    try:
        return entry.name, entry.inode(), entry.stat(follow_symlinks=False).st_mtime_ns
    except FileNotFoundError:
        return entry.name, entry.inode(), 0


def _plain(name: str) -> str:
    if name.startswith(".") or "/" in name or not name:
        raise BackendError(
            f"{name!r} is no name for a volume", reason=ErrorReason.MISMATCH, expected="a volume's name", actual=name
        )
    return name
