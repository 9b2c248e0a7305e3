"""One tar member as bytes: POSIX pax headers, readable by any tar.

Only the subset a home needs is written, and the same tree always gives the same bytes (no access times, no clock),
so that two uploads of one archive operation cannot disagree. Extended attributes, POSIX ACLs among them, are
`SCHILY.xattr.*` records and sparse files use the GNU 1.0 map, both as GNU tar writes them.
The map of a sparse file (offset and length of each piece of data) is held as packed integers and bounded: a file with
more pieces than that has its smallest holes stored as zeros, which costs space but never data.
"""

import errno
import os
import struct
from array import array
from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

BLOCK = 512
REGULAR, HARD_LINK, SYMLINK, DIRECTORY, FIFO, PAX = b"0", b"1", b"2", b"5", b"6", b"x"
XATTR_PREFIX = b"SCHILY.xattr."
END_OF_ARCHIVE = bytes(2 * BLOCK)
MOST_PIECES = 1 << 20

_USTAR = struct.Struct("100s8s8s8s12s12s8s1s100s8s32s32s8s8s155s12x")
_MAGIC = b"ustar\x0000"
_NO_CHECKSUM = b"        "
_LARGEST_ID = 0o7777777
_LARGEST_NUMBER = 0o77777777777
_SECOND = 1_000_000_000

Xattrs = tuple[tuple[str, bytes], ...]


class Member(NamedTuple):
    """One entry of an archive. `path` is relative without a trailing slash, empty for the home itself. `size` is how
    many bytes follow the header in the stream."""

    path: bytes
    kind: bytes
    mode: int
    uid: int
    gid: int
    mtime_ns: int
    size: int = 0
    link: bytes = b""
    xattrs: Xattrs = ()
    real_size: int | None = None
    """Length of a sparse file; its map and then its data are the `size` bytes that follow."""


def encode(member: Member) -> bytes:
    name = _stored_name(member)
    records = _pax_records(member, name)
    pax = _pax_header(len(records)) + padded(records) if records else b""
    return pax + _ustar(
        name[:100], member.kind, member.mode, member.uid, member.gid, member.mtime_ns, member.size, member.link[:100]
    )


def byte_sum(block: bytes) -> int:
    """The sum of a header's bytes, without its zeros, which makes it several times faster."""
    return sum(block.translate(None, b"\x00"))


def padding(size: int) -> bytes:
    return bytes(-size % BLOCK)


def padded(data: bytes) -> bytes:
    return data + padding(len(data))


def _stored_name(member: Member) -> bytes:
    if not member.path:
        return b"./"
    if member.real_size is not None:
        return b"GNUSparseFile.0/" + member.path.rpartition(b"/")[2]
    return member.path + b"/" if member.kind == DIRECTORY else member.path


def _pax_records(member: Member, name: bytes) -> bytes:
    seconds, nanos = divmod(member.mtime_ns, _SECOND)
    records = b""
    if nanos or not 0 <= seconds <= _LARGEST_NUMBER:
        records += _record(b"mtime", _decimal_time(member.mtime_ns))
    if member.size > _LARGEST_NUMBER:
        records += _record(b"size", b"%d" % member.size)
    if member.uid > _LARGEST_ID:
        records += _record(b"uid", b"%d" % member.uid)
    if member.gid > _LARGEST_ID:
        records += _record(b"gid", b"%d" % member.gid)
    if member.real_size is not None:
        records += _record(b"GNU.sparse.major", b"1") + _record(b"GNU.sparse.minor", b"0")
        records += _record(b"GNU.sparse.name", member.path)
        records += _record(b"GNU.sparse.realsize", b"%d" % member.real_size)
    elif len(name) > 100 or not name.isascii():
        records += _record(b"path", name)
    if len(member.link) > 100 or not member.link.isascii():
        records += _record(b"linkpath", member.link)
    for key, value in member.xattrs:
        records += _record(XATTR_PREFIX + _escaped(key), value)
    if records and not (_is_utf8(member.path) and _is_utf8(member.link)):
        records = _record(b"hdrcharset", b"BINARY") + records
    return records


def _record(key: bytes, value: bytes) -> bytes:
    """One pax record; the length at its front counts its own digits."""
    rest = len(key) + len(value) + 3
    length = rest + len(str(rest))
    length = rest + len(str(length))
    return b"%d %s=%s\n" % (length, key, value)


def _decimal_time(mtime_ns: int) -> bytes:
    seconds, nanos = divmod(abs(mtime_ns), _SECOND)
    return b"%s%d.%09d" % (b"-" if mtime_ns < 0 else b"", seconds, nanos)


def _escaped(xattr: str) -> bytes:
    return os.fsencode(xattr).replace(b"%", b"%25").replace(b"=", b"%3D")


def _is_utf8(name: bytes) -> bool:
    if name.isascii():
        return True
    try:
        name.decode()
    except UnicodeDecodeError:
        return False
    return True


@lru_cache(maxsize=1024)
def _pax_header(size: int) -> bytes:
    return _ustar(b"././@PaxHeader", PAX, 0o644, 0, 0, 0, size, b"")


def _ustar(name: bytes, kind: bytes, mode: int, uid: int, gid: int, mtime_ns: int, size: int, link: bytes) -> bytes:
    seconds = mtime_ns // _SECOND
    block = _USTAR.pack(
        name,
        b"%07o" % (mode & 0o7777),
        b"%07o" % (uid if uid <= _LARGEST_ID else 0),
        b"%07o" % (gid if gid <= _LARGEST_ID else 0),
        b"%011o" % (size if size <= _LARGEST_NUMBER else 0),
        b"%011o" % (seconds if 0 <= seconds <= _LARGEST_NUMBER else 0),
        _NO_CHECKSUM,
        kind,
        link,
        _MAGIC,
        b"",
        b"",
        b"0000000",
        b"0000000",
        b"",
    )
    return block[:148] + b"%06o\x00 " % byte_sum(block) + block[156:]


class Pieces:
    """Pieces of data in a sparse file, in order, as alternating offsets and lengths."""

    def __init__(self) -> None:
        self._numbers = array("Q")

    def __len__(self) -> int:
        return len(self._numbers) // 2

    def __iter__(self) -> Iterator[tuple[int, int]]:
        numbers = iter(self._numbers)
        return zip(numbers, numbers, strict=True)

    def add(self, offset: int, length: int) -> None:
        self._numbers.append(offset)
        self._numbers.append(length)

    def extend_last(self, end: int) -> None:
        self._numbers[-1] = end - self._numbers[-2]

    @property
    def end(self) -> int:
        return self._numbers[-2] + self._numbers[-1] if self._numbers else 0

    @property
    def data_bytes(self) -> int:
        return sum(self._numbers[1::2])


def may_have_holes(status: os.stat_result) -> bool:
    return status.st_blocks * 512 < status.st_size


def find_pieces(descriptor: int, size: int) -> Pieces:
    smallest_hole = 1
    while True:
        pieces = Pieces()
        for start, end in _data_ranges(descriptor, size):
            if len(pieces) and start - pieces.end < smallest_hole:
                pieces.extend_last(end)
            else:
                pieces.add(start, end - start)
            if len(pieces) > MOST_PIECES:
                break
        else:
            return pieces
        smallest_hole = max(8192, smallest_hole * 2)


def _data_ranges(descriptor: int, size: int) -> Iterator[tuple[int, int]]:
    position = 0
    while position < size:
        try:
            start = os.lseek(descriptor, position, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:
                return
            raise
        position = min(os.lseek(descriptor, start, os.SEEK_HOLE), size)
        if start < position:
            yield start, position


def encode_map(pieces: Pieces, size: int) -> bytes:
    """The map of a sparse file in GNU format 1.0. An empty piece at the end tells other tars how long the file is."""
    lines = [b"%d" % (len(pieces) + 1)]
    lines += [b"%d\n%d" % piece for piece in pieces]
    lines.append(b"%d\n0\n" % size)
    return padded(b"\n".join(lines))
