"""Images that are not there yet: pulled in the background, looked at by whoever asks again.

A registry that does not answer is asked again for as long as somebody wants the image.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import structlog
from aiodocker import DockerError

from codehub.adapters.docker.engine import Engine, looking
from codehub.adapters.image_pull import pull_failure
from codehub.domain.errors import Unreachable
from codehub.ports.runtime import Pulling

log = structlog.get_logger(__name__)

_AGAIN_SECONDS, _AGAIN_AT_MOST_SECONDS = 2.0, 60.0
_SILENT_SECONDS = 300.0
MIB = 1 << 20


@dataclass
class Layers:
    """How far each layer of an image is: (bytes now, bytes in all)."""

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
        """The progress in whole MiB, so that a bar that grows is not a write for every packet."""
        now, total = (sum(part[side] for part in self.parts.values()) // MIB * MIB for side in (0, 1))
        return now, total

    def __str__(self) -> str:
        now, total = self.amount
        return f": {now // MIB} of {total // MIB} MiB" if total else ""


@dataclass
class _Pull:
    """One attempt to pull an image, and when the next is due should the registry not answer this one. `tries`: attempts
    without an answer."""

    task: "asyncio.Task[None]"
    layers: Layers
    tries: int
    again_at: float = float("inf")


class Pulls:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._pulls: dict[str, _Pull] = {}

    async def close(self) -> None:
        tasks = [pull.task for pull in self._pulls.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def ask(self, image: str) -> Pulling | None:
        """Begins a pull, or says how far it is and what it waits for; None once the image is there. That it is not to
        be had is raised once."""
        now = asyncio.get_running_loop().time()
        pull = self._pulls.get(image)
        if pull is None or pull.again_at <= now:
            pull = self._pulls[image] = self._begun(image, pull.tries + 1 if pull else 0)
        if not pull.task.done():
            return Pulling(f"pulling {image}{pull.layers}", *pull.layers.amount)
        error = pull.task.exception()
        if isinstance(error, Unreachable):
            return self._waiting(pull, image, error, now)
        del self._pulls[image]
        pull.task.result()
        return None

    def _begun(self, image: str, tries: int) -> _Pull:
        layers = Layers()
        return _Pull(asyncio.create_task(self._pull(image, layers)), layers, tries)

    def _waiting(self, pull: _Pull, image: str, error: Unreachable, now: float) -> Pulling:
        if pull.again_at == float("inf"):
            seconds = min(_AGAIN_SECONDS * 2**pull.tries, _AGAIN_AT_MOST_SECONDS)
            pull.again_at = now + seconds
            log.warning("image_not_pulled", image=image, error=str(error), again_in=seconds)
        return Pulling(f"{error}; it is tried again")

    async def _pull(self, image: str, layers: Layers) -> None:
        loop = asyncio.get_running_loop()
        with looking():
            docker = await self._engine.docker()
            try:
                async with asyncio.timeout(_SILENT_SECONDS) as limit:
                    async for line in docker.images.pull(image, stream=True):
                        layers.hear(line)
                        limit.reschedule(loop.time() + _SILENT_SECONDS)
            except DockerError as error:
                raise pull_failure(image, error.status, str(error.message)) from error
            except TimeoutError:
                raise pull_failure(image, 0, f"its registry was silent for {_SILENT_SECONDS:.0f} s: EOF") from None
