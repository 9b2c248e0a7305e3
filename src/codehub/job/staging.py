"""Putting a restored tree in the place of a volume's content, so that being killed anywhere does no harm.

A volume is a mount point and cannot be renamed, so its entries move one by one. The mark `.codehub-restoring-<op>` is
there first and goes last. Everything happens in `.codehub-restore-<op>`: `tree/` is unpacked; the mark `committed` says
it is whole and proven; what was in the volume moves to `old/`; the mark `cleared` says that is done; `tree/*` moves up;
the stamp `.codehub-restored-<op>` says it is finished. Each step can be done again, and the marks tell a rerun where
to go on.
"""

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from codehub.job.attributes import clear_xattrs
from codehub.job.errors import ExitCode, JobFailed, show
from codehub.job.filesystem import listed, opened_inside, remove_tree, sync_filesystem
from codehub.job.volume import (
    Stamp,
    apply_home,
    begun,
    begun_name,
    home_entries,
    mark_begun,
    read_stamp,
    staging_name,
    stamp_name,
    stamps,
    write_stamp,
)

TREE, OLD, COMMITTED, CLEARED = b"tree", b"old", b"committed", b"cleared"


def refuse_unfinished_restore(volume: int) -> None:
    """Raise CONFLICT if a restore has not finished: a half-restored home must never become an archive."""
    done = {stamp.op_id for stamp in stamps(volume)}
    for op_id in begun(volume):
        if op_id not in done:
            left = show(begun_name(op_id))
            message = f"a restore into this volume has not finished: run it again (or remove {left} if that is yours)"
            raise JobFailed(ExitCode.CONFLICT, message)


def refuse_foreign_content(volume: int) -> None:
    """Raise CONFLICT if the volume holds files that no restore put there: restoring replaces what is there."""
    ours = stamps(volume) or begun(volume)
    if not ours and home_entries(volume):
        raise JobFailed(ExitCode.CONFLICT, "the volume holds files that no restore put there")


def grant_owner_access(path: Path) -> None:
    """Give the owner access to a home whose mode denies it, as they need it to work there."""
    status = path.stat()
    if os.geteuid() == status.st_uid and status.st_mode & 0o700 != 0o700:
        path.chmod(stat.S_IMODE(status.st_mode) | 0o700)


def finished(volume: int, op_id: str) -> Stamp | None:
    stamp = read_stamp(volume, stamp_name(op_id))
    return stamp if stamp is not None and stamp.op_id == op_id else None


def committed(volume: int, op_id: str) -> Stamp | None:
    try:
        with opened_inside(volume, staging_name(op_id)) as staging:
            return read_stamp(staging, COMMITTED)
    except (FileNotFoundError, NotADirectoryError):
        return None


@contextmanager
def fresh_tree(volume: int, op_id: str) -> Iterator[int]:
    """An empty directory to unpack into, and the only staging in the volume."""
    name = staging_name(op_id)
    # Ours comes before the others go: a volume must never look as if no restore had touched it.
    with suppress(FileExistsError):
        mark_begun(volume, op_id)
    with suppress(FileExistsError):
        os.mkdir(name, 0o700, dir_fd=volume)
    for other in begun(volume):
        if other != op_id:
            _remove_staging(volume, other)
    # The volume's default ACL decided its mode, and would be inherited by all that is unpacked.
    os.chmod(name, 0o700, dir_fd=volume)
    with opened_inside(volume, name) as staging:
        clear_xattrs(staging)
        os.fchmod(staging, 0o700)
        _empty(staging)
        os.mkdir(OLD, 0o700, dir_fd=staging)
        os.mkdir(TREE, 0o700, dir_fd=staging)
        with opened_inside(staging, TREE) as tree:
            yield tree


def abandon(volume: int, op_id: str) -> None:
    """Free the space of a failed attempt. The empty staging stays where only it tells whose the content is."""
    with suppress(FileNotFoundError), opened_inside(volume, staging_name(op_id)) as staging:
        _empty(staging)
    if stamps(volume) or not home_entries(volume):
        _remove_staging(volume, op_id)


def commit(volume: int, stamp: Stamp) -> Stamp:
    """Mark the tree in staging as whole: from here on it is the home, whatever happens."""
    sync_filesystem(volume)
    with opened_inside(volume, staging_name(stamp.op_id)) as staging:
        with opened_inside(staging, TREE) as tree:
            stamp.closed.update(_closed_directories(tree))
        write_stamp(stamp, staging, staging, COMMITTED)
    return stamp


def put_in_place(volume: int, stamp: Stamp) -> None:
    with opened_inside(volume, staging_name(stamp.op_id)) as staging:
        if CLEARED not in listed(staging):
            for earlier in stamps(volume):
                remove_tree(volume, stamp_name(earlier.op_id))
            with opened_inside(staging, OLD) as old:
                _move_all(home_entries(volume), volume, old)
            os.close(os.open(CLEARED, os.O_WRONLY | os.O_CREAT, 0o600, dir_fd=staging))
            os.fsync(staging)
        if TREE in listed(staging):
            with opened_inside(staging, TREE) as tree:
                _move_all(listed(tree), tree, volume)
        for name, mode in stamp.closed.items():
            os.chmod(os.fsencode(name), mode, dir_fd=volume)
        for leftover in (TREE, OLD):
            remove_tree(staging, leftover)
        sync_filesystem(volume)
        write_stamp(stamp, staging, volume, stamp_name(stamp.op_id))
    finish(volume, stamp)


def finish(volume: int, stamp: Stamp) -> None:
    """Tidy up once the stamp is there; harmless to repeat. The home's time is the last thing set."""
    for op_id in begun(volume):
        _remove_staging(volume, op_id)
    apply_home(volume, stamp)


def _remove_staging(volume: int, op_id: str) -> None:
    name = staging_name(op_id)
    # What is no directory is no staging of ours, but has our name.
    with suppress(FileNotFoundError, NotADirectoryError), opened_inside(volume, name) as staging:
        _empty(staging)
    remove_tree(volume, name)
    remove_tree(volume, begun_name(op_id))


def _empty(staging: int) -> None:
    """Remove all that is in staging; the mark first, for it must not vouch for a tree that is half removed."""
    for name in (COMMITTED, *listed(staging)):
        remove_tree(staging, name)


def _closed_directories(tree: int) -> dict[str, int]:
    """The top directories that an ordinary user must make writable to move them, for a move changes their `..`."""
    if os.geteuid() == 0:
        return {}
    closed = {}
    for name in listed(tree):
        mode = os.stat(name, dir_fd=tree, follow_symlinks=False).st_mode
        if stat.S_ISDIR(mode) and not mode & stat.S_IWUSR:
            closed[os.fsdecode(name)] = stat.S_IMODE(mode)
    return closed


def _move_all(names: list[bytes], source: int, target: int) -> None:
    for name in names:
        try:
            os.rename(name, name, src_dir_fd=source, dst_dir_fd=target)
        except OSError as error:
            if error.errno != errno.EACCES or os.geteuid() == 0:
                raise
            mode = os.stat(name, dir_fd=source, follow_symlinks=False).st_mode
            os.chmod(name, stat.S_IMODE(mode) | stat.S_IWUSR, dir_fd=source)
            os.rename(name, name, src_dir_fd=source, dst_dir_fd=target)
