"""What somebody who was killed left on the engine: helpers that were made and not started, or not removed at their end.

Whether one is still waited for cannot be told by the clocks, which are the engine's and ours. So it is seen twice: who
makes a helper starts it at once and removes it at its end, within the time that any call to the engine may take. What
stays as it is for longer than that is nobody's.
"""

import asyncio
from collections.abc import AsyncIterator
from typing import NamedTuple

import structlog

from codehub.adapters.docker.engine import Engine, doing
from codehub.adapters.docker.payloads import AGENT, FIREWALL, JOB, PROBE, ROLE_LABEL, TRIAL, DockerSite
from codehub.domain.naming import INSTALL_LABEL

log = structlog.get_logger(__name__)

PATIENCE_SECONDS = 60.0
"""Longer than the longest call to the engine."""
_LONGEST_RUN_SECONDS = 900.0
"""No helper is meant to run nearly as long."""


class _Helper(NamedTuple):
    kind: str
    key: str
    state: str


class Orphans:
    def __init__(self, engine: Engine, site: DockerSite, patience: float = PATIENCE_SECONDS) -> None:
        self._engine = engine
        self._site = site
        self._patience = patience
        self._since: dict[_Helper, float] = {}

    async def remove(self) -> int:
        now = asyncio.get_running_loop().time()
        self._since = {helper: self._since.get(helper, now) async for helper in self._helpers()}
        old = [helper for helper, since in self._since.items() if now - since >= self._longest(helper)]
        for helper in old:
            await self._remove(helper)
            log.info("leftover_removed", kind=helper.kind, id=helper.key, state=helper.state)
        return len(old)

    def _longest(self, helper: _Helper) -> float:
        return _LONGEST_RUN_SECONDS if helper.state == "running" else self._patience

    async def _helpers(self) -> AsyncIterator[_Helper]:
        ours = f"{INSTALL_LABEL}={self._site.install_id}"
        for role in (FIREWALL, PROBE, AGENT, JOB):
            for found in await self._engine.containers([ours, f"{ROLE_LABEL}={role}"]):
                # A job that was begun is its operation's, whatever became of it.
                if role != JOB or found["State"] == "created":
                    yield _Helper(role, found["Id"], found["State"])
        for found in await self._engine.volumes([ours, f"{ROLE_LABEL}={TRIAL}"]):
            yield _Helper(TRIAL, found["Name"], "")

    async def _remove(self, helper: _Helper) -> None:
        if helper.kind != TRIAL:
            await self._engine.end(helper.key)
            return
        with doing(f"volume {helper.key} cannot be removed"):
            await self._engine.delete_volume(helper.key)
