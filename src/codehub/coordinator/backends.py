"""Every call of the controller to the outside: a breaker per backend, a time limit, and, before an effect, the
question whether we still lead. A woken old leader touches nothing.

Remembers when each workspace was last acted on, so that a look begun before that is not believed.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import TypeVar
from uuid import UUID

from codehub.coordinator.breaker import Breaker
from codehub.domain.errors import BackendError, Stale, Unreachable
from codehub.domain.judge import ArchiveState, ContainerSeen
from codehub.ports.archives import Archives
from codehub.ports.jobs import JobResult, Jobs, JobSeen, JobSpec
from codehub.ports.runtime import ContainerSpec, Pulling, Runtime
from codehub.ports.signals import Clock
from codehub.ports.stores import Term

T = TypeVar("T")

CALL_SECONDS = 60.0


class Backends:
    def __init__(
        self,
        runtime: Runtime,
        jobs: Jobs,
        archives: Archives,
        term: Term,
        clock: Clock,
        breakers: Mapping[str, Breaker],
        call_seconds: float = CALL_SECONDS,
    ) -> None:
        self._runtime = runtime
        self._jobs = jobs
        self._archives = archives
        self._term = term
        self._clock = clock
        self._breakers = breakers
        self._call_seconds = call_seconds
        self._acted: dict[UUID, float] = {}

    def acted_at(self, workspace_id: UUID) -> float:
        return self._acted.get(workspace_id, float("-inf"))

    async def containers(self, ids: Collection[UUID] | None = None) -> Mapping[UUID, ContainerSeen]:
        return await self._ask("runtime", lambda: self._runtime.containers(ids))

    async def volumes(self, ids: Collection[UUID] | None = None) -> Mapping[UUID, Mapping[str, str]]:
        return await self._ask("runtime", lambda: self._runtime.volumes(ids))

    async def answers(self, workspace_id: UUID) -> bool:
        return await self._ask("runtime", lambda: self._runtime.answers(workspace_id))

    async def job(self, workspace_id: UUID) -> JobSeen | None:
        return (await self._ask("jobs", lambda: self._jobs.find([workspace_id]))).get(workspace_id)

    async def inventory(self) -> Collection[str]:
        return await self._ask("archives", self._archives.inventory)

    async def look(self, key: str) -> ArchiveState:
        return await self._ask("archives", lambda: self._archives.look(key))

    async def create_volume(self, workspace_id: UUID, name: str, disk_bytes: int | None = None) -> None:
        await self._act(workspace_id, "runtime", lambda: self._runtime.create_volume(workspace_id, name, disk_bytes))

    async def delete_volume(self, workspace_id: UUID, name: str) -> None:
        await self._act(workspace_id, "runtime", lambda: self._runtime.delete_volume(workspace_id, name))

    async def start_container(self, spec: ContainerSpec) -> Pulling | None:
        return await self._act(spec.workspace_id, "runtime", lambda: self._runtime.start_container(spec))

    async def remove_container(self, workspace_id: UUID) -> None:
        await self._act(workspace_id, "runtime", lambda: self._runtime.remove_container(workspace_id))

    async def start_job(self, spec: JobSpec) -> None:
        await self._act(spec.workspace_id, "jobs", lambda: self._jobs.start(spec))

    async def clear_job(self, workspace_id: UUID) -> None:
        await self._act(workspace_id, "jobs", lambda: self._jobs.clear(workspace_id))

    async def create_empty_archive(self, workspace_id: UUID, key: str) -> JobResult:
        return await self._act(workspace_id, "archives", lambda: self._archives.create_empty(key))

    async def delete_archive(self, workspace_id: UUID, key: str) -> None:
        await self._act(workspace_id, "archives", lambda: self._archives.delete(key))

    async def claim_store(self, install: str) -> str:
        return await self._ask("archives", lambda: self._archives.claim(install))

    async def _act(self, workspace_id: UUID, backend: str, effect: Callable[[], Awaitable[T]]) -> T:
        if not self._term.held():
            raise Stale("the term is over: nothing is touched")
        try:
            return await self._ask(backend, effect)
        finally:
            # even a failed effect may have happened
            self._acted[workspace_id] = self._clock.monotonic()

    async def _ask(self, backend: str, question: Callable[[], Awaitable[T]]) -> T:
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
            error.context.setdefault("endpoint", backend)
            raise
