"""Where volumes go that are deleted: out of everybody's sight by one rename, off the disk whenever that is done.

A home may have a million files, so they are removed in a thread of their own, one home at a time: nobody waits for it,
and no look at the others. The thread is there while there is something to do. What a crash leaves is emptied by the
next leader.
"""

import os
import threading
import time
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

import structlog

from codehub.job.volume import remove_tree

log = structlog.get_logger(__name__)

_GONE = ".gone"
_ABANDONED_SECONDS = 3600
_LONGEST_FAREWELL_SECONDS = 5.0


class Trash:
    def __init__(self, directory: Path) -> None:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._directory = directory
        self._lock = threading.Lock()
        self._wanted = False
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None

    def fresh(self, name: str) -> Path:
        """A place on the same disk, for what is made in peace and then put where it belongs."""
        return self._directory / f"{name}.{uuid4().hex}"

    def throw(self, path: Path) -> None:
        """When this returns it is gone; its room on the disk is free later."""
        path.rename(self._directory / f"{path.name}.{uuid4().hex}{_GONE}")

    def remove(self, name: str) -> None:
        trash = os.open(self._directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            with suppress(FileNotFoundError):  # another coordinator is emptying it too
                remove_tree(trash, os.fsencode(name), enough=self._closed.is_set)
        finally:
            os.close(trash)

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
            thread.join(_LONGEST_FAREWELL_SECONDS)

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
