"""The volume as the job finds and leaves it: which of its names are the job's own, and which are the home.

The volume's directory is the home itself, so what the job must leave in it bears the UUID of its operation, a name
that nobody else chooses. And a name proves nothing: the mark of a restore that has begun is known by where it points,
a staging directory by that mark, a stamp by what it says. Whatever else is called so is its user's, and is kept like
any file. The stamp of a finished restore says which archive this home is and which operation put it there, so that a
control plane that lost the answer finds it by running the job once more. It holds the home's own attributes too, which
can only be set last. A filesystem's own `lost+found` is no part of a home.
"""

import base64
import json
import os
from dataclasses import asdict, dataclass, field
from typing import Any

from codehub.job.attributes import apply_to_descriptor, clear_xattrs
from codehub.job.filesystem import listed
from codehub.job.tar_format import DIRECTORY, Member

STAGING_PREFIX = b".codehub-restore-"
BEGUN_PREFIX = b".codehub-restoring-"
STAMP_PREFIX = b".codehub-restored-"
IGNORE_FILE = b".codehubignore"
_BEGUN = b"codehub is restoring this home"
_LARGEST_STAMP = 1 << 22


@dataclass(frozen=True)
class Stamp:
    """What a finished restore writes into the volume, and what it keeps in staging while it is being put in place."""

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
    """Set the home's own attributes, unless the volume belongs to someone else (Kubernetes' fsGroup)."""
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
            stamp = Stamp(**json.loads(file.read(_LARGEST_STAMP)))
    except (ValueError, TypeError, OSError):
        return None
    # Its place is in the user's hands: what is no work of ours vouches for nothing.
    return stamp if all(isinstance(text, str) for text in (stamp.key, stamp.sha256, stamp.op_id)) else None


def write_stamp(stamp: Stamp, scratch: int, directory: int, name: bytes) -> None:
    """Write the stamp so that it appears whole or not at all. `scratch` is a directory of the same filesystem."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW
    with os.fdopen(os.open(b"stamp.new", flags, 0o600, dir_fd=scratch), "wb") as file:
        file.write(json.dumps(asdict(stamp)).encode())
        file.flush()
        os.fsync(file.fileno())
    os.rename(b"stamp.new", name, src_dir_fd=scratch, dst_dir_fd=directory)
    os.fsync(directory)


def staging_name(op_id: str) -> bytes:
    return STAGING_PREFIX + os.fsencode(op_id)


def begun_name(op_id: str) -> bytes:
    return BEGUN_PREFIX + os.fsencode(op_id)


def stamp_name(op_id: str) -> bytes:
    return STAMP_PREFIX + os.fsencode(op_id)


def mark_begun(volume: int, op_id: str) -> None:
    """Mark that a restore has begun, with a symlink to nowhere: unlike a file it appears with its content, or not at
    all."""
    os.symlink(_BEGUN, begun_name(op_id), dir_fd=volume)


def begun(volume: int) -> list[str]:
    """The operations of restores that have begun and were not tidied up after."""
    named = [name for name in listed(volume) if name.startswith(BEGUN_PREFIX)]
    return [os.fsdecode(name.removeprefix(BEGUN_PREFIX)) for name in named if _points_to(volume, name) == _BEGUN]


def stamps(volume: int) -> list[Stamp]:
    """The stamps of finished restores: one, unless somebody copied another home's to here."""
    named = [name for name in listed(volume) if name.startswith(STAMP_PREFIX)]
    found = [(os.fsdecode(name.removeprefix(STAMP_PREFIX)), read_stamp(volume, name)) for name in named]
    return [stamp for op_id, stamp in found if stamp is not None and stamp.op_id == op_id]


def home_entries(volume: int) -> list[bytes]:
    """What belongs to the user at the top of the volume, sorted."""
    ours = {stamp_name(stamp.op_id) for stamp in stamps(volume)}
    for op_id in begun(volume):
        ours |= {begun_name(op_id), staging_name(op_id)}
    return [name for name in listed(volume) if name not in ours and not _is_lost_and_found(volume, name)]


def _points_to(volume: int, name: bytes) -> bytes:
    try:
        return os.readlink(name, dir_fd=volume)
    except OSError:  # no symlink
        return b""


def _is_lost_and_found(volume: int, name: bytes) -> bool:
    if name != b"lost+found" or os.stat(name, dir_fd=volume, follow_symlinks=False).st_uid != 0:
        return False
    return os.stat(b"..", dir_fd=volume).st_dev != os.fstat(volume).st_dev
