"""Leadership in memory: a lock with a holder, an epoch, a renewal each second, and a rival who deposes the silent.

The rules are those of the PostgreSQL twin, so that two coordinators in a simulation compete as they do there.
"""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from typing import TypeVar

from codehub.adapters.memory.fault_injection import Network, effect
from codehub.domain.errors import Stale, Unreachable
from codehub.ports.signals import Clock
from codehub.ports.stores import DEPOSE_AFTER, Leader

T = TypeVar("T")

RENEW_SECONDS = 1.0
HELD_SECONDS = 3.0
POLL_SECONDS = 0.5


class Transaction:
    """Open from the epoch's check to the commit; ended from outside when the epoch is bumped."""

    def __init__(self) -> None:
        self.ended = False

    def commit(self, work: Callable[[], T]) -> T:
        if self.ended:
            raise Unreachable("the connection was ended by a new leader")
        return work()


@dataclass(slots=True)
class LeadershipState:
    epoch: int = 0
    holder: str | None = None
    renewed_at: datetime | None = None
    open: list[Transaction] = field(default_factory=list)

    @contextmanager
    def shared(self, epoch: int) -> Iterator[Transaction]:
        if epoch != self.epoch:
            raise Stale(f"epoch {epoch} is over, {self.epoch} leads")
        transaction = Transaction()
        self.open.append(transaction)
        try:
            yield transaction
        finally:
            transaction.ended = True
            if transaction in self.open:
                self.open.remove(transaction)

    def take(self, holder: str, now: datetime) -> int | None:
        """Takes the lock, if it is free or its holder is silent, and returns the new epoch."""
        silent = self.renewed_at is not None and now - self.renewed_at >= DEPOSE_AFTER
        if self.holder is not None and not silent:
            return None
        for transaction in self.open:
            transaction.ended = True
        self.open.clear()
        self.epoch += 1
        self.holder, self.renewed_at = holder, now
        return self.epoch

    def renew(self, epoch: int, now: datetime) -> None:
        if epoch != self.epoch or self.holder is None:
            raise Stale(f"epoch {epoch} is over")
        self.renewed_at = now

    def free(self, epoch: int) -> None:
        """Frees the lock because the holder's session ended."""
        if epoch == self.epoch:
            self.holder = None


class MemoryTerm:
    def __init__(
        self, state: LeadershipState, epoch: int, now: Callable[[], datetime], clock: Clock, network: Network
    ) -> None:
        self.epoch = epoch
        self._state = state
        self._now = now
        self._clock = clock
        self._network = network
        self._renewed = clock.monotonic()
        self._over = asyncio.Event()
        self._renewing = asyncio.get_running_loop().create_task(self._renew())

    def held(self) -> bool:
        return not self._over.is_set() and self._clock.monotonic() - self._renewed < HELD_SECONDS

    async def lost(self) -> None:
        await self._over.wait()

    async def resign(self) -> None:
        self._over.set()
        self._renewing.cancel()
        await asyncio.gather(self._renewing, return_exceptions=True)
        self._state.free(self.epoch)

    async def _renew(self) -> None:
        try:
            while True:
                await self._clock.sleep(RENEW_SECONDS)
                began = self._clock.monotonic()
                await self._network.call("leadership.renew", lambda: self._state.renew(self.epoch, self._now()))
                self._renewed = began
        except (Stale, Unreachable):
            self._state.free(self.epoch)
        finally:
            self._over.set()


class MemoryLeadership:
    def __init__(self, state: LeadershipState, now: Callable[[], datetime], clock: Clock, network: Network) -> None:
        self._state = state
        self._now = now
        self._clock = clock
        self._network = network

    async def campaign(self, holder: str) -> MemoryTerm:
        while True:
            epoch = await self._network.call("leadership.take", lambda: self._state.take(holder, self._now()))
            if epoch is not None:
                return MemoryTerm(self._state, epoch, self._now, self._clock, self._network)
            await self._clock.sleep(POLL_SECONDS)

    @effect("leadership.leader")
    def leader(self) -> Leader | None:
        state = self._state
        if state.holder is None or state.renewed_at is None:
            return None
        age = (self._now() - state.renewed_at).total_seconds()
        return Leader(state.epoch, state.holder, state.renewed_at, age)
