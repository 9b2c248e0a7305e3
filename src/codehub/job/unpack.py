"""Members into files, inside one directory and nowhere else.

A member can only be put into a directory that this very run made and still holds open, reached by descriptor. So no
symlink is ever written through, whatever the archive says, and a directory gets its mode and time when its last
member is in. Names that come twice, or whose directory did not come before them, are refused.
"""

import os
from collections.abc import Iterable
from dataclasses import dataclass, field

from codehub.job.attributes import apply_to_descriptor, apply_to_name
from codehub.job.errors import from_os_error, refused, show
from codehub.job.filesystem import OPEN_DIRECTORY
from codehub.job.progress import ProgressReporter
from codehub.job.tar_format import BLOCK, DIRECTORY, HARD_LINK, REGULAR, SYMLINK, Member
from codehub.job.tar_reader import TarReader

CREATE_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
SMALL = 1 << 18


@dataclass
class _DirectoryBeingMade:
    path: bytes
    descriptor: int
    member: Member | None


@dataclass
class Unpacker:
    root: int
    max_bytes: int
    progress: ProgressReporter
    reserved: frozenset[bytes] = frozenset()
    """Names at the top of the home that the restore keeps for itself."""
    own: bool = field(default_factory=lambda: os.geteuid() == 0)
    home: Member | None = None
    files: int = 0
    lost_xattrs: int = 0
    first_with_lost_xattrs: bytes | None = None
    """The first member that lost an extended attribute."""
    _spent: int = 0
    _stack: list[_DirectoryBeingMade] = field(default_factory=list)

    def unpack(self, chunks: Iterable[bytes]) -> None:
        """Unpack everything in `chunks` under `root`; the home's own attributes are left in `home` for the caller."""
        reader = TarReader(chunks)
        self._stack = [_DirectoryBeingMade(b"", os.dup(self.root), None)]
        try:
            for member in reader:
                self._spend(member)
                self._add(member, reader)
            while self._stack:
                self._leave()
        finally:
            for directory in self._stack:
                os.close(directory.descriptor)

    def _spend(self, member: Member) -> None:
        self._spent += BLOCK + member.size
        if 0 < self.max_bytes < self._spent:
            raise refused(f"it holds more than the {self.max_bytes} bytes this volume may")

    def _add(self, member: Member, reader: TarReader) -> None:
        try:
            if member.path:
                self._make(member, reader)
            else:
                self._take_home(member)
        except FileExistsError as error:
            raise refused(f"{show(member.path)} comes twice") from error
        except OSError as error:
            raise from_os_error(error, f"cannot restore {show(member.path)}") from error

    def _take_home(self, member: Member) -> None:
        if self.home is not None or member.kind != DIRECTORY:
            raise refused("the home itself comes twice, or is no directory")
        self.home = member
        self.progress.advance(BLOCK)

    def _make(self, member: Member, reader: TarReader) -> None:
        parent, _, name = member.path.rpartition(b"/")
        directory = self._enter(parent, member)
        if member.kind == REGULAR:
            self._file(directory, name, member, reader)
        elif member.kind == DIRECTORY:
            self._directory(directory, name, member)
            self.progress.advance(BLOCK)
            return
        elif member.kind == HARD_LINK:
            self._hard_link(directory, name, member)
        else:
            self._special(directory, name, member)
        self.files += 1
        self.progress.advance(BLOCK, files=1)

    def _enter(self, path: bytes, member: Member) -> int:
        while (top := self._stack[-1]).path != path:
            if not top.path or path.startswith(top.path + b"/"):
                raise refused(f"{show(member.path)} comes without its directory")
            self._leave()
        if member.path in self.reserved:
            raise refused(f"{show(member.path)} is a reserved name")
        return top.descriptor

    def _leave(self) -> None:
        directory = self._stack.pop()
        try:
            if directory.member is not None:
                lost = apply_to_descriptor(directory.descriptor, directory.member, own=self.own)
                self._note_lost(lost, directory.member)
        finally:
            os.close(directory.descriptor)

    def _directory(self, parent: int, name: bytes, member: Member) -> None:
        os.mkdir(name, 0o700, dir_fd=parent)
        descriptor = os.open(name, OPEN_DIRECTORY, dir_fd=parent)
        self._stack.append(_DirectoryBeingMade(member.path, descriptor, member))

    def _file(self, parent: int, name: bytes, member: Member, reader: TarReader) -> None:
        descriptor = os.open(name, CREATE_FILE, 0o600, dir_fd=parent)
        try:
            if member.real_size is not None:
                self._sparse_content(descriptor, member, reader)
            elif member.size <= SMALL:
                self._write(descriptor, reader.small_content())
            else:
                for view in reader.content():
                    self._write(descriptor, view)
            self._note_lost(apply_to_descriptor(descriptor, member, own=self.own), member)
        finally:
            os.close(descriptor)

    def _sparse_content(self, descriptor: int, member: Member, reader: TarReader) -> None:
        for offset, length in reader.sparse_map(member):
            os.lseek(descriptor, offset, os.SEEK_SET)
            for view in reader.part(length):
                self._write(descriptor, view)
        os.ftruncate(descriptor, member.real_size or 0)

    def _write(self, descriptor: int, data: bytes | memoryview) -> None:
        written = os.write(descriptor, data) if data else 0
        if written < len(data):
            rest = memoryview(data)[written:]
            while rest:
                rest = rest[os.write(descriptor, rest) :]
        self.progress.advance(len(data))

    def _hard_link(self, directory: int, name: bytes, member: Member) -> None:
        parent, _, first = member.link.rpartition(b"/")
        source = self._open_made(parent, member)
        try:
            os.link(first, name, src_dir_fd=source, dst_dir_fd=directory, follow_symlinks=False)
        except (FileNotFoundError, PermissionError) as error:
            raise refused(
                f"{show(member.path)} is a hard link to {show(member.link)}, which is no file of it"
            ) from error
        finally:
            os.close(source)

    def _open_made(self, path: bytes, member: Member) -> int:
        """Open a directory of this archive, one component at a time from the root, through no symlink."""
        descriptor = os.dup(self.root)
        for part in path.split(b"/") if path else ():
            try:
                inner = os.open(part, OPEN_DIRECTORY, dir_fd=descriptor)
            except OSError as error:
                raise refused(f"{show(member.path)} is a hard link to outside: {show(member.link)}") from error
            finally:
                os.close(descriptor)
            descriptor = inner
        return descriptor

    def _special(self, directory: int, name: bytes, member: Member) -> None:
        if member.kind == SYMLINK:
            os.symlink(member.link, name, dir_fd=directory)
        else:
            os.mkfifo(name, 0o600, dir_fd=directory)
        has_mode = member.kind != SYMLINK
        self._note_lost(apply_to_name(directory, member, name, own=self.own, has_mode=has_mode), member)

    def _note_lost(self, xattrs: int, member: Member) -> None:
        if xattrs and self.first_with_lost_xattrs is None:
            self.first_with_lost_xattrs = member.path
        self.lost_xattrs += xattrs
