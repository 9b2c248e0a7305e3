"""The network between a caller and state in memory: calm, or as bad as a network can be.

An effect is a plain function on the state, so it happens at one instant; the network decides when, how often, and
whether the caller learns of it.
"""

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from enum import StrEnum
from functools import wraps
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar
from uuid import UUID

from codehub.domain.errors import BackendError, Unreachable
from codehub.ports.signals import Clock

T = TypeVar("T")
P = ParamSpec("P")


class FaultKind(StrEnum):
    FAIL = "fail"  # no connection: never delivered
    CUT_SENDING = "cut_sending"  # the connection broke while the question was sent: never delivered
    LOSE_ANSWER = "lose_answer"  # done, and the connection broke before the answer
    HALF_ANSWER = "half_answer"  # done, and the connection broke within the answer
    REFUSE = "refuse"  # not done, and the answer says so: a definite failure
    HANG = "hang"  # delivered, and no answer ever
    SLOW = "slow"  # delivered after `seconds`
    OLD_NEWS = "old_news"  # answered after `seconds` with what was true before them
    LATE = "late"  # the caller hears an error now; it happens after `seconds`
    REPEAT = "repeat"  # done now, and once more after `seconds`


BREAKS = (FaultKind.FAIL, FaultKind.CUT_SENDING, FaultKind.LOSE_ANSWER, FaultKind.HALF_ANSWER, FaultKind.HANG)
"""Every way in which a backend that is out can break off."""
_WORDS = {
    FaultKind.FAIL: "connection refused",
    FaultKind.CUT_SENDING: "broken pipe",
    FaultKind.LOSE_ANSWER: "connection lost before the answer",
    FaultKind.HALF_ANSWER: "connection lost within the answer",
}


@dataclass(frozen=True, slots=True)
class Fault:
    kind: FaultKind
    seconds: float = 0.0


class Network:
    async def call(self, name: str, effect: Callable[[], T], about: UUID | None = None) -> T:  # noqa: ARG002 - for the faulty ones
        """`about`: the workspace that an effect on the outside touches; None for everything else."""
        return effect()


class HasNetwork(Protocol):
    _network: Network


S = TypeVar("S", bound=HasNetwork)


def effect(
    name: str,
) -> Callable[[Callable[Concatenate[S, P], T]], Callable[Concatenate[S, P], Coroutine[Any, Any, T]]]:
    """Decorates a plain method: callers await it, and its body is one effect that their network delivers under `name`,
    which is what faults are chosen by."""

    def decorate(work: Callable[Concatenate[S, P], T]) -> Callable[Concatenate[S, P], Coroutine[Any, Any, T]]:
        @wraps(work)
        async def call(store: S, /, *args: P.args, **kwargs: P.kwargs) -> T:
            return await store._network.call(name, lambda: work(store, *args, **kwargs))  # noqa: SLF001 - its own

        return call

    return decorate


class FaultyNetwork(Network):
    """`choose` is asked before every call; None means that nothing goes wrong."""

    def __init__(self, clock: Clock, choose: Callable[[str], Fault | None], timeout: float = 10.0) -> None:
        self._clock = clock
        self._choose = choose
        self._timeout = timeout
        self._late: set[asyncio.Task[None]] = set()

    async def call(self, name: str, effect: Callable[[], T], about: UUID | None = None) -> T:  # noqa: ARG002 - as above
        fault = self._choose(name)
        if fault is None:
            return effect()
        match fault.kind:
            case FaultKind.FAIL | FaultKind.CUT_SENDING:
                raise Unreachable(f"{name}: {_WORDS[fault.kind]}")
            case FaultKind.LOSE_ANSWER | FaultKind.HALF_ANSWER:
                effect()
                raise Unreachable(f"{name}: {_WORDS[fault.kind]}")
            case FaultKind.REFUSE:
                raise BackendError(f"{name}: refused")
            case FaultKind.HANG:
                effect()
                await self._clock.sleep(self._timeout)
                raise Unreachable(f"{name}: no answer in {self._timeout:.0f} s")
            case FaultKind.SLOW:
                await self._clock.sleep(fault.seconds)
                return effect()
            case FaultKind.OLD_NEWS:
                answer = effect()
                await self._clock.sleep(fault.seconds)
                return answer
            case FaultKind.LATE:
                self._later(effect, fault.seconds)
                raise Unreachable(f"{name}: connection lost")
            case FaultKind.REPEAT:
                self._later(effect, fault.seconds)
                return effect()

    def _later(self, effect: Callable[[], T], seconds: float) -> None:
        async def deliver() -> None:
            await self._clock.sleep(seconds)
            with contextlib.suppress(Exception):  # nobody is listening any more, as on a real network
                effect()

        task = asyncio.get_running_loop().create_task(deliver())
        self._late.add(task)
        task.add_done_callback(self._late.discard)
