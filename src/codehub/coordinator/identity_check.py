"""Whether a backend is the one that the database remembers. Another one is not believed, and nothing is done there.

The first leader adopts the identities it finds. A backend with a wrong one is not asked again for a while; then the
database is read anew, so that an operator who forgets the old identity is heard within the term.
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
class KnownIdentity:
    """What one term knows of a backend's identity. `sure`: it was checked, and the backend not silent since.
    `refused_at`: when it was last seen to be another one."""

    identity: str | None = None
    sure: bool = False
    refused_at: float = float("-inf")
    why: str = ""


@dataclass(slots=True)
class IdentityCheck:
    """One term's check of both backends. A store that nobody has claimed is marked with `install`, under `prefix`."""

    recorded: BackendIdentities
    epoch: int
    clock: Clock
    install: str
    prefix: str = ""
    known: dict[Backend, KnownIdentity] = field(
        default_factory=lambda: {backend: KnownIdentity() for backend in Backend}
    )

    def is_sure(self, backend: Backend) -> bool:
        return self.known[backend].sure

    def doubt(self, backend: Backend) -> None:
        self.known[backend].sure = False

    async def check(
        self,
        backend: Backend,
        identify: Callable[[], Awaitable[str | None]],
        claim: Callable[[], Awaitable[str]],
    ) -> str:
        """The backend's identity; WrongBackend if it is not ours. `claim` gives one to a backend that has none."""
        known = self.known[backend]
        if self.clock.monotonic() - known.refused_at < AGAIN_SECONDS:
            raise WrongBackend(known.why)
        found = await identify()
        if found is None or found != known.identity:
            await self._compare(backend, known, found, claim)
        known.sure = True
        return known.identity or ""

    async def _compare(
        self, backend: Backend, known: KnownIdentity, found: str | None, claim: Callable[[], Awaitable[str]]
    ) -> None:
        remembered = (await self.recorded.remembered()).get(backend)
        if remembered is not None:
            expected = remembered.identity
        else:
            found = await claim() if found is None else found
            expected = await self.recorded.adopt(backend, found, self.epoch)
            log.info("backend adopted", backend=backend.value, identity=expected)
        if found != expected:
            known.sure, known.refused_at = False, self.clock.monotonic()
            known.why = wrong_backend_message(backend, expected, found)
            log.error("wrong backend", backend=backend.value, why=known.why)
            raise WrongBackend(known.why)
        known.identity = expected


async def acquire_leadership(
    leadership: Leadership, holder: str, recorded: BackendIdentities, runtime: Runtime
) -> Term:
    """Wait until we lead; WrongBackend if our runtime is not the remembered one, so that somebody leads who has it. It
    is checked again when our turn comes, which may be weeks later."""
    await _refuse_wrong_runtime(recorded, runtime)
    term = await leadership.campaign(holder)
    try:
        await _refuse_wrong_runtime(recorded, runtime)
    except BaseException:
        await term.resign()
        raise
    return term


async def _refuse_wrong_runtime(recorded: BackendIdentities, runtime: Runtime) -> None:
    """A runtime that does not answer may be the right one, and is not refused."""
    remembered = (await recorded.remembered()).get(Backend.RUNTIME)
    if remembered is None:
        return
    try:
        async with asyncio.timeout(ANSWER_SECONDS):
            found = await runtime.identity()
    except (BackendError, TimeoutError):
        return
    if found != remembered.identity:
        raise WrongBackend(wrong_backend_message(Backend.RUNTIME, remembered.identity, found))
