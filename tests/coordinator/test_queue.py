"""The work queue: de-duplicated, delayed, one id in one worker, backing off."""

import asyncio
from uuid import UUID

import pytest

from codehub.coordinator.queue import WorkQueue
from tests.coordinator.harness import in_virtual_time
from tests.simulation.virtual_time import VirtualClock

A, B = UUID(int=1), UUID(int=2)


def time() -> float:
    return asyncio.get_running_loop().time()


async def due(queue: WorkQueue) -> tuple[UUID, float]:
    workspace_id = await queue.get()
    return workspace_id, round(time(), 2)


@pytest.mark.parametrize(
    ("added", "handed_out"),
    [
        ([(A, 0), (A, 0)], [(A, 0)]),
        ([(A, 5), (B, 1)], [(B, 1), (A, 5)]),
        ([(A, 9), (A, 2)], [(A, 2)]),
        ([(A, 2), (A, 9)], [(A, 2)]),
        ([(B, 1), (A, 1)], [(B, 1), (A, 1)]),
    ],
    ids=["doubled", "by time", "sooner wins", "later does not delay", "first come, first served"],
)
@in_virtual_time
async def test_each_id_once_and_at_its_earliest_time(
    added: list[tuple[UUID, float]], handed_out: list[tuple[UUID, float]]
) -> None:
    queue = WorkQueue(VirtualClock())
    for workspace_id, after in added:
        queue.add(workspace_id, after)
    assert [await due(queue) for _ in handed_out] == handed_out
    assert len(queue) == 0


@in_virtual_time
async def test_an_id_is_never_in_two_workers_and_no_change_is_missed() -> None:
    queue, at_work, log = WorkQueue(VirtualClock()), set[UUID](), []

    async def worker() -> None:
        while True:
            workspace_id = await queue.get()
            assert workspace_id not in at_work
            at_work.add(workspace_id)
            await asyncio.sleep(1.0)
            log.append((workspace_id, time()))
            at_work.remove(workspace_id)
            queue.done(workspace_id)

    workers = [asyncio.create_task(worker()) for _ in range(3)]
    queue.add(A)
    await asyncio.sleep(0.5)
    queue.add(A)
    queue.add(A)
    queue.add(B)
    await asyncio.sleep(5)
    assert log == [(A, 1.0), (B, 1.5), (A, 2.0)]
    assert not any(task.done() for task in workers)


@in_virtual_time
async def test_a_waiting_worker_is_woken_by_something_sooner() -> None:
    queue = WorkQueue(VirtualClock())
    queue.add(A, 100)
    waiting = asyncio.create_task(due(queue))
    await asyncio.sleep(1)
    queue.add(B)
    assert await waiting == (B, 1.0)


@in_virtual_time
async def test_failed_passes_back_off_and_nothing_shortens_that() -> None:
    queue = WorkQueue(VirtualClock())
    waits = []
    queue.add(A)
    for _ in range(11):
        began = time()
        await queue.get()
        waits.append(round(time() - began))
        queue.failed(A)
        queue.done(A)
        queue.add(A)
    assert waits == [0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 300]
    await queue.get()
    queue.succeeded(A)
    queue.done(A)
    began = time()
    queue.add(A)
    await queue.get()
    assert time() == began
    assert queue.failed(A) == 1.0
