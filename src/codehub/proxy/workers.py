"""Several worker processes on one port, kept alive and renewed one by one, and the metrics of all of them.

The supervisor owns the listening sockets, which all workers inherit, and keeps them open when a worker goes, so a
client in the queue is served by another and not reset. No worker has a socket of its own on the port (SO_REUSEPORT): a
program that can share a port can take its clients. A worker serves until its standard input ends, which it does when
the supervisor closes it or dies; it writes a report of its counters to its standard output, a line at a time.
"""

import asyncio
import contextlib
import json
import os
import signal
import socket
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import structlog

from codehub.proxy.http.connection import listeners
from codehub.proxy.server import ProxyServer
from codehub.telemetry import PROXY_CONNECTIONS, PROXY_REQUESTS, PROXY_SOCKETS, PROXY_TURNED_AWAY, Metrics

log = structlog.get_logger()

LISTEN_FDS = "CODEHUB_PROXY_LISTEN_FDS"
READY = b"ready\n"
REPORT_SECONDS = 5.0
_LONGEST_PAUSE = 30.0
_STEADY_SECONDS = 10.0


def worker_report(server: ProxyServer) -> bytes:
    report = {
        "connections": server.connections,
        "sockets": server.upgraded,
        "turned_away": {cap.name.lower(): count for cap, count in server.rejected.items()},
        "answers": {route.name: route.answers for route in server.routes},
    }
    return json.dumps(report).encode() + b"\n"


class WorkerMetrics:
    """The metrics of all workers, from their reports. Counters only grow, whichever workers come and go."""

    def __init__(self, metrics: Metrics, ready: Callable[[], None]) -> None:
        """`ready` is called once, when the first worker serves."""
        self._metrics = metrics
        self._ready: Callable[[], None] | None = ready
        self._last: dict[int, Mapping[str, Any]] = {}

    def worker_ready(self) -> None:
        ready, self._ready = self._ready, None
        if ready is not None:
            ready()

    def worker_reported(self, pid: int, line: bytes) -> None:
        report = json.loads(line)
        before = self._last.get(pid, {}).get("answers", {})
        for route, answers in report["answers"].items():
            known = before.get(route, [0] * len(answers))
            for hundreds, (now, then) in enumerate(zip(answers, known, strict=True)):
                if now > then:
                    self._metrics.add(PROXY_REQUESTS, now - then, route=route, status=f"{hundreds}xx")
        already = self._last.get(pid, {}).get("turned_away", {})
        for cap, count in report["turned_away"].items():
            if count > already.get(cap, 0):
                self._metrics.add(PROXY_TURNED_AWAY, count - already.get(cap, 0), cap=cap)
        self._last[pid] = report
        self._set_gauges()

    def worker_exited(self, pid: int) -> None:
        """Stop counting what an ended worker had open."""
        self._last.pop(pid, None)
        self._set_gauges()

    def _set_gauges(self) -> None:
        self._metrics.set(PROXY_CONNECTIONS, sum(report["connections"] for report in self._last.values()))
        self._metrics.set(PROXY_SOCKETS, sum(report["sockets"] for report in self._last.values()))


async def serve_worker(server: ProxyServer, requests_seconds: float = 30.0, upgraded_seconds: float = 10.0) -> None:
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    await loop.connect_read_pipe(lambda: _ParentPipe(stop), sys.stdin)
    for descriptor in os.environ[LISTEN_FDS].split(","):
        await server.listen_on(socket.socket(fileno=int(descriptor)))
    os.write(sys.stdout.fileno(), READY)
    telling = asyncio.ensure_future(_report_regularly(server))
    await stop.wait()
    await server.drain(requests_seconds, upgraded_seconds)
    telling.cancel()
    _write_line(worker_report(server))


async def _report_regularly(server: ProxyServer) -> None:
    while True:
        await asyncio.sleep(REPORT_SECONDS)
        _write_line(worker_report(server))


def _write_line(line: bytes) -> None:
    with contextlib.suppress(OSError):  # nobody listens any more
        os.write(sys.stdout.fileno(), line)


class _ParentPipe(asyncio.Protocol):
    def __init__(self, stop: asyncio.Event) -> None:
        self._stop = stop

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        self._stop.set()


class WorkerSupervisor:
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
        metrics: WorkerMetrics | None = None,
    ) -> None:
        """`command` starts a program that calls `serve_worker`."""
        self._metrics = metrics
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
        """Keep the workers running until cancelled; then each of them drains and ends."""
        try:
            async with asyncio.TaskGroup() as group:
                for slot in self._slots:
                    group.create_task(self._keep_alive(slot))
        finally:
            await asyncio.gather(*(self._end(slot.worker) for slot in self._slots if slot.worker is not None))
            for sock in self._listening:
                sock.close()

    async def renew(self) -> None:
        """Restart the workers one by one: the next one serves before the old one drains. One that does not come up
        changes nothing, and raises TimeoutError or ChildProcessError."""
        for slot in self._slots:
            old = slot.worker
            slot.worker = await self._start()
            log.info("proxy worker renewed", slot=slot.number, pid=slot.worker.pid)
            if old is not None:
                await self._end(old)

    def renew_soon(self) -> None:
        """Begin a renewal in the background, for a signal handler; one at a time."""
        if self._renewing is None or self._renewing.done():
            self._renewing = asyncio.ensure_future(self._renew_and_say())

    async def _renew_and_say(self) -> None:
        try:
            await self.renew()
        except (OSError, TimeoutError) as error:
            log.warning("proxy workers not renewed: the old ones go on", error=str(error))

    async def _keep_alive(self, slot: "_Slot") -> None:
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
            if self._metrics is not None:
                self._metrics.worker_reported(worker.pid, line)
        code = await worker.wait()
        if self._metrics is not None:
            self._metrics.worker_exited(worker.pid)
        return code

    async def _start(self) -> Process:
        descriptors = [sock.fileno() for sock in self._listening]
        environment = {**os.environ, **self._environment, LISTEN_FDS: ",".join(map(str, descriptors))}
        worker = await asyncio.create_subprocess_exec(
            *self._command, stdin=PIPE, stdout=PIPE, stderr=None, env=environment, pass_fds=descriptors
        )
        try:
            async with asyncio.timeout(self._ready_seconds):
                line = await worker.stdout.readline() if worker.stdout is not None else b""
        except BaseException:
            await self._end(worker)
            raise
        if line != READY:
            await self._end(worker)
            raise ChildProcessError(f"the worker said {line[:80]!r} and ended with {worker.returncode}")
        if self._metrics is not None:
            self._metrics.worker_ready()
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


class _Slot:
    def __init__(self, number: int) -> None:
        self.number = number
        self.worker: Process | None = None
