"""Workers share a port, die and are replaced, are renewed without a lost request, and do not outlive their
supervisor.
"""

import asyncio
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import psutil
import pytest

from codehub.proxy.workers import WorkerSupervisor
from tests.eventually import eventually
from tests.proxy.harness import RawConnection, get

pytestmark = pytest.mark.system


@pytest.fixture
def latch(tmp_path: Path) -> Path:
    return tmp_path / "latch"


@asynccontextmanager
async def supervised(latch: Path, count: int = 2) -> AsyncIterator[WorkerSupervisor]:
    command = [sys.executable, "-m", "tests.proxy.worker_program", str(latch)]
    supervisor = WorkerSupervisor(command, count, "127.0.0.1", 0)
    running = asyncio.create_task(supervisor.run())
    try:
        await eventually(lambda: len(supervisor.pids) == count)
        yield supervisor
    finally:
        pids = supervisor.pids
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running
        assert not any(psutil.pid_exists(pid) for pid in pids)


async def connect(supervisor: WorkerSupervisor) -> RawConnection:
    return RawConnection(*await asyncio.open_connection("127.0.0.1", supervisor.port))


async def ask(supervisor: WorkerSupervisor, path: str = "/") -> int:
    raw = await connect(supervisor)
    raw.write(get(path))
    _, body = await raw.answer()
    raw.close()
    return int(body)


async def test_workers_share_the_port(latch: Path) -> None:
    async with supervised(latch) as supervisor:
        for other, pid in (supervisor.pids, reversed(supervisor.pids)):
            os.kill(other, signal.SIGSTOP)
            assert {await ask(supervisor) for _ in range(5)} == {pid}, "nobody waits for a worker that is stuck"
            os.kill(other, signal.SIGCONT)


async def test_the_port_is_nobody_else_s(latch: Path) -> None:
    """No port is taken in either family, shared or not; and `localhost` answers in both."""
    async with supervised(latch) as supervisor:
        for family, host in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")):
            for shared in (True, False):
                with socket.socket(family) as other:
                    other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, shared)
                    with pytest.raises(OSError, match="in use"):
                        other.bind((host, supervisor.port))
            raw = RawConnection(*await asyncio.open_connection(host, supervisor.port))
            raw.write(get())
            _, body = await raw.answer()
            raw.close()
            assert int(body) in supervisor.pids


async def test_a_worker_that_dies_is_replaced_and_its_queue_served(latch: Path) -> None:
    async with supervised(latch, count=1) as supervisor:
        (first,) = supervisor.pids
        os.kill(first, signal.SIGSTOP)
        queued = await connect(supervisor)
        queued.write(get())
        os.kill(first, signal.SIGKILL)
        _, body = await queued.answer()
        queued.close()
        assert int(body) != first
        await eventually(lambda: supervisor.pids == [int(body)])


async def test_renewing_loses_nothing(latch: Path) -> None:
    async with supervised(latch) as supervisor:
        before = set(supervisor.pids)
        waiting = [await connect(supervisor) for _ in range(8)]
        for raw in waiting:
            raw.write(get("/later"))
        stop = asyncio.Event()
        answered: list[int] = []

        async def keep_asking() -> None:
            while not stop.is_set():
                answered.append(await ask(supervisor))

        asking = [asyncio.create_task(keep_asking()) for _ in range(4)]
        renewing = asyncio.create_task(supervisor.renew())
        await eventually(lambda: bool(set(supervisor.pids) - before))
        latch.touch()
        assert {int((await raw.answer())[1]) for raw in waiting} <= before
        await renewing
        stop.set()
        await asyncio.gather(*asking)
        assert not set(supervisor.pids) & before
        assert set(answered) & set(supervisor.pids)
        for raw in waiting:
            raw.close()


async def test_renewing_loses_no_request_of_a_kept_connection(latch: Path) -> None:
    """Each connection is used again and again, until an answer says that it was the last."""
    async with supervised(latch) as supervisor:
        before, stop = set(supervisor.pids), asyncio.Event()

        async def keep_asking() -> int:
            renewed = 0
            while not stop.is_set():
                raw, head = await connect(supervisor), b""
                while b"Connection: close" not in head and not stop.is_set():
                    raw.write(get())
                    head, _ = await raw.answer()
                raw.close()
                renewed += 1
            return renewed

        asking = [asyncio.create_task(keep_asking()) for _ in range(8)]
        await supervisor.renew()
        stop.set()
        assert sum(await asyncio.gather(*asking)) > len(asking)
        assert not set(supervisor.pids) & before


async def test_a_worker_that_does_not_come_up_renews_nothing(latch: Path) -> None:
    async with supervised(latch) as supervisor:
        before = supervisor.pids
        Path(f"{latch}.broken").touch()
        with pytest.raises(ChildProcessError):
            await supervisor.renew()
        assert supervisor.pids == before
        assert await ask(supervisor) in before


async def test_workers_do_not_outlive_a_killed_supervisor(latch: Path) -> None:
    program = (
        "import asyncio, sys\nfrom codehub.proxy.workers import WorkerSupervisor\n"
        f"command = [sys.executable, '-m', 'tests.proxy.worker_program', {str(latch)!r}]\n"
        "asyncio.run(WorkerSupervisor(command, 2, '127.0.0.1', 0).run())"
    )
    parent = await asyncio.create_subprocess_exec(sys.executable, "-c", program)
    process = psutil.Process(parent.pid)
    await eventually(lambda: len(process.children()) == 2)
    children = process.children()
    parent.kill()
    await parent.wait()
    await eventually(lambda: not any(child.is_running() for child in children))
