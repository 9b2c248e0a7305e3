"""Indexes that were made, the last used of them kept, and one maker for all who ask for the same at once.

What is kept is bounded by the number of entries; the newest index is kept whatever its size, for its reader will ask
again. A making that nobody waits for any more is given up, and one owner's archives are taken one after another, in
however many workspaces they are, so that nobody holds all places.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from weakref import WeakValueDictionary

from codehub.adapters.archive_index import ArchiveIndex


@dataclass(slots=True)
class _Making:
    task: "asyncio.Task[ArchiveIndex]"
    waiting: int = 0


class IndexShelf:
    def __init__(self, make: Callable[[str], Awaitable[ArchiveIndex]], most_entries: int, most_at_once: int) -> None:
        self._make = make
        self._most = most_entries
        self._places = asyncio.Semaphore(most_at_once)
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._kept: OrderedDict[str, ArchiveIndex] = OrderedDict()
        self._makings: dict[str, _Making] = {}

    async def get(self, key: str, turn: str) -> ArchiveIndex:
        """`turn`: of those who share one, one is made at a time."""
        kept = self._kept.get(key)
        if kept is not None:
            self._kept.move_to_end(key)
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
        return sum(map(len, self._kept.values()))

    async def _made(self, key: str, turn: str) -> ArchiveIndex:
        async with self._turns.setdefault(turn, asyncio.Lock()), self._places:
            index = await self._make(key)
        self._kept[key] = index
        while self.entries > self._most and len(self._kept) > 1:
            self._kept.popitem(last=False)
        return index
