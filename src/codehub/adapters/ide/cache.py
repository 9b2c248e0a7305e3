"""The directory that holds installed IDEs. What has its final name there is whole: it came by one rename.

One installs at a time, under a lock that the kernel frees when the installer and everything it started are gone; so
whatever lies about under another name then is a dead one's and is removed. While it installs, a progress bar estimates
steps whose length can only be guessed.
"""

import asyncio
import fcntl
import json
import math
import os
import shutil
import stat
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

Progress = Callable[[str, float], None]
"""(what is being done, how much is done: 0 to 1)"""

_TICK_SECONDS = 0.5
_LOCK = "ide.lock"
_UNFINISHED = ".installing-"
_RECORD = "installed.json"
_LOOK_AGAIN_SECONDS = 0.2
WAITING = "Waiting for another codehub that is installing the IDE"


class ProgressEstimate:
    def __init__(self, report: Progress, total_seconds: float) -> None:
        self._report = report
        self._total = total_seconds
        self._done = 0.0

    @asynccontextmanager
    async def step(self, text: str, seconds: float) -> AsyncIterator[None]:
        self._say(text, self._done)
        ticking = asyncio.create_task(self._tick(text, seconds))
        try:
            yield
        finally:
            ticking.cancel()
        self._done += seconds

    def finish(self, text: str) -> None:
        self._say(text, self._total)

    async def _tick(self, text: str, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        began = loop.time()
        while True:
            await asyncio.sleep(_TICK_SECONDS)
            self._say(text, self._done + seconds * (1 - math.exp((began - loop.time()) / seconds)))

    def _say(self, text: str, done: float) -> None:
        self._report(text, min(done / self._total, 1.0))


@dataclass(frozen=True, slots=True)
class InstalledIde:
    """An installed code-server. `notes`: what this one does without, for people."""

    version: str
    node: Path
    directory: Path
    notes: tuple[str, ...] = ()

    @property
    def package(self) -> Path:
        return self.directory / "package"

    @property
    def entry(self) -> Path:
        return self.package / "out" / "node" / "entry.js"

    @property
    def setup(self) -> Path:
        """The program that sets a workspace up beside its IDE."""
        return self.directory / "setup" / "main.js"

    @property
    def configuration(self) -> Path:
        """An empty file, for code-server insists on one. (Not /dev/null: some sandboxes forbid its way of opening
        that.)"""
        return self.directory / "config.yaml"


class IdeCache:
    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def place(self, name: str) -> Path:
        return self._directory / name

    def notes(self, name: str) -> tuple[str, ...] | None:
        """The notes on an installed version; None: it is not there, or not whole."""
        try:
            return tuple(json.loads((self.place(name) / _RECORD).read_bytes())["notes"])
        except (OSError, ValueError, KeyError):
            return None

    @asynccontextmanager
    async def alone(self, progress: Progress) -> AsyncIterator[int]:
        """Takes the lock on the cache. Programs inherit its descriptor: as long as one of them lives, nobody else
        begins."""
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = os.open(self._directory / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            told = False
            while not _taken(lock):
                if not told:
                    progress(WAITING, 0.0)
                told = True
                await asyncio.sleep(_LOOK_AGAIN_SECONDS)
            yield lock
        finally:
            os.close(lock)

    @asynccontextmanager
    async def building(self) -> AsyncIterator[Path]:
        """A scratch directory, only under the lock. What is not put in its place by the end is removed, now or by the
        next one."""
        for leftover in self._directory.glob(f"{_UNFINISHED}*"):
            await asyncio.to_thread(shutil.rmtree, leftover)
        scratch = self._directory / f"{_UNFINISHED}{uuid4().hex}"
        scratch.mkdir(mode=0o700)
        try:
            yield scratch
        finally:
            await asyncio.to_thread(shutil.rmtree, scratch, ignore_errors=True)

    async def put(self, built: Path, name: str, notes: tuple[str, ...]) -> None:
        await asyncio.to_thread(self._put, built, name, notes)

    def _put(self, built: Path, name: str, notes: tuple[str, ...]) -> None:
        (built / _RECORD).write_text(json.dumps({"notes": notes}))
        let_everybody_read(built)
        with suppress(FileNotFoundError):  # one that somebody damaged
            shutil.rmtree(self.place(name))
        built.rename(self.place(name))


def let_everybody_read(installed: Path) -> None:
    """Makes the installation readable for everybody: root's workspaces have users of their own, who run it. Its own
    directory comes last, and tells whether all is done. The directories above decide who gets this far."""
    if installed.stat().st_mode & 0o005 == 0o005:
        return
    for directory, names, files in os.walk(installed):
        for path in (Path(directory, name) for name in (*names, *files)):
            if not path.is_symlink():
                mode = path.stat().st_mode
                path.chmod(stat.S_IMODE(mode) | (0o055 if mode & 0o100 else 0o044))
    installed.chmod(0o755)


def _taken(lock: int) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
