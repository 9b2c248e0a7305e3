"""What of an SSH connection is somebody at work, and what a client or a terminal does by itself.

On a terminal, keystrokes count; what the terminal answers by itself (cursor position, focus, device attributes,
colours) does not. Files that are transferred count while bytes move, a command without a terminal while it runs, and a
forwarded port while a client sends more through it than keep-alives need. An open connection and its keep-alives do
not.
"""

import asyncio
import re
from collections.abc import Callable
from datetime import timedelta
from enum import StrEnum
from typing import Final
from uuid import UUID

from codehub.domain.errors import CodeHubError
from codehub.ports.signals import Activity, Clock
from codehub.ports.views import WorkspaceViews
from codehub.telemetry import get_logger

log = get_logger(__name__)

_REPLY: Final = re.compile(
    rb"\x1b\[(?:\d{1,9};\d{1,9}R|[IO]|0n|[?>=][\d;:]{0,64}[cuRS]"  # CSI: reports and focus
    rb"|[?]?[\d;]{1,64}\$y|[4689];\d{1,9};\d{1,9}t)"
    rb"|\x1b\][^\x07\x1b]{0,1024}(?:\x07|\x1b\\)"  # OSC: colours and the clipboard
    rb"|\x1bP[^\x1b]{0,1024}\x1b\\"  # DCS: terminfo and settings
)
# Every repetition is bounded: what may still become a reply is kept and read again with each packet.
_UNFINISHED: Final = re.compile(rb"\x1b(?:\[[?>=]?[\d;:$]{0,64}|\][^\x07\x1b]{0,1024}\x1b?|P[^\x1b]{0,1024}\x1b?)?\Z")

FORWARD_BYTES_PER_TICK: Final = 2048
"""What a client sends through one forwarded port between two ticks before it counts as work. Keep-alives of editors and
databases are smaller; what an editor sends for a few keystrokes is larger."""
_SHELL: Final = re.compile(r"(?:\S*/)?(?:ba|z|fi|da|k|c|tc)?sh(?:\s+-l|\s+--login)?")
_TRANSFER: Final = re.compile(
    r"(?:\S*/)?(?:scp\s+(?:-\w+\s+)*-[tf]|rsync\s+--server|sftp-server|git-(?:upload|receive)-pack)\b.*"
)


class WorkSign(StrEnum):
    """What of a session counts as work."""

    KEYSTROKES = "keystrokes"
    INPUT = "input"
    BYTES = "bytes"
    RUNNING = "running"


def work_sign(*, has_terminal: bool, command: str | None, subsystem: str | None) -> WorkSign:
    """What counts as work in a session. A shell without a terminal is what editors keep open beside their tunnels: only
    what is sent to it counts."""
    if has_terminal:
        return WorkSign.KEYSTROKES
    if subsystem is not None or (command is not None and _TRANSFER.fullmatch(command)):
        return WorkSign.BYTES
    return WorkSign.INPUT if command is None or _SHELL.fullmatch(command.strip()) else WorkSign.RUNNING


class KeystrokeFilter:
    """Tells keystrokes from what a terminal answers by itself; an answer may come in several pieces."""

    def __init__(self) -> None:
        self._unfinished = b""

    def has_keystrokes(self, data: bytes) -> bool:
        rest = _REPLY.sub(b"", self._unfinished + data)
        found = _UNFINISHED.search(rest)
        self._unfinished = found.group() if found else b""
        return len(rest) > len(self._unfinished)


class ActivityReporter:
    """Writes when somebody was last at work in each workspace, in batches; somebody who comes back is written at once,
    for the workspace may be about to be stopped. Times are the database's."""

    def __init__(self, activity: Activity, views: WorkspaceViews, clock: Clock, flush_seconds: float) -> None:
        self._activity = activity
        self._views = views
        self._clock = clock
        self._flush_seconds = flush_seconds
        self._seen: dict[UUID, float] = {}
        self._written: dict[UUID, float] = {}
        self._back = asyncio.Event()

    def seen(self, workspace_id: UUID) -> None:
        now = self._clock.monotonic()
        self._seen[workspace_id] = now
        if now - self._written.get(workspace_id, float("-inf")) > self._flush_seconds:
            self._back.set()

    async def run(self, tick: Callable[[], None]) -> None:
        """Flushes until cancelled, and then once more. `tick` is called before each flush, for what counts as long as
        it lasts."""
        try:
            while True:
                waiting = asyncio.ensure_future(self._back.wait())
                sleeping = asyncio.ensure_future(self._clock.sleep(self._flush_seconds))
                try:
                    await asyncio.wait((waiting, sleeping), return_when=asyncio.FIRST_COMPLETED)
                finally:
                    waiting.cancel()
                    sleeping.cancel()
                tick()
                await self.flush()
        finally:
            tick()
            await asyncio.shield(self.flush())

    async def flush(self) -> None:
        self._back.clear()
        seen, self._seen = self._seen, {}
        if not seen:
            return
        try:
            now, at = await self._views.now(), self._clock.monotonic()
            await self._activity.record({key: now - timedelta(seconds=at - time) for key, time in seen.items()})
        except CodeHubError as error:
            log.warning("activity waits to be written", workspaces=len(seen), error=str(error))
            self._seen = {**seen, **self._seen}
            return
        self._written = {**{key: t for key, t in self._written.items() if at - t < self._flush_seconds}, **seen}
