"""Several worker processes on one port, kept alive and renewed one by one.

The supervisor owns the listening sockets, which all workers inherit, and keeps them open when a worker goes. So whoever
is in the queue is served by another, not reset. No worker has a socket of its own on the port (SO_REUSEPORT): a program
that can share a port can take its visitors.
"""

import asyncio
import os
from asyncio.subprocess import PIPE, Process
from collections.abc import Mapping, Sequence
from typing import Protocol

import structlog

from codehub.proxy.sockets import listeners
from codehub.proxy.worker import LISTEN_FDS, READY

log = structlog.get_logger()
_LONGEST_PAUSE = 30.0
_STEADY_SECONDS = 10.0


class Supervisor:
    def __init__(
        self,
        command: Sequence[str],
        count: int,
        host: str,
        port: int,
        *,
        ready_seconds: float = 120.0,
        drain_seconds: float = 60.0,
        environment: Mapping[str, str] | None = None,
        news: "News | None" = None,
    ) -> None:
        """`command` starts a program that calls `serve_worker`."""
        self._news = news
        self._command = command
        self._environment = environment or {}
        self._renewing: asyncio.Task[None] | None = None
        self._ready_seconds = ready_seconds
        self._drain_seconds = drain_seconds
        self._listening = listeners(host, port)
        self.port: int = self._listening[0].getsockname()[1]
        self._slots = [_Slot(number) for number in range(count)]

    @property
    def pids(self) -> list[int]:
        return [slot.worker.pid for slot in self._slots if slot.worker is not None]

    async def run(self) -> None:
        """Until cancelled; then every worker drains and ends."""
        try:
            async with asyncio.TaskGroup() as group:
                for slot in self._slots:
                    group.create_task(self._keep(slot))
        finally:
            await asyncio.gather(*(self._end(slot.worker) for slot in self._slots if slot.worker is not None))
            for sock in self._listening:
                sock.close()

    async def renew(self) -> None:
        """A rolling restart: the next worker serves before the old one drains. One that does not come up changes
        nothing, and TimeoutError or ChildProcessError says so."""
        for slot in self._slots:
            old = slot.worker
            slot.worker = await self._start()
            log.info("proxy worker renewed", slot=slot.number, pid=slot.worker.pid)
            if old is not None:
                await self._end(old)

    def renew_soon(self) -> None:
        """For a signal; one renewal at a time."""
        if self._renewing is None or self._renewing.done():
            self._renewing = asyncio.ensure_future(self._renew_and_say())

    async def _renew_and_say(self) -> None:
        try:
            await self.renew()
        except (OSError, TimeoutError) as error:
            log.warning("proxy workers not renewed: the old ones go on", error=str(error))

    async def _keep(self, slot: "_Slot") -> None:
        failures = 0
        loop = asyncio.get_running_loop()
        while True:
            began = loop.time()
            try:
                worker = slot.worker or await self._start()
                slot.worker = worker
                code = await self._until_it_ends(worker)
            except (OSError, TimeoutError) as error:
                log.warning("proxy worker did not start", slot=slot.number, error=str(error))
            else:
                if slot.worker is not worker:
                    continue  # renewed
                slot.worker = None
                log.warning("proxy worker ended", slot=slot.number, pid=worker.pid, exit_code=code)
            failures = 0 if loop.time() - began > _STEADY_SECONDS else failures + 1
            await asyncio.sleep(min(0.1 * 2**failures, _LONGEST_PAUSE))

    async def _until_it_ends(self, worker: Process) -> int:
        while worker.stdout is not None and (line := await worker.stdout.readline()):
            if self._news is not None:
                self._news.said(worker.pid, line)
        code = await worker.wait()
        if self._news is not None:
            self._news.gone(worker.pid)
        return code

    async def _start(self) -> Process:
        descriptors = [sock.fileno() for sock in self._listening]
        environment = {**os.environ, **self._environment, LISTEN_FDS: ",".join(map(str, descriptors))}
        worker = await asyncio.create_subprocess_exec(
            *self._command, stdin=PIPE, stdout=PIPE, stderr=None, env=environment, pass_fds=descriptors
        )
        try:
            async with asyncio.timeout(self._ready_seconds):
                said = await worker.stdout.readline() if worker.stdout is not None else b""
        except BaseException:
            await self._end(worker)
            raise
        if said != READY:
            await self._end(worker)
            raise ChildProcessError(f"the worker said {said[:80]!r} and ended with {worker.returncode}")
        if self._news is not None:
            self._news.serves()
        return worker

    async def _end(self, worker: Process) -> None:
        if worker.stdin is not None:
            worker.stdin.close()
        try:
            async with asyncio.timeout(self._drain_seconds):
                await worker.wait()
        except TimeoutError:
            log.warning("proxy worker killed: it did not drain", pid=worker.pid)
            worker.kill()
            await worker.wait()


class News(Protocol):
    """Who wants to know of the workers."""

    def serves(self) -> None:
        """One more does."""
        ...

    def said(self, pid: int, line: bytes) -> None:
        """A line, after it has begun to serve."""
        ...

    def gone(self, pid: int) -> None:
        """It has ended."""
        ...


class _Slot:
    def __init__(self, number: int) -> None:
        self.number = number
        self.worker: Process | None = None
