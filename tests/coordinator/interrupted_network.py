"""A coordinator's network that is interrupted at one chosen call: the machine dies there, or that one call goes
wrong.
"""

import asyncio
from collections.abc import Callable
from enum import StrEnum
from typing import TypeVar
from uuid import UUID

from codehub.adapters.memory import Fault
from codehub.adapters.memory.fault_injection import FaultKind
from codehub.domain.errors import Unreachable
from tests.simulation.faults import FaultState, Killed, MachineNetwork
from tests.simulation.oracle import Oracle
from tests.simulation.virtual_time import VirtualClock

T = TypeVar("T")

LATENCY = 0.1
"""How long every call takes, so that the other tasks of the coordinator are at work meanwhile."""

SILENCE = 8.0
"""After how long the adapters of the database and of Redis give up a hung call. Calls to other backends are given up by
the caller.
"""


class Interruption(StrEnum):
    KILLED_BEFORE = "killed before the effect"
    KILLED_AFTER = "killed after the effect"
    REFUSED = "an error, not done"
    ANSWER_LOST = "an error, yet done"
    HANGS_BEFORE = "no answer, not done"
    HANGS_AFTER = "no answer, yet done"


KILLS = (Interruption.KILLED_BEFORE, Interruption.KILLED_AFTER)
FAULT_KINDS = {
    Interruption.REFUSED: FaultKind.FAIL,
    Interruption.ANSWER_LOST: FaultKind.LOSE_ANSWER,
    Interruption.HANGS_AFTER: FaultKind.HANG,
}


class InterruptedNetwork(MachineNetwork):
    """A network that counts calls while `recording`; the one of number `at` is interrupted. Once dead, every call
    raises Killed, so that not even a `finally` can act."""

    def __init__(
        self, holder: str, oracle: Oracle, clock: VirtualClock, interruption: Interruption | None, at: int
    ) -> None:
        super().__init__(holder, 0, FaultState(0.0), oracle, clock)
        self._timeout = SILENCE
        self.calls: list[str] = []
        self.recording = True
        self.was_interrupted = False
        self._interruption = interruption
        self._at = at
        self._meets: Interruption | None = None

    async def call(self, name: str, effect: Callable[[], T], about: UUID | None = None) -> T:
        if self.dead:
            raise Killed
        await asyncio.sleep(LATENCY)
        if self.recording and not self.dead:
            self._count(name)
        return await super().call(name, effect, about)

    def _count(self, name: str) -> None:
        if len(self.calls) == self._at:
            self._meets = self._interruption
            self.was_interrupted = True
            self.dead = self._interruption is Interruption.KILLED_BEFORE
        self.calls.append(name)

    def _choose_fault(self, name: str) -> Fault | None:
        met, self._meets = self._meets, None
        if met is Interruption.HANGS_BEFORE:
            return Fault(FaultKind.SLOW, SILENCE)
        kind = FAULT_KINDS.get(met) if met else None
        return Fault(kind) if kind else None

    def _watched(self, name: str, effect: Callable[[], T], about: UUID | None) -> Callable[[], T]:
        """The effect as it is watched and interrupted. It is built just before the fault is chosen, so `_meets` is
        still this call's."""
        watched, met = super()._watched(name, effect, about), self._meets

        def interrupted() -> T:
            if met is Interruption.HANGS_BEFORE:
                raise Unreachable(f"{name}: no answer in {SILENCE:.0f} s")
            answer = watched()
            self.dead = self.dead or met is Interruption.KILLED_AFTER
            return answer

        return interrupted
