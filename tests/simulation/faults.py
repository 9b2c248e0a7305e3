"""What can go wrong, and when: a seeded network for each coordinator, and outages of whole backends."""

import asyncio
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import count
from typing import TypeVar, cast
from uuid import UUID

from codehub.adapters.memory import Fault, FaultyNetwork
from codehub.adapters.memory.fault_injection import BREAKS, FaultKind
from codehub.domain.errors import Unreachable
from tests.simulation.oracle import Oracle
from tests.simulation.virtual_time import VirtualClock

T = TypeVar("T")

READS = {
    "runtime.identity",
    "runtime.containers",
    "runtime.volumes",
    "runtime.answers",
    "runtime.endpoint",
    "jobs.find",
    "archives.inventory",
    "archives.look",
    "archives.objects",
    "archives.owner",
    "db.collector",
    "db.collection_pending",
    "db.backend_identities",
    "db.versions",
    "db.active",
    "db.load",
    "db.restore_points",
    "db.slots",
    "db.leases",
    "db.idle_candidates",
    "db.get",
    "activity.read",
}
READ_MISHAPS = (FaultKind.FAIL, FaultKind.HANG, FaultKind.SLOW, FaultKind.OLD_NEWS)
WRITE_MISHAPS = (FaultKind.FAIL, FaultKind.LOSE_ANSWER, FaultKind.HANG, FaultKind.SLOW)
EFFECT_MISHAPS = (*WRITE_MISHAPS, FaultKind.CUT_SENDING, FaultKind.HALF_ANSWER, FaultKind.LATE, FaultKind.REPEAT)
REFUSED_SHARE = 0.3
"""The share of failing effects that are answered with a definite failure: those use up tries."""
EFFECTS_FAIL_MORE = 4
FAILS_MORE = {
    "db.record_observations": 12,
    "db.idle_candidates": 10,
    "db.leases": 10,
    "db.pass_safe_point": 20,
    "jobs.find": 4,
    "runtime.create_volume": 16,
    "runtime.delete_volume": 8,
    "archives.delete": 8,
}
"""Rare calls, which must fail more often so that their failures are met at all."""
DELAYS = (0.1, 1.0, 5.0, 30.0)
LATE_DELAYS = (1.0, 10.0, 30.0, 90.0)
"""The delays of late effects. The whole life of a volume fits into the longest: what was sent for one can meet the
next.
"""


class Killed(asyncio.CancelledError):
    """The process is gone: none of its calls happens any more, and nobody asks its tasks how they ended."""


@dataclass(frozen=True, slots=True)
class Outage:
    """An outage in which each call breaks in one of these ways; with a `share` below 1 some get through, so that no
    breaker opens."""

    ways: tuple[FaultKind, ...]
    share: float


@dataclass
class FaultState:
    """The state that all networks share: which backends are out and how they break, and how often single calls fail."""

    rate: float
    out: dict[str, Outage] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)

    def note(self, kind: str) -> None:
        self.counts[kind] += 1

    def breaks(self, backend: str, rng: random.Random) -> FaultKind | None:
        """How this call to that backend breaks, if it does."""
        outage = self.out.get(backend)
        if outage is None or rng.random() >= outage.share:
            return None
        way = rng.choice(outage.ways)
        self.note(f"outage {way}")
        return way


def any_outage(rng: random.Random) -> Outage:
    """An outage in one way for every call, or in all ways mixed, and then not for every call."""
    if rng.random() < 0.5:
        return Outage((rng.choice(BREAKS),), 1.0)
    return Outage(BREAKS, rng.choice((0.5, 0.8)))


class StoreNetwork(FaultyNetwork):
    """The network of storage jobs to the object store: what breaks for the coordinators breaks for them, uploads are
    forgotten, and what is read comes back wrong now and then."""

    def __init__(self, seed: int, fault_state: FaultState, clock: VirtualClock) -> None:
        super().__init__(clock, self._choose_fault, timeout=8.0)
        self._random = random.Random(seed)
        self._fault_state = fault_state
        self._wrong = count(2)

    async def call(self, name: str, effect: Callable[[], T], about: UUID | None = None) -> T:
        if name == "store.upload" and self._happens("upload forgotten"):
            return cast("T", None)  # and nobody is told
        answer = await super().call(name, effect, about)
        if name == "store.read" and isinstance(answer, tuple) and self._happens("wrong answer"):
            # Never the same twice: two wrong answers whose SHA-256 agree are not an accident.
            return cast("T", (*answer, -next(self._wrong)))
        return answer

    def _happens(self, what: str) -> bool:
        happens = self._random.random() < self._fault_state.rate * 4
        if happens:
            self._fault_state.note(what)
        return happens

    def _choose_fault(self, _name: str) -> Fault | None:
        way = self._fault_state.breaks("archives", self._random)
        return Fault(way) if way is not None else None


class UserNetwork(FaultyNetwork):
    """The API's network to the database. It is never instant, so two commands can meet between a check and its
    write."""

    def __init__(self, seed: int, fault_state: FaultState, clock: VirtualClock) -> None:
        super().__init__(clock, self._choose_fault, timeout=8.0)
        self._random = random.Random(seed)
        self._fault_state = fault_state

    async def call(self, name: str, effect: Callable[[], T], about: UUID | None = None) -> T:
        await self._clock.sleep(self._random.uniform(0.001, 0.05))
        return await super().call(name, effect, about)

    def _choose_fault(self, name: str) -> Fault | None:
        if self._random.random() >= self._fault_state.rate * 2:
            return None
        kind = self._random.choice(READ_MISHAPS if name in READS else WRITE_MISHAPS)
        self._fault_state.note(f"wish {kind}")
        return Fault(kind, self._random.choice((0.1, 1.0, 5.0)))


class StallMoment(StrEnum):
    EFFECT = "stall before an effect"
    WRITE = "stall before a write"
    OTHER = "stall"


def _moment(name: str, about: UUID | None) -> StallMoment:
    if about is not None:
        return StallMoment.EFFECT
    return StallMoment.WRITE if name.startswith("db.") and name not in READS else StallMoment.OTHER


class MachineNetwork(FaultyNetwork):
    """One coordinator's network: it can be stalled, cut off or dead, and the oracle hears every effect."""

    def __init__(self, holder: str, seed: int, fault_state: FaultState, oracle: Oracle, clock: VirtualClock) -> None:
        super().__init__(clock, self._choose_fault, timeout=8.0)
        self.holder = holder
        self.cut_from_database = False
        self.dead = False
        self._random = random.Random(seed)
        self._fault_state = fault_state
        self._oracle = oracle
        self._awake = asyncio.Event()
        self._awake.set()
        self._stalls_at: StallMoment | None = None

    def stall(self) -> None:
        self._awake.clear()

    def stall_at(self, moment: StallMoment) -> None:
        """Stall at the worst moment: when the next effect or write was decided on and is not yet sent."""
        self._stalls_at = moment

    @property
    def stalled(self) -> bool:
        return not self._awake.is_set()

    def wake(self) -> None:
        self._stalls_at = None
        self._awake.set()

    async def call(self, name: str, effect: Callable[[], T], about: UUID | None = None) -> T:
        if about is not None:
            self._oracle.issued(self.holder, name, about)
        if not self._oracle.begun(name):
            await self._clock.sleep(1.0)
        if self._stalls_at is not None and self._stalls_at is _moment(name, about):
            self.stall()
        return await self._delivered(name, effect, about)

    async def _delivered(self, name: str, effect: Callable[[], T], about: UUID | None) -> T:
        try:
            await self._pause()
            return await super().call(name, self._watched(name, effect, about), about)
        finally:
            if about is not None:
                self._oracle.returned(self.holder, about)
            if self.dead:
                raise Killed
            if self.stalled:
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
        return name.startswith(("db.", "leadership.")) and self.cut_from_database

    def _choose_fault(self, name: str) -> Fault | None:
        backend = name.split(".", 1)[0]
        way = self._fault_state.breaks(backend, self._random)
        if way is not None:
            return Fault(way)
        acts = backend in ("runtime", "jobs", "archives") and name not in READS
        more = FAILS_MORE.get(name, EFFECTS_FAIL_MORE if acts else 1)
        if self._random.random() >= self._fault_state.rate * more:
            return None
        if name in READS:
            kind = self._random.choice(READ_MISHAPS)
        elif acts and self._random.random() < REFUSED_SHARE:
            kind = FaultKind.REFUSE
        else:
            kind = self._random.choice(EFFECT_MISHAPS if acts else WRITE_MISHAPS)
        self._fault_state.note(f"call {kind}")
        delays = LATE_DELAYS if kind in (FaultKind.LATE, FaultKind.REPEAT) else DELAYS
        return Fault(kind, self._random.choice(delays))
