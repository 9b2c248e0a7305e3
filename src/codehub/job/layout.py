"""The names the job reserves at the top of a volume, and which entries there are the user's.

The volume's directory is the home itself, so what the job must leave in it bears the UUID of its operation, a name
that nobody else chooses. And a name proves nothing: the mark of a restore that has begun is known by where it points,
a staging directory by that mark, a stamp by what it says. Whatever else is called so is its user's, and is kept like
any file. A filesystem's own `lost+found` is no part of a home either.
"""

import os

from codehub.job.stamp import Stamp, read_stamp

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
