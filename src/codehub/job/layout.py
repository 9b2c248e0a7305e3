"""The names the job reserves at the top of a volume, and which entries there are the user's.

The volume's directory is the home itself, so whatever the job must leave in it carries the reserved prefix. A
filesystem's own `lost+found` is no part of a home either.
"""

import os

RESERVED_PREFIX = b".codehub-"
STAGING_PREFIX = b".codehub-restore-"
STAMP = b".codehub-restored"
IGNORE_FILE = b".codehubignore"


def is_reserved(name: bytes) -> bool:
    return name.startswith(RESERVED_PREFIX)


def staging_name(op_id: str) -> bytes:
    return STAGING_PREFIX + op_id.encode()


def home_entries(volume: int) -> list[bytes]:
    """What belongs to the user at the top of the volume, sorted."""
    return [name for name in listed(volume) if not is_reserved(name) and not _is_lost_and_found(volume, name)]


def listed(directory: int) -> list[bytes]:
    return sorted(os.fsencode(name) for name in os.listdir(directory))


def _is_lost_and_found(volume: int, name: bytes) -> bool:
    if name != b"lost+found" or os.stat(name, dir_fd=volume, follow_symlinks=False).st_uid != 0:
        return False
    return os.stat(b"..", dir_fd=volume).st_dev != os.fstat(volume).st_dev
