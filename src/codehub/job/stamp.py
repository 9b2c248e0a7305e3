"""The stamp a finished restore leaves in the volume, and the same facts while the restore is being put in place.

It says which archive this home is and which operation put it there, so that a control plane that lost the answer can
find it again by running the job once more. It also holds the home's own attributes, which can only be set last.
"""

import base64
import json
import os
from dataclasses import asdict, dataclass, field
from typing import Any

from codehub.job.attributes import apply_to_descriptor, clear_xattrs
from codehub.job.tar_format import DIRECTORY, Member

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
