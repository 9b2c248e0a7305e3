"""Calls to backends: none under a stale term, none without end, and none that is believed to have had no effect."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

import pytest

from codehub.adapters.memory import Fault
from codehub.coordinator.backends import Backends
from codehub.coordinator.context import Tuning
from codehub.domain.errors import BackendError, CircuitOpen, Stale, Unreachable
from codehub.ports.jobs import JobKind, JobSpec
from codehub.ports.runtime import ContainerSpec
from tests.coordinator.harness import ANSWER_LOST, FAILS, HANGS, CoordinatorHarness, in_virtual_time
from tests.rows import KEY, OP_ID, VOLUME, WORKSPACE_ID, with_home

JOB = JobSpec(WORKSPACE_ID, OP_ID, JobKind.ARCHIVE, VOLUME, KEY)
EFFECTS: dict[str, Callable[[Backends], Awaitable[object]]] = {
    "runtime.create_volume": lambda b: b.create_volume(WORKSPACE_ID, VOLUME),
    "runtime.delete_volume": lambda b: b.delete_volume(WORKSPACE_ID, VOLUME),
    "runtime.start_container": lambda b: b.start_container(ContainerSpec(WORKSPACE_ID, VOLUME, "")),
    "runtime.remove_container": lambda b: b.remove_container(WORKSPACE_ID),
    "jobs.start": lambda b: b.start_job(JOB),
    "jobs.clear": lambda b: b.clear_job(WORKSPACE_ID),
    "archives.create_empty": lambda b: b.create_empty_archive(WORKSPACE_ID, KEY),
}
QUESTIONS: dict[str, Callable[[Backends], Awaitable[object]]] = {
    "runtime.containers": lambda b: b.containers(),
    "runtime.volumes": lambda b: b.volumes(),
    "runtime.answers": lambda b: b.answers(WORKSPACE_ID),
    "jobs.find": lambda b: b.job(WORKSPACE_ID),
    "archives.inventory": lambda b: b.inventory(),
    "archives.look": lambda b: b.look(KEY),
}
named = pytest.mark.parametrize("name", EFFECTS)


@named
@in_virtual_time
async def test_a_stale_term_touches_nothing(name: str) -> None:
    harness = await CoordinatorHarness.open()
    harness.network.faults["leadership.renew"] = HANGS
    await asyncio.sleep(3.5)
    harness.network.calls.clear()
    with pytest.raises(Stale):
        await EFFECTS[name](harness.backends)
    assert harness.network.calls == []


@pytest.mark.parametrize("name", [*EFFECTS, *QUESTIONS])
@in_virtual_time
async def test_a_call_without_an_answer_ends_as_unreachable(name: str) -> None:
    harness = await CoordinatorHarness.open(Tuning(call_seconds=20))
    harness.place(with_home(), volume=())
    harness.network.faults[name] = HANGS
    began = asyncio.get_running_loop().time()
    with pytest.raises(Unreachable):
        await (EFFECTS | QUESTIONS)[name](harness.backends)
    assert asyncio.get_running_loop().time() - began == pytest.approx(20)


@pytest.mark.parametrize("fault", [None, FAILS, ANSWER_LOST, HANGS], ids=["done", "fails", "answer lost", "hangs"])
@named
@in_virtual_time
async def test_acted_is_the_time_of_the_effects_end_even_if_it_failed(name: str, fault: Fault | None) -> None:
    harness = await CoordinatorHarness.open(Tuning(call_seconds=20))
    if fault is not None:
        harness.network.faults[name] = fault
    assert harness.backends.acted_at(WORKSPACE_ID) == float("-inf")
    await asyncio.sleep(1)
    with contextlib.suppress(BackendError):
        await EFFECTS[name](harness.backends)
    assert harness.backends.acted_at(WORKSPACE_ID) == asyncio.get_running_loop().time()


@in_virtual_time
async def test_a_silent_backend_is_left_alone_and_the_others_are_not() -> None:
    harness = await CoordinatorHarness.open()
    harness.network.faults["runtime"] = FAILS
    for _ in range(3):
        with pytest.raises(Unreachable):
            await harness.backends.volumes()
    with pytest.raises(CircuitOpen):
        await harness.backends.create_volume(WORKSPACE_ID, VOLUME)
    assert await harness.backends.inventory() == []
    with pytest.raises(CircuitOpen):  # jobs run where containers do, and nobody knows now where that is
        await harness.backends.job(WORKSPACE_ID)
    assert harness.network.calls.count("runtime.create_volume") == 0
