"""Every call of the controller to a backend: through a circuit breaker, with a time limit and, before an effect, the
question whether this coordinator still leads, so that an old leader that wakes up touches nothing.

A backend is believed while it is the one that the database remembers: its identity is asked for before its first use in
a term and after a silence, with each whole list, and before an absence is believed. The first leader adopts the
identities that it finds. A wrong backend (WrongBackend) is asked again after a while, by when an operator may have made
the database forget the old one.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeVar
from uuid import UUID

import structlog

from codehub.domain import notices
from codehub.domain.errors import BackendError, CircuitOpen, Stale, Unreachable, WrongBackend
from codehub.domain.judge import ArchiveState, ContainerSeen
from codehub.domain.naming import Backend, owner_key, wrong_backend_message
from codehub.ports.archives import Archives
from codehub.ports.jobs import JobResult, Jobs, JobSeen, JobSpec, StoreOwner
from codehub.ports.runtime import ContainerSpec, Pulling, Runtime
from codehub.ports.signals import Clock, Notifier
from codehub.ports.stores import BackendIdentities, Leadership, Term
from codehub.telemetry import BREAKER_STATE, Metrics

log = structlog.get_logger()

T = TypeVar("T")

CALL_SECONDS = 60.0
FAILURES_TO_OPEN = 3
OPEN_SECONDS = 5.0
IDENTITY_TIMEOUT_SECONDS = 3.0
WRONG_BACKEND_PAUSE_SECONDS = 5.0
"""How long a backend that is the wrong one is not asked again."""
ENDPOINTS = {"kubernetes": "k8s-api"}
"""The specification's names for endpoints, for those runtimes that it calls otherwise than we do."""
IDENTIFIED_BY = {"runtime": Backend.RUNTIME, "jobs": Backend.RUNTIME, "archives": Backend.ARCHIVES}
"""The backend whose identity vouches for each kind of call: jobs run on the runtime's engine."""


class Breaker:
    """A circuit breaker: closed → open after `failures` unanswered calls in a row → one trial call after `seconds`.
    `changed` hears the backend's name and, when it opens, the error; when it closes, None."""

    def __init__(
        self,
        backend: str,
        clock: Clock,
        metrics: Metrics,
        changed: Callable[[str, str | None], None] = lambda _backend, _error: None,
        *,
        failures: int = FAILURES_TO_OPEN,
        seconds: float = OPEN_SECONDS,
    ) -> None:
        self.backend = backend
        self._metrics = metrics
        self._clock = clock
        self._limit = failures
        self._seconds = seconds
        self._failures = 0
        self._opened_at: float | None = None
        self._trying = False
        self._changed = changed

    @property
    def is_open(self) -> bool:
        return self._opened_at is not None and self._clock.monotonic() - self._opened_at < self._seconds

    async def call(self, ask: Callable[[], Awaitable[T]]) -> T:
        if self.is_open or self._trying:
            raise CircuitOpen(f"{self.backend} has not answered {self._failures} times; waiting before asking again")
        self._trying = self._opened_at is not None
        try:
            answer = await ask()
        except Unreachable as error:
            self._failures += 1
            if self._failures >= self._limit:
                self._open(error)
            raise
        except BackendError:
            self._close()
            raise
        finally:
            self._trying = False
        self._close()
        return answer

    def _open(self, error: Unreachable) -> None:
        if self._opened_at is None:
            log.warning("backend does not answer", backend=self.backend, error=str(error))
            self._changed(self.backend, str(error))
        self._opened_at = self._clock.monotonic()
        self._metrics.set(BREAKER_STATE, 1, backend=self.backend)

    def _close(self) -> None:
        self._failures = 0
        if self._opened_at is not None:
            log.info("backend answers again", backend=self.backend)
            self._changed(self.backend, None)
            self._opened_at = None
            self._metrics.set(BREAKER_STATE, 0, backend=self.backend)


class BackendNotices:
    """Sends the admins one notice when a backend falls silent and one when it answers again. A notice may take a
    webhook's time, so notices are sent beside the calls. Of jobs there is none: they run on the runtime's engine."""

    def __init__(self, notifier: Notifier) -> None:
        self._notifier = notifier
        self._waiting: asyncio.Queue[tuple[str, str | None]] = asyncio.Queue()

    def changed(self, backend: str, error: str | None) -> None:
        if backend != "jobs":
            self._waiting.put_nowait((backend, error))

    async def run(self) -> None:
        while True:
            backend, error = await self._waiting.get()
            if error is None:
                await self._notifier.notify(notices.backend_answers(backend))
            else:
                await self._notifier.notify(notices.backend_silent(backend, error))


@dataclass(slots=True)
class KnownIdentity:
    """What one term knows of a backend's identity. `sure`: the identity was checked, and the backend has not been
    silent since. `refused_at`: when the backend was last seen to be another one, and `why` the message of that."""

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
        """The backend's identity; raises WrongBackend if it is not ours. `claim` gives an identity to a backend without
        one."""
        known = self.known[backend]
        if self.clock.monotonic() - known.refused_at < WRONG_BACKEND_PAUSE_SECONDS:
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
    """Wait until this coordinator leads. Raises WrongBackend if its runtime is not the remembered one, so that a
    coordinator leads which has that; it is checked before the wait and again after it, which may be weeks later."""
    await _refuse_wrong_runtime(recorded, runtime)
    term = await leadership.campaign(holder)
    try:
        await _refuse_wrong_runtime(recorded, runtime)
    except BaseException:
        await term.resign()
        raise
    return term


async def _refuse_wrong_runtime(recorded: BackendIdentities, runtime: Runtime) -> None:
    """Raise WrongBackend if the runtime is not the remembered one. One that does not answer may be the right one."""
    remembered = (await recorded.remembered()).get(Backend.RUNTIME)
    if remembered is None:
        return
    try:
        async with asyncio.timeout(IDENTITY_TIMEOUT_SECONDS):
            found = await runtime.identity()
    except (BackendError, TimeoutError):
        return
    if found != remembered.identity:
        raise WrongBackend(wrong_backend_message(Backend.RUNTIME, remembered.identity, found))


class Backends:
    def __init__(
        self,
        runtime: Runtime,
        jobs: Jobs,
        archives: Archives,
        term: Term,
        clock: Clock,
        breakers: Mapping[str, Breaker],
        identities: IdentityCheck,
        call_seconds: float = CALL_SECONDS,
    ) -> None:
        self._runtime = runtime
        self._jobs = jobs
        self._archives = archives
        self._term = term
        self._clock = clock
        self._breakers = breakers
        self._identities = identities
        self._call_seconds = call_seconds
        self._acted: dict[UUID, float] = {}
        engine = ENDPOINTS.get(runtime.name, runtime.name)
        self._endpoints = {"runtime": engine, "jobs": engine, "archives": archives.name}

    def acted_at(self, workspace_id: UUID) -> float:
        return self._acted.get(workspace_id, float("-inf"))

    def endpoint(self, backend: str) -> str:
        """The name of that backend's endpoint for people: docker, k8s-api, s3 …"""
        return self._endpoints[backend]

    async def containers(self, ids: Collection[UUID] | None = None) -> Mapping[UUID, ContainerSeen]:
        found = await self._ask("runtime", lambda: self._runtime.containers(ids))
        if ids is None:
            await self._check_identity(Backend.RUNTIME)
        return found

    async def volumes(self, ids: Collection[UUID] | None = None) -> Mapping[UUID, Mapping[str, str]]:
        found = await self._ask("runtime", lambda: self._runtime.volumes(ids))
        if ids is None or any(key not in found for key in ids):
            await self._check_identity(Backend.RUNTIME)
        return found

    async def answers(self, workspace_id: UUID) -> bool:
        return await self._ask("runtime", lambda: self._runtime.answers(workspace_id))

    async def job(self, workspace_id: UUID) -> JobSeen | None:
        return (await self._ask("jobs", lambda: self._jobs.find([workspace_id]))).get(workspace_id)

    async def inventory(self) -> Collection[str]:
        listed = await self._ask("archives", self._archives.inventory)
        await self._check_identity(Backend.ARCHIVES)
        return listed

    async def look(self, key: str) -> ArchiveState:
        state = await self._ask("archives", lambda: self._archives.look(key))
        if state is not ArchiveState.READABLE:
            await self._check_identity(Backend.ARCHIVES)
        return state

    async def create_volume(
        self, workspace_id: UUID, name: str, disk_bytes: int | None = None, storage_class: str | None = None
    ) -> None:
        def create() -> Awaitable[None]:
            return self._runtime.create_volume(workspace_id, name, disk_bytes, storage_class)

        await self._act(workspace_id, "runtime", create)

    async def delete_volume(self, workspace_id: UUID, name: str) -> None:
        await self._act(workspace_id, "runtime", lambda: self._runtime.delete_volume(workspace_id, name))

    async def start_container(self, spec: ContainerSpec) -> Pulling | None:
        return await self._act(spec.workspace_id, "runtime", lambda: self._runtime.start_container(spec))

    async def remove_container(self, workspace_id: UUID) -> None:
        await self._act(workspace_id, "runtime", lambda: self._runtime.remove_container(workspace_id))

    async def start_job(self, spec: JobSpec) -> None:
        """Start a storage job. It is told whose the store must be and checks that itself: by then the store may be
        another."""
        self._refuse_stale()
        owner = StoreOwner(owner_key(self._identities.prefix), await self._check_identity(Backend.ARCHIVES))
        await self._act(spec.workspace_id, "jobs", lambda: self._jobs.start(replace(spec, owner=owner)))

    async def clear_job(self, workspace_id: UUID) -> None:
        await self._act(workspace_id, "jobs", lambda: self._jobs.clear(workspace_id))

    async def create_empty_archive(self, workspace_id: UUID, key: str) -> JobResult:
        self._refuse_stale()
        await self._check_identity(Backend.ARCHIVES)
        return await self._act(workspace_id, "archives", lambda: self._archives.create_empty(key))

    async def delete_archive(self, workspace_id: UUID, key: str) -> None:
        await self._act(workspace_id, "archives", lambda: self._archives.delete(key))

    async def remove_orphans(self) -> int:
        self._refuse_stale()
        return await self._ask("runtime", self._runtime.remove_orphans)

    async def check_all_identities(self) -> None:
        for backend in Backend:
            await self._check_identity(backend)

    async def _act(self, workspace_id: UUID, backend: str, effect: Callable[[], Awaitable[T]]) -> T:
        self._refuse_stale()
        if not self._identities.is_sure(IDENTIFIED_BY[backend]):
            await self._check_identity(IDENTIFIED_BY[backend])
            self._refuse_stale()
        try:
            return await self._ask(backend, effect)
        finally:
            # even a failed effect may have happened
            self._acted[workspace_id] = self._clock.monotonic()

    def _refuse_stale(self) -> None:
        if not self._term.held():
            raise Stale("the term is over: nothing is touched")

    async def _check_identity(self, backend: Backend) -> str:
        try:
            return await self._identities.check(
                backend,
                lambda: self._call(backend.value, lambda: self._identity(backend)),
                lambda: self._call(backend.value, lambda: self._archives.claim(self._identities.install)),
            )
        except WrongBackend as error:
            error.context["endpoint"] = self._endpoints[backend.value]
            raise

    async def _identity(self, backend: Backend) -> str | None:
        return await (self._runtime.identity() if backend is Backend.RUNTIME else self._archives.owner())

    async def _ask(self, backend: str, question: Callable[[], Awaitable[T]]) -> T:
        identified = IDENTIFIED_BY[backend]
        if not self._identities.is_sure(identified):
            await self._check_identity(identified)
        try:
            return await self._call(backend, question)
        except CircuitOpen:
            raise
        except Unreachable:
            self._identities.doubt(identified)
            raise

    async def _call(self, backend: str, question: Callable[[], Awaitable[T]]) -> T:
        async def within_time() -> T:
            try:
                async with asyncio.timeout(self._call_seconds):
                    return await question()
            except TimeoutError:
                message = f"{backend} gave no answer in {self._call_seconds:.0f} s"
                raise Unreachable(message) from None

        try:
            return await self._breakers[backend].call(within_time)
        except BackendError as error:
            error.context.setdefault("endpoint", self._endpoints[backend])
            raise
