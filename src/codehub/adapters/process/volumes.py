"""Volumes as directories: `NAME/home` is the home, `NAME/labels.json` beside it says whose it is, `NAME/etc` holds what
a sandbox shows in its `/etc`.

One rename makes a volume and one rename puts it into the trash, so it is there with its labels or not there at all,
whenever we are killed. A home may have a million files, so the trash is emptied in a thread, one home at a time; what a
crash leaves is emptied by the next leader. A random name in a file tells which directory this is: a disk that is not
mounted leaves an empty directory in its place, and what is made there anew has another name.
"""

import json
import os
import stat
import threading
import time
from collections.abc import Collection, Iterator
from contextlib import suppress
from pathlib import Path
from uuid import UUID, uuid4

import structlog

from codehub.domain.errors import BackendError, ErrorReason, Unreachable, VolumeInUse
from codehub.domain.naming import INSTALL_LABEL, WORKSPACE_LABEL
from codehub.job.filesystem import OPEN_DIRECTORY, mounts_below, opened, remove_tree, sync_file

log = structlog.get_logger(__name__)

_HOME, _LABELS, _INSTANCE_LABEL = "home", "labels.json", "codehub.volume-instance"
_IDENTITY_FILE = "identity"
_GONE = ".gone"
_ABANDONED_SECONDS = 3600
_CLOSE_SECONDS = 5.0


class Trash:
    def __init__(self, directory: Path) -> None:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._directory = directory
        self._lock = threading.Lock()
        self._wanted = False
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None

    def fresh(self, name: str) -> Path:
        """A path on the same disk, where something is made before it is renamed to its place."""
        return self._directory / f"{name}.{uuid4().hex}"

    def throw(self, path: Path) -> None:
        """Puts a directory into the trash. When this returns it is gone; its room on the disk is free later."""
        path.rename(self._directory / f"{path.name}.{uuid4().hex}{_GONE}")

    def remove(self, name: str) -> None:
        # Not found: another coordinator is emptying it too.
        with opened(self._directory, os.O_RDONLY | os.O_DIRECTORY) as trash, suppress(FileNotFoundError):
            remove_tree(trash, os.fsencode(name), enough=self._closed.is_set)

    def empty_soon(self) -> None:
        with self._lock:
            self._wanted = not self._closed.is_set()
            if self._wanted and (self._thread is None or not self._thread.is_alive()):
                # A daemon: the program may end at once, for what is left is found again.
                self._thread = threading.Thread(target=self._run, name="codehub-trash", daemon=True)
                self._thread.start()

    def close(self) -> None:
        with self._lock:
            self._closed.set()
            thread = self._thread
        if thread is not None:
            thread.join(_CLOSE_SECONDS)

    def _run(self) -> None:
        while True:
            with self._lock:
                if not self._wanted or self._closed.is_set():
                    self._thread = None
                    return
                self._wanted = False
            self._empty()

    def _empty(self) -> None:
        for name in self._thrown():
            if self._closed.is_set():
                return
            try:
                self.remove(name)
            except OSError as error:
                # The volume is gone all the same; only its room on the disk is not free yet.
                log.warning("trash_not_emptied", name=name, error=str(error))

    def _thrown(self) -> list[str]:
        # Others may be somebody's work of this moment, unless they have been here for long: a volume half made.
        long_ago = time.time() - _ABANDONED_SECONDS
        try:
            with os.scandir(self._directory) as entries:
                return [e.name for e in entries if e.name.endswith(_GONE) or _changed_at(e) < long_ago]
        except OSError:  # the disk is gone, and every look says so
            return []


def _changed_at(entry: os.DirEntry[str]) -> float:
    try:
        return entry.stat(follow_symlinks=False).st_ctime
    except FileNotFoundError:
        return time.time()


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
        """A path that goes with the volume and is no part of the home."""
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
        """Removes the volume; what it held is in the trash when this returns."""
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


class DirectoryIdentity:
    def __init__(self, root: Path, install_id: str) -> None:
        self._path = root / _IDENTITY_FILE
        self._install_id = install_id
        if not self._path.exists():
            try:
                self._make()
            except OSError as error:
                raise BackendError(f"{self._path} cannot be made: {error.strerror}") from error

    def read(self) -> str:
        try:
            return f"process {self._path.read_text().strip()} {self._install_id}"
        except OSError as error:
            message = f"{self._path} cannot be read ({error.strerror}): is the disk mounted?"
            raise Unreachable(message) from error

    def _make(self) -> None:
        """Makes the file, whoever is first of several processes that begin at once: it is there whole or not at all."""
        fresh = self._path.with_name(f"{_IDENTITY_FILE}.{uuid4().hex}")
        try:
            fresh.write_text(uuid4().hex + "\n")
            with suppress(FileExistsError):
                os.link(fresh, self._path)
        finally:
            fresh.unlink(missing_ok=True)
        sync_file(self._path, up_to=self._path.parent)


def give(home: Path, uid: int) -> None:
    """Gives the home to `uid`, the user id that its workspace runs as: homes from before workspaces had one, or from
    another one's archive, belong to somebody else. Blocks; nothing may run in the home meanwhile.

    The home's own directory is given last, so one that belongs to the right user is done with, and a walk that was cut
    short begins anew. Nothing but owners changes; no link is followed, and what is mounted inside stays as it is."""
    with opened(home, OPEN_DIRECTORY) as top:
        if os.fstat(top).st_uid != uid:
            _Walk(top, uid, frozenset(mounts_below(top))).run()
            os.fchown(top, uid, uid)


class _Walk:
    """A walk down into one directory after the other and up again by `..`: no depth needs more than two descriptors."""

    def __init__(self, top: int, uid: int, mounts: frozenset[bytes]) -> None:
        self._here = os.dup(top)
        self._uid = uid
        self._mounts = mounts
        self._path: list[bytes] = []

    def run(self) -> None:
        try:
            left = [self._given()]
            while left:
                if left[-1]:
                    self._path.append(left[-1].pop())
                    self._go(self._path[-1])
                    left.append(self._given())
                else:
                    left.pop()
                    if left:
                        self._path.pop()
                        self._go(b"..")
        finally:
            os.close(self._here)

    def _go(self, name: bytes) -> None:
        there = os.open(name, OPEN_DIRECTORY, dir_fd=self._here)
        os.close(self._here)
        self._here = there

    def _given(self) -> list[bytes]:
        """Gives away all in this directory, and returns the directories among it, which come next."""
        directories = []
        for name in map(os.fsencode, os.listdir(self._here)):  # noqa: PTH208 - a descriptor
            if self._mounts and b"/".join((*self._path, name)) in self._mounts:
                continue
            seen = os.stat(name, dir_fd=self._here, follow_symlinks=False)
            self._give(name, seen)
            if stat.S_ISDIR(seen.st_mode):
                directories.append(name)
        return directories

    def _give(self, name: bytes, seen: os.stat_result) -> None:
        if (seen.st_uid, seen.st_gid) == (self._uid, self._uid):
            return
        os.chown(name, self._uid, self._uid, dir_fd=self._here, follow_symlinks=False)
        if stat.S_ISREG(seen.st_mode) and seen.st_mode & (stat.S_ISUID | stat.S_ISGID):
            os.chmod(name, stat.S_IMODE(seen.st_mode), dir_fd=self._here)  # a new owner takes those bits away
