"""Indexes of archives that were made: the last used are kept, and one maker works for all who ask for the same one.

All indexes together, kept, being made and being read, are bounded in memory. Whoever makes one reserves memory before
it is filled; where there is none left, indexes that are only kept are given up first, then one waits, then one is
refused. A making that nobody waits for is given up, and one owner's archives are taken one after another, in however
many workspaces they are, so that nobody holds all places.
"""

import asyncio
import weakref
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from threading import RLock
from typing import Final

from codehub.adapters.object_store.index import ArchiveIndex
from codehub.domain.errors import Unreachable
from codehub.job.errors import refused

WAIT_SECONDS: Final = 30.0
LOOK_SECONDS: Final = 0.05
PIECE: Final = 1 << 20
"""What an index takes at once as it grows."""
LARGEST: Final = (1 << 32) - 1
"""An index counts its bytes in 32 bits."""


class IndexMemory:
    """The memory of all indexes. `give_up`: gives up one index that is kept; False if there is none. `largest`: what
    one index may have of it."""

    def __init__(self, most_bytes: int) -> None:
        self.most = most_bytes
        self.largest = min(most_bytes // 2, LARGEST)
        self.taken = 0
        self.give_up: Callable[[], bool] = lambda: False
        self._lock = RLock()

    def take(self, size: int) -> bool:
        """Reserves memory, from any thread. False, having taken nothing, if there is not so much."""
        with self._lock:
            while self.taken + size > self.most:
                if not self.give_up():
                    return False
            self.taken += size
            return True

    def give_back(self, size: int) -> None:
        with self._lock:
            self.taken -= size


class MemoryReservation:
    """The memory that one index has reserved; the thread that makes the index asks for more as it grows."""

    def __init__(self, memory: IndexMemory) -> None:
        self._memory = memory
        self.bytes = 0

    async def reserve(self, size: int) -> None:
        """Waits a while for memory that others have. Unreachable if they keep it; refused if there can never be so
        much."""
        self._check(size)
        loop = asyncio.get_running_loop()
        ends_at = loop.time() + WAIT_SECONDS
        while not self._memory.take(size):
            if loop.time() > ends_at:
                raise _busy()
            await asyncio.sleep(LOOK_SECONDS)
        self.bytes += size

    def cover(self, size: int) -> None:
        """Makes sure of memory for an index of that size, or raises; whoever holds some does not wait for more."""
        if size <= self.bytes:
            return
        self._check(size)
        more = min(size - self.bytes + PIECE, self._memory.largest - self.bytes)
        if not self._memory.take(more):
            raise _busy()
        self.bytes += more

    def settle(self, size: int) -> None:
        """Gives back what is above `size`: the index takes no more than that from now on."""
        if size < self.bytes:
            self._memory.give_back(self.bytes - size)
            self.bytes = size

    def release(self) -> None:
        self.settle(0)

    def _check(self, size: int) -> None:
        if size > self._memory.largest:
            raise refused("it holds too many files to browse; `codehub ws download --whole` gets it")


def _busy() -> Unreachable:
    return Unreachable("too many large archives are being looked into at the moment; try again")


Make = Callable[[str, MemoryReservation], Awaitable[ArchiveIndex]]


@dataclass(slots=True)
class _Making:
    task: "asyncio.Task[ArchiveIndex]"
    waiting: int = 0


class IndexCache:
    def __init__(self, make: Make, most_bytes: int, most_at_once: int) -> None:
        self._make = make
        self.memory = IndexMemory(most_bytes)
        self.memory.give_up = self._give_up
        self._places = asyncio.Semaphore(most_at_once)
        self._turns: weakref.WeakValueDictionary[str, asyncio.Lock] = weakref.WeakValueDictionary()
        self._kept: OrderedDict[str, ArchiveIndex] = OrderedDict()
        self._makings: dict[str, _Making] = {}

    async def get(self, key: str, turn: str) -> ArchiveIndex:
        """The index of an archive. `turn`: of those who share one, one is made at a time."""
        kept = self._kept.pop(key, None)
        if kept is not None:
            self._kept[key] = kept  # the last to be given up
            return kept
        making = self._makings.get(key)
        if making is None:
            making = self._makings[key] = _Making(asyncio.get_running_loop().create_task(self._made(key, turn)))
            making.task.add_done_callback(lambda task: task.cancelled() or task.exception())
        making.waiting += 1
        try:
            return await asyncio.shield(making.task)
        finally:
            making.waiting -= 1
            if not making.waiting:
                making.task.cancel()
            if (making.task.done() or not making.waiting) and self._makings.get(key) is making:
                del self._makings[key]

    def forget(self, key: str) -> None:
        self._kept.pop(key, None)

    @property
    def entries(self) -> int:
        return sum(map(len, list(self._kept.values())))

    async def _made(self, key: str, turn: str) -> ArchiveIndex:
        async with self._turns.setdefault(turn, asyncio.Lock()), self._places:
            reservation = MemoryReservation(self.memory)
            try:
                index = await self._make(key, reservation)
            except BaseException:
                reservation.release()
                raise
        reservation.settle(index.memory_bytes)
        weakref.finalize(index, reservation.release)  # not when it is given up: somebody may still read from it
        self._kept[key] = index
        return index

    def _give_up(self) -> bool:
        """Gives up the index that was not used for the longest; from any thread, under the memory's lock."""
        try:
            self._kept.popitem(last=False)
        except KeyError:
            return False
        return True
