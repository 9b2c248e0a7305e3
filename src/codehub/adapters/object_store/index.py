"""An index of everything an archive holds, in about 50 bytes an entry and its name, and the cache of such indexes.

Entries are numbered in the archive's order: depth first, so that a folder's inside is the range from the folder to its
`end`. What is in each folder is put in order once, so a page of a folder costs what the page holds. What a restore
would refuse is refused here too: names outside the home never get this far (the reader vets them), and those that come
twice or without their folder get no number.
"""

import asyncio
import weakref
from array import array
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from threading import RLock
from typing import Final, NamedTuple

from codehub.domain.errors import Unreachable
from codehub.job.errors import refused, show
from codehub.job.tar_format import DIRECTORY, FIFO, HARD_LINK, REGULAR, SYMLINK, Member
from codehub.ports.archives import ArchiveEntry, EntryKind, to_name

ENTRY_BYTES, FOLDER_BYTES = 51, 16
"""What the arrays below take for each, without names."""
_LINK_BYTES = 160
"""What tying a hard link takes for a while, without its text."""
_COVER_EVERY = 256
WAIT_SECONDS: Final = 30.0
LOOK_SECONDS: Final = 0.05
PIECE: Final = 1 << 20
"""What an index takes at once as it grows."""
LARGEST: Final = (1 << 32) - 1
"""An index counts its bytes in 32 bits."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_LATEST_NS = 2**63 - 1
_KINDS = {REGULAR: EntryKind.FILE, DIRECTORY: EntryKind.FOLDER, SYMLINK: EntryKind.LINK, FIFO: EntryKind.FIFO}


class Children(NamedTuple):
    """`listed`: the folders, then from `others` on all else; each in the order of their names' bytes, which is that of
    their numbers."""

    listed: memoryview
    others: int


_NONE = Children(memoryview(b""), 0)


def expected_bytes(files: int) -> int:
    """The memory that an index of so many files takes, with names of ordinary length."""
    return grown(files * (ENTRY_BYTES + 24) + (64 << 10))


def grown(size: int) -> int:
    """The memory that arrays of that size may take: they grow by an eighth at a time."""
    return size + size // 8 + 4096


class ArchiveIndex:
    """The entries of an archive by number; number 0 is the home itself. `cover` is told how much memory the index is
    about to take, and raises if there is not so much."""

    def __init__(self, cover: Callable[[int], None] = lambda _size: None) -> None:
        self._cover = cover
        self.sha256 = ""
        self.marks = b""
        """The hashes that prove the archive's bytes piece by piece (extract.py)."""
        self.root_is_stored = False
        self._texts = bytearray()
        self._kinds = bytearray()
        self._name_starts, self._name_ends = array("I"), array("I")
        self._ends, self._targets = array("I"), array("I")
        self._modes = array("H")
        self._times, self._sizes, self._offsets = array("q"), array("Q"), array("Q")
        self._folders = array("I")
        self._firsts, self._others, self._lasts = array("I"), array("I"), array("I")
        """Of each folder, where its children, those that are no folders, and the end of them are in `_listed`."""
        self._listed = array("I")

    def __len__(self) -> int:
        return len(self._kinds)

    @property
    def memory_bytes(self) -> int:
        stored = len(self) * ENTRY_BYTES + len(self._folders) * FOLDER_BYTES + len(self._texts) + len(self.marks)
        return grown(stored)

    def find(self, path: bytes) -> int | None:
        number: int | None = 0
        for name in path.split(b"/") if path else ():
            number = None if number is None else self.named(name, self.children(number))
        return number

    def named(self, name: bytes, children: Children) -> int | None:
        listed, others = children
        for first, last in ((0, others), (others, len(listed))):
            place = bisect_left(listed, name, first, last, key=self.name)
            if place < last and self.name(listed[place]) == name:
                return listed[place]
        return None

    def path(self, number: int, below: int = 0) -> bytes:
        """The path of an entry, relative to the folder `below`, which it must be inside of."""
        names = []
        while below != number:
            listed, others = self.children(below)
            place = bisect_right(listed, number, 0, others) - 1
            below = listed[place] if place >= 0 and number < self._ends[listed[place]] else number
            names.append(self.name(below))
        return b"/".join(names)

    def children(self, folder: int) -> Children:
        """The entries directly inside a folder; none for what is no folder."""
        place = bisect_left(self._folders, folder)
        if place == len(self._folders) or self._folders[place] != folder:
            return _NONE
        first = self._firsts[place]
        return Children(memoryview(self._listed)[first : self._lasts[place]], self._others[place] - first)

    def end(self, number: int) -> int:
        return self._ends[number]

    def offset(self, number: int) -> int:
        return self._offsets[number]

    def name(self, number: int) -> bytes:
        return bytes(self._texts[self._name_starts[number] : self._name_ends[number]])

    def kind(self, number: int) -> bytes:
        return bytes(self._kinds[number : number + 1])

    def holder(self, number: int) -> int:
        """The entry that holds the content of this one: itself, or for a hard link the first name of the same file."""
        return self._targets[number] if self.kind(number) == HARD_LINK else number

    def entry(self, number: int) -> ArchiveEntry:
        holder = self.holder(number)
        kind = _KINDS[self.kind(holder)]
        return ArchiveEntry(
            name=to_name(self.name(number)),
            kind=kind,
            size=self._sizes[holder],
            mode=self._modes[holder],
            mtime=_EPOCH + timedelta(microseconds=self._times[holder] // 1000),
            target=to_name(self.link_text(holder)) if kind is EntryKind.LINK else None,
        )

    def link_text(self, number: int) -> bytes:
        """What a symbolic link points to, which is stored after its name."""
        following = number + 1
        end = self._name_starts[following] if following < len(self) else len(self._texts)
        return bytes(self._texts[self._name_ends[number] : end])

    # ── while it is made ──

    def append(self, name: bytes, member: Member, offset: int) -> int:
        if len(self) % _COVER_EVERY == 0:
            self._cover(self.memory_bytes)
        self._name_starts.append(len(self._texts))
        self._texts += name
        self._name_ends.append(len(self._texts))
        self._texts += member.link
        self._kinds += member.kind
        self._ends.append(len(self))
        self._targets.append(0)
        self._modes.append(member.mode)
        self._times.append(max(-_LATEST_NS, min(member.mtime_ns, _LATEST_NS)))
        self._sizes.append(member.size if member.real_size is None else member.real_size)
        self._offsets.append(offset)
        number = len(self) - 1
        if member.kind == DIRECTORY:
            self._folders.append(number)
            for places in (self._firsts, self._others, self._lasts):
                places.append(0)
        return number

    def close(self, folder: int, folders: "array[int]", others: "array[int]") -> None:
        """Ends `folder`: these are all of its children, and no more are added."""
        self._ends[folder] = len(self)
        place = bisect_left(self._folders, folder)
        self._firsts[place] = len(self._listed)
        self._listed.extend(folders)
        self._others[place] = len(self._listed)
        self._listed.extend(others)
        self._lasts[place] = len(self._listed)

    def made(self) -> "ArchiveIndex":
        """The finished index: it grows no more, and no longer refers to who counted its memory."""
        self._cover = lambda _size: None
        return self

    def hard_links(self) -> Iterator[int]:
        number = self._kinds.find(HARD_LINK)
        while number >= 0:
            yield number
            number = self._kinds.find(HARD_LINK, number + 1)

    def tie(self, number: int, holder: int) -> None:
        self._targets[number] = holder


@dataclass(slots=True)
class _OpenFolder:
    path: bytes
    number: int
    last: bytes = b""
    folders: "array[int]" = field(default_factory=lambda: array("I"))
    others: "array[int]" = field(default_factory=lambda: array("I"))


class IndexBuilder:
    """Builds an index: members go in, in the archive's order, and `finish` returns it."""

    def __init__(self, cover: Callable[[int], None] = lambda _size: None) -> None:
        self._cover = cover
        self._index = ArchiveIndex(cover)
        self._index.append(b"", Member(b"", DIRECTORY, 0o755, 0, 0, 0), 0)
        self._stack = [_OpenFolder(b"", 0)]

    def add(self, member: Member, offset: int) -> None:
        if not member.path:
            self._take_home(member, offset)
            return
        parent, _, name = member.path.rpartition(b"/")
        folder = self._enter(parent, member)
        if name <= folder.last:
            raise refused(f"{show(member.path)} comes twice, or after its turn")
        folder.last = name
        number = self._index.append(name, member, offset)
        if member.kind == DIRECTORY:
            folder.folders.append(number)
            self._stack.append(_OpenFolder(member.path, number))
        else:
            folder.others.append(number)

    def finish(self, sha256: str, marks: bytes, go_on: Callable[[], None] = lambda: None) -> ArchiveIndex:
        """`go_on` is called between any two steps, and raises when nobody wants the index any more."""
        while self._stack:
            self._leave()
        self._index.sha256, self._index.marks = sha256, marks
        self._tie_links(go_on)
        return self._index.made()

    def _take_home(self, member: Member, offset: int) -> None:
        if len(self._index) > 1 or self._index.root_is_stored or member.kind != DIRECTORY:
            raise refused("the home itself comes twice, late, or is no directory")
        self._index = ArchiveIndex(self._cover)
        self._index.append(b"", member, offset)
        self._index.root_is_stored = True

    def _enter(self, path: bytes, member: Member) -> _OpenFolder:
        while (top := self._stack[-1]).path != path:
            if not top.path or path.startswith(top.path + b"/"):
                raise refused(f"{show(member.path)} comes without its directory")
            self._leave()
        return top

    def _leave(self) -> None:
        left = self._stack.pop()
        self._index.close(left.number, left.folders, left.others)

    def _tie_links(self, go_on: Callable[[], None]) -> None:
        """Connects hard links to their files, in the order of the paths they name, so that each folder on the way is
        looked up once and not for every link."""
        index, lookup = self._index, _PathLookup(self._index)
        texts = [len(index.link_text(number)) for number in index.hard_links()]
        self._cover(index.memory_bytes + sum(texts) + len(texts) * _LINK_BYTES)
        for number in sorted(index.hard_links(), key=index.link_text):
            go_on()
            link = index.link_text(number)
            found = lookup.find(link)
            if found is None or found >= number or index.kind(found) == DIRECTORY:
                path = index.path(number)
                raise refused(f"{show(path)} is a hard link to {show(link)}, which is no file of it")
            index.tie(number, found)
        # From the first to the last: a name of a name is then the name of the file.
        for number in index.hard_links():
            index.tie(number, index.holder(index.holder(number)))


class _PathLookup:
    """The folders on the path that was last looked up, so that a path which begins the same does not look them up
    again."""

    def __init__(self, index: ArchiveIndex) -> None:
        self._index = index
        self._path = b""
        self._folders = [(0, index.children(0))]
        """How much of the path leads into the folder, and what is in it."""

    def find(self, path: bytes) -> int | None:
        while not path.startswith(self._path[: self._folders[-1][0]]):
            self._folders.pop()
        self._path = path
        start, children = self._folders[-1]
        while (end := path.find(b"/", start)) >= 0:
            found = self._index.named(path[start:end], children)
            if found is None:
                return None
            start, children = end + 1, self._index.children(found)
            self._folders.append((start, children))
        return self._index.named(path[start:], children)


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
    """The indexes that were used last; one maker works for all who ask for the same one.

    All indexes together, kept, being made and being read, are bounded in memory. Whoever makes one reserves memory
    before it is filled; where there is none left, indexes that are only kept are given up first, then one waits, then
    one is refused. A making that nobody waits for is given up, and one owner's archives are taken one after another, in
    however many workspaces they are, so that nobody holds all places."""

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
