"""The members of a tar stream, each header vetted before anything is done with it.

Strict on purpose: an archive is what this job wrote, so every type, record or number it would not write is refused
rather than guessed at. Sizes of headers are capped, so no archive can make the reader hold more than a little.
"""

import os
import re
from collections.abc import Iterable, Iterator
from functools import lru_cache

from codehub.job.attributes import belongs_to_home
from codehub.job.errors import corrupted, refused, show
from codehub.job.tar_format import (
    BLOCK,
    DIRECTORY,
    FIFO,
    HARD_LINK,
    MOST_PIECES,
    PAX,
    REGULAR,
    SYMLINK,
    XATTR_PREFIX,
    Member,
    Pieces,
    byte_sum,
)

LARGEST_PAX_HEADER = 16 << 20
MOST_RECORDS = 1 << 14
"""More than a file can have: the names of its attributes may take 64 KiB together."""
LONGEST_PATH = 4 << 20
LARGEST_NUMBER = 2**63 - 1
"""The largest size and, in seconds, the last time that Linux knows."""
NO_ID = 2**32 - 1
_KINDS = {REGULAR, b"\x00", HARD_LINK, SYMLINK, DIRECTORY, FIFO}
_DEVICES = {b"3": "a character device", b"4": "a block device"}
_ZEROS = bytes(BLOCK)
_TIME = re.compile(rb"(-?)(\d{1,19})(?:\.(\d{1,9})\d*)?")
_KNOWN_RECORDS = {
    b"mtime",
    b"size",
    b"uid",
    b"gid",
    b"path",
    b"linkpath",
    b"hdrcharset",
    b"atime",
    b"ctime",
    b"comment",
}

Records = dict[bytes, bytes]


class ByteSource:
    """Exact reads over a stream of chunks."""

    def __init__(self, chunks: Iterable[bytes]) -> None:
        self._chunks = iter(chunks)
        self._chunk = b""
        self._position = 0
        self._before = 0

    @property
    def consumed(self) -> int:
        return self._before + self._position

    def take(self, size: int) -> bytes:
        end = self._position + size
        if end <= len(self._chunk):
            data = self._chunk[self._position : end]
            self._position = end
            return data
        return b"".join(self.pieces(size))

    def pieces(self, size: int) -> Iterator[memoryview]:
        while size:
            if self._position == len(self._chunk) and not self._refill():
                raise corrupted("it ends in the middle of a member")
            end = min(self._position + size, len(self._chunk))
            view = memoryview(self._chunk)[self._position : end]
            self._position = end
            size -= len(view)
            yield view

    def skip(self, size: int) -> None:
        for _ in self.pieces(size):
            pass

    def only_zeros_remain(self) -> bool:
        while True:
            if self._chunk.count(0, self._position) != len(self._chunk) - self._position:
                return False
            if not self._refill():
                return True

    def _refill(self) -> bool:
        self._before += len(self._chunk)
        self._chunk, self._position = next(self._chunks, b""), 0
        return bool(self._chunk)


class TarReader:
    """Reads a tar stream: iterate for members; take a member's content (or not) before the next."""

    def __init__(self, chunks: Iterable[bytes]) -> None:
        self._source = ByteSource(chunks)
        self._unread = 0
        self._padding = 0
        self.offset = 0
        """Where in the stream the present member begins."""

    def __iter__(self) -> Iterator[Member]:
        while (block := self._next_block()) != _ZEROS:
            self.offset = self._source.consumed - BLOCK
            records: Records = {}
            if block[156:157] == PAX:
                records = self._read_pax(block)
                block = self._source.take(BLOCK)
                _check(block)
            member = _member(block, records)
            self._unread, self._padding = member.size, -member.size % BLOCK
            yield member
        if not self._source.only_zeros_remain():
            raise refused("it goes on after its end")

    def member_at(self, offset: int) -> Member:
        """The member that begins at this offset: in a stream whose members are known, those between need not be looked
        at."""
        self._source.skip(offset - self._source.consumed)
        self._unread = self._padding = 0
        return next(iter(self))

    def content(self) -> Iterator[memoryview]:
        return self.part(self._unread)

    def small_content(self) -> bytes:
        size, self._unread = self._unread, 0
        return self._source.take(size)

    def part(self, size: int) -> Iterator[memoryview]:
        for view in self._source.pieces(size):
            self._unread -= len(view)
            yield view

    def sparse_map(self, member: Member) -> Pieces:
        """Reads the map at the front of a sparse member's content and checks it against the member's sizes."""
        numbers = self._decimals()
        count = next(numbers)
        if count > MOST_PIECES + 1:
            raise refused(f"{show(member.path)} has a sparse map of {count} pieces")
        pieces = Pieces()
        for _ in range(count):
            offset, length = next(numbers), next(numbers)
            if offset < pieces.end or offset + length > (member.real_size or 0):
                raise refused(f"{show(member.path)} has a sparse map that does not fit it")
            if length:
                pieces.add(offset, length)
        if pieces.data_bytes != self._unread:
            raise refused(f"{show(member.path)} has a sparse map that does not fit its data")
        return pieces

    def _decimals(self) -> Iterator[int]:
        rest = b""
        while True:
            *lines, rest = (rest + self._map_block()).split(b"\n")
            for line in lines:
                yield _decimal(line)
            if len(rest) > 20:
                raise refused("a sparse map holds something else than numbers")

    def _map_block(self) -> bytes:
        if self._unread < BLOCK:
            raise refused("a sparse map is longer than its file")
        self._unread -= BLOCK
        return self._source.take(BLOCK)

    def _next_block(self) -> bytes:
        if self._unread or self._padding:
            self._source.skip(self._unread + self._padding)
            self._unread = self._padding = 0
        block = self._source.take(BLOCK)
        if block != _ZEROS:
            _check(block)
        return block

    def _read_pax(self, block: bytes) -> Records:
        size = _octal(block[124:136])
        if size > LARGEST_PAX_HEADER:
            raise refused(f"an extended header of {size} bytes")
        return _parse_records(self._source.take(size + -size % BLOCK)[:size])


def _check(block: bytes) -> None:
    expected = byte_sum(block) - sum(block[148:156]) + 8 * 32
    if _octal(block[148:156]) != expected:
        raise refused("a header with a wrong checksum")


def _parse_records(data: bytes) -> Records:
    records: Records = {}
    position = 0
    while position < len(data):
        if len(records) == MOST_RECORDS:
            raise refused(f"an extended header of more than {MOST_RECORDS} records")
        space = data.find(b" ", position, position + 20)
        end = position + (_decimal(data[position:space]) if space > 0 else 0)
        key, equals, value = data[space + 1 : end - 1].partition(b"=")
        if space < 0 or end > len(data) or data[end - 1 : end] != b"\n" or not equals or end <= space:
            raise refused("an extended header that cannot be read")
        records[key] = value
        position = end
    return records


def _member(block: bytes, records: Records) -> Member:
    kind = block[156:157]
    name = block[:100].rstrip(b"\x00")
    if block[257:263] == b"ustar\x00" and block[345] != 0:
        name = block[345:500].rstrip(b"\x00") + b"/" + name
    if kind not in _KINDS:
        what = _DEVICES.get(kind, f"of an unknown type ({kind!r})")
        raise refused(f"{show(records.get(b'path', name))} is {what}")
    kind = REGULAR if kind == b"\x00" else kind
    mtime = records.get(b"mtime")
    real_size = _sparse_size(records)
    return Member(
        path=_safe_path(records.get(b"GNU.sparse.name" if real_size is not None else b"path", name)),
        kind=kind,
        mode=_octal(block[100:108]) & 0o7777,
        uid=_id(records, b"uid", block[108:116]),
        gid=_id(records, b"gid", block[116:124]),
        mtime_ns=_octal(block[136:148]) * 1_000_000_000 if mtime is None else _nanoseconds(mtime),
        size=_size(kind, block, records),
        link=_link(kind, records.get(b"linkpath", block[157:257].rstrip(b"\x00"))),
        xattrs=_xattrs(records) if len(records) > 1 or mtime is None else (),
        real_size=real_size,
    )


def _size(kind: bytes, block: bytes, records: Records) -> int:
    size = _decimal(records[b"size"]) if b"size" in records else _octal(block[124:136])
    if size and kind != REGULAR:
        raise refused("a member with content that can have none")
    return size


def _sparse_size(records: Records) -> int | None:
    if b"GNU.sparse.major" not in records:
        if any(key.startswith(b"GNU.") for key in records):
            raise refused("a sparse file in a format this job does not write")
        return None
    if (records[b"GNU.sparse.major"], records.get(b"GNU.sparse.minor")) != (b"1", b"0"):
        raise refused("a sparse file in a format this job does not write")
    return _decimal(records.get(b"GNU.sparse.realsize", b""))


def _safe_path(path: bytes) -> bytes:
    """The path, refused unless it is relative, inside the home and spelled in one way: no empty, `.` or `..` part."""
    if len(path) > LONGEST_PATH:
        raise refused(f"{show(path)} is too long a name")
    if path in (b".", b"./"):
        return b""
    bare = path.removeprefix(b"./").removesuffix(b"/")
    parts = bare.split(b"/")
    if path.startswith(b"/") or b".." in parts:
        raise refused(f"{show(path)} would be outside the home")
    if b"" in parts or b"." in parts or b"\x00" in bare:
        raise refused(f"{show(path)} is no proper name")
    return bare


def _link(kind: bytes, link: bytes) -> bytes:
    """The target of a link: a symlink may point anywhere, a hard link only to a member of this archive."""
    if kind == HARD_LINK:
        return _safe_path(link)
    if kind != SYMLINK:
        return b""
    if not link or b"\x00" in link:
        raise refused("a symlink to nothing")
    return link


def _xattrs(records: Records) -> tuple[tuple[str, bytes], ...]:
    found = []
    for key, value in records.items():
        if key.startswith(XATTR_PREFIX):
            name = os.fsdecode(key[len(XATTR_PREFIX) :].replace(b"%3D", b"=").replace(b"%25", b"%"))
            if "\x00" in name or not belongs_to_home(name):
                raise refused(f"an attribute a home cannot have: {name!r}")
            found.append((name, value))
        elif key not in _KNOWN_RECORDS and not key.startswith(b"GNU.sparse."):
            raise refused(f"an extended header this job does not write: {show(key)}")
    return tuple(found)


@lru_cache(maxsize=4096)  # modes, owners and sums repeat from file to file
def _octal(field: bytes) -> int:
    digits = field.strip(b" \x00")
    if not digits:
        return 0
    # No digits, or an 8 or 9 among them; `int` alone would also take underscores and signs.
    if not digits.isdigit() or b"8" in digits or b"9" in digits:
        raise refused("a header with a number that is none")
    return int(digits, 8)


def _decimal(text: bytes) -> int:
    number = int(text) if text.isdigit() and len(text) <= 19 else LARGEST_NUMBER + 1
    if number > LARGEST_NUMBER:
        raise refused("an extended header with a number that is none")
    return number


def _id(records: Records, key: bytes, field: bytes) -> int:
    number = _decimal(records[key]) if key in records else _octal(field)
    if number >= NO_ID:
        raise refused(f"an owner that is none: {number}")
    return number


def _nanoseconds(text: bytes) -> int:
    match = _TIME.fullmatch(text)
    if match is None:
        raise refused("a time that is none")
    sign, seconds, fraction = match.groups()
    value = int(seconds) * 1_000_000_000 + int((fraction or b"").ljust(9, b"0"))
    value = -value if sign else value
    if not -LARGEST_NUMBER - 1 <= value // 1_000_000_000 <= LARGEST_NUMBER:
        raise refused("a time that is none")
    return value
