"""Opening a volume, and getting rid of trees inside it.

The stamp a finished restore leaves in the volume, and the same facts while the restore is being put in place.

It says which archive this home is and which operation put it there, so that a control plane that lost the answer can
find it again by running the job once more. It also holds the home's own attributes, which can only be set last.

What is mounted inside a home belongs to somebody else: it is neither archived nor deleted with it.

The kernel's table is asked once, before the work begins: what is mounted meanwhile is not seen, but nothing is paid for
each directory. Device numbers could not tell: a bind mount has the home's own, and a btrfs subvolume has another.

The names the job reserves at the top of a volume, and which entries there are the user's.

The volume's directory is the home itself, so what the job must leave in it bears the UUID of its operation, a name
that nobody else chooses. And a name proves nothing: the mark of a restore that has begun is known by where it points,
a staging directory by that mark, a stamp by what it says. Whatever else is called so is its user's, and is kept like
any file. A filesystem's own `lost+found` is no part of a home either.

Asking the kernel to put things on disk, where losing power must not lose what we said was done.
"""

import base64
import ctypes
import errno
import json
import os
import re
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from codehub.job.attributes import apply_to_descriptor, clear_xattrs
from codehub.job.errors import ExitCode, JobFailed, from_os_error, show
from codehub.job.tar_format import DIRECTORY, Member

_TABLE = Path("/proc/self/mountinfo")
_ESCAPED = re.compile(rb"\\([0-7]{3})")


def mounts_below(directory: int | Path) -> list[bytes]:
    """Where, relative to the directory; also files, which can be mounted on too."""
    path = Path(f"/proc/self/fd/{directory}").readlink() if isinstance(directory, int) else directory.resolve()
    inside = bytes(path) + b"/"
    points = (_unescaped(line.split(b" ")[4]) for line in _TABLE.read_bytes().split(b"\n") if line)
    return sorted(point.removeprefix(inside) for point in points if point.startswith(inside))


def refuse_mounts(volume: int) -> None:
    for mount in mounts_below(volume):
        raise JobFailed(ExitCode.ACTION_FAILED, _said(mount))


def keep_mounts(parent: int, name: bytes) -> None:
    """An OSError if `name`, which is about to be removed, is or holds a mount."""
    for mount in mounts_below(parent):
        if mount == name or mount.startswith(name + b"/"):
            raise OSError(errno.EBUSY, _said(mount))


def _said(mount: bytes) -> str:
    return f"another filesystem is mounted at {show(mount)}; unmount it first"


def _unescaped(path: bytes) -> bytes:
    """Spaces, tabs, line ends and backslashes are written as octal numbers there."""
    return _ESCAPED.sub(lambda found: bytes([int(found[1], 8)]), path)


OPEN_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW


@contextmanager
def opened(path: Path) -> Iterator[int]:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise from_os_error(error, f"cannot open the volume {path}") from error
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@contextmanager
def opened_inside(parent: int, name: bytes) -> Iterator[int]:
    descriptor = os.open(name, OPEN_DIRECTORY, dir_fd=parent)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def remove_tree(parent: int, name: bytes, *, enough: Callable[[], bool] = lambda: False) -> None:
    """Whatever `name` is, it is gone afterwards. Read-only directories and any depth included; no link followed.

    Unless something is mounted in it: then nothing is removed. Asked before each directory, `enough` may end it early;
    the rest can be removed another time."""
    if not _is_directory(parent, name):
        _unlink(parent, name)
        return
    keep_mounts(parent, name)
    stack = [_Doomed(parent, name)]
    try:
        while stack and not enough():
            directory = stack[-1]
            if directory.inner:
                stack.append(_Doomed(directory.descriptor, directory.inner.pop()))
            else:
                stack.pop()
                os.close(directory.descriptor)
                os.rmdir(directory.name, dir_fd=directory.parent)
    finally:
        for directory in stack:
            os.close(directory.descriptor)


class _Doomed:
    """A directory whose files are gone and whose directories are still to go."""

    def __init__(self, parent: int, name: bytes) -> None:
        self.parent, self.name = parent, name
        self.descriptor = _open_for_removal(parent, name)
        self.inner: list[bytes] = []
        try:
            self._remove_files()
        except OSError:
            os.close(self.descriptor)
            raise

    def _remove_files(self) -> None:
        with os.scandir(self.descriptor) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    self.inner.append(os.fsencode(entry.name))
                else:
                    os.unlink(entry.name, dir_fd=self.descriptor)


def _open_for_removal(parent: int, name: bytes) -> int:
    if os.geteuid() != 0:
        os.chmod(name, 0o700, dir_fd=parent)
    return os.open(name, OPEN_DIRECTORY, dir_fd=parent)


def _is_directory(parent: int, name: bytes) -> bool:
    try:
        return stat.S_ISDIR(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode)
    except FileNotFoundError:
        return False


def _unlink(parent: int, name: bytes) -> None:
    with suppress(FileNotFoundError):
        os.unlink(name, dir_fd=parent)


_LARGEST = 1 << 22


@dataclass(frozen=True)
class Stamp:
    key: str
    sha256: str
    op_id: str
    bytes: int
    files: int
    home: dict[str, Any] | None
    closed: dict[str, int] = field(default_factory=dict)
    """Modes of top directories that had to be opened up to be moved, by name."""

    def is_for(self, key: str, op_id: str) -> bool:
        return (self.key, self.op_id) == (key, op_id)


def describe_home(home: Member | None) -> dict[str, Any] | None:
    if home is None:
        return None
    xattrs = {name: base64.b64encode(value).decode() for name, value in home.xattrs}
    return {"mode": home.mode, "uid": home.uid, "gid": home.gid, "mtime_ns": home.mtime_ns, "xattrs": xattrs}


def apply_home(volume: int, stamp: Stamp) -> None:
    """Where the volume's directory belongs to someone else (Kubernetes' fsGroup), it stays as they made it."""
    if stamp.home is None or os.geteuid() not in (0, os.fstat(volume).st_uid):
        return
    xattrs = tuple((name, base64.b64decode(value)) for name, value in stamp.home["xattrs"].items())
    mode, uid, gid, mtime_ns = (int(stamp.home[name]) for name in ("mode", "uid", "gid", "mtime_ns"))
    clear_xattrs(volume)
    home = Member(b"", DIRECTORY, mode, uid, gid, mtime_ns, xattrs=xattrs)
    apply_to_descriptor(volume, home, own=os.geteuid() == 0)


def read_stamp(directory: int, name: bytes) -> Stamp | None:
    try:
        descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=directory)
    except OSError:
        return None
    try:
        with os.fdopen(descriptor, "rb") as file:
            stamp = Stamp(**json.loads(file.read(_LARGEST)))
    except (ValueError, TypeError, OSError):
        return None
    # Its place is in the user's hands: what is no work of ours vouches for nothing.
    return stamp if all(isinstance(text, str) for text in (stamp.key, stamp.sha256, stamp.op_id)) else None


def write_stamp(stamp: Stamp, scratch: int, directory: int, name: bytes) -> None:
    """Appears whole under its name or not at all. `scratch` is a directory of the same filesystem."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW
    with os.fdopen(os.open(b"stamp.new", flags, 0o600, dir_fd=scratch), "wb") as file:
        file.write(json.dumps(asdict(stamp)).encode())
        file.flush()
        os.fsync(file.fileno())
    os.rename(b"stamp.new", name, src_dir_fd=scratch, dst_dir_fd=directory)
    os.fsync(directory)


STAGING_PREFIX = b".codehub-restore-"
BEGUN_PREFIX = b".codehub-restoring-"
STAMP_PREFIX = b".codehub-restored-"
IGNORE_FILE = b".codehubignore"

_BEGUN = b"codehub is restoring this home"


def staging_name(op_id: str) -> bytes:
    return STAGING_PREFIX + os.fsencode(op_id)


def begun_name(op_id: str) -> bytes:
    return BEGUN_PREFIX + os.fsencode(op_id)


def stamp_name(op_id: str) -> bytes:
    return STAMP_PREFIX + os.fsencode(op_id)


def mark_begun(volume: int, op_id: str) -> None:
    """A symlink to nowhere: unlike a file it appears with what it says, or not at all."""
    os.symlink(_BEGUN, begun_name(op_id), dir_fd=volume)


def begun(volume: int) -> list[str]:
    """The operations of restores that have begun and were not tidied up after."""
    named = [name for name in listed(volume) if name.startswith(BEGUN_PREFIX)]
    return [os.fsdecode(name.removeprefix(BEGUN_PREFIX)) for name in named if _points_to(volume, name) == _BEGUN]


def stamps(volume: int) -> list[Stamp]:
    """What finished restores left; one, unless somebody copied another home's to here."""
    named = [name for name in listed(volume) if name.startswith(STAMP_PREFIX)]
    found = [(os.fsdecode(name.removeprefix(STAMP_PREFIX)), read_stamp(volume, name)) for name in named]
    return [stamp for op_id, stamp in found if stamp is not None and stamp.op_id == op_id]


def home_entries(volume: int) -> list[bytes]:
    """What belongs to the user at the top of the volume, sorted."""
    ours = {stamp_name(stamp.op_id) for stamp in stamps(volume)}
    for op_id in begun(volume):
        ours |= {begun_name(op_id), staging_name(op_id)}
    return [name for name in listed(volume) if name not in ours and not _is_lost_and_found(volume, name)]


def listed(directory: int) -> list[bytes]:
    return sorted(os.fsencode(name) for name in os.listdir(directory))


def _points_to(volume: int, name: bytes) -> bytes:
    try:
        return os.readlink(name, dir_fd=volume)
    except OSError:  # no symlink
        return b""


def _is_lost_and_found(volume: int, name: bytes) -> bool:
    if name != b"lost+found" or os.stat(name, dir_fd=volume, follow_symlinks=False).st_uid != 0:
        return False
    return os.stat(b"..", dir_fd=volume).st_dev != os.fstat(volume).st_dev


_SYNC_FILE_RANGE_WRITE = 2
_libc = ctypes.CDLL(None, use_errno=True)


def sync_file(path: Path, *, up_to: Path) -> None:
    """The file, and the directories that lead to it from `up_to`."""
    _sync(path)
    for directory in path.parents:
        _sync(directory)
        if directory == up_to:
            return


def start_writing(path: Path) -> None:
    """A hint: what the file has in memory may go to disk now, so that there is less to wait for at the end."""
    with suppress(OSError):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            _libc.sync_file_range(descriptor, ctypes.c_int64(0), ctypes.c_int64(0), _SYNC_FILE_RANGE_WRITE)
        finally:
            os.close(descriptor)


def sync_filesystem(descriptor: int) -> None:
    """Everything written so far to the filesystem that `descriptor` is on."""
    if _libc.syncfs(descriptor) != 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
