"""Indexes that were made, the last used of them kept, and one maker for all who ask for the same at once.

What there is at any moment, kept, being made or read, is bounded by its memory (index_memory.py). A making that nobody waits for any more is given up, and one owner's archives are taken one after another, in
however many workspaces they are, so that nobody holds all places.
"""

import asyncio
import weakref
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from codehub.adapters.archive_index import ArchiveIndex
from codehub.adapters.index_memory import Allowance, IndexMemory

Make = Callable[[str, Allowance], Awaitable[ArchiveIndex]]


@dataclass(slots=True)
class _Making:
    task: "asyncio.Task[ArchiveIndex]"
    waiting: int = 0


class IndexShelf:
    def __init__(self, make: Make, most_bytes: int, most_at_once: int) -> None:
        self._make = make
        self.memory = IndexMemory(most_bytes)
        self.memory.give_up = self._give_up
        self._places = asyncio.Semaphore(most_at_once)
        self._turns: weakref.WeakValueDictionary[str, asyncio.Lock] = weakref.WeakValueDictionary()
        self._kept: OrderedDict[str, ArchiveIndex] = OrderedDict()
        self._makings: dict[str, _Making] = {}

    async def get(self, key: str, turn: str) -> ArchiveIndex:
        """`turn`: of those who share one, one is made at a time."""
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
            allowance = Allowance(self.memory)
            try:
                index = await self._make(key, allowance)
            except BaseException:
                allowance.release()
                raise
        allowance.settle(index.memory_bytes)
        weakref.finalize(index, allowance.release)  # not when it is given up: somebody may still read from it
        self._kept[key] = index
        return index

    def _give_up(self) -> bool:
        """The one that was not used for the longest; from any thread, under the memory's lock."""
        try:
            self._kept.popitem(last=False)
        except KeyError:
            return False
        return True
