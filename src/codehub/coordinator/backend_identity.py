"""Is this backend the one that the database remembers? Of another, nothing is believed and nothing is done there.

The first leader adopts what it finds. Of one that is not recognised nobody asks again for a while; then the database
is read anew, so that an operator who forgets the old one is heard within the term.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import structlog

from codehub.domain.backend_identity import Backend, wrong_backend_message
from codehub.domain.errors import BackendError, WrongBackend
from codehub.ports.runtime import Runtime
from codehub.ports.signals import Clock
from codehub.ports.stores import BackendIdentities, Leadership, Term

log = structlog.get_logger()

AGAIN_SECONDS = 5.0
ANSWER_SECONDS = 3.0


@dataclass(slots=True)
class Acquaintance:
    """`sure`: recognised, and not silent since. `refused_at`: when it was last seen to be another."""

    identity: str | None = None
    sure: bool = False
    refused_at: float = float("-inf")
    why: str = ""


@dataclass(slots=True)
class BackendIdentityCheck:
    """One term's. `install` is what a store is marked with that nobody has claimed yet, under `prefix`."""

    worlds: BackendIdentities
    epoch: int
    clock: Clock
    install: str
    prefix: str = ""
    known: dict[Backend, Acquaintance] = field(default_factory=lambda: {backend: Acquaintance() for backend in Backend})

    def is_sure(self, backend: Backend) -> bool:
        return self.known[backend].sure

    def doubt(self, backend: Backend) -> None:
        self.known[backend].sure = False

    async def recognise(
        self,
        backend: Backend,
        identify: Callable[[], Awaitable[str | None]],
        claim: Callable[[], Awaitable[str]],
    ) -> str:
        """Its identity; WrongBackend if it is not ours. `claim` gives one to a backend that has none."""
        known = self.known[backend]
        if self.clock.monotonic() - known.refused_at < AGAIN_SECONDS:
            raise WrongBackend(known.why)
        found = await identify()
        if found is None or found != known.identity:
            await self._compare(backend, known, found, claim)
        known.sure = True
        return known.identity or ""

    async def _compare(
        self, backend: Backend, known: Acquaintance, found: str | None, claim: Callable[[], Awaitable[str]]
    ) -> None:
        remembered = (await self.worlds.remembered()).get(backend)
        if remembered is not None:
            expected = remembered.identity
        else:
            found = await claim() if found is None else found
            expected = await self.worlds.adopt(backend, found, self.epoch)
            log.info("backend adopted", backend=backend.value, identity=expected)
        if found != expected:
            known.sure, known.refused_at = False, self.clock.monotonic()
            known.why = wrong_backend_message(backend, expected, found)
            log.error("another world", backend=backend.value, why=known.why)
            raise WrongBackend(known.why)
        known.identity = expected


async def campaign(leadership: Leadership, holder: str, worlds: BackendIdentities, runtime: Runtime) -> Term:
    """WrongBackend if the runtime is not the remembered one, so that somebody leads who has it. Looked at again when
    the turn comes: that may be weeks later."""
    await _refuse_another_world(worlds, runtime)
    term = await leadership.campaign(holder)
    try:
        await _refuse_another_world(worlds, runtime)
    except BaseException:
        await term.resign()
        raise
    return term


async def _refuse_another_world(worlds: BackendIdentities, runtime: Runtime) -> None:
    """One that does not answer may be the right one."""
    remembered = (await worlds.remembered()).get(Backend.RUNTIME)
    if remembered is None:
        return
    try:
        async with asyncio.timeout(ANSWER_SECONDS):
            found = await runtime.identity()
    except (BackendError, TimeoutError):
        return
    if found != remembered.identity:
        raise WrongBackend(wrong_backend_message(Backend.RUNTIME, remembered.identity, found))
