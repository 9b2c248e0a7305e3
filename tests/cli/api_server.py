"""An API server for tests: the real application on memory adapters, served by uvicorn on loopback in a thread.

The test is the person at the terminal; what the controller would do, the real coordinator does if it is asked in.
"""

import asyncio
import threading
from collections.abc import Coroutine, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, TypeVar
from uuid import uuid4

from codehub.adapters.memory import MemoryActivity, MemoryJobs, MemoryNotifier
from codehub.adapters.memory.archives import StoredArchive, StoredEntry
from codehub.adapters.memory.jobs import JobsState
from codehub.adapters.memory.runtime import Container
from codehub.adapters.system import RandomIds, SystemClock
from codehub.api.server import listen_on, serve
from codehub.coordinator.context import Dependencies, Tuning
from codehub.coordinator.process import Coordinator
from codehub.domain.admission import RunningLimits
from codehub.domain.gc_rules import RestorePoint
from codehub.domain.identity import Role
from codehub.domain.usage import Usage
from codehub.domain.workspace import Phase, Workspace
from codehub.ports.accounts import Ticket
from codehub.ports.runtime import ContainerSpec, Resources
from codehub.telemetry import Metrics
from tests.api.memory_api import MemoryApi

T = TypeVar("T")
TIMEOUT_SECONDS = 60.0


class ApiServer:
    """An API that serves at `url`. It lives in the loop of its own thread, so it is touched by `do` alone."""

    api: MemoryApi
    url: str

    def __init__(self, limits: RunningLimits | None = None) -> None:
        self._limits = limits
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="server", daemon=True)
        self._thread.start()
        self._running: list[Future[None]] = []

    def do(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(TIMEOUT_SECONDS)

    def open(self) -> None:
        up = threading.Event()
        self.do(self._make_site())
        listening = listen_on("127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        self._start(serve(self.api.app, listening, up.set))
        assert up.wait(TIMEOUT_SECONDS)

    async def _make_site(self) -> None:
        self.api = MemoryApi(limits=self._limits)

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        self._running.append(asyncio.run_coroutine_threadsafe(work, self._loop))

    def close(self) -> None:
        self.do(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _end(self) -> None:
        for running in self._running:
            running.cancel()
        others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        await asyncio.wait(others, timeout=TIMEOUT_SECONDS) if others else None
        await self.api.close()

    # ── who and what is in it ────────────────────────────────────────────────────────────────────────────────────────

    def token(self, name: str = "ann", role: Role = Role.USER) -> str:
        person = self.do(self.api.person(name, role))
        return person.http.headers["authorization"].removeprefix("Bearer ")

    def coordinate(self) -> None:
        """From now on a real coordinator does what is wished."""
        self.do(self._coordinate())

    async def _coordinate(self) -> None:
        backends, clock = self.api.backends, SystemClock()
        database, runtime, archives = backends.database, backends.runtime, backends.archives
        outside = Dependencies(
            leadership=database.leadership(clock),
            statuses=database.statuses,
            specs=database.specs(),
            collector=database.collector(),
            marks=database.marks,
            backend_identities=database.backend_identities(),
            install="test",
            feed=database.changes(),
            bus=backends.bus,
            activity=MemoryActivity(backends.bus.state, backends.network),
            runtime=runtime,
            jobs=MemoryJobs(runtime, archives, JobsState(runtime.state, archives.state, clock), backends.network),
            archives=archives,
            notifier=MemoryNotifier(),
            clock=clock,
            ids=RandomIds(),
            metrics=Metrics(),
        )
        tuning = Tuning(idle_interval=0.2, active_interval=0.05)
        self._start(Coordinator("test", outside, tuning).run())

    def rows(self) -> dict[str, Workspace]:
        return {row.name: row for row in self.api.rows.values()}

    def controller_writes(self, name: str, /, **fields: Any) -> Workspace:
        async def write() -> Workspace:
            return self.api.controller_writes(self.rows()[name].id, **fields)

        return self.do(write())

    def runs(self, name: str) -> None:
        """The workspace runs, and commands can be run in it."""
        ws = self.controller_writes(name, phase=Phase.RUNNING)

        async def started() -> None:
            self.api.backends.runtime.state.containers[ws.id] = Container("run-1", "home")

        self.do(started())

    def user_writes(self, name: str, value: int) -> bool:
        async def write() -> bool:
            return self.api.backends.runtime.state.write(self.rows()[name].id, value)

        return self.do(write())

    def uses(self, name: str, usage: Usage) -> None:
        """The workspace runs, and the leader's last sample of it is this."""

        async def sampled() -> None:
            key, backends = self.rows()[name].id, self.api.backends
            share = Resources(usage.cpu_limit, usage.memory_limit_bytes)
            spec = ContainerSpec(key, str(key), "", share=share)
            backends.runtime.state.containers[key] = Container(
                "run-1", str(key), spec=spec, memory_bytes=usage.memory_bytes or 0
            )
            await backends.database.usage_history().record({key: usage}, 0)

        self.do(sampled())

    def leases(self, name: str) -> dict[str, datetime]:
        """Who holds it, until when."""
        held = self.api.backends.database.state.leases.get(self.rows()[name].id, {})
        return {who: until for who, until in held.items() if until > datetime.now(UTC)}

    def tickets(self) -> list[Ticket]:
        return [stored.ticket for stored in self.api.backends.database.state.accounts.tickets.values()]

    def keep(self, name: str, home: dict[bytes, StoredEntry]) -> str:
        """A restore point with these entries; its id."""
        workspace_id, op_id, now = self.rows()[name].id, uuid4(), datetime.now(UTC)
        key = f"{workspace_id}/{op_id}/home.tar.zst"
        point = RestorePoint(workspace_id, op_id, key, 1, len(home), "0" * 64, now, now)
        self.api.backends.database.state.points.setdefault(workspace_id, []).insert(0, point)  # newest first
        self.api.backends.archives.state.objects[key] = StoredArchive((), now, committed=True, home=home)
        return str(op_id)


@contextmanager
def serving(limits: RunningLimits | None = None) -> Iterator[ApiServer]:
    server = ApiServer(limits)
    try:
        server.open()
        yield server
    finally:
        server.close()
