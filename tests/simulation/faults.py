"""What can go wrong, and when: a seeded wire for each coordinator, and outages of whole backends."""

import asyncio
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar
from uuid import UUID

from codehub.adapters.memory import Fault, FaultyWire
from codehub.adapters.memory.wire import Mishap
from codehub.domain.errors import Unreachable
from tests.simulation.oracle import Oracle
from tests.simulation.virtual_time import VirtualClock

T = TypeVar("T")

READS = {
    "runtime.containers", "runtime.volumes", "runtime.answers", "runtime.endpoint", "jobs.find", "archives.inventory",
    "archives.look", "archives.objects", "db.versions", "db.active", "db.load", "db.restore_points", "db.slots",
    "db.leases", "db.idle_candidates", "db.get", "activity.read",
}
READ_MISHAPS = (Mishap.FAIL, Mishap.HANG, Mishap.SLOW, Mishap.OLD_NEWS)
WRITE_MISHAPS = (Mishap.FAIL, Mishap.LOSE_ANSWER, Mishap.HANG, Mishap.SLOW)
EFFECT_MISHAPS = (*WRITE_MISHAPS, Mishap.LATE, Mishap.REPEAT)
EFFECTS_FAIL_MORE = 4


class Killed(BaseException):
    """The process is gone: no call of it happens any more."""


@dataclass
class Weather:
    """Shared by all wires: which backends are out for everybody, and how bad single calls are."""

    rate: float
    out: set[str] = field(default_factory=set)
    counts: Counter[str] = field(default_factory=Counter)

    def note(self, kind: str) -> None:
        self.counts[kind] += 1


class MachineWire(FaultyWire):
    """One coordinator's connections: it can be stalled, cut off or dead, and the oracle hears every effect."""

    def __init__(self, holder: str, seed: int, weather: Weather, oracle: Oracle, clock: VirtualClock) -> None:
        super().__init__(clock, self._choose_fault, timeout=8.0)
        self.holder = holder
        self.cut_from_database = False
        self.dead = False
        self._random = random.Random(seed)
        self._weather = weather
        self._oracle = oracle
        self._awake = asyncio.Event()
        self._awake.set()

    def stall(self) -> None:
        self._awake.clear()

    def wake(self) -> None:
        self._awake.set()

    async def call(self, name: str, effect: Callable[[], T], about: UUID | None = None) -> T:
        if about is not None:
            self._oracle.issued(self.holder, name, about)
        await self._pause()
        try:
            return await super().call(name, self._watched(name, effect, about), about)
        finally:
            if about is not None:
                self._oracle.returned(self.holder, about)
            if self.dead:
                raise Killed
            if not self._awake.is_set():
                await self._pause()

    async def _pause(self) -> None:
        if self.dead:
            raise Killed
        await self._awake.wait()

    def _watched(self, name: str, effect: Callable[[], T], about: UUID | None) -> Callable[[], T]:
        def watched() -> T:
            if self._is_out(name):
                raise Unreachable(f"{name}: no route")
            return self._oracle.happening(self.holder, name, effect, about)

        return watched

    def _later(self, effect: Callable[[], T], seconds: float) -> None:
        def late() -> T:
            with self._oracle.delivering_late():
                return effect()

        super()._later(late, seconds)

    def _is_out(self, name: str) -> bool:
        backend = name.split(".", 1)[0]
        if backend in ("db", "leadership"):
            return self.cut_from_database
        return backend in self._weather.out

    def _choose_fault(self, name: str) -> Fault | None:
        backend = name.split(".", 1)[0]
        acts = backend in ("runtime", "jobs", "archives") and name not in READS
        if self._random.random() >= self._weather.rate * (EFFECTS_FAIL_MORE if acts else 1):
            return None
        if name in READS:
            mishap = self._random.choice(READ_MISHAPS)
        else:
            mishap = self._random.choice(EFFECT_MISHAPS if acts else WRITE_MISHAPS)
        self._weather.note(f"call {mishap}")
        return Fault(mishap, self._random.choice((0.1, 1.0, 5.0, 30.0)))
