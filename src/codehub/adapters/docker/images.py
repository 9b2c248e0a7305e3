"""Images that are not there yet: pulled in the background, looked at by whoever asks again.

A registry that says "no such image" or "not for you" is an answer; one that cannot be reached is not.
"""

import asyncio
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from aiodocker import DockerError

from codehub.adapters.docker.engine import BAD_REQUEST, NOT_FOUND, Engine, looking
from codehub.domain.errors import BackendError, ErrorReason, Unreachable
from codehub.ports.runtime import Pulling

_ANSWERS = re.compile(
    r"not found|unknown|denied|unauthorized|authentication required|invalid reference|no matching manifest|"
    r"must be lowercase|no basic auth credentials",
    re.IGNORECASE,
)
_NO_WAY = re.compile(
    r"dial tcp|no such host|server misbehaving|connection refused|timeout|TLS|EOF|certificate", re.IGNORECASE
)
MIB = 1 << 20


@dataclass
class Layers:
    """How far each part is: (bytes now, bytes in all)."""

    parts: dict[str, tuple[int, int]] = field(default_factory=dict)

    def hear(self, line: Mapping[str, Any]) -> None:
        amount = line.get("progressDetail") or {}
        if line.get("status") == "Downloading" and amount.get("total"):
            self.parts[str(line.get("id"))] = (amount.get("current", 0), amount["total"])
        elif line.get("status") in {"Download complete", "Pull complete"} and str(line.get("id")) in self.parts:
            total = self.parts[str(line["id"])][1]
            self.parts[str(line["id"])] = (total, total)

    @property
    def amount(self) -> tuple[int, int]:
        """Whole MiB, so that a bar that grows is not a write for every packet."""
        now, total = (sum(part[side] for part in self.parts.values()) // MIB * MIB for side in (0, 1))
        return now, total

    def __str__(self) -> str:
        now, total = self.amount
        return f": {now // MIB} of {total // MIB} MiB" if total else ""


class Pulls:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._running: dict[str, tuple[asyncio.Task[None], Layers]] = {}

    async def close(self) -> None:
        tasks = [task for task, _ in self._running.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def ask(self, image: str) -> Pulling | None:
        """Begin, or say how far it is; None once it has come. What it failed with is raised once."""
        if image not in self._running:
            layers = Layers()
            self._running[image] = asyncio.create_task(self._pull(image, layers)), layers
        task, layers = self._running[image]
        if not task.done():
            return Pulling(f"pulling {image}{layers}", *layers.amount)
        del self._running[image]
        task.result()
        return None

    async def _pull(self, image: str, layers: Layers) -> None:
        with looking():
            docker = await self._engine.docker()
            try:
                async for line in docker.images.pull(image, stream=True):
                    layers.hear(line)
            except DockerError as error:
                raise pull_failure(image, error.status, str(error.message)) from error


def pull_failure(image: str, status: int, words: str) -> BackendError:
    answered = status in {NOT_FOUND, BAD_REQUEST} or _ANSWERS.search(words)
    if answered and not _NO_WAY.search(words):
        message = f"image {image!r} cannot be had: {words}"
        return BackendError(message, reason=ErrorReason.IMAGE_PULL_FAILED, image=image)
    return Unreachable(f"image {image!r} cannot be pulled now: {words}", image=image)
