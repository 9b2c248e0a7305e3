"""A directory as a stream of tar bytes.

Depth first, names in byte order, every directory before its content: the unpacker relies on that order. Sockets and
devices are left out by type, never by name. Nothing else may use the volume meanwhile; a file that changes under
our hands ends the attempt, because such an archive would be of no moment in time.
"""

import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field

from codehub.job.attributes import inside, read_xattrs
from codehub.job.errors import changed, from_os_error, show
from codehub.job.filesystem import OPEN_DIRECTORY, listed
from codehub.job.ignore import Ignore
from codehub.job.progress import ProgressReporter
from codehub.job.tar_format import (
    BLOCK,
    DIRECTORY,
    END_OF_ARCHIVE,
    FIFO,
    HARD_LINK,
    REGULAR,
    SYMLINK,
    Member,
    Xattrs,
    encode,
    encode_map,
    find_pieces,
    may_have_holes,
    padding,
)
from codehub.job.volume import home_entries

CHUNK = 1 << 20
OPEN_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK


@dataclass
class Totals:
    files: int = 0
    left_out: int = 0
    content_bytes: int = 0
    """What restore's limit is held against: the stored bytes of each member, and a header for each."""


@dataclass
class _DirectoryBeingRead:
    descriptor: int
    path: bytes
    status: os.stat_result
    names: Iterator[bytes]


@dataclass
class Packer:
    volume: int
    ignore: Ignore
    progress: ProgressReporter
    totals: Totals = field(default_factory=Totals)
    _buffer: bytearray = field(default_factory=bytearray)
    _links: dict[tuple[int, int], tuple[bytes, int]] = field(default_factory=dict)
    """First path of each file with several names, and how many names are still to come."""

    def stream(self) -> Iterator[bytes | bytearray]:
        stack: list[_DirectoryBeingRead] = []
        try:
            stack.append(self._enter_home())
            while stack:
                directory = stack[-1]
                name = next(directory.names, None)
                if name is None:
                    self._leave(stack.pop())
                    continue
                yield from self._add(directory, name, stack)
                if len(self._buffer) >= CHUNK:
                    yield self._take_buffer()
        except OSError as error:
            raise from_os_error(error, "cannot read the volume") from error
        finally:
            for directory in stack:
                os.close(directory.descriptor)
        self._buffer += END_OF_ARCHIVE
        yield self._take_buffer()

    def _enter_home(self) -> _DirectoryBeingRead:
        descriptor = os.dup(self.volume)
        status = os.fstat(descriptor)
        self._put(_member(b"", DIRECTORY, status, xattrs=read_xattrs(descriptor)))
        return _DirectoryBeingRead(descriptor, b"", status, iter(home_entries(descriptor)))

    def _leave(self, directory: _DirectoryBeingRead) -> None:
        after = os.fstat(directory.descriptor)
        os.close(directory.descriptor)
        if _moved(directory.status, after):
            raise changed(directory.path or b".")

    def _add(
        self, directory: _DirectoryBeingRead, name: bytes, stack: list[_DirectoryBeingRead]
    ) -> Iterator[bytes | bytearray]:
        path = directory.path + b"/" + name if directory.path else name
        try:
            status = os.stat(name, dir_fd=directory.descriptor, follow_symlinks=False)
            mode = status.st_mode
            if self.ignore.matches(path, is_directory=stat.S_ISDIR(mode)):
                return
            if stat.S_ISDIR(mode):
                stack.append(self._enter(directory.descriptor, name, path))
            elif status.st_nlink > 1 and not _is_left_out(mode) and self._link(path, status):
                pass
            elif stat.S_ISREG(mode):
                yield from self._file(directory.descriptor, name, path)
            else:
                self._special(directory.descriptor, name, path, status)
        except FileNotFoundError as error:
            raise changed(path) from error
        except OSError as error:
            raise from_os_error(error, f"cannot read {show(path)}") from error

    def _enter(self, parent: int, name: bytes, path: bytes) -> _DirectoryBeingRead:
        descriptor = os.open(name, OPEN_DIRECTORY, dir_fd=parent)
        status = os.fstat(descriptor)
        self._put(_member(path, DIRECTORY, status, xattrs=read_xattrs(descriptor)))
        return _DirectoryBeingRead(descriptor, path, status, iter(listed(descriptor)))

    def _link(self, path: bytes, status: os.stat_result) -> bool:
        """Add a hard link, and return True, if an earlier name of the same file is in the archive already."""
        key = (status.st_dev, status.st_ino)
        first, names_left = self._links.pop(key, (path, status.st_nlink))
        if names_left > 1:
            self._links[key] = (first, names_left - 1)
        if first is path:
            return False
        self._put(_member(path, HARD_LINK, status, link=first))
        self.totals.files += 1
        return True

    def _special(self, parent: int, name: bytes, path: bytes, status: os.stat_result) -> None:
        if _is_left_out(status.st_mode):
            self.totals.left_out += 1
            return
        xattrs = read_xattrs(inside(parent, name))
        if stat.S_ISLNK(status.st_mode):
            self._put(_member(path, SYMLINK, status, link=os.readlink(name, dir_fd=parent), xattrs=xattrs))
        else:
            self._put(_member(path, FIFO, status, xattrs=xattrs))
        self.totals.files += 1

    def _file(self, parent: int, name: bytes, path: bytes) -> Iterator[bytes | bytearray]:
        descriptor = os.open(name, OPEN_FILE, dir_fd=parent)
        try:
            status = os.fstat(descriptor)
            size = status.st_size
            xattrs = read_xattrs(descriptor)
            if may_have_holes(status):
                yield from self._sparse(descriptor, path, status, xattrs)
            else:
                self._put(_member(path, REGULAR, status, size=size, xattrs=xattrs))
                if size <= CHUNK:
                    self._small(descriptor, path, size)
                else:
                    yield from self._large(descriptor, path, 0, size)
                self._buffer += padding(size)
            if _moved(status, os.fstat(descriptor)):
                raise changed(path)
        finally:
            os.close(descriptor)
        self.totals.files += 1
        self.progress.advance(0, files=1)

    def _small(self, descriptor: int, path: bytes, size: int) -> None:
        data = os.read(descriptor, size) if size else b""
        while len(data) < size:
            more = os.read(descriptor, size - len(data))
            if not more:
                raise changed(path)
            data += more
        self._buffer += data
        self.progress.advance(size)

    def _large(self, descriptor: int, path: bytes, offset: int, length: int) -> Iterator[bytes | bytearray]:
        yield self._take_buffer()
        end = offset + length
        while offset < end:
            data = os.pread(descriptor, min(CHUNK, end - offset), offset)
            if not data:
                raise changed(path)
            offset += len(data)
            self.progress.advance(len(data))
            yield data

    def _sparse(
        self, descriptor: int, path: bytes, status: os.stat_result, xattrs: Xattrs
    ) -> Iterator[bytes | bytearray]:
        pieces = find_pieces(descriptor, status.st_size)
        sparse_map = encode_map(pieces, status.st_size)
        size = len(sparse_map) + pieces.data_bytes
        member = _member(path, REGULAR, status, size=size, xattrs=xattrs)
        self._put(member._replace(real_size=status.st_size))
        self._buffer += sparse_map
        for offset, length in pieces:
            yield from self._large(descriptor, path, offset, length)
        self._buffer += padding(size)

    def _put(self, member: Member) -> None:
        self._buffer += encode(member)
        self.totals.content_bytes += BLOCK + member.size
        self.progress.advance(BLOCK)

    def _take_buffer(self) -> bytearray:
        buffer, self._buffer = self._buffer, bytearray()
        return buffer


def _member(
    path: bytes, kind: bytes, status: os.stat_result, *, size: int = 0, link: bytes = b"", xattrs: Xattrs = ()
) -> Member:
    mode = stat.S_IMODE(status.st_mode)
    return Member(path, kind, mode, status.st_uid, status.st_gid, status.st_mtime_ns, size, link, xattrs)


def _is_left_out(mode: int) -> bool:
    return stat.S_ISSOCK(mode) or stat.S_ISBLK(mode) or stat.S_ISCHR(mode)


def _moved(before: os.stat_result, after: os.stat_result) -> bool:
    return (before.st_ctime_ns, before.st_size) != (after.st_ctime_ns, after.st_size)
