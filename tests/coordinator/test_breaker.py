"""The circuit breaker: silence opens it, any answer closes it, and one call at a time finds out."""

import asyncio

import pytest

from codehub.coordinator.backends import Breaker
from codehub.domain.errors import BackendError, CircuitOpen, Unreachable, VolumeInUse
from codehub.telemetry import Metrics
from tests.coordinator.harness import in_virtual_time
from tests.simulation.virtual_time import VirtualClock


def breaker() -> Breaker:
    return Breaker("runtime", VirtualClock(), Metrics(), failures=3, seconds=5.0)


async def ask(it: Breaker, answer: Exception | None) -> str:
    async def answers() -> None:
        if answer is not None:
            raise answer

    try:
        await it.call(answers)
    except CircuitOpen:
        return "not asked"
    except BackendError as error:
        return "silent" if isinstance(error, Unreachable) else "refused"
    return "ok"


SILENT, REFUSED = Unreachable("no answer"), VolumeInUse("in use")


@pytest.mark.parametrize(
    ("answers", "is_open"),
    [
        ([SILENT, SILENT], False),
        ([SILENT, SILENT, SILENT], True),
        ([SILENT, SILENT, None, SILENT, SILENT], False),
        ([SILENT, SILENT, REFUSED, SILENT, SILENT], False),
        ([REFUSED] * 9, False),
    ],
    ids=["two", "three in a row", "an answer between", "a refusal is an answer", "refusals alone"],
)
@in_virtual_time
async def test_only_silence_in_a_row_opens_it(answers: list[Exception | None], is_open: bool) -> None:
    it = breaker()
    for answer in answers:
        await ask(it, answer)
    assert it.is_open is is_open
    assert await ask(it, None) == ("not asked" if is_open else "ok")


@in_virtual_time
async def test_after_a_while_it_tries_again() -> None:
    it = breaker()
    for _ in range(3):
        await ask(it, SILENT)
    await asyncio.sleep(4.9)
    assert await ask(it, None) == "not asked"
    await asyncio.sleep(0.2)
    assert await ask(it, SILENT) == "silent"
    assert await ask(it, None) == "not asked"
    await asyncio.sleep(5.1)
    assert await ask(it, None) == "ok"
    assert await ask(it, SILENT) == "silent"
    assert not it.is_open


@in_virtual_time
async def test_one_call_alone_finds_out_whether_the_backend_is_back() -> None:
    it, asked = breaker(), 0

    async def slow_silence() -> None:
        nonlocal asked
        asked += 1
        await asyncio.sleep(60)
        raise SILENT

    for _ in range(3):
        await ask(it, SILENT)
    await asyncio.sleep(5.1)
    answers = await asyncio.gather(*(it.call(slow_silence) for _ in range(8)), return_exceptions=True)
    assert asked == 1
    assert sum(isinstance(answer, CircuitOpen) for answer in answers) == 7
